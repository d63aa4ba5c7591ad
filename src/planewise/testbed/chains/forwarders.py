"""What forwards in a chain's functions: a kernel that routes, or a program that polls.

The functions are guests of one host. Each kind makes them, connects them once their ports and both
ends exist, and reads their counters; it ends them with the chain.

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
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from planewise.errors import PlanewiseError
from planewise.testbed.chains.functions import (
    GUEST_DIRECTORY,
    GUEST_SCRIPT,
    Function,
    command,
)
from planewise.testbed.chains.functions import PROGRAM as TESTPMD
from planewise.testbed.chains.model import FCS_BYTES, Chain, Placement
from planewise.testbed.chains.reading import VnfCounters, vnf_counters
from planewise.testbed.chains.routing import peers, router_script, routing, run_script
from planewise.testbed.guests.kernel import Namespaces
from planewise.testbed.guests.kind import Guests, PlacedGuest
from planewise.testbed.guests.vms.kind import VirtualMachines
from planewise.testbed.hosts import counters as interfaces
from planewise.testbed.hosts.counters import HostCounters
from planewise.testbed.hosts.signals import together
from planewise.testbed.hosts.steering import steer
from planewise.testbed.hosts.xdp import XDP_PASS, XDP_ROUTER, attach
from planewise.testbed.model import GUEST_INTERFACE, CounterPoint, Forwarder, Guest
from planewise.testbed.plan import Step, run_program
from planewise.testbed.planes import plane
from planewise.testbed.settings import irq
from planewise.testbed.settings.host_setting import Spot

if TYPE_CHECKING:
    from planewise.testbed.chains.dpdk import DpdkSwitch
    from planewise.testbed.hosts.machine import MachineState

GUEST_PROGRAMS: Mapping[Forwarder, tuple[str, ...]] = MappingProxyType(
    {"testpmd": (TESTPMD, "nice", "stdbuf"), "xdp": ("ip",)}
)
"""Programs that a virtual machine is given to be a function, by what forwards in it."""

_LOWEST = ("nice", "-n", "19")
_WRAPPED = 1 << 31
"""A VF's counters have 32 bits; one that rises by more than half of that was reset."""
_FIND_S = 180.0

# QEMU's processes, each behind the guest's name, which is the first word of its option -name.
_FIND = """
for file in $(grep -ls "[g]uest=pw-$1-" /proc/[0-9]*/cmdline); do
    words=$(tr '\\0' ' ' <$file) name=${words#*guest=} pid=${file#/proc/}
    echo "${name%%,*} ${pid%/*}"
done
"""


@dataclass(eq=False)
class Functions(ABC):
    """All functions of a chain, by number from 1."""

    chain: Chain
    placement: Placement
    kind: Guests
    """Of guest; virtual machines may outlive the chain."""
    all_placed: dict[int, PlacedGuest]
    """The functions, and idle virtual machines; those that end are removed from it."""
    opened: ExitStack
    """Ends them, with the chain."""
    remarks: tuple[str, ...] = ()
    """How they forward, once they are connected, where results depend on it."""
    pids: dict[int, int] = field(default_factory=dict)
    """Processes of the host whose CPU time is theirs; for virtual machines those of QEMU."""

    @property
    def state(self) -> MachineState:
        """Their host."""
        return self.kind.state

    @property
    def placed(self) -> dict[int, PlacedGuest]:
        """The functions."""
        return {number: self.all_placed[number] for number in self.chain.numbers}

    @property
    def guests(self) -> dict[int, Guest]:
        """The functions' guests; a VF brings its MAC."""
        return {number: one.guest for number, one in self.placed.items()}

    @property
    def macs(self) -> dict[int, str]:
        """MACs of the functions."""
        return {number: guest.mac for number, guest in self.guests.items()}

    @property
    def machines(self) -> VirtualMachines | None:
        """The host's virtual machines, where the functions are such."""
        return self.kind if isinstance(self.kind, VirtualMachines) else None

    @property
    def namespaces(self) -> Sequence[str]:
        """Namespaces whose counters on the host are theirs."""
        return ()

    @cached_property
    def directory(self) -> str:
        """A scratch directory on the host, removed with the chain."""
        # By this name `remove_traces` knows what runs in it.
        template = f"{self.state.host.directory}/pw-{self.state.token}.XXXXXX"
        directory = self.state.host.run(["mktemp", "-d", template]).check().stdout.strip()
        self.opened.callback(self.state.host.run, ["rm", "-rf", directory])
        return directory

    def cpu(self, number: int) -> int:
        """CPU of a function."""
        return self.placement.cpu(f"vnf{number}")

    def make(self) -> None:
        """Makes the functions, with their ports; virtual machines do not run yet.

        Raises:
            PlanewiseError: there are too few VFs, or one could not be moved.
        """
        for number in self.chain.numbers:
            self.opened.callback(self._end, number)
        self._make([one for one in self.placed.values() if not one.ready])

    def _make(self, missing: Sequence[PlacedGuest]) -> None:
        self.kind.prepare(missing, ())

    def _end(self, number: int) -> None:
        """Ends a function; namespaces alone go with the chain.

        Virtual machines that have a VF stay, suspended, as a start may take a minute; not those
        that poll, whose kernels have no NIC left that another chain could use.
        """
        one = self.all_placed[number]
        if self.machines is not None and one.vf is not None and one.ready and not self.chain.polls:
            self.machines.suspend([one])
            return
        del self.all_placed[number]
        with suppress(PlanewiseError):
            if self.chain.kind != "process" or one.vf is not None:
                self.kind.remove(one)

    @abstractmethod
    def connect(self, ends: tuple[str, str], switch: DpdkSwitch | None) -> None:
        """Starts forwarding, each function on its CPU, between ends with these MACs.

        Raises:
            PlanewiseError: one did not start.
        """

    def _run(self, machines: VirtualMachines) -> None:
        """Runs virtual machines; each QEMU is pinned with all of its threads."""
        host = self.state.host
        machines.wake([(one, None) for one in self.placed.values()])
        found = host.run(["sh", "-c", _FIND, "sh", self.state.token], timeout_s=_FIND_S).stdout
        pids = dict(map(str.split, found.splitlines()))
        for number, guest in self.guests.items():
            if guest.netns not in pids:
                raise PlanewiseError(
                    f"the process of the virtual machine {guest.name} was not found on "
                    f"{host.place}",
                    remedy="did it end? its console, or the kernel's log (`dmesg`), may say why",
                )
            self.pids[number] = int(pids[guest.netns])
        lines = [f"taskset -acp {self.cpu(n)} {pid} >/dev/null" for n, pid in self.pids.items()]
        host.run(["sh", "-ec", "\n".join(lines)], timeout_s=_FIND_S).check()

    def _run_scripts(self, scripts: Mapping[int, Sequence[str]]) -> dict[int, str]:
        """Runs lines of shell in virtual machines; returns their output."""
        work = [
            partial(run_script, self.state.host, self.guests[number], lines)
            for number, lines in scripts.items()
        ]
        return dict(zip(scripts, together(work, len(work), self.kind.close), strict=True))

    @abstractmethod
    def read(self, counters: HostCounters) -> dict[int, VnfCounters]:
        """Their counters; `counters` are those of their host, with `namespaces`."""

    def busy_s(self) -> dict[str, float]:
        """Time that each spent on packets since `clear` [s], by name, where it is known."""
        return {}

    def clear(self) -> None:  # noqa: B027 - most have nothing to begin
        """Resets `busy_s`."""

    def check(self) -> None:
        """Raises PlanewiseError when a function has stopped unexpectedly."""
        if self.machines is not None:
            for _, error in self.machines.lost(list(self.placed.values())):
                raise error


class Routers(Functions):
    """Functions whose kernel routes, or an XDP program in it: the host's, or a virtual machine's.

    For XDP virtual machines get the program, and this machine's iproute2.
    """

    @property
    def namespaces(self) -> Sequence[str]:
        if self.machines is not None:
            return ()
        return [guest.netns for guest in self.guests.values()]

    def connect(self, ends: tuple[str, str], switch: DpdkSwitch | None) -> None:
        steps, state = routing(self.chain, self.guests, ends), self.state
        if self.machines is not None:
            self._run(self.machines)
            self._route_in_machines(steps)
            return
        state.host.perform(steps)
        for number, guest in self.guests.items():
            if self.chain.on_vfs:
                spot = Spot(state.host, guest.netns, GUEST_INTERFACE)
                irq.SETTING.write(spot, str(self.cpu(number)))
            else:
                steer(state.host, guest.netns, [GUEST_INTERFACE], [self.cpu(number)])
        if self.chain.forwards == "xdp":
            self._attach_programs()

    def _route_in_machines(self, steps: Sequence[Step]) -> None:
        more: tuple[str, ...] = ()
        if self.chain.forwards == "xdp":
            program = base64.encodebytes(XDP_ROUTER.read_bytes()).decode().splitlines()
            copied = (f"base64 -d >{_IN_MACHINE} <<.", *program, ".")
            more = (*copied, attach_in_machine(), f"/bin/{shlex.join(_ASK)}")
        scripts = {n: (*router_script(steps, g.netns), *more) for n, g in self.guests.items()}
        self.remarks = _remarks(list(self._run_scripts(scripts).values()))

    def _attach_programs(self) -> None:
        host = self.state.host
        router, passing = (host.program(str(program)) for program in (XDP_ROUTER, XDP_PASS))
        host.perform(attach_to_namespaces(self.chain, self.guests, (router, passing)))
        if not self.chain.on_vfs:
            self._steer_ports()
            return
        for name in self.namespaces:  # a VF outlives its chain
            detach = ("ip", "link", "set", "dev", GUEST_INTERFACE, "xdp", "off")
            self.opened.callback(host.perform, [run_program(name, detach)])
        self.remarks = _remarks(
            [host.run(_ASK, netns=name).check().stdout for name in self.namespaces]
        )

    def _steer_ports(self) -> None:
        """Steers each function's program to its CPU: on veth it runs on that of the sender."""
        chain, state = self.chain, self.state
        if not chain.through or plane(chain.plane).switch_is_program:
            return  # The sender is the NIC, whose frames are steered already, or the switch.
        for number in range(1, chain.vnfs):
            if self.cpu(number) != (cpu := self.cpu(number + 1)):
                steer(state.host, state.machine.netns, [self.guests[number].port], [cpu])

    def read(self, counters: HostCounters) -> dict[int, VnfCounters]:
        if self.machines is None:
            found = [counters.of(name, GUEST_INTERFACE) for name in self.namespaces]
            return {
                number: vnf_counters(interface, interface["rx_packets"])
                for number, interface in enumerate(found, start=1)
            }
        work = [partial(self._read_machine, guest) for guest in self.guests.values()]
        counted = dict(zip(self.chain.numbers, together(work, len(work)), strict=True))
        by_virtio = self.chain.forwards == "xdp" and not self.chain.on_vfs and not self.remarks
        return without_headers(counted) if by_virtio else counted

    def _read_machine(self, guest: Guest) -> VnfCounters:
        began_s = time.monotonic()
        point = CounterPoint(guest.host, guest.netns, GUEST_INTERFACE)
        found = interfaces.read(self.state.host, point).counters
        return vnf_counters(found, found["rx_packets"], at_s=(began_s + time.monotonic()) / 2)


@dataclass(eq=False)
class Pollers(Functions):
    """dpdk-testpmd processes, each with a NIC for itself: a VF by vfio-pci, a vhost-user port, or
    that of its virtual machine, with which it ends.

    A VF is given back only after its function has ended: the kernel waits for ever to take a VF
    from a process that holds it.
    """

    _functions: dict[int, Function] = field(default_factory=dict)
    _stats: dict[int, VnfCounters] = field(default_factory=dict)

    def _make(self, missing: Sequence[PlacedGuest]) -> None:
        if self.machines is not None:
            super()._make(missing)
            return
        if self.chain.kind == "container":
            assert isinstance(self.kind, Namespaces)
            self.state.host.perform(self.kind.create(missing, []))
        for one in missing if self.chain.on_vfs else ():
            vf = one.vf = self.state.vfs.take()
            self.state.vfs.bind_vfio(vf)
            one.guest = replace(one.guest, mac=vf.config.mac)

    def _end(self, number: int) -> None:
        one = self.all_placed[number]
        if self.machines is None and one.vf is not None:
            del self.all_placed[number]
            self.state.vfs.restore_vf(one.vf)
        else:
            super()._end(number)

    def connect(self, ends: tuple[str, str], switch: DpdkSwitch | None) -> None:
        """See `Functions.connect`: each sends all to its peer's MAC."""
        addresses = {n: one.vf.address for n, one in self.placed.items() if one.vf is not None}
        if self.machines is not None:
            self._run(self.machines)
            addresses = self._run_scripts(dict.fromkeys(self.guests, GUEST_SCRIPT.splitlines()))
        for number, peer in peers(self.chain, self.guests, ends[1]).items():
            started = self._start(number, peer, addresses.get(number, ""), switch)
            self._functions[number] = started
            if self.machines is None:
                self.pids[number] = started.pid
        for function in self._functions.values():
            function.await_prompt()
            function.execute("start")

    def _start(self, number: int, peer: str, address: str, switch: DpdkSwitch | None) -> Function:
        """Starts a function on the NIC with this PCI address, if it is no vhost-user port's."""
        guest, host, chain = self.guests[number], self.state.host, self.chain
        if self.machines is not None:
            # On a single CPU testpmd must leave time to the agent.
            vcpus = self.machines.options.vcpus
            argv = command(chain, address, vcpus - 1, peer, guest.name)
            argv = [*(_LOWEST if vcpus == 1 else ()), *argv]
            return Function(host, GUEST_DIRECTORY, guest.name, argv, guest=guest.netns)
        device = address if switch is None else switch.socket(guest.name)
        argv = command(chain, device, self.cpu(number), peer, f"{self.state.token}{guest.name}")
        if self._alone:
            argv = [*_LOWEST, *argv]
        netns = guest.netns if chain.kind == "container" else None
        function = Function(host, self.directory, guest.name, argv, netns)
        self.opened.callback(function.close)
        return function

    @cached_property
    def _alone(self) -> bool:
        """Whether the host has a single CPU, which pollers would take from readers."""
        return self.state.host.run(["nproc"]).check().stdout.strip() == "1"

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
        function, vf = self._functions[number], self.all_placed[number].vf
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
