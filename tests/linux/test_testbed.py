"""Testbeds of real namespaces: guests reach each other, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain
from types import SimpleNamespace
from typing import cast

import pytest

from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.testbed.availability import try_plane
from planewise.testbed.guests.kind import PlacedGuest
from planewise.testbed.hosts import counters, netns
from planewise.testbed.hosts.host import LocalHost, LocalProcess, ProcessTimeoutError, find_probe
from planewise.testbed.hosts.ledger import STATE, leftovers, token_of
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.hosts.pair import local_pair
from planewise.testbed.loads.background import BackgroundLoad, LoadSpec, LoadType
from planewise.testbed.loads.crew import ProcessCrew, ShellCrew, StartCrew
from planewise.testbed.model import HOSTS, CounterPoint, Guest, IpVersion
from planewise.testbed.plan import Step, namespaces_of, new_namespace
from planewise.testbed.planes import plane as plane_called
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.switches.router import router_testbed
from planewise.testbed.testbed import Testbed
from tests.linux.probe import eventually
from tests.linux.testbeds import PLANES, here

pytestmark = pytest.mark.linux

OF_MANY = [name for name in PLANES if not plane_called(name).is_host]
"""Planes that a host has many guests on."""

ECHO = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as it:
    it.bind((sys.argv[1], 7007))
    print("ready", file=sys.stderr, flush=True)
    it.settimeout(10)
    for _ in range(int(sys.argv[2])):
        data, who = it.recvfrom(100)
        it.sendto(data, who)
"""
ASK = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
with socket.socket(family, socket.SOCK_DGRAM) as it:
    it.settimeout(5)
    for _ in range(int(sys.argv[2])):
        it.sendto(b"ping", (sys.argv[1], 7007))
        assert it.recv(100) == b"ping"
print("answered")
"""


def need(plane: str) -> None:
    answer = try_plane(plane_called(plane))
    if not answer.available:
        pytest.skip(f"{answer.reason}; {answer.remedy}")


def reaches(testbed: Arrangement, guest: Guest, peer: Guest, ip_version: int) -> bool:
    """Whether `peer` answers three datagrams of `guest`."""
    address = peer.ipv4 if ip_version == 4 else peer.ipv6
    there, asking = testbed.hosts[peer.host], testbed.hosts[guest.host]
    with there.start([sys.executable, "-c", ECHO, address, "3"], netns=peer.netns) as echo:
        echo.wait_ready("ready", 10)
        asked = asking.run(
            [sys.executable, "-c", ASK, address, "3"], netns=guest.netns, timeout_s=20
        )
    return asked.stdout == "answered\n"


def ours(token: str) -> list[str]:
    return [name for name in netns.names() if token_of(name) == token]


def token_in(testbed: Arrangement) -> str:
    token = token_of(testbed.main("sender").netns)
    assert token
    return token


@pytest.mark.parametrize("plane", PLANES)
def test_main_guests_reach_each_other_and_nothing_is_left(plane: str) -> None:
    need(plane)
    with here(plane) as testbed:
        token = token_in(testbed)
        sender, responder = testbed.main("sender"), testbed.main("responder")
        for ip_version in (4, 6):
            assert reaches(testbed, sender, responder, ip_version)
            outward_only = plane_called(plane).outward_only
            assert outward_only or reaches(testbed, responder, sender, ip_version)
    assert ours(token) == []
    assert not (STATE / f"{token}.json").exists()


@pytest.mark.apart
@pytest.mark.parametrize(
    "plane", [name for name in PLANES if plane_called(name).most_mtu_bytes is None]
)
def test_a_big_packet_passes_where_the_mtu_is_big(plane: str) -> None:
    need(plane)
    with here(plane, mtu_bytes=9000) as testbed:
        for host in HOSTS:
            guest = testbed.main(host)
            argv = ["ip", "-json", "link", "show", guest.interface]
            (link,) = testbed.hosts[host].run(argv, netns=guest.netns).json()
            assert link["mtu"] == 9000


@pytest.mark.parametrize("plane", PLANES)
def test_capture_and_counter_points_see_the_packets_pass(plane: str) -> None:
    need(plane)
    with here(plane) as testbed:
        names = [point.name for point in testbed.capture_points]
        assert [name for name in names if name.endswith("nic")] == ["sender_nic", "responder_nic"]
        points = [
            *testbed.counter_points,
            *(CounterPoint(one.host, one.netns, one.interface) for one in testbed.capture_points),
        ]
        # A bridge counts only what is for the host itself.
        points = [point for point in points if point.interface not in ("br0", "br0u", "br0v")]
        before = [counters.read(testbed.hosts[point.host], point) for point in points]
        assert reaches(testbed, testbed.main("sender"), testbed.main("responder"), 4)
        for reading in before:
            point = reading.point
            now = counters.read(testbed.hosts[point.host], point).since(reading)
            assert now["rx_packets"] >= 3, point
            assert now["tx_packets"] >= 3, point


def test_the_host_leaves_the_nic_what_other_planes_have_there() -> None:
    settings = [Setting("namespace", name, name, 0, "north-south") for name in ("host", "veth")]
    with local_pair(1500) as pair, Testbed(pair, 1500) as testbed:
        with testbed.arrange(settings[0]) as standing:
            guest, peer = standing.main("sender"), standing.main("responder")
            placed = PlacedGuest(guest, standing.sites["sender"], peer=peer)
        with testbed.arrange(settings[1]) as standing:
            host = standing.hosts["sender"]
            argv = ["ip", "address", "show", "dev", guest.interface]
            assert guest.ipv4 in host.run(argv, netns=guest.netns).stdout
            placed.plane.unplug(cast(MachineState, SimpleNamespace(host=host)), placed)
            assert f" {guest.ipv4}/" not in host.run(argv, netns=guest.netns).stdout
            for ip_version in (4, 6):
                mains = standing.main("sender"), standing.main("responder")
                assert reaches(standing, *mains, ip_version)
            neighbours = ["ip", "neighbour", "show", "dev", guest.interface, "nud", "permanent"]
            left = host.run(neighbours, netns=guest.netns).stdout
            assert f"{peer.ipv4} " not in left
            assert standing.sites["responder"].gateway_ipv4 in left


def test_the_planes_that_have_a_host_side_have_a_capture_point_there() -> None:
    whole = ["sender_guest", "sender_nic", "responder_nic", "responder_guest"]
    expected = {
        "veth": whole,
        "routed": whole,
        "bridge": whole,
        "macvlan": ["sender_nic", "responder_nic"],
        "host": ["sender_nic", "responder_nic"],
    }
    if "ovs" in PLANES:
        expected["ovs"] = expected["bridge"]
    for plane, names in expected.items():
        need(plane)
        with here(plane) as testbed:
            seen = [point.name for point in testbed.capture_points]
            assert seen == ["sender_inside", *names, "responder_inside"]


@pytest.mark.parametrize("plane", OF_MANY)
def test_eight_background_guests_a_side_reach_their_peers(plane: str) -> None:
    need(plane)
    with here(plane, None, 8) as testbed:
        pairs = list(
            zip(testbed.background("sender"), testbed.background("responder"), strict=True)
        )
        assert len(pairs) == 8
        for guest, peer in (pairs[0], pairs[7]):
            assert reaches(testbed, guest, peer, 4)
            assert reaches(testbed, guest, peer, 6)
            # What a background guest asks for would be counted as its load.
            assert "PERMANENT" in states_of_neighbour(testbed, guest, peer)


def states_of_neighbour(testbed: Arrangement, guest: Guest, peer: Guest) -> list[str]:
    """What a guest's kernel says of its entry for a peer; of one that it reaches by a router, what
    nobody has to ask for."""
    said = testbed.hosts[guest.host].run(
        ["ip", "-j", "neigh", "show", "to", peer.ipv4], netns=guest.netns
    )
    entries = json.loads(said.stdout)
    return list(entries[0]["state"]) if entries else ["PERMANENT"]


@pytest.mark.parametrize(
    ("plane", "background"), [("macvlan", "bridge"), ("veth", "macvlan"), ("bridge", "veth")]
)
def test_main_and_background_guests_may_have_different_planes(plane: str, background: str) -> None:
    need(plane)
    need(background)
    with here(plane, background, 1) as testbed:
        for ip_version in (4, 6):
            assert reaches(testbed, testbed.main("sender"), testbed.main("responder"), ip_version)
            assert reaches(
                testbed,
                testbed.background("sender")[0],
                testbed.background("responder")[0],
                ip_version,
            )


@pytest.mark.parametrize("plane", PLANES)
def test_the_next_hop_of_a_trial_is_where_the_guests_frames_really_go(plane: str) -> None:
    need(plane)
    with here(plane) as testbed:
        path = testbed.trial_path()
        # A guest may ask for its gateway before it knows it.
        assert reaches(testbed, testbed.main("sender"), testbed.main("responder"), 4)
        # The neighbour that the guest's own kernel uses for the destination.
        ask = (
            'hop=$(ip route get "$1" | sed -n "s/.* via \\([^ ]*\\) .*/\\1/p"); '
            'ip neighbour show to "${hop:-$1}" | sed -n "s/.* lladdr \\([^ ]*\\) .*/\\1/p"'
        )
        for destination in (path.destination_ipv4, path.destination_ipv6):
            said = testbed.hosts["sender"].run(
                ["sh", "-c", ask, "sh", destination], netns=path.tx_netns
            )
            assert said.stdout.strip() == path.next_hop_mac, said.stderr


@pytest.mark.parametrize("ip_version", [4, 6])
def test_a_router_forwards_between_the_generators_ports(ip_version: IpVersion) -> None:
    forward = """
import socket, sys
tx, rx, source_mac, hop_mac, source, destination = sys.argv[1:]
def mac(text): return bytes.fromhex(text.replace(":", ""))
def checksum(data):
    total = sum(int.from_bytes(data[i:i + 2], "big") for i in range(0, len(data), 2))
    total = (total & 0xFFFF) + (total >> 16)
    return (~((total & 0xFFFF) + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
body = b"planewise"
udp = (9).to_bytes(2, "big") * 2 + (8 + len(body)).to_bytes(2, "big") + b"\\0\\0" + body
if ":" in source:
    kind = 0x86DD
    packet = b"\\x60\\0\\0\\0" + len(udp).to_bytes(2, "big") + bytes([17, 64])
    packet += socket.inet_pton(socket.AF_INET6, source)
    packet += socket.inet_pton(socket.AF_INET6, destination)
else:
    kind = 0x0800
    head = b"\\x45\\0" + (20 + len(udp)).to_bytes(2, "big") + b"\\0\\0\\0\\0" + bytes([64, 17])
    ends = socket.inet_aton(source) + socket.inet_aton(destination)
    packet = head + checksum(head + b"\\0\\0" + ends) + ends
frame = mac(hop_mac) + mac(source_mac) + kind.to_bytes(2, "big") + packet + udp
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as receiver:
    receiver.bind((rx, 3))
    receiver.settimeout(5)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((tx, 0))
        sender.send(frame)
    while body not in (got := receiver.recv(2000)):
        pass
hops = got[21] if kind == 0x86DD else got[22]
print("forwarded", hops)
"""
    with router_testbed() as testbed:
        path = testbed.trial_path()
        ran = testbed.hosts["generator"].run(
            [
                sys.executable, "-c", forward, path.tx_interface, path.rx_interface,
                "02:70:77:40:00:00", path.next_hop_mac, path.source(ip_version),
                path.destination(ip_version),
            ],
            netns=path.tx_netns,
            timeout_s=20,
        )  # fmt: skip
        assert ran.stdout == "forwarded 63\n", ran.stderr
        for point in testbed.counter_points:
            role = point.host
            reading = counters.read(testbed.hosts[role], point).counters
            assert reading["rx_packets"] + reading["tx_packets"] >= 1, point


def test_two_testbeds_at_once_do_not_see_each_other() -> None:
    with (
        here("bridge") as one,
        ExitStack() as stack,
    ):
        two = stack.enter_context(here("veth"))
        assert token_in(one) != token_in(two)
        assert not {token_in(one), token_in(two)} & {found.token for found in leftovers()}
        assert reaches(one, one.main("sender"), one.main("responder"), 4)
        assert reaches(two, two.main("sender"), two.main("responder"), 4)
        gone = token_in(two)
        stack.close()
        assert ours(gone) == []
        assert reaches(one, one.main("sender"), one.main("responder"), 6)


def test_an_error_inside_tears_down_and_passes_on() -> None:
    def build_and_fail() -> None:
        with here("veth", None, 2) as testbed:
            tokens.append(token_in(testbed))
            processes.append(testbed.hosts["sender"].start(["sleep", "600"]))
            raise ValueError("mine")

    tokens: list[str] = []
    processes: list[LocalProcess] = []
    with pytest.raises(ValueError, match="mine"):
        build_and_fail()
    assert ours(tokens[0]) == []
    assert not processes[0].running


def test_a_failure_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = []
    perform = LocalHost.perform

    def fail(self: LocalHost, steps: Iterable[Step]) -> None:
        steps = list(steps)
        names = namespaces_of(steps)
        tokens.extend(str(token_of(name)) for name in names)
        again = [new_namespace(name) for name in names if name.endswith("-rm0")]
        perform(self, [*steps, *chain(*again)])

    monkeypatch.setattr(LocalHost, "perform", fail)
    with (
        pytest.raises(PlanewiseError, match="taken already"),
        here("veth"),
    ):
        pytest.fail("it was built")
    assert len(set(tokens)) == 1
    assert ours(tokens[0]) == []


def test_a_vanished_interface_is_named() -> None:
    with here("veth") as testbed:
        guest, host = testbed.main("sender"), testbed.hosts["sender"]
        host.run(["ip", "link", "delete", "eth0"], netns=guest.netns).check()
        with pytest.raises(PlanewiseError, match="eth0 on sender vanished"):
            counters.read(host, CounterPoint("sender", guest.netns, "eth0"))


def test_a_vanished_namespace_is_named() -> None:
    with here("veth") as testbed:
        guest = testbed.main("sender")
        netns.remove(guest.netns)
        with pytest.raises(PlanewiseError, match=f"{guest.netns} is gone"):
            testbed.hosts["sender"].run(["true"], netns=guest.netns)


def test_a_process_runs_in_its_guest_and_ends_with_the_host() -> None:
    with here("veth") as testbed:
        host, guest = testbed.hosts["responder"], testbed.main("responder")
        process = host.start(["sleep", "600"], netns=guest.netns)
        time.sleep(0.05)
        assert netns.processes_in([guest.netns]) == {process.pid: guest.netns}
        with pytest.raises(ProcessTimeoutError, match="sleep still runs"):
            process.wait(0.01)
        host.close()
        assert not process.running
    with pytest.raises(UnsupportedError, match="no-such-program"):
        LocalHost("x").run(["no-such-program"])


def test_processes_that_share_an_output_lose_no_line_of_it() -> None:
    writer = "import os\nfor _ in range(200_000): os.write(2, b'line\\n')"
    both = f'{sys.executable} -c "$0" & {sys.executable} -c "$0"; wait'
    done = LocalHost("x").run(["sh", "-c", both, writer])
    assert set(done.stderr.splitlines()) == {"line"}
    assert done.stderr.count("\n") == 400_000


def test_a_process_deaf_to_sigint_is_stopped_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planewise.testbed.hosts.host.GRACE_S", 0.2)
    deaf = "import signal, sys, time; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN); print('ready', file=sys.stderr, flush=True); time.sleep(600)"  # noqa: E501
    process = LocalHost("x").start([sys.executable, "-c", deaf])
    process.wait_ready("ready", 10)
    assert process.stop().exit_code == 128 + signal.SIGKILL


def test_the_end_of_a_process_is_told_and_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    process = LocalHost("x").start(["sleep", "0.2"])

    def look_again_later(_: float) -> None:
        raise AssertionError("it was looked for now and then")

    monkeypatch.setattr(time, "sleep", look_again_later)
    assert process.wait(60).exit_code == 0


# Background load.


def need_probe() -> None:
    try:
        probe = find_probe()
    except UnsupportedError as error:
        pytest.skip(f"{error.what}; {error.remedy}")
    if "blast" not in subprocess.run([probe, "--help"], capture_output=True, text=True).stdout:
        pytest.skip("this pw-probe makes no load; run `make setup`")


@pytest.mark.parametrize("location", HOSTS)
def test_cpu_load_burns_in_every_background_guest(location: str) -> None:
    need_probe()
    spec = LoadSpec("cpu", location, cpu_share=0.2)  # type: ignore[arg-type]
    with here("bridge", None, 8) as testbed:
        with BackgroundLoad(testbed, spec) as load:
            guests = testbed.background(spec.location)
            busy = netns.processes_in([guest.netns for guest in guests])
            assert sorted(busy.values()) == sorted(guest.netns for guest in guests)
            before = load.work()
            time.sleep(0.5)
            load.check()
            achieved = load.achieved(before)
        assert netns.processes_in([guest.netns for guest in guests]) == {}
    assert achieved
    assert len(achieved.guests) == 8
    assert 0 < achieved.achieved <= 0.25 * (os.cpu_count() or 1) + achieved.resolution


@pytest.mark.parametrize("start_crew", [ProcessCrew, ShellCrew])
@pytest.mark.parametrize("load_type", ["cache", "memory"])
def test_stress_takes_a_thread_of_every_background_guest_and_leaves_nothing(
    load_type: LoadType, start_crew: StartCrew
) -> None:
    if shutil.which("stress-ng") is None:
        pytest.skip("stress-ng is not here; `scripts/setup test` installs it")
    spec = LoadSpec(load_type, "responder", by_guest=True, cpu_share=None, memory_mib=8)
    with here("bridge", None, 2) as testbed:
        names = [guest.netns for guest in testbed.background("responder")]
        with BackgroundLoad(testbed, spec, start_crew) as load:
            before = load.work()
            assert set(netns.processes_in(names).values()) == set(names)
            time.sleep(0.3)
            load.check()
            achieved = load.achieved(before)
        eventually(lambda: netns.processes_in(names) == {})
    assert achieved is not None
    assert (achieved.unit, achieved.wanted) == ("cpus", None)
    assert len(achieved.guests) == 2
    # stress-ng itself waits: what was counted is what its workers burnt.
    assert all(0 < cpus <= 1.1 for cpus in achieved.guests.values())


@pytest.mark.parametrize(
    ("plane", "start_crew"), [*((plane, ProcessCrew) for plane in OF_MANY), ("bridge", ShellCrew)]
)
def test_network_load_arrives_at_its_location(plane: str, start_crew: StartCrew) -> None:
    need(plane)
    need_probe()
    if plane_called(plane).outward_only:
        return  # such a cell is refused before anything is built
    spec = LoadSpec("network", "sender", rate_pps=4000, burst=20, payload_bytes=200)
    with here(plane, None, 4) as testbed, BackgroundLoad(testbed, spec, start_crew) as load:
        points = [
            CounterPoint("sender", guest.netns, guest.interface)
            for guest in testbed.background("sender")
        ]
        before = [counters.read(testbed.hosts["sender"], point) for point in points]
        work = load.work()
        time.sleep(0.5)
        for reading in before:
            now = counters.read(testbed.hosts["sender"], reading.point).since(reading)
            assert now["rx_packets"] >= 20
        achieved = load.achieved(work)
    assert achieved
    assert achieved.achieved > 0
    assert 0 < achieved.received_pps <= achieved.achieved + achieved.resolution


def test_a_load_that_died_is_noticed() -> None:
    need_probe()
    spec = LoadSpec("cpu", "sender", limit_s=0.2)
    with here("veth", None, 2) as testbed, BackgroundLoad(testbed, spec) as load:
        time.sleep(0.6)
        with pytest.raises(PlanewiseError, match="stopped unexpectedly"):
            load.check()


def test_a_load_without_guests_is_refused() -> None:
    with (
        here("veth") as testbed,
        pytest.raises(BadInputError, match="needs background guests"),
        BackgroundLoad(testbed, LoadSpec("cpu")),
    ):
        pytest.fail("it was started")
