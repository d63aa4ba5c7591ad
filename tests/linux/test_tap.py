"""pw-probe tap on real namespaces: it sees what tcpdump sees, and joins it."""

from __future__ import annotations

import csv
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.linux.probe import End, Network, Running, ip, run

pytestmark = pytest.mark.linux

Rows = dict[int, dict[str, str]]


@pytest.fixture
def tcpdump() -> str:
    found = shutil.which("tcpdump", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        pytest.skip("tcpdump is not installed")
    return found


def rows(path: Path) -> Rows:
    """The CSV's rows by sequence number."""
    with path.open(newline="") as lines:
        return {int(row["seq"]): row for row in csv.DictReader(lines)}


def ping(source: End, target: str, count: int, *args: str) -> None:
    source.run("ping", "-q", "-c", str(count), "-i", "0.005", *args, target)


class Tcpdump:
    """tcpdump that writes a file with nanoseconds while the `with` block runs."""

    def __init__(self, tcpdump: str, at: End, file: Path, *args: str) -> None:
        command = ["ip", "netns", "exec", at.netns, tcpdump, "-i", at.interface, "-U", "-Z", "root"]
        self._command = [*command, "--immediate-mode", "-w", str(file), *args]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        while "listening on" not in line:
            assert line, "tcpdump did not start"
            line = self._process.stderr.readline()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=20)


NANO = "--time-stamp-precision=nano"


def stamps_of(pcap: Path) -> list[int]:
    """The stamps [ns] in a file of tcpdump with nanoseconds."""
    content, at, stamps = pcap.read_bytes(), 24, []
    while at < len(content):
        seconds, nanos, kept, _ = struct.unpack_from("=IIII", content, at)
        stamps.append(seconds * 1_000_000_000 + nanos)
        at += 16 + kept
    return stamps


def test_tap_sees_the_packets_and_nanoseconds_that_tcpdump_sees(
    netns_pair: Network, tcpdump: str, tmp_path: Path
) -> None:
    live, pcap = tmp_path / "live.csv", tmp_path / "a.pcap"
    a = netns_pair.a
    with (
        Tcpdump(tcpdump, a, pcap, NANO, "icmp"),
        Running("tap", "--point", f"nic={a.spec}", "--packets", live) as tap,
    ):
        tap.wait_ready()
        ping(a, netns_pair.b.ipv4, 100)
        done = tap.stop()
    assert done.code == 0, done.stderr
    point = done.output["points"][0]
    # On a busy machine the kernel loses a reply now and then: both see the same all the same.
    assert point["requests"] == 100
    assert 80 < point["replies"] <= 100
    assert point["dropped"] == 0
    # The kernel stamps a packet once and shows it to both.
    stamps = [row[f"nic_{way}_ns"] for row in rows(live).values() for way in ("request", "reply")]
    assert sorted(int(stamp) for stamp in stamps if stamp) == sorted(stamps_of(pcap))
    assert len(rows(live)) == 100


@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
def test_the_response_time_lies_within_the_round_trip_on_every_packet(
    netns_pair: Network, tmp_path: Path, ipv6: bool
) -> None:
    file = tmp_path / "packets.csv"
    points = ("--point", f"near={netns_pair.a.spec}", "--point", f"far={netns_pair.b.spec}")
    with Running("tap", *points, "--packets", file, "--duration", "30") as tap:
        tap.wait_ready()
        ping(netns_pair.a, netns_pair.b.ipv6 if ipv6 else netns_pair.b.ipv4, 50)
        done = tap.stop()
    assert done.code == 0, done.stderr
    assert len(rows(file)) == 50
    whole = [row for row in rows(file).values() if all(row.values())]
    assert len(whole) > 40
    for row in whole:
        assert row["proto"] == ("icmp6" if ipv6 else "icmp")
        stamps = [row[f"{name}_ns"] for name in ("near_request", "far_request")]
        stamps += [row[f"{name}_ns"] for name in ("far_reply", "near_reply")]
        assert sorted(stamps, key=int) == stamps
    for point in done.output["points"]:
        response = point["response"]["count"]
        assert response + point["requests_unmatched"] == point["requests"]
        assert response + point["replies_unmatched"] == point["replies"]


def test_a_tap_ends_once_every_point_has_seen_enough(netns_pair: Network) -> None:
    points = ("--point", f"near={netns_pair.a.spec}", "--point", f"far={netns_pair.b.spec}")
    with Running("tap", *points, "--count", "40", "--duration", "60") as tap:
        tap.wait_ready()
        ping(netns_pair.a, netns_pair.b.ipv4, 50)
        done = tap.finish()
    assert done.output["duration_s"] < 55
    assert min(point["packets"] for point in done.output["points"]) >= 40


def test_only_the_echoes_of_the_identifier_that_was_asked_for_are_captured(
    netns_pair: Network,
) -> None:
    with Running("tap", "--point", f"nic={netns_pair.a.spec}", "--id", "4711") as tap:
        tap.wait_ready()
        ping(netns_pair.a, netns_pair.b.ipv4, 5, "-e", "4711")
        ping(netns_pair.a, netns_pair.b.ipv4, 5, "-e", "4712")
        ping(netns_pair.a, netns_pair.b.ipv6, 5, "-e", "4711")
        done = tap.stop()
    assert 15 < done.output["points"][0]["packets"] <= 20
    assert done.output["probes"] == 10


def test_a_capture_point_that_vanishes_is_named_and_what_it_saw_is_kept(
    netns_pair: Network, tmp_path: Path
) -> None:
    file = tmp_path / "packets.csv"
    with Running(
        "tap", "--point", f"nic={netns_pair.a.spec}", "--packets", file, "--duration", "30"
    ) as tap:
        tap.wait_ready()
        ping(netns_pair.a, netns_pair.b.ipv4, 20)
        ip("-n", netns_pair.a.netns, "link", "del", netns_pair.a.interface)
        done = tap.finish()
    assert done.code == 1
    assert netns_pair.a.spec in done.stderr
    assert "vanished" in done.stderr
    assert done.output["points"][0]["error"]["what"] in done.stderr
    assert len(rows(file)) == done.output["points"][0]["requests"] == 20


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (("--point", "x=none"), 2, "no interface none"),
        (("--point", "none"), 2, "NAME=IF"),
        (("--point", "x=lo", "--point", "x=lo"), 2, "two capture points"),
        (("--point", "x=lo@pwt-none"), 2, "pwt-none"),
        (("--point", "x=lo", "--packets", "/nonexistent/x.csv"), 2, "/nonexistent/x.csv"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bad_input_gets_one_clear_sentence(
    netns_pair: Network, args: tuple[str, ...], code: int, word: str
) -> None:
    done = run("tap", *args, netns=netns_pair.a.netns)
    assert done.code == code, done.stderr
    assert word in done.stderr
    assert "panicked" not in done.stderr
