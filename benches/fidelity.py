"""How close to the wire does `pw-probe ping` measure, and does it send what it is told to?

Side by side in one run, on one veth pair between two namespaces: pw-probe by a packet socket and by
its generator and sink inside the kernel, iputils ping, fping,
irtt and sockperf, each at 1000 packets/s, round after round in turn. tcpdump on the sender's end
stamps every packet in the kernel; each tool's distance is the median of the RTTs it reports minus
the median RTT of the same packets on that wire. Then pw-probe alone: achieved over intended rate at
1, 10 and 100 kpps and in bursts of 100 packets at 1 Mpps, once as veth is (the sending CPU itself
carries the packet to the other end, answers it and carries the answer back: that is the price of
each packet) and once with the other end's receive work on another CPU, as a wire would have it.

All tools run with real-time priority where that is allowed, so that what else a machine does hits
none of them. A bench shows figures; it neither passes nor fails. Needs root, or a user namespace.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

A, B = "198.18.0.1", "198.18.0.2"


@dataclass(frozen=True)
class Wire:
    """Two namespaces joined by a veth pair: `wire0` in `sender`, `wire1` in `responder`."""

    sender: str
    responder: str

    priority: tuple[str, ...] = ()
    """Puts what it precedes above all else that runs on this machine; the same for every tool."""

    def command(self, netns: str, *argv: str) -> list[str]:
        return ["ip", "netns", "exec", netns, *self.priority, *argv]

    def run(
        self, netns: str, *argv: str, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(netns, *argv), capture_output=True, text=True, timeout=60
        )

    @contextlib.contextmanager
    def background(self, netns: str, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            self.command(netns, *argv), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            process.kill()
            process.wait()


@contextlib.contextmanager
def wire() -> Iterator[Wire]:
    """Builds the wire; removes it whatever happens."""
    token = secrets.token_hex(3)
    names = [f"bench-{token}-a", f"bench-{token}-b"]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip(
            *("link", "add", "wire0", "netns", names[0], "type", "veth"),
            *("peer", "name", "wire1", "netns", names[1]),
        )
        for name, interface, address in zip(names, ("wire0", "wire1"), (A, B), strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
            _ip("-n", name, "link", "set", interface, "up")
        realtime = ("chrt", "-f", "1")
        allowed = subprocess.run([*realtime, "true"], capture_output=True, check=False)
        yield Wire(names[0], names[1], realtime if allowed.returncode == 0 else ())
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*argv: str) -> None:
    subprocess.run(["ip", *argv], check=True, capture_output=True, text=True)


# --- What the wire saw -------------------------------------------------------------------------


def wire_rtts_ns(capture: Path) -> list[int]:
    """RTTs of all request and answer pairs in a nanosecond pcap, in order of the requests."""
    data = capture.read_bytes()
    if len(data) < 24 or struct.unpack_from("<I", data)[0] != 0xA1B23C4D:
        return []
    sent: dict[bytes, int] = {}
    rtts = []
    at = 24
    while at + 16 <= len(data):
        seconds, nanos, kept, _ = struct.unpack_from("<IIII", data, at)
        frame = data[at + 16 : at + 16 + kept]
        at += 16 + kept
        key = _probe_key(frame)
        if key is None:
            continue
        stamp = seconds * 1_000_000_000 + nanos
        if frame[26:30] == bytes(map(int, A.split("."))):
            sent.setdefault(key, stamp)
        elif key in sent:
            rtts.append(stamp - sent.pop(key))
    return rtts


def _probe_key(frame: bytes) -> bytes | None:
    """What a request and its answer have in common, and no other packet; none for other packets."""
    if frame[12:14] != b"\x08\x00" or len(frame) < 42:
        return None
    upper = frame[34:]
    if frame[23] == 1 and upper[0] in (0, 8):  # ICMP echo: identifier, numbers, our sequence number
        warming_up = upper[8:12] == b"PWP1" and upper[12] & 0x80
        return None if warming_up else b"icmp" + upper[4:20]
    if frame[23] != 17:
        return None
    source, destination = struct.unpack_from("!HH", upper)
    ports = struct.pack("!HH", *sorted((source, destination)))
    payload = upper[8:]
    if IRTT_PORT in (source, destination):  # connection token and sequence number
        return b"irtt" + ports + payload[4:16]
    return b"udp" + ports + payload[:8]  # sockperf: sequence number


# --- The tools ---------------------------------------------------------------------------------

IRTT_PORT, SOCKPERF_PORT = 2112, 11111


@dataclass
class Tool:
    """A tool under test: `measure` returns the RTTs that it reports for `count` packets [ns]."""

    name: str
    program: str
    measure: Callable[[Wire, int, Path], list[float]]
    server: tuple[str, ...] = ()
    reported: list[float] = field(default_factory=list)
    on_wire: list[int] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    kernel: list[float] = field(default_factory=list)


def _pw_probe(wire: Wire, count: int, scratch: Path, *, path: str = "packet") -> list[float]:
    packets = scratch / "packets.csv"
    wire.run(
        wire.sender,
        *("pw-probe", "ping", B, "--rate", "1000", "--count", str(count)),
        *("--path", path, "--packets", str(packets)),
    )
    rows = [line.split(",") for line in packets.read_text().splitlines()[1:]]
    if path == "packet":
        _KERNEL.extend(float(r[4]) - float(r[3]) for r in rows if r[3] and r[4])
    return [float(r[5]) - float(r[2]) for r in rows if r[5]]


_KERNEL: list[float] = []


def _iputils(wire: Wire, count: int, scratch: Path) -> list[float]:
    shown = wire.run(wire.sender, "ping", "-n", "-i", "0.001", "-c", str(count), B).stdout
    return [float(ms) * 1e6 for ms in re.findall(r"time=([0-9.]+) ms", shown)]


def _fping(wire: Wire, count: int, scratch: Path) -> list[float]:
    shown = wire.run(wire.sender, "fping", "-q", "-p", "1", "-C", str(count), B).stderr
    return [float(ms) * 1e6 for ms in re.findall(r" ([0-9.]+)", shown.partition(" :")[2])]


def _irtt(wire: Wire, count: int, scratch: Path) -> list[float]:
    result = scratch / "irtt.json"
    duration = f"{count}ms"
    wire.run(wire.sender, "irtt", "client", "-i", "1ms", "-d", duration, "-o", str(result), "-Q", B)
    trips = json.loads(result.read_text())["round_trips"]
    result.unlink()
    return [float(trip["delay"]["rtt"]) for trip in trips if trip["delay"].get("rtt")]


def _sockperf(wire: Wire, count: int, scratch: Path) -> list[float]:
    log = scratch / "sockperf.csv"
    wire.run(
        wire.sender,
        *("sockperf", "under-load", "-i", B, "-p", str(SOCKPERF_PORT), "--mps", "1000"),
        *("--reply-every", "1", "-t", str(max(1, count // 1000)), "--full-log", str(log)),
    )
    rows = re.findall(r"^\d+, ([0-9.]+), ([0-9.]+), ", log.read_text(), re.MULTILINE)
    log.unlink()
    return [(float(received) - float(sent)) * 1e9 for sent, received in rows]


def tools() -> list[Tool]:
    return [
        Tool("pw-probe ping", "pw-probe", _pw_probe),
        Tool("pw-probe --path live", "pw-probe", partial(_pw_probe, path="live")),
        Tool("iputils ping", "ping", _iputils),
        Tool("fping", "fping", _fping),
        Tool("irtt", "irtt", _irtt, ("irtt", "server", "-b", f"{B}:{IRTT_PORT}", "-i", "0")),
        Tool(
            "sockperf",
            "sockperf",
            _sockperf,
            ("sockperf", "server", "-i", B, "-p", str(SOCKPERF_PORT)),
        ),
    ]


def one_round(wire: Wire, tool: Tool, count: int, scratch: Path) -> None:
    """Runs one tool once, captured on the wire."""
    capture = scratch / "wire.pcap"
    with contextlib.ExitStack() as running:
        if tool.server:
            running.enter_context(wire.background(wire.responder, *tool.server))
        with wire.background(
            wire.sender,
            *("tcpdump", "-i", "wire0", "-n", "-s", "80", "-B", "8192", "-Z", "root"),
            *("--time-stamp-precision", "nano", "-w", str(capture), "icmp or udp"),
        ):
            time.sleep(0.5)
            reported = tool.measure(wire, count, scratch)
            time.sleep(0.2)
    on_wire = wire_rtts_ns(capture)
    capture.unlink(missing_ok=True)
    if not reported or not on_wire:
        raise RuntimeError(f"{tool.name} reported {len(reported)}, the wire saw {len(on_wire)}")
    tool.reported += reported
    tool.on_wire += on_wire
    tool.distances.append(statistics.median(reported) - statistics.median(on_wire))


def percentile(values: list[float] | list[int], share: float) -> float:
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


# --- The parts of the bench --------------------------------------------------------------------


def compare(wire: Wire, rounds: int, count: int, scratch: Path) -> list[dict[str, object]]:
    """Fidelity of every tool that is installed."""
    present = []
    for tool in tools():
        if shutil.which(tool.program):
            present.append(tool)
        else:
            print(f"{tool.name}: not installed, left out", file=sys.stderr)
    for number in range(rounds):
        # Another order every round, so that no tool always follows the same one.
        for tool in present[number % len(present) :] + present[: number % len(present)]:
            print(f"\rround {number + 1}/{rounds}: {tool.name:<22}", end="", file=sys.stderr)
            try:
                one_round(wire, tool, count, scratch)
            except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                print(f"\n{tool.name}: {error}", file=sys.stderr)
    print(file=sys.stderr)
    rows: list[dict[str, object]] = []
    for tool in present:
        if not tool.reported:
            continue
        row: dict[str, object] = {
            "tool": tool.name,
            "packets": len(tool.reported),
            "p50_ns": percentile(tool.reported, 0.5),
            "p99_ns": percentile(tool.reported, 0.99),
            "wire_p50_ns": percentile(tool.on_wire, 0.5),
            "wire_p99_ns": percentile(tool.on_wire, 0.99),
            "distance_ns": statistics.median(tool.distances),
            "distances_ns": tool.distances,
        }
        if tool.name == "pw-probe ping":
            row["own_kernel_p50_ns"] = percentile(_KERNEL, 0.5)
        rows.append(row)
    return rows


def rates(wire: Wire, duration_s: float) -> list[dict[str, object]]:
    """Achieved over intended rate of pw-probe ping."""
    burst = ("--rate", "1M", "--burst", "100", "--burst-every", "0.01")
    cases: list[tuple[str, tuple[str, ...], bool]] = [
        ("1 kpps", ("--rate", "1k"), False),
        ("10 kpps", ("--rate", "10k"), False),
        ("100 kpps", ("--rate", "100k"), False),
        ("bursts of 100 at 1 Mpps", burst, False),
    ]
    if (os.cpu_count() or 1) > 1:
        cases += [
            ("100 kpps, answered on another CPU", ("--rate", "100k"), True),
            ("bursts of 100 at 1 Mpps, answered on another CPU", burst, True),
        ]
    rows: list[dict[str, object]] = []
    for name, options, elsewhere in cases:
        _steer(wire, "2" if elsewhere else "0")
        pin = ("--cpu", "0") if elsewhere else ()
        done = wire.run(
            wire.sender, "pw-probe", "ping", B, "--duration", str(duration_s), *options, *pin
        )
        if done.returncode != 0:
            print(f"{name}: {done.stderr.strip()}", file=sys.stderr)
            continue
        output = json.loads(done.stdout)
        load = output["burst"] or output["load"]
        rows.append(
            {
                "case": name,
                "intended_pps": load["intended_pps"],
                "achieved_pps": load["achieved_pps"],
                "ratio": load["achieved_pps"] / load["intended_pps"],
                "mean_ratio": output["load"]["achieved_pps"] / output["load"]["intended_pps"],
                "counts": output["counts"],
                "slip_p50_ns": output["slip"]["p50_ns"],
                "slip_p99_ns": output["slip"]["p99_ns"],
                "limits": output["limits"],
            }
        )
    _steer(wire, "0")
    return rows


def _steer(wire: Wire, cpus: str) -> None:
    """Lets the CPUs of a hexadecimal mask do the responder's receive work (0: who sent it)."""
    script = f"echo {cpus} > /sys/class/net/wire1/queues/rx-0/rps_cpus"
    done = wire.run(wire.responder, "sh", "-c", script)
    if done.returncode != 0:
        print(f"receive work stays where it is: {done.stderr.strip()}", file=sys.stderr)


def show(fidelity: list[dict[str, object]], sending: list[dict[str, object]]) -> None:
    print("RTT at 1000 packets/s [us]: what the tool says, and what the wire says of its packets")
    print(f"{'tool':<22}{'p50':>9}{'p99':>9}{'wire p50':>10}{'wire p99':>10}{'distance':>10}")
    for row in sorted(fidelity, key=lambda row: abs(float(str(row["distance_ns"])))):
        columns = ("p50_ns", "p99_ns", "wire_p50_ns", "wire_p99_ns", "distance_ns")
        values = [float(str(row[column])) / 1000 for column in columns]
        print(
            f"{row['tool']:<22}{values[0]:>9.2f}{values[1]:>9.2f}"
            f"{values[2]:>10.2f}{values[3]:>10.2f}{values[4]:>10.2f}"
        )
        if "own_kernel_p50_ns" in row:
            own = float(str(row["own_kernel_p50_ns"])) / 1000
            print(f"{'  its own kernel stamps':<34}{own:>10.2f}")
    print("\nRate of pw-probe ping")
    print(f"{'case':<50}{'achieved/intended':>18}{'slip p50':>12}{'p99 [us]':>10}  limits")
    for row in sending:
        limits = row["limits"]
        print(
            f"{row['case']:<50}{float(str(row['ratio'])):>18.5f}"
            f"{float(str(row['slip_p50_ns'])) / 1000:>12.2f}"
            f"{float(str(row['slip_p99_ns'])) / 1000:>10.2f}"
            f"  {', '.join(limits) if isinstance(limits, list) else ''}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--count", type=int, default=1000, help="packets a tool and round")
    parser.add_argument("--duration", type=float, default=2.0, help="of each rate [s]")
    parser.add_argument("--json", type=Path, default=Path("runs/bench/fidelity.json"))
    args = parser.parse_args()
    if not shutil.which("pw-probe"):
        sys.exit(
            "pw-probe is not on PATH: run `make bench`, or `make setup` and . .venv/bin/activate"
        )
    if not shutil.which("tcpdump"):
        sys.exit(
            "tcpdump is missing, which stamps the packets on the wire: run `make bench` as root"
        )
    try:
        with wire() as cable, tempfile.TemporaryDirectory() as scratch:
            fidelity = compare(cable, args.rounds, args.count, Path(scratch))
            sending = rates(cable, args.duration)
    except subprocess.CalledProcessError as error:
        sys.exit(f"cannot build namespaces ({error.stderr.strip()}): run as root")
    show(fidelity, sending)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    result = {"fidelity": fidelity, "rates": sending, "load_average": load}
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nload average of this machine {load:.1f}; figures in {args.json}")


if __name__ == "__main__":
    main()
