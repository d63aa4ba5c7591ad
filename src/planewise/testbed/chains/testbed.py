"""The testbed of chains: builds one at a time on a pair of hosts.

The functions are guests of the responder's host (`forwarders.py`), joined by the kernel's bridge,
by a DPDK switch, or, on VFs, by the NIC. The ends are on the sender's host. On one machine, where
both hosts are namespaces, each end has a veth pair of its own to the responder, without a switch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from planewise.testbed.chains.built import FUNCTIONS, BuiltChain, Feed
from planewise.testbed.chains.dpdk import memory_bytes
from planewise.testbed.chains.ends import MTU_BYTES, PLACES, nics_of, site_of
from planewise.testbed.chains.forwarders import GUEST_PROGRAMS, Functions, Pollers, Routers
from planewise.testbed.chains.functions import PROGRAM as TESTPMD
from planewise.testbed.chains.model import Chain, Placement
from planewise.testbed.chains.routing import function_guests
from planewise.testbed.guests.kernel import Containers, Namespaces
from planewise.testbed.guests.kind import Guests, PlacedGuest, remove_lost
from planewise.testbed.guests.vms.booted import machines_on
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.kind import VirtualMachines
from planewise.testbed.guests.vms.platform import VmPlatform, machine_name, platform_of, vm_mib
from planewise.testbed.hosts import hugepages
from planewise.testbed.hosts.host import Host, LocalHost
from planewise.testbed.hosts.machine import (
    Machine,
    MachineState,
    Resources,
    remove_traces,
    survey,
)
from planewise.testbed.hosts.pair import Pair, local_pair
from planewise.testbed.hosts.steering import may_steer
from planewise.testbed.hosts.xdp import XDP_ROUTER, attach
from planewise.testbed.model import HOSTS, HostRole
from planewise.testbed.planes import plane
from planewise.testbed.refusals import lacking, memory_shortage, no_iommu, vf_shortage

GENERATING: HostRole = "sender"
_NO_NIC = "lo"
"""Surveyed where both hosts are this machine, whose interfaces are not used."""
_TWO_HOSTS = (
    "a chain on VFs needs two hosts whose NICs are cabled: run it with --lab, or with "
    "--sender, --responder and --nic"
)


class ChainTestbed:
    """Chains on a pair of hosts, one at a time, as polling tasks occupy their cores.

    The VFs of both NICs are set up once, and virtual machines that hold them stay from chain to
    chain; `close` ends these.
    """

    def __init__(self, pair: Pair | None, options: VmOptions) -> None:
        """`pair`: two hosts; None: both are namespaces of this machine, made for each chain.
        `options` are those of virtual machines."""
        self._pair = pair
        self._options = options
        self._local = LocalHost("this machine")
        self._states: Mapping[HostRole, MachineState] = {}
        self._machines: VirtualMachines | None = None
        self._placed: dict[int, PlacedGuest] = {}
        """Virtual machines, by number; those that hold a VF stay from chain to chain."""
        self._plane = ""
        """Of virtual machines."""
        self._platforms: dict[tuple[str, ...], VmPlatform] = {}
        self._opened = ExitStack()
        self._opened.callback(self._local.close)

    @property
    def host(self) -> Host:
        """The functions' host."""
        return self._local if self._pair is None else self._pair.machines[FUNCTIONS].host

    @property
    def cpus(self) -> Sequence[int]:
        """The CPUs there that a chain may use."""
        if self._pair is None:
            return sorted(os.sched_getaffinity(0))
        return range(self.resources[FUNCTIONS].cpus)

    @property
    def emulated(self) -> str:
        """Why the functions' CPUs are not those of hardware; empty when they are."""
        reasons = dict.fromkeys(platform.emulated for platform in self._platforms.values())
        return "; ".join(filter(None, reasons))

    @cached_property
    def resources(self) -> Mapping[HostRole, Resources]:
        """What both hosts have, before the first chain."""
        if self._pair is None:
            here = survey(Machine(self._local, _NO_NIC, "", "", netns="here"))
            return dict.fromkeys(HOSTS, here)
        machines = self._pair.machines
        return {role: survey(machines[role], with_vfs=role == FUNCTIONS) for role in HOSTS}

    def check(self, chain: Chain) -> str:
        """What the hosts lack for a chain, as a sentence; empty when they suffice.

        Raises:
            PlanewiseError: a host does not answer, or has not what virtual machines need.
        """
        if self._pair is None:
            if chain.on_vfs:
                return _TWO_HOSTS
            if not may_steer(Path("/proc/self/uid_map").read_text()):
                if chain.plane == "vhost-user":
                    return "only root of the machine may give huge pages to a switch and functions"
                return "only root may move the functions' receive work to CPUs of their own"
        options = self._options_of(chain)
        if reason := shortage(chain, self.resources, options) or _missing(chain, self.host):
            return reason
        needed_bytes = memory_bytes(chain) if self._pair is None else 0
        if needed_bytes and (reason := hugepages.unavailable_reason(needed_bytes)):
            return reason
        if chain.kind == "vm":
            _ = self._platform(options)
        return ""

    def _options_of(self, chain: Chain) -> VmOptions:
        """Options of the virtual machines of a chain."""
        return replace(
            self._options,
            shared_memory=plane(chain.plane).shares_memory,
            programs=GUEST_PROGRAMS.get(chain.forwards, ()),
        )

    def _platform(self, options: VmOptions) -> VmPlatform:
        """What runs virtual machines with these programs."""
        if options.programs not in self._platforms:
            self._platforms[options.programs] = platform_of(self.host, options.programs)
        return self._platforms[options.programs]

    @contextmanager
    def arrange(self, chain: Chain, placement: Placement, feed: Feed) -> Iterator[BuiltChain]:
        """Builds a chain on these CPUs, and removes it.

        Raises:
            UnsupportedError: a program, huge pages or a privilege is missing.
            PlanewiseError: it cannot be built there.
        """
        what = f"chain of {chain.vnfs} on {chain.plane}, {chain.pattern}"
        with self._on_hosts(what) as states, ExitStack() as opened:
            if self._pair is not None:  # namespaces of this machine go with the pair
                for state in states.values():
                    opened.callback(remove_traces, state.host, state.machine.nic, state.token)
            functions = self._functions(chain, placement, states[FUNCTIONS], opened)
            built = BuiltChain(functions, states[GENERATING], feed)
            built.build()
            yield built

    @contextmanager
    def _on_hosts(self, what: str) -> Iterator[Mapping[HostRole, MachineState]]:
        """States of the hosts, on which no chain stands."""
        if self._pair is None:
            with local_pair(MTU_BYTES, what=what) as pair, ExitStack() as opened:
                states = _states_on(pair, opened)
                opened.callback(self._end_machines)
                yield states
            return
        if not self._states:
            self._states = _states_on(self._pair, self._opened)
            for role, state in self._states.items():
                if self.resources[role].vfs:
                    _ = state.vfs  # all chains find the same NIC
                # A VF sends nothing before its PF is up.
                state.host.run(["ip", "link", "set", state.machine.nic, "up"]).check()
        yield self._states

    def _functions(
        self, chain: Chain, placement: Placement, state: MachineState, opened: ExitStack
    ) -> Functions:
        """The functions of a chain, which are not made yet."""
        kind: Guests
        if chain.kind == "vm":
            kind, placed = self._machines_for(chain, state), self._placed
        else:
            if self._machines is not None and chain.on_vfs and state.vfs.free < chain.vnfs:
                self._end_machines()  # they hold VFs that are needed
            kind, placed = (Containers if chain.kind == "container" else Namespaces)(state), {}
        queues = self._options.queues if chain.kind == "vm" else 1
        site = site_of(state.machine.bridge, nics_of(state.machine), queues)
        for number, guest in function_guests(state.token, chain).items():
            placed.setdefault(number, PlacedGuest(guest, site))
        return (Pollers if chain.polls else Routers)(chain, placement, kind, placed, opened)

    def _machines_for(self, chain: Chain, state: MachineState) -> VirtualMachines:
        """The host's virtual machines for such a chain; ends those for a chain of another kind."""
        options, machines = self._options_of(chain), self._machines
        if machines is None or (self._plane, machines.options) != (chain.plane, options):
            self._end_machines()
            machines = machines_on(state, self._platform(options), options)
            self._machines, self._plane = machines, chain.plane
        remove_lost(machines, self._placed)
        return machines

    def _end_machines(self) -> None:
        machines, self._machines = self._machines, None
        if machines is not None:
            with ExitStack() as last:
                last.callback(machines.close)
                while self._placed:
                    last.callback(machines.remove, self._placed.popitem()[1])

    def close(self) -> None:
        """Ends virtual machines, and restores the hosts."""
        try:
            self._end_machines()
        finally:
            self._states = {}
            self._opened.close()


def _states_on(pair: Pair, opened: ExitStack) -> dict[HostRole, MachineState]:
    """States of a pair on which nothing stands; closing `opened` restores the hosts."""
    states = {role: MachineState(pair.machines[role], role, pair.token) for role in HOSTS}
    for state in states.values():
        opened.callback(state.close)
    return states


def shortage(chain: Chain, resources: Mapping[HostRole, Resources], options: VmOptions) -> str:
    """What hosts lack for a chain, as a sentence; empty when they suffice. Pure.

    `options` are those of virtual machines.
    """
    found = resources[FUNCTIONS]
    if reason := lacking([plane(chain.plane)], chain.kind, found):
        return reason
    if found.nic != _NO_NIC:
        needs = {GENERATING: len(PLACES), FUNCTIONS: chain.vnfs if chain.on_vfs else 0}
        for role, needed in needs.items():
            if reason := vf_shortage(needed, resources[role]):
                return reason
    if chain.by_vfio and not found.iommu:
        return no_iommu(found.place)
    if chain.kind != "vm":
        return ""
    return memory_shortage(chain.vnfs, vm_mib(options), found.place, found.free_mib)


def _missing(chain: Chain, host: Host) -> str:
    """The programs that a host lacks for a chain, as a sentence; empty: none."""
    if chain.kind == "vm":
        return ""
    programs = {"dpdk-testpmd": TESTPMD} if chain.polls else {}
    if chain.forwards == "xdp" and not chain.on_vfs:
        programs["ethtool"] = "ethtool"
    look = 'PATH=$PATH:/usr/sbin:/sbin command -v "$1"'
    for name, program in programs.items():
        if host.run(["sh", "-c", look, "sh", program]).exit_code:
            return f"{name} is not installed on {machine_name(host)}"
    return _no_xdp(host) if chain.forwards == "xdp" else ""


def _no_xdp(host: Host) -> str:
    """Why a host loads no XDP program; empty: it does, on a loopback of its own."""
    step = attach("", "lo", host.program(str(XDP_ROUTER)), "xdp")
    done = host.run(["unshare", "--net", "sh", "-c", step.words])
    if not done.exit_code:
        return ""
    words = done.stderr.strip().splitlines() or ["it printed nothing"]
    return f"iproute2 on {machine_name(host)} loads no XDP program ({words[-1]})"
