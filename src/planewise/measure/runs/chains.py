"""Stations that are chains of functions, on this machine or on two hosts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from planewise import procfs
from planewise.errors import PlanewiseError
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import ChainPart, Design
from planewise.measure.station import End, Station
from planewise.measure.trials import vm_options
from planewise.measure.trials.applications import IPERF, lacking
from planewise.measure.trials.load_one_process import Generator
from planewise.testbed.chains import describe
from planewise.testbed.chains.dpdk import Driver, memory_bytes
from planewise.testbed.chains.ends import MTU_BYTES, PLACES
from planewise.testbed.chains.functions import PROGRAM as TESTPMD
from planewise.testbed.chains.machines import GUEST_PROGRAMS, FunctionMachines
from planewise.testbed.chains.model import (
    GENERATOR,
    SMALLEST_BYTES,
    SWITCH,
    Chain,
    Placement,
    assign_cpus,
)
from planewise.testbed.chains.testbed import FUNCTIONS, GENERATING, ChainTestbed, states_on
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.guests import LAB_BOOT_LIMIT_S
from planewise.testbed.guests.vms.platform import VmPlatform, machine_name, platform_of, vm_mib
from planewise.testbed.hosts import hugepages
from planewise.testbed.hosts.host import Host, LocalHost
from planewise.testbed.hosts.machine import MachineState, Resources, survey
from planewise.testbed.hosts.pair import Pair, local_pair
from planewise.testbed.hosts.steering import may_steer
from planewise.testbed.hosts.xdp import XDP_ROUTER, attach
from planewise.testbed.model import HOSTS, HostRole
from planewise.testbed.planes import plane
from planewise.testbed.refusals import memory_shortage, no_iommu
from planewise.testbed.switches.dpdk_switch import PROGRAM as OVS

SLACK_S = 60.0
"""On a busy machine a trial may begin this much late, and take this much longer."""


States = Mapping[HostRole, MachineState]


@dataclass(frozen=True)
class Build:
    """The steps that build a chain, for people."""

    tasks: Mapping[int, tuple[str, ...]]
    """By CPU; empty where that is known only once the hosts are asked."""
    steps: tuple[str, ...]


class Chains:
    """Builds a chain for each visit and removes it after, as polling tasks occupy their cores.

    On other hosts the VFs of both NICs are set up once, and virtual machines that hold them stay
    from chain to chain.
    """

    def __init__(self, design: Design, pair: Pair | None = None) -> None:
        """`pair`: two hosts; None: both are namespaces of this machine, made for each chain."""
        self._part = design.chain or ChainPart()
        self._tcp = design.tcp is not None
        self._options = vm_options(design)
        self._platforms: dict[tuple[str, ...], VmPlatform] = {}
        self._local = LocalHost("this machine")
        self._pair = pair
        self._resources: dict[HostRole, Resources] = {}
        self._states: States = {}
        self._machines: FunctionMachines | None = None
        self._generators: dict[str, Generator] = {}
        self._opened = ExitStack()

    @property
    def _functions_host(self) -> Host:
        return self._local if self._pair is None else self._pair.machines[FUNCTIONS].host

    def _platform(self, options: VmOptions) -> VmPlatform:
        """What runs virtual machines with these programs on the functions' host."""
        if options.programs not in self._platforms:
            platform = platform_of(self._functions_host, options.programs)
            self._platforms[options.programs] = platform
        return self._platforms[options.programs]

    def _options_of(self, chain: Chain) -> VmOptions:
        """Options of the virtual machines of a chain."""
        return replace(
            self._options,
            shared_memory=plane(chain.plane).shares_memory,
            programs=GUEST_PROGRAMS.get(chain.forwards, ()),
        )

    @cached_property
    def _cpus(self) -> Sequence[int]:
        if self._pair is None:
            return sorted(os.sched_getaffinity(0))
        return range(int(self._functions_host.run(["nproc"]).check().stdout))

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""
        return {cell: reason for cell in cells if (reason := self._unavailable_reason(cell))}

    @property
    def emulated(self) -> str:
        """Why the functions' CPUs are not those of hardware; empty when they are."""
        reasons = dict.fromkeys(platform.emulated for platform in self._platforms.values())
        return "; ".join(filter(None, reasons))

    def builds(self, cells: Sequence[Cell], nic: str = "") -> dict[str, Build]:
        """By plane, the steps of its longest chain among `cells`, which can all be built: on two
        hosts whose NIC is called `nic` and whose CPUs are unknown, or here."""
        builds = {}
        for name, cell in longest(cells).items():
            chain = chain_of(cell)
            placement = assign_cpus(chain.names, [0], {}) if nic else self._place(chain)
            if nic and plane(chain.plane).switch_is_program:
                placement = Placement({0: (SWITCH,), 1: chain.names})
            steps = describe.steps(chain, placement, nic, self._driver(chain))
            builds[name] = Build({} if nic else placement.tasks, steps)
        return builds

    def _driver(self, chain: Chain) -> Driver | None:
        return self._part.uplink if chain.plane == "vhost-user" else None

    def _unavailable_reason(self, cell: Cell) -> str:
        try:
            chain = chain_of(cell)
            reason = self._refusal(chain)
            if reason:
                return reason
            self._place(chain)
            return self._shortage(chain)
        except PlanewiseError as error:
            return error.what

    def _refusal(self, chain: Chain) -> str:
        """Why no hosts of this sort can have a chain, as a sentence; empty when some can."""
        if self._pair is None and chain.on_vfs:
            return _TWO_HOSTS
        if self._tcp and chain.polls:
            return "functions that poll carry no TCP: they forward all frames one way"
        if chain.plane != "vhost-user":
            return ""
        if self._tcp:
            return "the flows of a DPDK switch are one-way, and TCP needs both directions"
        if self._part.uplink:
            return ""
        if self._pair is not None:
            return "a DPDK switch on another host is fed over its NIC: give `chain.uplink` a driver"
        if self._part.offered_pps is not None:
            return (
                "without an uplink the generator on a switch cannot be paced: give `chain.uplink` "
                "a driver, or leave `offered_pps` out"
            )
        if not chain.polls:
            return "functions that route need IP traffic from outside: give `chain.uplink` a driver"
        return ""

    def _shortage(self, chain: Chain) -> str:
        """What the hosts lack for a chain, as a sentence; empty when they suffice."""
        host, place = self._functions_host, machine_name(self._functions_host)
        if self._tcp and (reason := lacking([host], (IPERF,))):
            return reason
        if self._pair is None:
            if reason := unavailable_here(chain, self._local):
                return reason
        else:
            if reason := _missing(chain, host):
                return f"{reason} on {place}"
            if not self._resources:
                machines = self._pair.machines
                self._resources = {
                    role: survey(machines[role], with_vfs=role == FUNCTIONS) for role in HOSTS
                }
            if reason := nic_shortage(chain, self._resources):
                return reason
        if chain.by_vfio and not self._resources[FUNCTIONS].iommu:
            return no_iommu(self._resources[FUNCTIONS].place)
        if chain.kind != "vm":
            return ""
        options = self._options_of(chain)
        if self._pair is None:
            free = procfs.memory(host.read_text("/proc/meminfo")).get("MemAvailable", 0) >> 20
        else:
            free = self._resources[FUNCTIONS].free_mib
        if reason := memory_shortage(chain.vnfs, vm_mib(options), place, free):
            return reason
        _ = self._platform(options)
        return ""

    def _place(self, chain: Chain) -> Placement:
        # The kernel's bridge is not a task: its work is done where a frame comes from.
        tasks = [SWITCH] if plane(chain.plane).switch_is_program else []
        if self._pair is None and (chain.plane != "vhost-user" or self._part.uplink):
            tasks.append(GENERATOR)
        return assign_cpus((*tasks, *chain.names), self._cpus, self._part.cpus.named())

    @contextmanager
    def station(self, cell: Cell) -> Iterator[Station]:
        """The cell's chain, built."""
        chain = chain_of(cell)
        with self._on_hosts(f"chain of {chain.vnfs} on {chain.plane}, {chain.pattern}") as states:
            machines = self._machines_on(states, chain) if chain.kind == "vm" else None
            if machines is None and chain.on_vfs:
                held = self._machines is not None and self._machines.vfs
                if held and states[FUNCTIONS].vfs.free < chain.vnfs:
                    self._end_machines()  # they hold VFs that are needed
            with ChainTestbed(
                chain,
                self._place(chain),
                states,
                lambda: self._max_pps(states),
                offered_pps=self._part.offered_pps,
                uplink=self._driver(chain),
                machines=machines,
                addressed=self._tcp,
            ) as testbed:
                ends = [
                    End(host, netns, place, interface, address)
                    for place, (host, netns, address, interface) in zip(
                        PLACES, testbed.endpoints, strict=True
                    )
                ]
                emulated_twice = machines is not None and self._pair is not None
                with Station(
                    {role: state.host for role, state in states.items()},
                    dict(zip(HOSTS, ends, strict=True)),
                    sent=lambda: {
                        name: (counters.packets, counters.bytes)
                        for name, counters in testbed.read().vnfs.items()
                    },
                    chain=testbed,
                    slack_s=LAB_BOOT_LIMIT_S if emulated_twice else SLACK_S,
                ) as station:
                    yield station

    @contextmanager
    def _on_hosts(self, label: str) -> Iterator[States]:
        """The hosts; on this machine a pair of namespaces, made for one chain."""
        if self._pair is not None:
            if not self._states:
                self._states = states_on(self._pair, self._opened)
                for role, state in self._states.items():
                    if self._resources[role].vfs:
                        _ = state.vfs  # all chains find the same NIC
                    # A VF sends nothing before its PF is up.
                    state.host.run(["ip", "link", "set", state.machine.nic, "up"]).check()
            yield self._states
            return
        with local_pair(MTU_BYTES, what=label) as pair, ExitStack() as opened:
            states = states_on(pair, opened)
            opened.callback(self._end_machines)
            yield states

    def _machines_on(self, states: States, chain: Chain) -> FunctionMachines:
        """The host's virtual machines for such a chain; ends those for a chain of another kind."""
        options, machines = self._options_of(chain), self._machines
        if machines is None or (machines.plane, machines.options) != (chain.plane, options):
            self._end_machines()
            state, platform = states[FUNCTIONS], self._platform(options)
            machines = FunctionMachines(state, chain.plane, platform, options)
            self._machines = machines
        return machines

    def _end_machines(self) -> None:
        machines, self._machines = self._machines, None
        if machines is not None:
            machines.close()

    def _max_pps(self, states: States) -> float:
        """The generator's own maximum on its host [packet/s], measured once."""
        host = states[GENERATING].host
        return self._generators.setdefault(host.name, Generator(host)).max_pps(SMALLEST_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._end_machines()
        finally:
            self._states = {}
            self._opened.close()
            self._local.close()


_TWO_HOSTS = (
    "a chain on VFs needs two hosts whose NICs are cabled: run it with --lab, or with "
    "--sender, --responder and --nic"
)


def _missing(chain: Chain, host: Host) -> str:
    """A clause that names the programs a host lacks for a chain; empty: none."""
    needs = plane(chain.plane).needs
    programs = {"Open vSwitch with DPDK": OVS} if "dpdk" in needs else {}
    if "ovs" in needs:
        programs["Open vSwitch"] = "ovs-vswitchd"
    if chain.polls and chain.kind != "vm":
        programs["dpdk-testpmd"] = TESTPMD
    if chain.forwards == "xdp" and chain.kind != "vm" and not chain.on_vfs:
        programs["ethtool"] = "ethtool"
    look = 'PATH=$PATH:/usr/sbin:/sbin command -v "$1"'
    missing = [
        name
        for name, program in programs.items()
        if host.run(["sh", "-c", look, "sh", program]).exit_code
    ]
    verb = "is" if len(missing) == 1 else "are"
    if missing:
        return f"{' and '.join(missing)} {verb} not installed"
    return _no_xdp(host) if chain.forwards == "xdp" and chain.kind != "vm" else ""


def _no_xdp(host: Host) -> str:
    """A clause on why a host loads no XDP program; empty: it does, on a loopback of its own."""
    step = attach("", "lo", host.program(str(XDP_ROUTER)), "xdp")
    done = host.run(["unshare", "--net", "sh", "-c", step.words])
    if not done.exit_code:
        return ""
    words = done.stderr.strip().splitlines() or ["it printed nothing"]
    return f"iproute2 loads no XDP program ({words[-1]})"


def unavailable_here(chain: Chain, host: Host) -> str:
    """Why this machine, which is `host`, cannot build a chain; empty when it can."""
    if reason := _missing(chain, host):
        return f"{reason} here"
    if not may_steer(Path("/proc/self/uid_map").read_text()):
        if chain.plane == "vhost-user":
            return "only root of the machine may give huge pages to a switch and its functions"
        return "only root may move the functions' receive work to CPUs of their own"
    if chain.kind == "container" and not shutil.which("dockerd", path=_SBIN):
        return "there is no Docker on this machine"
    needed_bytes = memory_bytes(chain)
    return hugepages.unavailable_reason(needed_bytes) if needed_bytes else ""


def nic_shortage(chain: Chain, resources: Mapping[HostRole, Resources]) -> str:
    """What two hosts lack for a chain, as a sentence; empty when they suffice. Pure."""
    needs = {GENERATING: len(PLACES), FUNCTIONS: chain.vnfs if chain.on_vfs else 0}
    for role, needed in needs.items():
        nic, place = resources[role].nic, resources[role].place
        if needed and not resources[role].vfs:
            return f"{nic} of {place} has no SR-IOV"
        if needed > resources[role].vfs:
            return f"needs {needed} VFs on {place}, and {nic} has {resources[role].vfs}"
    if chain.kind == "container" and not resources[FUNCTIONS].dockerd:
        return f"there is no Docker on {resources[FUNCTIONS].place}"
    return ""


_SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def longest(cells: Sequence[Cell]) -> dict[str, Cell]:
    """The cell with the longest chain by plane, containers apart. Pure."""
    by_name: dict[str, Cell] = {}
    for cell in cells:
        name = cell.plane if cell.guest != "container" else f"{cell.plane}, containers"
        if cell.vnfs >= by_name.get(name, cell).vnfs:
            by_name[name] = cell
    return by_name


def chain_of(cell: Cell) -> Chain:
    """The chain that a cell is; BadInputError when it cannot be built."""
    return Chain(cell.plane, cell.path, cell.vnfs, cell.guest, cell.forwarder)
