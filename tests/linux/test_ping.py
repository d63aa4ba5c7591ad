"""pw-probe ping and reflect on real namespaces: counts, stamps, limits and errors are what they
should be under planted loss, overload and vanished interfaces."""

from __future__ import annotations

import csv
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram

from planewise.measure.trials.applications import REDIS, REDIS_PORT, redis_command
from planewise.store.models import Counts, Latency, OfferedLoad
from planewise.testbed.hosts.host import find_probe
from tests.linux.probe import (
    Network,
    Outcome,
    Running,
    eventually,
    ip,
    passing_on,
    run,
    without_ipv6,
)

pytestmark = pytest.mark.linux


def ping(network: Network, *args: str | Path, target: str = "") -> Outcome:
    return run("ping", target or network.b.ipv4, *args, netns=network.a.netns)


@contextmanager
def reflector(network: Network, *args: str) -> Iterator[Running]:
    with Running("reflect", *args, netns=network.b.netns) as running:
        assert running.process.stderr is not None
        line = running.process.stderr.readline()
        assert "reflecting on UDP port" in line, line + running.process.stderr.read()
        yield running


def check_account(output: dict[str, Any]) -> None:
    counts = output["counts"]
    assert counts["sent"] == counts["received"] + counts["lost"]
    refused = sum(output["refused"].values())
    assert counts["sent"] + refused <= output["planned"]


def check_stamps(rows: list[dict[str, str]]) -> None:
    """Stamps of one packet come in order: nothing leaves before it is due or sent."""
    assert rows
    for row in rows:
        names = ("scheduled_ns", "user_tx_ns", "kernel_tx_ns", "kernel_rx_ns", "user_rx_ns")
        stamps = [int(row[name]) for name in names if row[name]]
        # The schedule is computed from another reading of the clocks: a microsecond off, at most.
        assert stamps[0] - 1000 <= stamps[1], row
        assert stamps[1:] == sorted(stamps[1:]), row


@pytest.mark.parametrize("version", [4, 6])
def test_every_echo_over_a_cable_is_answered_and_stamped(
    netns_pair: Network, tmp_path: Path, version: int
) -> None:
    file = tmp_path / "packets.csv"
    target = netns_pair.b.ipv4 if version == 4 else netns_pair.b.ipv6
    options = ("--count", "300", "--packets", file)
    done = ping(netns_pair, *options, target=target)
    assert done.code == 0, done.stderr
    output = done.output
    check_account(output)
    OfferedLoad.model_validate(output["load"])
    assert Counts.model_validate(output["counts"]) == Counts(sent=300, received=300, lost=0)
    for metric in ("rtt_user", "rtt_kernel", "slip"):
        assert Latency.model_validate(output[metric]).count == 300
    assert output["rtt_kernel"]["p50_ns"] < output["rtt_user"]["p50_ns"]
    assert output["ip_version"] == version
    assert output["size_bytes"] == (64 if version == 4 else 78)
    assert output["path"] == "packet"
    assert output["interface"] == "veth0"
    assert (output["tx_stamps_missing"], output["rx_stamps_missing"]) == (0, 0)
    assert sum(output["cpu"]["all"].values()) == pytest.approx(1, abs=0.01)
    rows = list(csv.DictReader(file.open()))
    assert [int(row["seq"]) for row in rows] == list(range(300))
    check_stamps(rows)


def test_a_frame_on_the_wire_has_the_size_that_was_asked_for(netns_pair: Network) -> None:
    without_ipv6(netns_pair.a.netns, netns_pair.b.netns)
    before = netns_pair.b.counter("rx_bytes"), netns_pair.b.counter("rx_packets")
    assert ping(netns_pair, "--count", "50", "--size", "1000").code == 0
    bytes_ = netns_pair.b.counter("rx_bytes") - before[0]
    packets = netns_pair.b.counter("rx_packets") - before[1]
    # Interface counters leave the FCS out. What is no probe (ARP, ND) has up to 120 bytes.
    fits = [
        probes
        for probes in range(50, packets + 1)
        if probes * 996 <= bytes_ <= probes * 996 + (packets - probes) * 120
    ]
    assert fits, f"{bytes_} bytes in {packets} packets"


def test_stamp_tells_the_time_in_the_reflector(netns_pair: Network) -> None:
    with reflector(netns_pair) as running:
        for target in (netns_pair.b.ipv4, netns_pair.b.ipv6):
            options = ("--proto", "stamp", "--count", "200", "--size", "200")
            done = ping(netns_pair, *options, target=target)
            assert done.code == 0, done.stderr
            assert done.output["counts"]["received"] == 200
            reflected = Latency.model_validate(done.output["reflector"])
            assert reflected.count == 200
            assert reflected.min_ns > 0
            # The answer cannot stay longer in the reflector than it is away; both may lie in one
            # bin of their histograms.
            assert reflected.p50_ns <= done.output["rtt_kernel"]["p50_ns"]
        stopped = running.stop()
    assert stopped.code == 0, stopped.stderr
    assert stopped.output["reflected"] == stopped.output["received"] >= 400
    assert stopped.output["malformed"] == 0
    assert stopped.output["residence"]["count"] == stopped.output["reflected"]


def test_a_hand_made_stamp_request_is_answered_by_the_rfcs_bytes(netns_pair: Network) -> None:
    script = (
        "import socket,sys\n"
        "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(5)\n"
        "s.setsockopt(socket.IPPROTO_IP,socket.IP_TTL,61)\n"
        "s.sendto(bytes.fromhex('00000007e2050101800000008a01beef'+'00'*28),(sys.argv[1],862))\n"
        "print(s.recv(2000).hex())\n"
    )
    with reflector(netns_pair):
        answer = bytes.fromhex(netns_pair.a.run(sys.executable, "-c", script, netns_pair.b.ipv4))
    assert len(answer) == 44
    assert answer[0:4] == answer[24:28] == bytes([0, 0, 0, 7]), "sequence number, both times"
    assert answer[14:16] == bytes([0xBE, 0xEF]), "session identifier"
    assert answer[28:36] == bytes.fromhex("e205010180000000"), "the sender's time"
    assert answer[36:38] == bytes([0x8A, 0x01]), "the sender's error estimate"
    assert answer[38:40] == bytes(2)
    assert answer[40:44] == bytes([61, 0, 0, 0]), "the sender's TTL"
    received, sent = answer[16:24], answer[4:12]
    assert received <= sent
    now = int(time.time()) + 2_208_988_800
    assert abs(int.from_bytes(sent[:4], "big") - now) < 10, "NTP seconds"


_ECHO_FORWARDER = r"""
import select, socket, sys, time
left, right = (socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) for _ in range(2))
for it, name in ((left, "left"), (right, "right")):
    it.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    it.bind((name, 0))
drop, twice, hold = (int(x) for x in sys.argv[1:4])
sleep_s = float(sys.argv[4])
held = []
print("ready", flush=True)
while True:
    for it in select.select([left, right], [], [])[0]:
        frame, (_, _, kind, *_) = it.recvfrom(65535)
        if kind == socket.PACKET_OUTGOING:
            continue
        other = right if it is left else left
        sequence = int.from_bytes(frame[46:54], "big") if frame[42:46] == b"PWP1" else 1 << 63
        if it is right or sequence >> 63:
            other.send(frame)
            continue
        place = sequence % 10
        if place == drop:
            continue
        if place == hold:
            held.append(frame)
            continue
        time.sleep(sleep_s)
        for _ in range(2 if place == twice else 1):
            other.send(frame)
        while held:
            other.send(held.pop())
"""


@contextmanager
def echo_forwarder(
    netns: str, *, drop: int = -1, twice: int = -1, hold: int = -1, sleep_s: float = 0
) -> Iterator[None]:
    """Passes frames on between `left` and `right`. Of every ten echo requests it drops the one at
    place `drop`, sends the one at `twice` twice and the one at `hold` after the next; each waits
    `sleep_s`. Warm-up requests pass untouched."""
    with passing_on(netns, _ECHO_FORWARDER, drop, twice, hold, sleep_s):
        yield


def test_planted_loss_duplicates_and_reordering_are_counted_exactly(
    netns_relay: Network, tmp_path: Path
) -> None:
    file = tmp_path / "packets.csv"
    with echo_forwarder(netns_relay.middle, drop=3, twice=5, hold=7):
        options = ("--count", "200", "--rate", "200", "--packets", file)
        done = ping(netns_relay, *options)
    assert done.code == 0, done.stderr
    expected = Counts(sent=200, received=180, lost=20, duplicate=20, reordered=20, late=0)
    assert Counts.model_validate(done.output["counts"]) == expected
    rows = list(csv.DictReader(file.open()))
    for place, flag in ((3, "lost"), (5, "duplicate"), (7, "reordered")):
        flagged = {int(row["seq"]) % 10 for row in rows if flag in row["flags"].split("+")}
        assert flagged == {place}
    assert all(row["user_rx_ns"] == "" for row in rows if row["flags"] == "lost")
    check_stamps(rows)


def test_an_answer_after_the_timeout_is_late_and_not_lost(netns_relay: Network) -> None:
    with echo_forwarder(netns_relay.middle, sleep_s=0.03):
        done = ping(netns_relay, "--count", "20", "--rate", "20", "--timeout", "0.02")
    assert done.code == 0, done.stderr
    counts = Counts.model_validate(done.output["counts"])
    # The last one comes after the waiting has ended, too late for anything.
    assert counts.sent == 20
    assert counts.late == counts.received >= 19
    assert done.output["rtt_user"]["min_ns"] > 30_000_000


def test_packets_leave_on_schedule_though_answers_are_slow(netns_relay: Network) -> None:
    with echo_forwarder(netns_relay.middle, sleep_s=0.05):
        # Answers take 50 ms each, one after the other; packets are due every 20 ms.
        done = ping(netns_relay, "--count", "20", "--rate", "50", "--timeout", "3")
    assert done.code == 0, done.stderr
    assert done.output["counts"]["received"] == 20
    assert done.output["rtt_user"]["max_ns"] > 500_000_000, "the queue shows in the RTT"
    assert done.output["slip"]["p50_ns"] < 20_000_000, "and not in the schedule"


def test_a_rate_that_cannot_be_kept_is_reported(netns_pair: Network) -> None:
    done = ping(netns_pair, "--rate", "50M", "--duration", "0.2", "--timeout", "0.2")
    assert done.code == 0, done.stderr
    output = done.output
    check_account(output)
    assert "generator" in output["limits"]
    assert output["load"]["intended_pps"] == 50e6
    assert output["load"]["achieved_pps"] < 0.9 * 50e6
    assert output["planned"] == 10_000_000 > output["counts"]["sent"]
    assert any("was not kept" in warning for warning in output["warnings"])


def test_bursts_say_what_was_meant_and_what_was_achieved(netns_pair: Network) -> None:
    options = ("--rate", "1M", "--burst", "100", "--burst-every", "0.02", "--duration", "0.3")
    done = ping(netns_pair, *options)
    assert done.code == 0, done.stderr
    burst = done.output["burst"]
    assert done.output["planned"] == 1500
    assert (burst["packets"], burst["every_ns"], burst["intended_pps"]) == (100, 20_000_000, 1e6)
    assert 0 < burst["achieved_pps"] <= 1.01e6
    if burst["achieved_pps"] < 0.99e6:
        assert "generator" in done.output["limits"]


BURSTS = ("--rate", "1M", "--burst", "100", "--burst-every", "0.02", "--duration", "0.3")


def needs_kernel_generator(network: Network) -> None:
    done = ping(network, "--path", "live", "--count", "100")
    if "may not load BPF" in done.stderr or "Linux 6.6" in done.stderr:
        pytest.skip(f"no generator in the kernel: {done.stderr.strip()}")
    assert done.code == 0, done.stderr


@pytest.mark.parametrize("version", [4, 6])
def test_the_kernel_sends_bursts_and_stamps_each_of_their_packets(
    netns_pair: Network, tmp_path: Path, version: int
) -> None:
    needs_kernel_generator(netns_pair)
    file = tmp_path / "packets.csv"
    target = netns_pair.b.ipv4 if version == 4 else netns_pair.b.ipv6
    done = ping(netns_pair, *BURSTS, "--packets", file, target=target)
    assert done.code == 0, done.stderr
    output = done.output
    check_account(output)
    assert output["path"] == "live-skb"
    assert output["counts"]["sent"] == output["planned"] == 1500
    assert output["counts"]["received"] > 1400
    assert (output["tx_stamps_missing"], output["rx_stamps_missing"]) == (0, 0)
    assert output["rtt_kernel"]["p50_ns"] <= output["rtt_user"]["p50_ns"]
    rows = list(csv.DictReader(file.open()))
    assert len(rows) == 1500
    check_stamps(rows)


def test_a_generator_that_leaves_its_cpu_no_time_is_ended_from_another(
    netns_pair: Network,
) -> None:
    needs_kernel_generator(netns_pair)
    alone = ("--path", "live", "--cpu", "0", "--rate", "10k", "--duration", "0.3")
    real_time = ["chrt", "-f", "10", find_probe(), "ping", netns_pair.b.ipv4, *alone]
    assert json.loads(netns_pair.a.run(*real_time))["counts"]["sent"] == 3000


def test_a_second_is_a_second_whatever_rate_is_achieved(netns_pair: Network) -> None:
    lasting = ("--path", "packet", "--rate", "10M", "--timeout", "0.1")
    for limit in (("--duration", "0.3"), ("--duration", "0.3", "--count", "50000000")):
        done = ping(netns_pair, *lasting, *limit)
        assert done.code == 0, done.stderr
        assert 0.3 <= done.output["duration_s"] < 1
        assert "generator" in done.output["limits"]
    few = ping(netns_pair, *lasting, "--duration", "5", "--count", "100")
    assert few.output["counts"]["sent"] == few.output["planned"] == 100
    assert few.output["duration_s"] < 1


def test_a_terminal_gets_a_table_and_json_when_asked(netns_pair: Network) -> None:
    command = ["ip", "netns", "exec", netns_pair.a.netns, find_probe(), "ping", netns_pair.b.ipv4]

    def on_terminal(*options: str) -> str:
        ours, theirs = pty.openpty()
        try:
            subprocess.run([*command, "--count", "50", *options], stdout=theirs, check=True)
            return os.read(ours, 1 << 16).decode()
        finally:
            os.close(theirs)
            os.close(ours)

    table = on_terminal()
    assert "sent 50, received 50, lost 0" in table
    assert "rtt kernel" in table
    assert max(map(len, table.splitlines())) <= 80
    assert json.loads(on_terminal("--json"))["counts"]["received"] == 50


def test_an_interface_that_vanishes_ends_the_run_with_what_was_measured(
    netns_pair: Network,
) -> None:
    with Running(
        "ping", netns_pair.b.ipv4, "--duration", "30", netns=netns_pair.a.netns
    ) as running:
        eventually(lambda: netns_pair.b.counter("rx_packets") > 200)
        ip("-n", netns_pair.a.netns, "link", "del", netns_pair.a.interface)
        done = running.finish()
    assert done.code == 1
    assert "interface veth0 vanished after" in done.stderr
    assert done.output["interrupted"] is True
    assert done.output["counts"]["received"] > 50
    check_account(done.output)


def test_a_link_that_goes_down_and_up_costs_packets_and_not_the_run(netns_pair: Network) -> None:
    with Running(
        *("ping", netns_pair.b.ipv4, "--rate", "200", "--duration", "3"),
        netns=netns_pair.a.netns,
    ) as running:
        eventually(lambda: netns_pair.b.counter("rx_packets") > 50)
        ip("-n", netns_pair.a.netns, "link", "set", netns_pair.a.interface, "down")
        time.sleep(0.5)
        ip("-n", netns_pair.a.netns, "link", "set", netns_pair.a.interface, "up")
        done = running.finish()
    assert done.code == 0, done.stderr
    output = done.output
    check_account(output)
    assert sum(output["refused"].values()) + output["counts"]["lost"] > 20
    assert output["counts"]["received"] > 100
    if output["refused"]:
        assert any("refused" in warning for warning in output["warnings"])


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("rate", ["1k", "10M"], ids=["kept", "not kept"])
def test_ctrl_c_prints_what_was_measured(
    netns_pair: Network, sign: signal.Signals, rate: str
) -> None:
    lasting = ("--rate", rate, "--path", "packet", "--count", "3000000")
    with Running("ping", netns_pair.b.ipv4, *lasting, netns=netns_pair.a.netns) as running:
        eventually(lambda: netns_pair.b.counter("rx_packets") > 200)
        running.process.send_signal(sign)
        done = running.finish(timeout_s=10)
    assert done.code == 0, done.stderr
    assert done.output["interrupted"] is True
    assert done.output["counts"]["received"] > 50
    check_account(done.output)


def test_a_neighbour_that_does_not_answer_is_named(netns_pair: Network) -> None:
    done = ping(netns_pair, target="198.18.0.77")
    assert (done.code, done.output) == (1, {})
    assert "198.18.0.77 cannot be reached" in done.stderr
    assert "ARP" in done.stderr


def test_a_target_without_route_is_named(netns_pair: Network) -> None:
    for target in ("198.19.0.1", "2001:2:1::1"):
        done = ping(netns_pair, target=target)
        assert done.code == 1
        assert f"there is no route to {target}" in done.stderr


def test_a_missing_reflector_is_named(netns_pair: Network) -> None:
    done = ping(netns_pair, "--proto", "stamp")
    assert done.code == 1
    assert "nothing reflects STAMP at 198.18.0.2, UDP port 862" in done.stderr


@contextmanager
def redis(network: Network, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Redis server at the other end."""
    if shutil.which(REDIS) is None:
        pytest.skip(f"there is no {REDIS} here; `scripts/setup test` lends one")
    command = [*redis_command(network.b.ipv4), *options]
    with subprocess.Popen(["ip", "netns", "exec", network.b.netns, *command]) as server:
        try:
            eventually(lambda: bool(network.b.run("ss", "-Hltn", f"sport = {REDIS_PORT}")))
            yield server
        finally:
            server.kill()


@pytest.mark.parametrize("size", [107, 190, 1518])
def test_a_redis_server_answers_every_request_in_frames_of_that_size(
    netns_pair: Network, tmp_path: Path, size: int
) -> None:
    b, file = netns_pair.b, tmp_path / "packets.csv"
    without_ipv6(netns_pair.a.netns, b.netns)
    with redis(netns_pair):
        before = b.counter("rx_packets"), b.counter("rx_bytes")
        options = ("--rate", "200", "--count", "200", "--size", str(size))
        done = ping(netns_pair, "--proto", "redis", *options, "--packets", file)
        after = b.counter("rx_packets"), b.counter("rx_bytes")
    assert done.code == 0, done.stderr
    output = done.output
    check_account(output)
    assert output["counts"] | {"late": 0} == Counts(sent=200, received=200, lost=0).model_dump()
    assert (output["proto"], output["path"], output["size_bytes"]) == ("redis", "tcp", size)
    assert output["rtt_user"]["count"] == 200
    assert output["rtt_kernel"] is None
    assert not [words for words in output["warnings"] if "stamp" in words]
    check_stamps(list(csv.DictReader(file.open())))
    # Eleven requests warm up; what else passes are bare acknowledgements and the handshake.
    packets, carried = (now - then for then, now in zip(before, after, strict=True))
    requests = 200 + 11
    assert packets >= requests
    assert abs(carried - requests * (size - 4) - (packets - requests) * 66) <= 100


def test_requests_leave_on_schedule_while_the_server_stands_still(netns_pair: Network) -> None:
    with redis(netns_pair) as server:
        asking = ("--proto", "redis", "--rate", "500", "--count", "1000", "--timeout", "5")
        with Running("ping", netns_pair.b.ipv4, *asking, netns=netns_pair.a.netns) as running:
            time.sleep(0.8)
            server.send_signal(signal.SIGSTOP)
            time.sleep(0.5)
            server.send_signal(signal.SIGCONT)
            output = running.finish().output
    assert output["counts"]["received"] == 1000
    # About 250 were due while nothing answered: an open loop waits for none of them.
    assert output["rtt_user"]["max_ns"] > 400e6
    assert output["rtt_user"]["p90_ns"] > 100e6
    assert abs(output["load"]["achieved_pps"] / 500 - 1) < 0.01


def test_a_server_that_ends_or_is_none_is_named_and_what_was_measured_is_printed(
    netns_pair: Network,
) -> None:
    done = ping(netns_pair, "--proto", "redis")
    assert done.code == 1
    assert "nothing listens at 198.18.0.2, TCP port 6379" in done.stderr
    with redis(netns_pair, "--requirepass", "secret"):
        done = ping(netns_pair, "--proto", "redis")
        assert done.code == 1
        assert "refuses: NOAUTH" in done.stderr
    with redis(netns_pair) as server:
        asking = ("--proto", "redis", "--rate", "500", "--count", "5000")
        with Running("ping", netns_pair.b.ipv4, *asking, netns=netns_pair.a.netns) as running:
            time.sleep(1)
            server.kill()
            done = running.finish()
    assert done.code == 1
    assert "the connection to the Redis server at 198.18.0.2:6379 broke" in done.stderr
    assert 0 < done.output["counts"]["received"] < 5000
    assert done.output["interrupted"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--size", "106", "--proto", "redis"), "give --size 107 to 9000"),
        (("--size", "191", "--proto", "redis"), "exactly 191 bytes"),
        (("--path", "packet", "--proto", "redis"), "go through the kernel's TCP alone"),
        (("--size", "63"), "the smallest is --size 64"),
        (("--size", "89", "--proto", "stamp"), "the smallest is --size 90"),
        (("--size", "9000"), "the largest is --size 1518"),
        (("--size", "9001"), "the largest is --size 9000"),
        (("--interface", "nowhere0"), "there is no interface 'nowhere0'"),
        (("--source", "198.18.9.9"), "cannot send from 198.18.9.9"),
        (("--source", "::1"), "different IP versions"),
        (("--cpu", "900"), "cannot run on CPU 900"),
        (("--packets", "/nonexistent/x.csv"), "cannot write /nonexistent/x.csv"),
        (("--rate", "0"), "above zero"),
        (("--rate", "1", "--burst", "10", "--burst-every", "1"), "give --burst-every 10"),
        (("--count", "99999999999"), "of memory for their stamps"),
    ],
)
def test_bad_input_is_refused_with_the_way_out(
    netns_pair: Network, args: tuple[str, ...], words: str
) -> None:
    done = ping(netns_pair, *args)
    assert (done.code, done.output) == (2, {}), done.stderr
    assert words in done.stderr


def test_no_space_for_the_packets_keeps_the_summary(netns_pair: Network) -> None:
    done = ping(netns_pair, "--count", "100", "--packets", "/dev/full")
    assert done.code == 1
    assert "cannot write /dev/full" in done.stderr
    assert done.output["counts"]["received"] == 100


def test_help_that_cannot_be_written_is_an_error_and_bad_input_stays_bad_input() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [find_probe(), "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("pw-probe: cannot write to stdout: No space left on device")
    assert subprocess.run(f"{find_probe()} --help | true", shell=True).returncode == 0
    assert subprocess.run(f"{find_probe()} nonsense 2>/dev/full", shell=True).returncode == 2


def test_a_user_without_raw_sockets_is_told_what_is_missing(netns_pair: Network) -> None:
    plain = ("setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw")
    program = [*plain, find_probe(), "ping", netns_pair.b.ipv4, "--count", "100"]
    done = subprocess.run(
        ["ip", "netns", "exec", netns_pair.a.netns, *program], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "CAP_NET_RAW" in done.stderr
    assert "unshare --user" in done.stderr


def test_the_histogram_is_read_by_pythons_library(netns_pair: Network) -> None:
    output = ping(netns_pair, "--count", "200").output
    for metric in ("rtt_user", "rtt_kernel", "slip"):
        decoded = HdrHistogram.decode(output[metric]["hdr"])
        # A machine that stands still for longer than the time-out loses packets.
        assert decoded.get_total_count() == output[metric]["count"] > 0
        median = decoded.get_value_at_percentile(50)
        assert median == pytest.approx(output[metric]["p50_ns"], rel=0.002, abs=1)
