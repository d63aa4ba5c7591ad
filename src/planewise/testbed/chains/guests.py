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
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from planewise.errors import PlanewiseError
from planewise.testbed.chains.ends import MTU_BYTES, Ends
from planewise.testbed.chains.functions import (
    GUEST_DIRECTORY,
    GUEST_SCRIPT,
    Function,
    guest_command,
    vf_command,
    vhost_command,
)
from planewise.testbed.chains.machines import FunctionMachines
from planewise.testbed.chains.model import FCS_BYTES, Chain, Placement
from planewise.testbed.chains.reading import VnfCounters, vnf_counters
from planewise.testbed.chains.routing import (
    function_guests,
    function_settings,
    peers,
    router_scripts,
    routing,
)
from planewise.testbed.guests.kernel import Containers, Namespaces
from planewise.testbed.guests.kind import PlacedGuest
from planewise.testbed.hosts.counters import HostCounters
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.hosts.steering import bind_interrupts, steer
from planewise.testbed.hosts.xdp import XDP_PASS, XDP_ROUTER, attach
from planewise.testbed.model import GUEST_INTERFACE, Guest, Site
from planewise.testbed.plan import Step, await_up, run_program, set_up
from planewise.testbed.planes import plane
from planewise.testbed.vfs.nic import ListedVf

if TYPE_CHECKING:
    from planewise.testbed.chains.dpdk import DpdkSwitch

_LOWEST = ("nice", "-n", "19")
_WRAPPED = 1 << 31
"""A VF's counters have 32 bits; one that rises by more than half of that was reset."""


@dataclass
class ChainParts:
    """A chain on its functions' host, which its parts share."""

    chain: Chain
    placement: Placement
    state: MachineState
    """The functions' host."""
    machines: FunctionMachines | None = None
    """Of functions that are virtual machines."""
    switch: DpdkSwitch | None = None
    """The DPDK switch that joins them, once it runs."""
    opened: ExitStack = field(default_factory=ExitStack)
    """Ends what was started, the last first."""
    guests: dict[int, Guest] = field(init=False)
    """The functions, by number; a VF brings its MAC."""

    def __post_init__(self) -> None:
        self.guests = function_guests(self.state.token, self.chain)

    def cpu(self, number: int) -> int:
        """CPU of a function."""
        return self.placement.cpu(f"vnf{number}")

    @property
    def macs(self) -> dict[int, str]:
        """MACs of the functions, by number."""
        return {number: guest.mac for number, guest in self.guests.items()}

    @cached_property
    def directory(self) -> str:
        """A scratch directory on the host, removed with the chain."""
        host = self.state.host
        # By this name `remove_traces` knows what runs in it.
        template = f"{host.directory}/pw-{self.state.token}.XXXXXX"
        directory = host.run(["mktemp", "-d", template]).check().stdout.strip()
        self.opened.callback(host.run, ["rm", "-rf", directory])
        return directory


def move_vfs(state: MachineState, opened: ExitStack, guests: Sequence[Guest]) -> list[Guest]:
    """Gives each guest a VF and sets it up; returns the guests with its MAC.

    Raises:
        PlanewiseError: too few VFs, or one could not be moved.
    """
    moved = state.vfs.move(guests, MTU_BYTES)
    for vf in moved.values():
        opened.callback(state.vfs.return_to_pool, vf.index)
    state.host.perform(set_up(guest.netns, guest.interface) for guest in guests)
    return [replace(guest, mac=moved[guest.netns].config.mac) for guest in guests]


class Functions(ABC):
    """All functions of a chain, by number from 1."""

    def __init__(self, parts: ChainParts) -> None:
        self.parts = parts
        self.remarks: tuple[str, ...] = ()
        """How they forward, once they are connected, where results depend on it."""

    def make(self) -> None:
        """Makes the functions as far as the switch needs them; `parts.guests` has their MACs then.

        Raises:
            PlanewiseError: there are too few VFs, or one could not be moved.
        """
        parts = self.parts
        if parts.machines is not None:
            # The kernels of those that poll have no NIC left that another chain could use.
            parts.opened.callback(parts.machines.end_chain, keep=not parts.chain.polls)
            parts.guests = parts.machines.place(parts.guests)
            return
        if parts.chain.kind == "container" or not parts.chain.polls:
            self._create()
        if parts.chain.on_vfs:
            self._take_vfs()

    def _create(self) -> None:
        """Makes namespaces or containers, without interfaces."""
        parts, state = self.parts, self.parts.state
        guests = (Containers if parts.chain.kind == "container" else Namespaces)(state)
        site = Site("responder", "", state.machine.nic, MTU_BYTES)
        placed = [PlacedGuest(guest, site) for guest in parts.guests.values()]
        state.host.perform(guests.create(placed, []))
        if parts.chain.kind == "container":
            for one in placed:
                parts.opened.callback(guests.end, one)

    @abstractmethod
    def _take_vfs(self) -> None:
        """Gives each function that is no virtual machine its VF."""

    @abstractmethod
    def connect(self, ends: Ends) -> None:
        """Starts forwarding, each function on its CPU.

        Raises:
            PlanewiseError: one did not start.
        """

    def _run(self, machines: FunctionMachines) -> None:
        """Runs virtual machines, each with its NIC."""
        parts = self.parts
        socket = None if parts.switch is None else parts.switch.socket
        machines.run({number: parts.cpu(number) for number in parts.guests}, socket)

    @abstractmethod
    def read(self, counters: HostCounters) -> dict[int, VnfCounters]:
        """Their counters; `counters` are those of their host, with `namespaces`."""

    @property
    def namespaces(self) -> Sequence[str]:
        """Namespaces whose counters on the host are theirs."""
        return ()

    @property
    def pids(self) -> Mapping[int, int]:
        """Processes of the host whose CPU time is theirs; for virtual machines those of QEMU."""
        machines = self.parts.machines
        return {} if machines is None else {n: machines.pid(n) for n in self.parts.guests}

    def busy_s(self) -> dict[str, float]:
        """Time that each spent on packets since `clear` [s], by name, where it is known."""
        return {}

    def clear(self) -> None:  # noqa: B027 - most have nothing to begin
        """Resets `busy_s`."""

    def check(self) -> None:
        """Raises PlanewiseError when a function has stopped unexpectedly."""
        if self.parts.machines is not None:
            self.parts.machines.check()


class Routers(Functions):
    """Functions whose kernel routes, or an XDP program in it: the host's, or a virtual machine's.

    For XDP virtual machines get the program, and this machine's iproute2.
    """

    def _create(self) -> None:
        super()._create()
        self.parts.state.host.perform(
            step for name in self.namespaces for step in function_settings(name)
        )

    def _take_vfs(self) -> None:
        parts = self.parts
        moved = move_vfs(parts.state, parts.opened, list(parts.guests.values()))
        parts.guests = {guest.index: guest for guest in moved}

    def connect(self, ends: Ends) -> None:
        parts, state = self.parts, self.parts.state
        if parts.machines is not None:
            self._connect_machines(parts.machines, ends)
            return
        steps = routing(parts.chain, parts.guests, ends.macs)
        state.host.perform([*steps, *(await_up(name) for name in self.namespaces)])
        for number, guest in parts.guests.items():
            if parts.chain.on_vfs:
                bind_interrupts(state.host, guest.netns, GUEST_INTERFACE, [parts.cpu(number)])
            else:
                steer(state.host, guest.netns, [GUEST_INTERFACE], [parts.cpu(number)])
        if parts.chain.forwards == "xdp":
            self._attach_programs()

    def _connect_machines(self, machines: FunctionMachines, ends: Ends) -> None:
        self._run(machines)
        scripts = router_scripts(self.parts.chain, self.parts.guests, ends.macs)
        if self.parts.chain.forwards == "xdp":
            program = base64.encodebytes(XDP_ROUTER.read_bytes()).decode().splitlines()
            copied = (f"base64 -d >{_IN_MACHINE} <<.", *program, ".")
            attached = (*copied, attach_in_machine(), f"/bin/{shlex.join(_ASK)}")
            scripts = {number: (*lines, *attached) for number, lines in scripts.items()}
        outputs = machines.run_scripts(scripts)
        self.remarks = _remarks([outputs[number] for number in self.parts.guests])

    def _attach_programs(self) -> None:
        parts, host = self.parts, self.parts.state.host
        router, passing = (host.program(str(program)) for program in (XDP_ROUTER, XDP_PASS))
        parts.state.host.perform(attach_to_namespaces(parts.chain, parts.guests, (router, passing)))
        if not parts.chain.on_vfs:
            self._steer_ports()
            return
        for name in self.namespaces:  # a VF outlives its chain
            detach = ("ip", "link", "set", "dev", GUEST_INTERFACE, "xdp", "off")
            parts.opened.callback(parts.state.host.perform, [run_program(name, detach)])
        self.remarks = _remarks(
            [host.run(_ASK, netns=name).check().stdout for name in self.namespaces]
        )

    def _steer_ports(self) -> None:
        """Steers each function's program to its CPU: on veth it runs on that of the sender."""
        parts, state = self.parts, self.parts.state
        if not parts.chain.through or plane(parts.chain.plane).switch_is_program:
            return  # The sender is the NIC, whose frames are steered already, or the switch.
        for number in range(1, parts.chain.vnfs):
            if parts.cpu(number) != (cpu := parts.cpu(number + 1)):
                steer(state.host, state.machine.netns, [parts.guests[number].port], [cpu])

    @property
    def namespaces(self) -> Sequence[str]:
        if self.parts.machines is not None:
            return ()
        return [guest.netns for guest in self.parts.guests.values()]

    def read(self, counters: HostCounters) -> dict[int, VnfCounters]:
        chain, machines = self.parts.chain, self.parts.machines
        if machines is not None:
            by_virtio = chain.forwards == "xdp" and not chain.on_vfs and not self.remarks
            return without_headers(machines.read()) if by_virtio else machines.read()
        interfaces = [counters.of(name, GUEST_INTERFACE) for name in self.namespaces]
        return {
            number: vnf_counters(interface, interface["rx_packets"])
            for number, interface in enumerate(interfaces, start=1)
        }


class Pollers(Functions):
    """dpdk-testpmd processes, each with a NIC for itself: a VF by vfio-pci, a vhost-user port, or
    that of its virtual machine, with which it ends.

    A VF is given back only after its function has ended: the kernel waits for ever to take a VF
    from a process that holds it.
    """

    def __init__(self, parts: ChainParts) -> None:
        super().__init__(parts)
        self._vfs: dict[int, ListedVf] = {}
        self._functions: dict[int, Function] = {}
        self._stats: dict[int, VnfCounters] = {}

    def _take_vfs(self) -> None:
        parts = self.parts
        for number, guest in parts.guests.items():
            vf = self._vfs[number] = parts.state.vfs.take()
            parts.opened.callback(parts.state.vfs.restore_vf, vf)
            parts.state.vfs.bind_vfio(vf)
            parts.guests[number] = replace(guest, mac=vf.config.mac)

    def connect(self, ends: Ends) -> None:
        """See `Functions.connect`: each sends all to its peer's MAC."""
        parts, addresses = self.parts, {number: vf.address for number, vf in self._vfs.items()}
        if parts.machines is not None:
            self._run(parts.machines)
            self._vfs = dict(parts.machines.vfs)
            script = GUEST_SCRIPT.splitlines()
            addresses = parts.machines.run_scripts(dict.fromkeys(parts.guests, script))
        for number, peer in peers(parts.chain, parts.guests, ends.macs[1]).items():
            self._functions[number] = self._start(number, peer, addresses.get(number, ""))
        for function in self._functions.values():
            function.await_prompt()
            function.execute("start")

    def _start(self, number: int, peer: str, address: str) -> Function:
        """Starts a function on the NIC with this PCI address, if it is no vhost-user port's."""
        parts, guest, host = self.parts, self.parts.guests[number], self.parts.state.host
        if parts.machines is not None:
            # On a single CPU testpmd must leave time to the agent.
            vcpus = parts.machines.options.vcpus
            argv = guest_command(address, vcpus - 1, peer, guest.name)
            argv = [*(_LOWEST if vcpus == 1 else ()), *argv]
            return Function(host, GUEST_DIRECTORY, guest.name, argv, guest=guest.netns)
        cpu, prefix = parts.cpu(number), f"{parts.state.token}{guest.name}"
        if parts.switch is not None:
            argv = vhost_command(parts.switch.socket(guest.name), cpu, peer, prefix)
        else:
            argv = vf_command(address, cpu, peer, prefix)
        if self._alone:
            argv = [*_LOWEST, *argv]
        netns = guest.netns if parts.chain.kind == "container" else None
        function = Function(host, parts.directory, guest.name, argv, netns)
        parts.opened.callback(function.close)
        return function

    @cached_property
    def _alone(self) -> bool:
        """Whether the host has a single CPU, which pollers would take from readers."""
        return self.parts.state.host.run(["nproc"]).check().stdout.strip() == "1"

    @property
    def pids(self) -> Mapping[int, int]:
        if self.parts.machines is not None:
            return super().pids
        return {number: function.pid for number, function in self._functions.items()}

    def busy_s(self) -> dict[str, float]:
        return {function.name: function.busy_s() for function in self._functions.values()}

    def clear(self) -> None:
        self._stats.clear()
        for function in self._functions.values():
            function.clear()

    def check(self) -> None:
        super().check()
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

    def _read(self, number: int) -> VnfCounters:
        function, vf = self._functions[number], self._vfs.get(number)
        began_s = time.monotonic()
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
        at_s = (began_s + time.monotonic()) / 2
        # igb counts the FCS as well (VFGOTC); other drivers of DPDK subtract it.
        fcs_bytes = FCS_BYTES if vf is not None and vf.driver == "igbvf" else 0
        return replace(stats, bytes=stats.bytes - stats.packets * fcs_bytes, at_s=at_s)


_HEADER_BYTES = 12
"""struct virtio_net_hdr_mrg_rxbuf."""
_ASK = ("ip", "link", "show", "dev", GUEST_INTERFACE)
_GENERIC = "xdpgeneric"
_IN_MACHINE = f"/tmp/{XDP_ROUTER.name}"


def attach_to_namespaces(
    chain: Chain,
    functions: Mapping[int, Guest],
    programs: tuple[str, str] = (str(XDP_ROUTER), str(XDP_PASS)),
) -> tuple[Step, ...]:
    """The steps that give functions the first program, and their ports the second. Pure."""
    router, passing = programs
    steps: list[Step] = []
    for guest in functions.values():
        mode: Literal["xdp", "xdpdrv"] = "xdp" if chain.on_vfs else "xdpdrv"
        steps.append(attach(guest.netns, GUEST_INTERFACE, router, mode))
        if not chain.on_vfs:
            steps.append(attach("", guest.port, passing))
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
