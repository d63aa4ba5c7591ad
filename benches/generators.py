"""Generators side by side on one veth pair: those of `pw-probe trial`, and others that are here.

    python benches/generators.py [--seconds 1] [--repeat 2] [--json FILE]

64-byte frames. First what each generator sends at most, in turn, `--repeat` times over: rate (the
best, in packets/s and as a multiple of xdp-trafficgen's), whether it paces, and whether every frame
is accounted for. Then each of ours at set rates up to the first that it misses by a tenth,
and with bursts of 100 at 1 Mpps; then how much later than due frames leave the interface, by rate
and batch. The generator is bound to the first CPU. Frames are dropped by native XDP at the far end
where the generator sends XDP frames, with the work of that end on the generator's CPU and on
another one (threaded NAPI). Needs root. Generators that are not here are named with the reason.
Never passes or fails. What FILE has is not measured again: a bench that was ended goes on. Takes
about three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.linux.probe import End, Network, cable, run

SIZE = ("--size", "64")
OURS = (
    ("af_packet", "af_packet"),
    ("live-skb", "tc-ingress"),
    ("live", "xdp-native"),
)
"""Generators of pw-probe with the sinks that they are for."""
PACED_PPS = (
    *(1_000, 10_000, 100_000, 300_000, 500_000, 550_000, 600_000, 650_000, 700_000, 800_000),
    *(1_000_000, 1_500_000, 2_000_000, 3_000_000, 4_000_000),
)
TRIES, WITHIN = 3, 0.9999
RATES_PPS = (100_000, 1_000_000, 2_000_000, 3_000_000)
BATCHES = (1, 8, 16, 64)


Entry = dict[str, Any]
"""One measurement; `error` where there could be none."""


@dataclass(frozen=True)
class Place:
    """Where a generator sends: the cable, and the CPUs."""

    network: Network
    generator_cpu: int
    other_cpu: int
    seconds: float


def ours(place: Place, generator: str, sink: str, *load: str) -> Entry:
    """One trial; `error` where it could not be run."""
    ends = place.network
    done = run(
        *("trial", "--tx", ends.a.spec, "--rx", ends.b.spec, "--dst", ends.b.ipv4),
        *("--dst-mac", "rx", "--tx-cpu", str(place.generator_cpu)),
        *("--rx-cpu", str(place.other_cpu), "--max-pps", "1000M", *SIZE),
        *("--duration", f"{place.seconds:g}", "--backend", generator, "--sink", sink, *load),
        timeout_s=60 + 10 * place.seconds,
    )
    if done.code:
        return {"error": done.stderr.strip().splitlines()[0]}
    output = done.output
    departure = output["generator"]["departure"] or output["generator"]["slip"]
    return {
        "pps": output["achieved_pps"],
        "ratio": output["achieved_pps"] / output["intended_pps"],
        "lost": output["lost"],
        "unexplained": output["unexplained"],
        "departure_ns": [departure[part] for part in ("p50_ns", "p99_ns", "max_ns")],
    }


@contextmanager
def napi_elsewhere(end: End, cpu: int) -> Iterator[None]:
    """The receive work of an interface in a thread on a CPU of its own, as soon as the interface
    has a program, and with it the work that can be moved."""
    name = end.interface
    mover = (
        f"until echo 1 >/sys/class/net/{name}/threaded; do sleep 0.02; done 2>/dev/null; "
        f"for thread in $(pgrep '^napi/{name}'); do taskset -cp {cpu} $thread; done"
    )
    inside = ("ip", "netns", "exec", end.netns)
    with subprocess.Popen([*inside, "timeout", "5", "sh", "-c", mover], stdout=subprocess.DEVNULL):
        yield


def received(end: End) -> tuple[int, float]:
    """Frames that an interface has received, those that XDP dropped among them, and when [s]."""
    began = time.monotonic()
    frames = end.counter("rx_packets")
    return frames, (began + time.monotonic()) / 2


DROP = '__attribute__((section("xdp"), used)) int drop(void *c) { return 1; }'
"""Drops whatever comes, and lets the far end take XDP frames."""


@contextmanager
def dropping(end: End) -> Iterator[None]:
    """Native XDP that drops everything at an interface."""
    compiler = ("clang", "-O2", "-target", "bpf", "-x", "c", "-c", "-", "-o")
    link = ("ip", "-n", end.netns, "link", "set", end.interface)
    with TemporaryDirectory() as directory:
        made = f"{directory}/drop.o"
        subprocess.run([*compiler, made], input=DROP, text=True, check=True)
        subprocess.run([*link, "xdpdrv", "obj", made, "sec", "xdp"], check=True)
    try:
        yield
    finally:
        subprocess.run([*link, "xdp", "off"], check=True)


@contextmanager
def mended() -> Iterator[tuple[str, ...]]:
    """What xdp-trafficgen is started by, so that it runs on kernels newer than its own."""
    source = Path(__file__).with_name("xdp_trafficgen.c")
    with TemporaryDirectory() as directory:
        made = f"{directory}/mended.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", made, str(source), "-lbpf"], check=True)
        yield ("env", f"LD_PRELOAD={made}")


def trafficgen(place: Place) -> Entry:
    """xdp-trafficgen as `foreign` measures it."""
    network = place.network
    with mended() as started_by:
        udp = ("xdp-trafficgen", "udp", network.a.interface, "-m", network.b.mac)
        return foreign(place, udp, xdp=True, started_by=started_by)


def foreign(
    place: Place, command: Sequence[str], *, xdp: bool, started_by: Sequence[str] = ()
) -> Entry:
    """What a generator that does not end by itself brings to the far end, by its counter."""
    network = place.network
    if shutil.which(command[0]) is None:
        return {"error": f"{command[0]} is not installed"}
    pinned = ("ip", "netns", "exec", network.a.netns, "taskset", "-c", str(place.generator_cpu))
    with dropping(network.b) if xdp else nullcontext(), TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*pinned, *started_by, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            time.sleep(2)
            before, began = received(network.b)
            time.sleep(place.seconds)
            after, ended_at = received(network.b)
            frames = after - before
            ended = process.poll() is not None
        finally:
            process.terminate()
            process.wait()
        if ended or not frames:
            log.seek(0)
            lines = [line.strip() for line in log if line.strip()]
            return {"error": f"sent nothing here: {lines[-1] if lines else 'it said nothing'}"}
    return {"pps": frames / (ended_at - began)}


def generators(place: Place) -> Iterator[tuple[str, bool, bool, Callable[[], Entry]]]:
    """Name, whether it paces, whether it accounts, and what measures it."""
    network = place.network
    for generator, sink in OURS:
        most = partial(ours, place, generator, sink, "--rate", "12M")
        yield f"pw-probe {generator}", True, True, most
    yield "pw-probe live, NAPI elsewhere", True, True, partial(elsewhere, place)
    yield "xdp-trafficgen", False, False, partial(trafficgen, place)
    for driver in ("net_af_packet0", "net_af_xdp0"):
        bypass = ",qdisc_bypass=1" if "packet" in driver else ""
        testpmd = (
            *("dpdk-testpmd", "--lcores", f"0@{place.other_cpu},1@{place.generator_cpu}"),
            *("--no-pci", "--no-huge", "-m", "256", "--no-telemetry", "--no-shconf"),
            *("--vdev", f"{driver},iface={network.a.interface}{bypass}"),
            *("--", "--no-mlockall", "--forward-mode=txonly", "--txpkts=60", "--auto-start"),
            *(f"--eth-peer=0,{network.b.mac}", "--total-num-mbufs=4096", "--stats-period=60"),
        )
        yield f"testpmd {driver[:-1]}", False, False, partial(foreign, place, testpmd, xdp=False)


def elsewhere(place: Place) -> Entry:
    """Ours with the far end's work on another CPU, on a cable of its own: it stays there."""
    with cable() as network, napi_elsewhere(network.b, place.other_cpu):
        return ours(replace(place, network=network), "live", "xdp-native", "--rate", "12M")


def best(rounds: Sequence[Entry]) -> Entry:
    """The round with the highest rate."""
    return max(rounds, key=lambda entry: entry.get("pps", 0.0))


class Results:
    """What was measured, by name, kept in a file after each measurement where there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        there = path is not None and path.exists()
        self._entries: dict[str, Entry] = json.loads(path.read_text()) if path and there else {}

    def entry(self, name: str, measure: Callable[[], Entry]) -> Entry:
        """That of an earlier run, or of a measurement now."""
        if name not in self._entries:
            self._entries[name] = measure()
            if self._path is not None:
                self._path.write_text(json.dumps(self._entries, indent=1) + "\n")
        return self._entries[name]


def most(place: Place, repeat: int, results: Results) -> dict[str, Entry]:
    """What each generator sends at most, in turn."""
    rounds: dict[str, list[Entry]] = {}
    facts: dict[str, tuple[bool, bool]] = {}
    for number in range(repeat):
        for name, paces, accounts, measure in generators(place):
            rounds.setdefault(name, []).append(results.entry(f"most: {name} {number}", measure))
            facts[name] = (paces, accounts)
    table = {name: best(found) for name, found in rounds.items()}
    for name, entry in table.items():
        entry["paces"], entry["accounts"] = facts[name]
    if not Path("/proc/net/pktgen").exists():
        table["pktgen"] = {"error": "this kernel has no pktgen (CONFIG_NET_PKTGEN)"}
    return table


def print_most(table: Mapping[str, Entry]) -> None:
    """The first table."""
    beside = table.get("xdp-trafficgen", {}).get("pps")
    print(f"{'generator':<30} {'Mpps':>7} {'x trafficgen':>12}  paced accounted  lost  unexplained")
    for name, entry in table.items():
        if "error" in entry:
            print(f"{name:<30} {'-':>7}  {entry['error']}")
            continue
        times = f"{entry['pps'] / beside:.2f}" if beside else "-"
        words = ("yes" if entry["paces"] else "no", "yes" if entry["accounts"] else "no")
        lost = f"{entry['lost']} {entry['unexplained']:>8}" if "lost" in entry else "not known"
        print(
            f"{name:<30} {entry['pps'] / 1e6:7.3f} {times:>12}  {words[0]:<5} {words[1]:<9} {lost}"
        )


def line_of(entry: Entry) -> str:
    """One trial, for people."""
    if "error" in entry:
        return str(entry["error"])
    times = " ".join(f"{ns / 1000:9.2f}" for ns in entry["departure_ns"])
    return f"{entry['ratio']:9.6f} {entry['lost']:9} {entry['unexplained']:9}  {times}"


def kept(place: Place, generator: str, sink: str, rate: int) -> Entry:
    """The best of several trials at a rate: a pause of the machine is no limit of the generator."""
    tries: list[Entry] = []
    while len(tries) < TRIES and not any(one.get("ratio", 0.0) >= WITHIN for one in tries):
        tries.append(ours(place, generator, sink, "--rate", str(rate)))
    return max(tries, key=lambda entry: entry.get("ratio", 0.0))


def print_paced(place: Place, results: Results) -> None:
    """The second table: rates that are kept, and bursts."""
    print("\nachieved/intended, lost, unexplained, departure after due [us]: p50, p99, max")
    bursts = ("--rate", "1M", "--burst", "100", "--interval", "0.01")
    for generator, sink in OURS:
        for rate in PACED_PPS:
            measure = partial(kept, place, generator, sink, rate)
            entry = results.entry(f"paced: {generator} {rate}", measure)
            print(f"{generator:>10} {rate:>8} pps  {line_of(entry)}")
            if entry.get("ratio", 0.0) < 0.9:
                break
        measure = partial(ours, place, generator, sink, *bursts)
        entry = results.entry(f"bursts: {generator}", measure)
        print(f"{generator:>10} bursts of 100 {line_of(entry)}")


def print_departures(place: Place, results: Results) -> None:
    """The third table: the error of departure by rate and batch."""
    print("\nthe same of `live`, by rate and batch")
    for rate in RATES_PPS:
        for batch in BATCHES:
            load = ("--rate", str(rate), "--batch", str(batch))
            measure = partial(ours, place, "live", "xdp-native", *load)
            entry = results.entry(f"departure: {rate} {batch}", measure)
            print(f"{rate:>9} pps  batch {batch:<3} {line_of(entry)}")


def main() -> None:
    """Measures and prints three tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if os.geteuid():
        sys.exit("needs root: the generators in the kernel are loaded into it")
    cpus = sorted(os.sched_getaffinity(0))
    results = Results(args.json)
    with cable() as network:
        place = Place(network, cpus[0], cpus[-1], args.seconds)
        print_most(most(place, args.repeat, results))
        print_paced(place, results)
        print_departures(place, results)


if __name__ == "__main__":
    main()
