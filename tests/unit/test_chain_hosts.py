"""Chains on two hosts as values: what is built, what is read, what hosts lack. Builds nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Self, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design_file import load_design
from planewise.measure.runs.chains import Chains
from planewise.measure.trials.chain_readings import ReadingDelta, result
from planewise.testbed.chains import describe
from planewise.testbed.chains.forwarders import GUEST_PROGRAMS, Functions
from planewise.testbed.chains.model import SWITCH, Chain, Pattern, Placement, assign_cpus
from planewise.testbed.chains.reading import ChainReading, CpuTime, VnfCounters
from planewise.testbed.chains.routing import function_guests, routing
from planewise.testbed.chains.testbed import ChainTestbed, shortage
from planewise.testbed.guests.kind import PlacedGuest
from planewise.testbed.guests.vms import booted, kind
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.kind import VirtualMachines
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts import hugepages
from planewise.testbed.hosts.counters import parse_host_counters
from planewise.testbed.hosts.host import FinishedProcess, Host
from planewise.testbed.hosts.machine import MachineState, Resources
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.model import HOSTS, HostRole
from planewise.testbed.plan import add_neighbour
from planewise.testbed.vfs.nic import Config, ListedVf

ENDS = ("02:00:00:00:00:0a", "02:00:00:00:00:0b")
MACS = {1: "02:00:00:00:00:01", 2: "02:00:00:00:00:02", 3: "02:00:00:00:00:03"}


def resources(vfs: int) -> Resources:
    return Resources("lab:a", "pf0", "igb", vfs, 1000, False)


@pytest.mark.parametrize(
    ("pattern", "next_macs"),
    [
        ("north-south", {1: ENDS[1], 2: ENDS[1], 3: ENDS[1]}),
        ("east-west", {1: MACS[2], 2: MACS[3], 3: ENDS[1]}),
    ],
)
def test_a_function_sends_on_to_the_vf_of_the_next_or_back_over_the_cable(
    pattern: Pattern, next_macs: dict[int, str]
) -> None:
    chain = Chain("vf", pattern, 3)
    guests = function_guests("t", chain)
    moved = {number: replace(guest, mac=MACS[number]) for number, guest in guests.items()}
    steps = routing(chain, moved, ENDS)
    for number, mac in next_macs.items():
        netns = f"pw-t-v{number}"
        (onward,) = (
            step
            for step in steps
            if step.netns == netns and step.words.startswith("route add 198.19.0.0/16 ")
        )
        found = re.search(r" via (\S+) ", onward.words)
        via = found[1] if found else "198.19.0.2"
        assert add_neighbour(netns, "eth0", via, mac) in steps


def said(chain: Chain) -> tuple[str, ...]:
    return describe.steps(chain, Placement({0: (SWITCH, *chain.names)}), "pf0", "af_packet")


def test_the_steps_of_a_chain_are_said_before_any_host_is_touched() -> None:
    virtual = said(Chain("vf", "east-west", 3))
    assert sum("planewised vf move" in one for one in virtual) == 3 + 2
    assert not any("bridge" in one for one in virtual)
    bridged = said(Chain("bridge", "east-west", 3))
    assert sum("planewised vf move" in one for one in bridged) == 2
    assert "responder: ip link set pf0 master pw-00000000-b" in bridged
    whole = said(Chain("vf-passthrough", "east-west", 3, "vm"))
    assert sum("planewised vf bind <VF of pf0> vfio-pci" in one for one in whole) == 3
    assert sum("planewised vf move" in one for one in whole) == 2
    assert "responder: in pw-00000000-v1: arp -i eth0 -s 198.18.1.2 <MAC of vnf2>" in whole
    contained = said(Chain("vf", "east-west", 3, "container"))
    assert sum("docker run" in one for one in contained) == 3
    switched = said(Chain("vhost-user", "east-west", 3))
    assert any("net_af_packet0,iface=pf0" in one for one in switched)


def test_what_the_hosts_nics_lack_for_a_chain_is_said() -> None:
    def short(sender: int, responder: int, plane: str = "vf") -> str:
        found: dict[HostRole, Resources] = {
            "sender": resources(sender),
            "responder": replace(resources(responder), place="lab:b"),
        }
        return shortage(Chain(plane, "east-west", 3), found, VmOptions())

    assert short(7, 7) == short(7, 0, "bridge") == ""
    assert short(0, 7) == "pf0 of lab:a has no SR-IOV"
    assert short(1, 7) == "needs 2 VFs on lab:a, and pf0 has 1"
    assert short(7, 2) == "needs 3 VFs on lab:b, and pf0 has 2"
    found = {role: resources(7) for role in HOSTS}
    contained = Chain("vf", "east-west", 3, "container")
    assert shortage(contained, found, VmOptions()) == "there is no Docker on lab:a"
    whole = Chain("vf-passthrough", "east-west", 8, "vm")
    assert shortage(whole, found, VmOptions()) == "needs 8 VFs on lab:a, and pf0 has 7"


@pytest.mark.parametrize(
    ("function", "iommu", "said"),
    [
        ("{forwarder: testpmd, plane: vf}", False, "has no IOMMU"),
        ("{forwarder: testpmd, guest: vm, plane: vf-passthrough}", False, "has no IOMMU"),
        ("{forwarder: kernel, plane: vf}", False, ""),
        ("{forwarder: testpmd, plane: vf}", True, ""),
    ],
)
def test_what_has_a_vf_by_vfio_wants_an_iommu_before_anything_is_built(
    function: str, iommu: bool, said: str, tmp_path: Path
) -> None:
    (tmp_path / "design.yaml").write_text(
        f"functions: [{function}]\nfactors: {{path: east-west, vnfs: 2}}\nchain: {{}}\n"
    )
    design = load_design(tmp_path / "design.yaml")
    there = SimpleNamespace(host=Answering(place="lab:b"))
    pair = SimpleNamespace(machines=dict.fromkeys(HOSTS, there), separate=True)
    stage = Chains(design, cast("Pair", pair))
    found = Resources("lab:b", "pf0", "igb", 7, 4000, False, cpus=2, iommu=iommu)
    stage._testbed.__dict__["resources"] = dict.fromkeys(HOSTS, found)
    (cell,) = cells_of(design)
    why = stage.unavailable([cell]).get(cell, "")
    assert said in why
    assert bool(said) == bool(why)


@dataclass
class Answering:
    """A host with two CPUs, on which every program is installed."""

    place: str

    def run(self, argv: Sequence[str], **_: object) -> FinishedProcess:
        return FinishedProcess(tuple(argv), 0, "2\n", "")


@dataclass
class Taker:
    """A host whose kernel gives fewer huge pages than it is asked for."""

    place: str = "lab:b"
    running: bool = False

    def read_text(self, path: str) -> str:
        return "MemTotal: 4000000 kB\nHugepagesize: 2048 kB\n"

    def start(self, argv: Sequence[str]) -> Self:
        return self

    def wait_ready(self, line: str, timeout_s: float) -> None:
        raise PlanewiseError("sh ended")

    def wait(self) -> FinishedProcess:
        return FinishedProcess(("sh",), 9, "", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_host_without_so_many_huge_pages_is_said() -> None:
    why = "needs 160 huge pages of 2 MiB on lab:b, and its kernel does not give as many"
    with (
        pytest.raises(UnsupportedError, match=why),
        hugepages.reserved(cast("Host", Taker()), 320 << 20),
    ):
        pass


@given(st.integers(1, 8), st.integers(1, 16))
def test_functions_take_turns_on_all_cpus_of_their_host(vnfs: int, cpus: int) -> None:
    placed = assign_cpus(Chain("vf", "north-south", vnfs).names, range(cpus), {})
    sizes = [len(tasks) for tasks in placed.tasks.values()]
    assert sum(sizes) == vnfs
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == min(vnfs, cpus)


LOOK = """\
12.34 20.00
cpu  9 0 9 90 0 0 0 0 0 0
cpu0 9 0 9 90 0 1 2 0 0 0
intr 5
== task 17
17 (ksoftirqd/0) S 2 0 0 0 -1 0 0 0 0 0 100 150 0 0 20 0
== pw-t-v1
Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls \
carrier compressed
  eth0:  600      10    0    3    0     0          0         0   540       9    0    0    0     0 \
      0          0
"""


def test_one_look_at_a_host_gives_its_clock_its_cpus_and_all_counters() -> None:
    seen = parse_host_counters(LOOK, {17: ""})
    assert (seen.at_s, seen.tasks_s) == (12.34, {17: 2.5})
    assert parse_host_counters(LOOK, {17: "pmd"}).tasks_s == {17: 0}
    assert "cpu0" in seen.stat
    own = seen.interfaces["pw-t-v1"]["eth0"]
    assert (own["rx_packets"], own["rx_dropped"]) == (10, 3)
    assert (own["tx_packets"], own["tx_bytes"]) == (9, 540)


def between(received: int, sent: int, delivered: int, idle_s: float) -> ReadingDelta:
    """Ten seconds of a function that is offered 1000 packets, by two clocks that differ."""

    def reading(at_s: float, share: int) -> ChainReading:
        return ChainReading(
            at_s=100 + at_s,
            ends_at_s=at_s,
            vnfs={"vnf1": VnfCounters(share * sent, share * sent * 60, 0, share * received)},
            offered=share * 1000,
            delivered=share * delivered,
            cpus={0: CpuTime(at_s, idle_s * share, 0.0)},
            kernel_s={0: share * (10 - idle_s)},
        )

    return ReadingDelta.of(reading(0, 0), reading(10, 1))


@pytest.mark.parametrize(
    ("received", "sent", "delivered", "idle_s", "limit"),
    [
        (1000, 1000, 1000, 6.0, "generator"),
        (600, 600, 600, 6.0, "NIC"),
        (1000, 1000, 600, 6.0, "NIC"),
        (600, 600, 600, 0.2, "kernel"),
        (1000, 600, 600, 6.0, "unknown"),
    ],
)
def test_what_is_lost_between_vfs_is_the_nics_where_no_core_was_busy(
    received: int, sent: int, delivered: int, idle_s: float, limit: str
) -> None:
    placement = Placement({0: ("vnf1",)})
    found = result(between(received, sent, delivered, idle_s), placement, 64.0)
    assert found.limit == limit
    assert found.offered_pps == pytest.approx(100)
    assert found.tx_pps == pytest.approx(sent / 10)


class NoLibvirt:
    """Virtual machines that are started by saying so; by name, whether they are awake."""

    alive = True

    def __init__(self) -> None:
        self.awake: dict[str, bool] = {}

    def start(self, one: PlacedGuest, peer: None) -> None:
        self.awake[one.guest.netns] = one.ready = True

    def states(self) -> dict[str, bool]:
        return self.awake

    def resume(self, name: str) -> None:
        self.awake[name] = True

    def suspend(self, name: str) -> None:
        self.awake[name] = False

    def destroy(self, name: str) -> None:
        self.awake.pop(name, None)

    def close(self) -> None:
        self.awake.clear()


class Finder:
    """A host that says which process each machine of a chain is, and pins them."""

    place = "lab:b"

    def __init__(self) -> None:
        self.agents: dict[str, object] = {}
        self.done: list[tuple[str, ...]] = []

    def perform(self, _: object) -> None:
        pass

    def run(self, argv: Sequence[str], **_: object) -> FinishedProcess:
        self.done.append(tuple(argv))
        processes = "".join(f"pw-t-v{number} {number}\n" for number in range(1, 9))
        return FinishedProcess(tuple(argv), 0, processes, "")


class NoPool:
    """VFs that nobody has."""

    def __init__(self, count: int) -> None:
        self.vfs = [
            ListedVf(
                index=n, address=f"0000:01:10.{n}", driver="igbvf", config=Config(mac=f"mac{n}")
            )
            for n in range(count)
        ]
        self.whole: set[int] = set()

    @property
    def free(self) -> int:
        return len(self.vfs)

    def take(self) -> ListedVf:
        return self.vfs.pop()

    def bind_vfio(self, vf: ListedVf) -> None:
        self.whole.add(vf.index)

    def restore_vf(self, vf: ListedVf) -> None:
        self.whole.discard(vf.index)
        self.vfs.append(vf)


class Standing:
    """A host of virtual machines on one plane, on which chains stand one after another."""

    def __init__(self, plane: str, vfs: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plane = plane
        self.libvirt, self.pool, host = NoLibvirt(), NoPool(vfs), Finder()
        monkeypatch.setattr(booted, "saved_for", lambda *_: None)
        monkeypatch.setattr(kind, "Libvirt", lambda _: self.libvirt)
        monkeypatch.setattr(kind, "remove_guests", lambda *_: None)
        monkeypatch.setattr(VirtualMachines, "_start", self.libvirt.start)
        monkeypatch.setattr(VirtualMachines, "_end_error", lambda *_: PlanewiseError("it ended"))
        machine = SimpleNamespace(netns="", nic="pf0", bridge="br0")
        self.done = host.done
        state = SimpleNamespace(vfs=self.pool, token="t", host=host, machine=machine)
        self.testbed = ChainTestbed(None, VmOptions())
        self.testbed._platforms[()] = cast("VmPlatform", None)
        self.state = cast("MachineState", state)

    @contextmanager
    def chain(self, vnfs: int, *, polls: bool = False) -> Iterator[Functions]:
        chain = Chain(self.plane, "east-west", vnfs, "vm", "testpmd" if polls else "kernel")
        self.testbed._platforms[GUEST_PROGRAMS["testpmd"]] = self.testbed._platforms[()]
        with ExitStack() as opened:
            made = self.testbed._functions(chain, Placement({0: chain.names}), self.state, opened)
            made.make()
            assert made.machines is not None
            made._run(made.machines)
            yield made

    def held(self) -> dict[int, str]:
        return {n: one.vf.config.mac for n, one in self.testbed._placed.items() if one.vf}


def test_virtual_machines_keep_their_vfs_from_chain_to_chain_and_give_all_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = Standing("vf-passthrough", 3, monkeypatch)
    libvirt, pool = there.libvirt, there.pool
    with there.chain(2) as functions:
        first = functions.guests
        assert there.held() == functions.macs
        assert len(pool.whole) == len(first) == 2
        assert functions.pids == {1: 1, 2: 2}
    assert libvirt.awake == {"pw-t-v1": False, "pw-t-v2": False}
    with there.chain(1) as functions:
        assert functions.guests == {1: first[1]}
        assert len(there.held()) == 2
        assert libvirt.awake == {"pw-t-v1": True, "pw-t-v2": False}  # the other sleeps
    del libvirt.awake[first[1].netns]  # its VF is free for who comes in its place
    with there.chain(3) as functions:
        assert functions.guests[2] == first[2]
        assert len(set(functions.macs.values())) == 3
        assert pool.free == 0
    there.testbed._end_machines()
    assert (libvirt.awake, pool.free, pool.whole) == ({}, 3, set())


def test_virtual_machines_that_poll_end_with_their_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Standing("vf-passthrough", 3, monkeypatch)
    with there.chain(3, polls=True):
        assert there.pool.free == 0
    assert (there.libvirt.awake, there.pool.free, there.pool.whole) == ({}, 3, set())
    assert there.testbed._placed == {}


def test_ports_of_machines_go_with_their_chain_once_these_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tap that stayed made the next chain impossible."""
    there = Standing("virtio-bridge", 0, monkeypatch)
    with there.chain(1):
        assert ("ip", "link", "delete", "pwtf1") not in there.done
    assert there.libvirt.awake == {}
    assert there.done[-1] == ("ip", "link", "delete", "pwtf1")
