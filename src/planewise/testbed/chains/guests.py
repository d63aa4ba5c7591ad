"""The functions of a chain as guests of its host: in a kernel that routes, or programs that poll.

Each makes its functions, connects them once their ports and both ends exist, and reads their
counters. `ChainParts.opened` removes the functions.

An XDP program that routes asks the kernel for routes and neighbours, which are those of functions
whose kernel routes. A veth pair and virtio have XDP of their own; of other interfaces it depends on
the driver, in whose place the kernel runs the program (generic XDP).
"""

from __future__ import annotations

import base64
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

from planewise.errors import PlanewiseError
from planewise.testbed.chains.dpdk import DpdkSwitch
from planewise.testbed.chains.ends import Ends, mac_of, macs_of, netns, port_of
from planewise.testbed.chains.functions import (
    GUEST_DIRECTORY,
    GUEST_SCRIPT,
    Function,
    guest_command,
    vf_command,
    vhost_command,
)
from planewise.testbed.chains.machines import FunctionMachines, function_guest, router_script
from planewise.testbed.chains.model import FCS_BYTES, Chain
from planewise.testbed.chains.parts import ChainParts, move_vfs
from planewise.testbed.chains.reading import VnfCounters, now_s, vnf_counters
from planewise.testbed.chains.routing import function_settings, routing
from planewise.testbed.guests.kernel import Containers, Namespaces
from planewise.testbed.guests.kind import PlacedGuest
from planewise.testbed.guests.vms.domain import AnyNic, Nic
from planewise.testbed.guests.vms.guests import nic_of
from planewise.testbed.hosts.counters import HostCounters
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.steering import bind_interrupts, steer
from planewise.testbed.hosts.xdp import XDP_PASS, XDP_ROUTER, attach
from planewise.testbed.model import GUEST_INTERFACE, Guest, GuestKind, Site
from planewise.testbed.plan import Step, await_up, run_program
from planewise.testbed.planes import plane
from planewise.testbed.vfs.nic import ListedVf

_LOWEST = ("nice", "-n", "19")
_WRAPPED = 1 << 31
"""A VF's counters have 32 bits; one that rises by more than half of that was reset."""


class Functions(ABC):
    """All functions of a chain, by number from 1."""

    def __init__(self, parts: ChainParts) -> None:
        self.parts = parts
        self.remarks: tuple[str, ...] = ()
        """How they forward, once they are connected, where results depend on it."""

    @abstractmethod
    def make(self) -> dict[int, str]:
        """Makes the functions as far as the switch needs them; returns their MACs."""

    @abstractmethod
    def connect(self, macs: Mapping[int, str], ends: Ends) -> None:
        """Starts forwarding, each function on its CPU.

        Raises:
            PlanewiseError: one did not start.
        """

    @abstractmethod
    def read(self, counters: HostCounters) -> dict[int, VnfCounters]:
        """Their counters; `counters` are those of their host, with `namespaces`."""

    @property
    def namespaces(self) -> Sequence[str]:
        """Namespaces whose counters on the host are theirs."""
        return ()

    @property
    def pids(self) -> Mapping[int, int]:
        """Processes of the host whose CPU time is theirs."""
        return {}

    def busy_s(self) -> dict[str, float]:
        """Time that each spent on packets since `clear` [s], by name, where it is known."""
        return {}

    def clear(self) -> None:  # noqa: B027 - most have nothing to begin
        """Resets `busy_s`."""

    def check(self) -> None:  # noqa: B027 - most say so where they are read
        """Raises PlanewiseError when a function has stopped unexpectedly."""

    def _place(self, kind: GuestKind) -> list[PlacedGuest]:
        """Makes the functions, without interfaces, as guests of a kind."""
        state, plane = self.parts.state, self.parts.chain.plane
        guests = (Containers if kind == "container" else Namespaces)(state)
        site = Site("responder", "", state.machine.nic, 1500)
        placed = [
            PlacedGuest(function_guest(state.token, number, plane, mac_of(number)), site)
            for number in self.parts.numbers
        ]
        state.perform(guests.create(placed, []))
        if kind == "container":
            for placed_guest in placed:
                self.parts.opened.callback(guests.end, placed_guest)
        return placed


class Routers(Functions):
    """Namespaces or containers, in whose network the host's kernel routes."""

    def make(self) -> dict[int, str]:
        """See `Functions.make`; on VFs each has its own."""
        parts, state = self.parts, self.parts.state
        placed = self._place("container" if parts.chain.kind == "container" else "namespace")
        guests = [placed_guest.guest for placed_guest in placed]
        state.perform([step for guest in guests for step in function_settings(guest.netns)])
        if not parts.chain.on_vfs:
            return macs_of(parts.chain)
        return move_vfs(state, parts.opened, guests)

    def connect(self, macs: Mapping[int, str], ends: Ends) -> None:
        parts, state = self.parts, self.parts.state
        steps = routing(parts.chain, parts.netns, macs, ends.macs)
        state.perform([*steps, *(await_up(name) for name in self.namespaces)])
        move = bind_interrupts if parts.chain.on_vfs else _steer
        for number in parts.numbers:
            move(state.host, parts.netns(number), GUEST_INTERFACE, [parts.cpu(number)])
        if parts.chain.forwards == "xdp":
            self._attach_programs()

    def _attach_programs(self) -> None:
        parts, host = self.parts, self.parts.state.host
        router, passing = (host.program(str(program)) for program in (XDP_ROUTER, XDP_PASS))
        steps = attach_to_namespaces(parts.chain, parts.state.token, (router, passing))
        parts.state.perform(steps)
        if not parts.chain.on_vfs:
            self._steer_ports()
            return
        for name in self.namespaces:  # a VF outlives its chain
            detach = ("ip", "link", "set", "dev", GUEST_INTERFACE, "xdp", "off")
            parts.opened.callback(parts.state.perform, [run_program(name, detach)])
        self.remarks = _remarks(
            [host.run(_ASK, netns=name).check().stdout for name in self.namespaces]
        )

    def _steer_ports(self) -> None:
        """Steers each function's program to its CPU: on veth it runs on that of the sender."""
        parts, state = self.parts, self.parts.state
        if not parts.chain.through or plane(parts.chain.plane).switch_is_program:
            return  # The sender is the NIC, whose frames are steered already, or the switch.
        for number in parts.numbers[:-1]:
            if parts.cpu(number) != (cpu := parts.cpu(number + 1)):
                steer(state.host, state.machine.netns, [port_of(state.token, number)], [cpu])

    @property
    def namespaces(self) -> Sequence[str]:
        return [self.parts.netns(number) for number in self.parts.numbers]

    def read(self, counters: HostCounters) -> dict[int, VnfCounters]:
        interfaces = [counters.of(name, GUEST_INTERFACE) for name in self.namespaces]
        return {
            number: vnf_counters(interface, interface["rx_packets"])
            for number, interface in enumerate(interfaces, start=1)
        }


def _steer(host: Host, netns: str | None, interface: str, cpus: Sequence[int]) -> None:
    steer(host, netns or "", [interface], cpus)


class Machines(Functions):
    """Virtual machines that route; for XDP they get the program, and this machine's iproute2."""

    def __init__(
        self, parts: ChainParts, machines: FunctionMachines, switch: DpdkSwitch | None
    ) -> None:
        super().__init__(parts)
        self._machines = machines
        self._switch = switch

    def make(self) -> dict[int, str]:
        self.parts.opened.callback(self._machines.suspend)
        return _macs_of(self.parts, self._machines)

    def connect(self, macs: Mapping[int, str], ends: Ends) -> None:
        _run_machines(self.parts, self._machines, self._switch, macs)
        scripts = router_scripts(self.parts.chain, macs, ends)
        if self.parts.chain.forwards == "xdp":
            program = base64.encodebytes(XDP_ROUTER.read_bytes()).decode().splitlines()
            copied = (f"base64 -d >{_IN_MACHINE} <<.", *program, ".")
            attached = (*copied, attach_in_machine(), f"/bin/{shlex.join(_ASK)}")
            scripts = {number: (*lines, *attached) for number, lines in scripts.items()}
        outputs = self._machines.run_scripts(scripts)
        self.remarks = _remarks([outputs[number] for number in self.parts.numbers])

    @property
    def pids(self) -> Mapping[int, int]:
        return _pids_of(self.parts, self._machines)

    def read(self, counters: HostCounters) -> dict[int, VnfCounters]:
        counted, chain = self._machines.read(), self.parts.chain
        by_virtio = chain.forwards == "xdp" and not chain.on_vfs and not self.remarks
        return without_headers(counted) if by_virtio else counted


def _macs_of(parts: ChainParts, machines: FunctionMachines) -> dict[int, str]:
    """Takes the VFs of virtual machines on VFs; MACs of all, by number."""
    if parts.chain.on_vfs:
        return machines.take_vfs(parts.numbers)
    return macs_of(parts.chain)


def _pids_of(parts: ChainParts, machines: FunctionMachines) -> dict[int, int]:
    """Processes of a chain's machines, by number, without suspended ones."""
    return {number: machines.pids[number] for number in parts.numbers}


def _run_machines(
    parts: ChainParts,
    machines: FunctionMachines,
    switch: DpdkSwitch | None,
    macs: Mapping[int, str],
) -> None:
    """Runs virtual machines, each with its NIC and on its CPU."""

    def nic(guest: Guest) -> AnyNic:
        if parts.chain.on_vfs:
            return machines.passthrough(guest)
        if switch is not None:
            return Nic("virtio", guest.mac, socket=switch.socket(guest.name))
        return nic_of("virtio", guest, port_of(parts.state.token, guest.index), machines.guests)

    machines.ensure_running(macs, nic)
    machines.pin({number: parts.cpu(number) for number in macs})


def router_scripts(chain: Chain, macs: Mapping[int, str], ends: Ends) -> dict[int, tuple[str, ...]]:
    """By number, the scripts that make virtual machines routers. Pure."""
    steps = routing(chain, str, macs, ends.macs)
    return {
        number: router_script(
            (*function_settings(str(number), GUEST_INTERFACE), *steps), str(number)
        )
        for number in macs
    }


class Pollers(Functions):
    """dpdk-testpmd processes, each with a VF by vfio-pci or behind a vhost-user port.

    A VF is given back only after its function has ended: the kernel waits for ever to take a VF
    from a process that holds it.
    """

    def __init__(self, parts: ChainParts, switch: DpdkSwitch | None) -> None:
        super().__init__(parts)
        self.switch = switch
        self._vfs: dict[int, ListedVf] = {}
        self._functions: dict[int, Function] = {}
        self._stats: dict[int, VnfCounters] = {}

    def make(self) -> dict[int, str]:
        """See `Functions.make`.

        Raises:
            PlanewiseError: too few VFs, or one cannot be had by VFIO.
        """
        parts = self.parts
        if parts.chain.kind == "container":
            self._place("container")
        if not parts.chain.on_vfs:
            return macs_of(parts.chain)
        for number in parts.numbers:
            vf = self._vfs[number] = parts.state.vfs.take()
            parts.opened.callback(parts.state.vfs.restore_vf, vf)
            parts.state.vfs.bind_vfio(vf)
        return {number: vf.config.mac for number, vf in self._vfs.items()}

    def connect(self, macs: Mapping[int, str], ends: Ends) -> None:
        """See `Functions.connect`: each sends all to its peer's MAC."""
        for number, peer in peers(self.parts.chain, macs, ends.macs[1]).items():
            self._functions[number] = self._start(number, peer)
        for function in self._functions.values():
            function.await_prompt()
            function.execute("start")

    def _start(self, number: int, peer: str) -> Function:
        parts, name = self.parts, f"vnf{number}"
        cpu, prefix = parts.cpu(number), f"{parts.state.token}{name}"
        if self.switch is not None:
            argv = vhost_command(self.switch.socket(name), cpu, peer, prefix)
        else:
            argv = vf_command(self._vfs[number].address, cpu, peer, prefix)
        if self._alone:
            argv = [*_LOWEST, *argv]
        netns = parts.netns(number) if parts.chain.kind == "container" else None
        function = Function(parts.state.host, parts.directory, name, argv, netns)
        parts.opened.callback(function.close)
        return function

    @cached_property
    def _alone(self) -> bool:
        """Whether the host has a single CPU, which pollers would take from readers."""
        return self.parts.state.host.run(["nproc"]).check().stdout.strip() == "1"

    @property
    def pids(self) -> Mapping[int, int]:
        return {number: function.pid for number, function in self._functions.items()}

    def busy_s(self) -> dict[str, float]:
        return {function.name: function.busy_s() for function in self._functions.values()}

    def clear(self) -> None:
        self._stats.clear()
        for function in self._functions.values():
            function.clear()

    def check(self) -> None:
        for function in self._functions.values():
            if not function.alive:
                raise PlanewiseError(f"{function.name} ended while it was measured")

    def read(self, counters: HostCounters) -> dict[int, VnfCounters]:
        """See `Functions.read`.

        Raises:
            PlanewiseError: one ended, or its VF was reset below it.
        """
        self.check()
        return {number: self._read(number) for number in self._functions}

    def _vf(self, number: int) -> ListedVf | None:
        """The VF of a function that has one."""
        return self._vfs.get(number)

    def _read(self, number: int) -> VnfCounters:
        function, vf = self._functions[number], self._vf(number)
        began_s = now_s()
        stats = function.port_stats()
        earlier = self._stats.get(number, stats)
        for count, last in (
            (stats.packets, earlier.packets),
            (stats.received or 0, earlier.received or 0),
        ):
            if vf is not None and (count < last or count - last > _WRAPPED):
                raise PlanewiseError(
                    f"the counters of {function.name}'s VF jumped from {last} to {count}: its PF "
                    "went down and up, and the VF is dead until its function is started again",
                    remedy="leave the PF up while chains are measured, and `--resume` the run",
                )
        self._stats[number] = stats
        at_s = (began_s + now_s()) / 2
        # igb counts the FCS as well (VFGOTC); other drivers of DPDK subtract it.
        fcs_bytes = FCS_BYTES if vf is not None and vf.driver == "igbvf" else 0
        return replace(stats, bytes=stats.bytes - stats.packets * fcs_bytes, at_s=at_s)


class PollingMachines(Pollers):
    """Virtual machines, in each of which dpdk-testpmd has the NIC for itself.

    They end with their chain, and testpmd with them.
    """

    def __init__(
        self, parts: ChainParts, machines: FunctionMachines, switch: DpdkSwitch | None
    ) -> None:
        super().__init__(parts, switch)
        self._machines = machines
        self._addresses: Mapping[int, str] = {}

    def make(self) -> dict[int, str]:
        # Their kernels have no NIC left that another chain could use.
        self.parts.opened.callback(self._machines.suspend, keep=False)
        return _macs_of(self.parts, self._machines)

    def connect(self, macs: Mapping[int, str], ends: Ends) -> None:
        _run_machines(self.parts, self._machines, self.switch, macs)
        script = GUEST_SCRIPT.splitlines()
        self._addresses = self._machines.run_scripts(dict.fromkeys(macs, script))
        super().connect(macs, ends)

    def _start(self, number: int, peer: str) -> Function:
        guests, name = self._machines.guests, f"vnf{number}"
        # On a single CPU testpmd must leave time to the agent.
        cpu, nice = guests.options.vcpus - 1, _LOWEST if guests.options.vcpus == 1 else ()
        argv = [*nice, *guest_command(self._addresses[number], cpu, peer, name)]
        netns = self.parts.netns(number)
        return Function(guests.host, GUEST_DIRECTORY, name, argv, guest=netns)

    @property
    def pids(self) -> Mapping[int, int]:
        """See `Functions.pids`: those of QEMU."""
        return _pids_of(self.parts, self._machines)

    def _vf(self, number: int) -> ListedVf | None:
        return self._machines.vf(number)

    def check(self) -> None:
        """See `Functions.check`.

        Raises:
            GuestGoneError: a virtual machine ended.
        """
        self._machines.check()
        super().check()


def peers(chain: Chain, macs: Mapping[int, str], end: str) -> dict[int, str]:
    """By number, the MAC that each polling function sends to; `end` is behind the last. Pure."""
    last = chain.vnfs
    return {number: macs[number + 1] if chain.through and number < last else end for number in macs}


_HEADER_BYTES = 12
"""struct virtio_net_hdr_mrg_rxbuf."""
_ASK = ("ip", "link", "show", "dev", GUEST_INTERFACE)
_GENERIC = "xdpgeneric"
_IN_MACHINE = f"/tmp/{XDP_ROUTER.name}"


def attach_to_namespaces(
    chain: Chain, token: str, programs: tuple[str, str] = (str(XDP_ROUTER), str(XDP_PASS))
) -> tuple[Step, ...]:
    """The steps that give functions the first program, and their ports the second. Pure."""
    router, passing = programs
    steps: list[Step] = []
    for number in chain.numbers:
        mode: Literal["xdp", "xdpdrv"] = "xdp" if chain.on_vfs else "xdpdrv"
        steps.append(attach(netns(token, f"v{number}"), GUEST_INTERFACE, router, mode))
        if not chain.on_vfs:
            steps.append(attach("", port_of(token, number), passing))
    return tuple(steps)


def attach_in_machine() -> str:
    """The line of shell that gives a virtual machine's NIC the program. Pure."""
    # By its path: `ip` is an applet of the guest's shell.
    return f"/bin/{attach('', GUEST_INTERFACE, _IN_MACHINE, 'xdp')}"


def without_headers(counted: Mapping[int, VnfCounters]) -> dict[int, VnfCounters]:
    """Counters of virtio NICs that XDP sends by, with the bytes of frames alone. Pure.

    virtio_net counts its own header with each frame (`__virtnet_xdp_xmit_one`, Linux 6.12).
    """
    return {
        number: replace(function, bytes=function.bytes - _HEADER_BYTES * function.packets)
        for number, function in counted.items()
    }


def _remarks(outputs: Sequence[str]) -> tuple[str, ...]:
    """Remarks on the functions, by the output of `ip link show` in each. Pure."""
    names = [f"vnf{number}" for number, text in enumerate(outputs, 1) if _GENERIC in text.split()]
    if not names:
        return ()
    return (
        f"the kernel runs the XDP program of {' and '.join(names)} (generic XDP): the NIC's driver "
        "has no XDP",
    )
