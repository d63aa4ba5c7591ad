"""Functions that are virtual machines: tiny guests that route, or poll.

A guest forwards by its own kernel, which rewrites both MAC addresses as any router does. Scripts
and counters go through its agent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import MappingProxyType

from planewise.errors import PlanewiseError
from planewise.testbed.chains.ends import MTU_BYTES
from planewise.testbed.chains.functions import PROGRAM as TESTPMD
from planewise.testbed.chains.reading import VnfCounters, vnf_counters
from planewise.testbed.guests.kind import PlacedGuest
from planewise.testbed.guests.vms.domain import AnyNic, Nic, VmOptions
from planewise.testbed.guests.vms.kind import VirtualMachines
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.hosts.signals import together
from planewise.testbed.model import GUEST_INTERFACE, Forwarder, Guest, Site
from planewise.testbed.vfs.nic import ListedVf

GUEST_PROGRAMS: Mapping[Forwarder, tuple[str, ...]] = MappingProxyType(
    {"testpmd": (TESTPMD, "nice", "stdbuf"), "xdp": ("ip",)}
)
"""Programs that a virtual machine is given to be a function, by what forwards in it."""

_WORKERS = 2
"""Machines that start at a time."""
_SCRIPT_S = 600.0
"""A guest whose emulated CPU is emulated once more takes seconds for each program it starts."""
_FIND_S = 180.0

# QEMU's processes, each behind the guest's name, which is the first word of its option -name.
_FIND = """
for process in /proc/[0-9]*; do
    words=$(tr '\\0' ' ' 2>/dev/null <$process/cmdline)
    case $words in
        *"guest=pw-$1-"*) name=${words#*guest=}; echo "${name%%,*} ${process#/proc/}" ;;
    esac
done
"""


def run_script(host: Host, guest: Guest, lines: Sequence[str]) -> str:
    """Runs lines of shell in a guest that shall forward; returns their output.

    Raises:
        PlanewiseError: a line failed.
    """
    text = "set -e\n" + "\n".join(lines) + "\n"
    done = host.run(["sh", "-s"], netns=guest.netns, stdin=text.encode(), timeout_s=_SCRIPT_S)
    if done.exit_code:
        raise PlanewiseError(f"{guest.name} cannot forward: {done.last_line}")
    return done.stdout.strip()


class FunctionMachines(VirtualMachines):
    """The functions of one host and plane, by number; `close` ends them.

    Those with a VF stay from chain to chain, suspended in between, as a start may take a minute.

    Raises:
        PlanewiseError: the guest that they are copies of does not boot.
    """

    def __init__(
        self, state: MachineState, plane: str, platform: VmPlatform, options: VmOptions
    ) -> None:
        super().__init__(state, options, platform, _WORKERS)
        self.plane = plane
        self._placed: dict[int, PlacedGuest] = {}
        self._pids: dict[str, int] = {}
        self._awake: tuple[int, ...] = ()
        self._socket: Callable[[str], str] | None = None

    @property
    def vfs(self) -> Mapping[int, ListedVf]:
        """The VFs that they hold, by number."""
        return {number: one.vf for number, one in self._placed.items() if one.vf is not None}

    def place(self, functions: Mapping[int, Guest]) -> dict[int, Guest]:
        """Takes a VF for each function on VFs that has none; returns the functions, with its MAC.

        Raises:
            UnsupportedError: the host has no libvirt, or it does not start.
            PlanewiseError: there are too few VFs, or VFIO could not take one.
        """
        self._vms.revive()
        lost = [one for one, _ in self.lost([one for one in self._placed.values() if one.ready])]
        for number, one in list(self._placed.items()):
            if not one.ready or one in lost:
                self._end(number)
        for number, guest in functions.items():
            if number not in self._placed:
                one = PlacedGuest(guest, Site("responder", "", "", MTU_BYTES))
                self._placed[number] = one
                if one.plane.vfs:
                    self._take_vf(one)
        return {number: self._placed[number].guest for number in functions}

    def run(self, cpus: Mapping[int, int], socket: Callable[[str], str] | None = None) -> None:
        """Runs these functions, each on its CPU of the host, and suspends all others.

        `socket`: of the port of a DPDK switch, by a function's name.

        Raises:
            PlanewiseError: one did not come up, or the host does not pin it.
        """
        self._socket = socket
        self.suspend([one for number, one in self._placed.items() if number not in cpus])
        self.wake([(self._placed[number], None) for number in cpus])
        self._awake = tuple(cpus)
        if any(self._placed[number].guest.netns not in self._pids for number in cpus):
            script = ["sh", "-c", _FIND, "sh", self.state.token]
            lines = self.state.host.run(script, timeout_s=_FIND_S).stdout.splitlines()
            self._pids = {name: int(pid) for name, pid in map(str.split, lines)}
        lines = [f"taskset -acp {cpu} {self.pid(n)} >/dev/null" for n, cpu in cpus.items()]
        self.state.host.run(["sh", "-ec", "\n".join(lines)], timeout_s=_FIND_S).check()

    def pid(self, number: int) -> int:
        """PID of a function's QEMU, with all of whose threads it is pinned.

        Raises:
            PlanewiseError: it is not there.
        """
        guest, place = self._placed[number].guest, self.state.host.place
        if guest.netns in self._pids:
            return self._pids[guest.netns]
        raise PlanewiseError(
            f"the process of the virtual machine {guest.name} was not found on {place}",
            remedy="did it end? its console, or the kernel's log (`dmesg`), may say why",
        )

    def end_chain(self, *, keep: bool = True) -> None:
        """Suspends machines that hold a VF, and ends the others, whose NIC ends with the chain.

        Without `keep` all of them end.
        """
        self._awake = ()
        for number, one in list(self._placed.items()):
            if keep and one.ready and one.vf is not None:
                self.suspend([one])
                continue
            with suppress(PlanewiseError):
                self._end(number)

    def _end(self, number: int) -> None:
        one = self._placed.pop(number)
        self._pids.pop(one.guest.netns, None)
        self.remove(one)

    def remove(self, placed: PlacedGuest) -> None:
        # Its port goes with the chain.
        self._vms.end(placed.guest)
        if placed.vf is not None:
            self.state.vfs.restore_vf(placed.vf)

    def _nic(self, one: PlacedGuest) -> AnyNic:
        if self._socket is not None:
            return Nic("virtio", one.guest.mac, socket=self._socket(one.guest.name))
        return super()._nic(one)

    def run_scripts(self, lines: Mapping[int, Sequence[str]]) -> dict[int, str]:
        """Runs each function's lines of shell; returns their output. Both by number.

        Raises:
            PlanewiseError: a line failed.
        """
        work = [
            partial(run_script, self.state.host, self._placed[number].guest, script)
            for number, script in lines.items()
        ]
        return dict(zip(lines, together(work, len(work), self.close), strict=True))

    def check(self) -> None:
        """Checks that all awake functions live.

        Raises:
            PlanewiseError: one ended.
        """
        for _, error in self.lost([self._placed[number] for number in self._awake]):
            raise error

    def read(self) -> dict[int, VnfCounters]:
        """Counters of the awake functions, by number; each with its time.

        Raises:
            PlanewiseError: one does not answer, or ended.
        """
        work = [partial(self._read, number) for number in self._awake]
        return dict(zip(self._awake, together(work, len(work)), strict=True))

    def _read(self, number: int) -> VnfCounters:
        began_s = time.monotonic()
        netns = self._placed[number].guest.netns
        interface = counters.parse(self.state.host.read_text("/proc/net/dev", netns=netns))
        found = interface[GUEST_INTERFACE]
        return vnf_counters(found, found["rx_packets"], at_s=(began_s + time.monotonic()) / 2)

    def close(self) -> None:
        """Ends all of them, and gives their VFs back. Idempotent."""
        with ExitStack() as last:
            for vf in self.vfs.values():
                last.callback(self.state.vfs.restore_vf, vf)
            self._placed.clear()
            self._pids.clear()
            self._awake = ()
            super().close()
