"""Functions that are virtual machines: tiny guests that route.

A guest forwards by its own kernel, which rewrites both MAC addresses as any router does. Scripts
and counters go through its agent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import MappingProxyType
from typing import Self

from planewise.errors import PlanewiseError
from planewise.testbed.chains.ends import MTU_BYTES, netns
from planewise.testbed.chains.functions import PROGRAM as TESTPMD
from planewise.testbed.chains.reading import VnfCounters, now_s, vnf_counters
from planewise.testbed.chains.routing import address
from planewise.testbed.guests.vms import booted
from planewise.testbed.guests.vms.domain import AnyNic, Passthrough, VmOptions
from planewise.testbed.guests.vms.guests import HostGuests
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.hosts.signals import together
from planewise.testbed.model import GUEST_INTERFACE, Forwarder, Guest
from planewise.testbed.plan import Step
from planewise.testbed.vfs.nic import ListedVf

GUEST_PROGRAMS: Mapping[Forwarder, tuple[str, ...]] = MappingProxyType(
    {"testpmd": (TESTPMD, "nice", "stdbuf"), "xdp": ("ip",)}
)
"""Programs that a virtual machine is given to be a function, by what forwards in it."""

_SCRIPT_S = 600.0
"""A guest whose emulated CPU is emulated once more takes seconds for each program it starts."""
_FIND_S = 180.0

# The PID of QEMU on its host: the guest's name is the first word of its option -name.
_FIND = """
for process in /proc/[0-9]*; do
    case $(tr '\\0' ' ' 2>/dev/null <$process/cmdline) in
        *"guest=$1,"*) echo ${process#/proc/} ;;
    esac
done
"""


def function_guest(token: str, number: int, plane: str, mac: str) -> Guest:
    """The `number`th function of a chain, from 1. Pure."""
    return Guest(
        name=f"vnf{number}",
        host="responder",
        role="main",
        index=number,
        plane=plane,
        netns=netns(token, f"v{number}"),
        interface=GUEST_INTERFACE,
        mac=mac,
        ipv4=address(number),
        ipv6=f"2001:2:0:3::{number:x}",
    )


def router_script(steps: Sequence[Step], name: str) -> tuple[str, ...]:
    """The lines of shell that make a guest a router. Pure.

    `steps` make namespaces routers, `name` is the guest's among them. It has its address already;
    routes to the same destinations are replaced.
    """
    lines = []
    for step in steps:
        if step.netns != name or step.words.startswith("address "):
            continue
        neighbour = re.fullmatch(r"neighbour replace (\S+) lladdr (.+) dev (\S+) .*", step.words)
        if neighbour is not None:  # busybox' ip adds none
            lines.append(f"arp -i {neighbour[3]} -s {neighbour[1]} {neighbour[2]}")
        elif step.words.startswith("route add "):
            onward = step.words.removeprefix("route add ").removesuffix(" onlink")
            lines.append(f"ip route replace {onward}")
        else:
            lines.append(step.words)
    return tuple(lines)


def run_script(guests: HostGuests, guest: Guest, lines: Sequence[str]) -> str:
    """Runs lines of shell in a guest that shall forward; returns their output.

    Raises:
        PlanewiseError: a line failed.
    """
    text = "set -e\n" + "\n".join(lines) + "\n"
    done = guests.host.run(
        ["sh", "-s"], netns=guest.netns, stdin=text.encode(), timeout_s=_SCRIPT_S
    )
    if done.exit_code:
        raise PlanewiseError(f"{guest.name} cannot forward: {done.last_line}")
    return done.stdout.strip()


class FunctionMachines:
    """The functions of one host and plane; leaving its `with` block ends them.

    Those with a VF stay from chain to chain, suspended in between, as a start may take a minute.

    Raises on entry:
        UnsupportedError: the host has no libvirt, or it does not start.
    """

    def __init__(
        self,
        state: MachineState,
        plane: str,
        platform: VmPlatform,
        options: VmOptions,
    ) -> None:
        self._state = state
        self._host = state.host
        self.plane = plane
        self.guests = booted.guests_on(state.host, platform, options)
        self._guests: dict[int, Guest] = {}
        self._pids: dict[int, int] = {}
        self._vfs: dict[int, ListedVf] = {}
        self._awake: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        self.guests.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all of them, and gives their VFs back. Idempotent."""
        with ExitStack() as last:
            while self._vfs:
                last.callback(self._state.vfs.restore_vf, self._vfs.popitem()[1])
            self._guests.clear()
            self._pids.clear()
            self._awake = ()
            self.guests.close()

    @property
    def vfs_held(self) -> int:
        """Number of VFs that they hold."""
        return len(self._vfs)

    @property
    def running(self) -> Mapping[int, Guest]:
        """Machines that were started and have not ended, by number."""
        if self._guests:
            self.guests.revive()
            for guest in self.guests.lost(self._guests.values()):
                self._forget(guest.index)
        return dict(self._guests)

    def _forget(self, number: int) -> None:
        del self._guests[number]
        self._pids.pop(number, None)

    def take_vfs(self, numbers: Sequence[int]) -> dict[int, str]:
        """Takes a VF for each that has none; the VFs' MACs, by number.

        Raises:
            PlanewiseError: too few VFs, or one cannot be had by VFIO.
        """
        running, pool = self.running, self._state.vfs
        for number in [number for number in self._vfs if number not in running]:
            pool.restore_vf(self._vfs.pop(number))
        for number in numbers:
            if number not in self._vfs:
                vf = self._vfs[number] = pool.take()
                pool.bind_vfio(vf)
        return {number: self._vfs[number].config.mac for number in numbers}

    def vf(self, number: int) -> ListedVf | None:
        """The VF of a function; None without one."""
        return self._vfs.get(number)

    def passthrough(self, guest: Guest) -> Passthrough:
        """The NIC of a function that holds a VF."""
        return Passthrough(self._vfs[guest.index].address)

    def ensure_running(self, macs: Mapping[int, str], nic: Callable[[Guest], AnyNic]) -> None:
        """Runs these functions, by number, some starting at a time, and pauses all others.

        Raises:
            PlanewiseError: one did not come up.
        """
        running = self.running
        missing = [
            function_guest(self._state.token, number, self.plane, mac)
            for number, mac in macs.items()
            if number not in running
        ]

        def start(guest: Guest) -> None:
            try:
                self.guests.start(guest, nic(guest), MTU_BYTES)
            except PlanewiseError:
                with suppress(PlanewiseError):
                    self.guests.end(guest)  # frees its NIC
                raise
            self._guests[guest.index] = guest
            self._pids[guest.index] = self._pid_of(guest)

        together([partial(start, guest) for guest in missing], abort=self.close)
        for number, guest in self._guests.items():
            self.guests.set_awake(guest, number in macs)
        self._awake = tuple(macs)

    def suspend(self, *, keep: bool = True) -> None:
        """Suspends machines that hold a VF, and ends the others, whose NIC ends with the chain.

        Without `keep` all of them end.
        """
        self._awake = ()
        for number, guest in list(self._guests.items()):
            with suppress(PlanewiseError):
                if keep and number in self._vfs:
                    self.guests.set_awake(guest, False)
                else:
                    self._forget(number)
                    self.guests.end(guest)

    def run_scripts(self, lines: Mapping[int, Sequence[str]]) -> dict[int, str]:
        """Runs each function's lines of shell; returns their output. Both by number.

        Raises:
            PlanewiseError: a line failed.
        """
        work = [partial(self._run, number, lines[number]) for number in lines]
        return dict(zip(lines, together(work, len(work), self.close), strict=True))

    def _run(self, number: int, lines: Sequence[str]) -> str:
        return run_script(self.guests, self._guests[number], lines)

    def pin(self, cpus: Mapping[int, int]) -> None:
        """Pins each function, by number, with all of its QEMU's threads to a CPU of its host.

        Raises:
            PlanewiseError: the host refuses.
        """
        lines = [
            f"taskset -acp {cpu} {self._pids[number]} >/dev/null" for number, cpu in cpus.items()
        ]
        self._host.run(["sh", "-ec", "\n".join(lines)], timeout_s=_FIND_S).check()

    @property
    def pids(self) -> Mapping[int, int]:
        """By number, the PID of a function's QEMU."""
        return dict(sorted(self._pids.items()))

    def check(self) -> None:
        """Checks that all awake functions live.

        Raises:
            GuestGoneError: one ended.
        """
        for error in self.guests.lost(self._guests[n] for n in self._awake).values():
            raise error

    def read(self) -> dict[int, VnfCounters]:
        """Counters of the awake functions, by number; each with its time.

        Raises:
            GuestGoneError: one ended.
            PlanewiseError: one does not answer.
        """
        self.check()
        work = [partial(self._read, number) for number in self._awake]
        return dict(zip(self._awake, together(work, len(work)), strict=True))

    def _read(self, number: int) -> VnfCounters:
        began_s = now_s()
        text = self.guests.host.read_text("/proc/net/dev", netns=self._guests[number].netns)
        interface = counters.parse(text)[GUEST_INTERFACE]
        return vnf_counters(interface, interface["rx_packets"], at_s=(began_s + now_s()) / 2)

    def _pid_of(self, guest: Guest) -> int:
        done = self._host.run(["sh", "-c", _FIND, "sh", guest.netns], timeout_s=_FIND_S)
        if pids := done.stdout.split():
            return int(pids[-1])
        raise PlanewiseError(
            f"the process of the virtual machine {guest.name} was not found on {self._host.place}",
            remedy="did it end? its console, or the kernel's log (`dmesg`), may say why",
        )
