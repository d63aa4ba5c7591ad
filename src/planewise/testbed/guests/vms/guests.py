"""Lifecycle of one host's virtual machines: start, wake, suspend, and the reason of an end."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from planewise.boot import packages
from planewise.errors import PlanewiseError
from planewise.testbed.guests.vms import image
from planewise.testbed.guests.vms.agent import GuestAgent
from planewise.testbed.guests.vms.domain import (
    AnyNic,
    Nic,
    NicModel,
    VmOptions,
    domain_xml,
    nic_xml,
)
from planewise.testbed.guests.vms.hypervisor import GuestGoneError, HypervisorGoneError, Libvirt
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import Guest

_POLL_S = 0.05
_LOOK_S = 0.2
_CONSOLE_BYTES = 4096
_COPY_S = 300.0

_JOIN = '{ cat; tail -c +"$2" "$3"; } >"$1"'
"""Makes file $1 of stdin and of file $3 from byte $2 on."""


BOOT_LIMIT_S = 300.0
"""From start to ready. An emulated guest takes 3 s of CPU time."""

LAB_BOOT_LIMIT_S = 1800.0
"""The same in a lab, where the guest's emulated CPU is emulated once more: a minute and a half on
an idle machine, and many on a busy one."""


def boot_limit_s(host: Host) -> float:
    """How long a guest may take on a host from start to ready [s]. Pure."""
    return LAB_BOOT_LIMIT_S if host.place.startswith("lab:") else BOOT_LIMIT_S


class HostGuests:
    """The virtual machines of one host; leaving its `with` block ends them and their libvirt.

    Raises on entry:
        UnsupportedError: the host has no libvirt, or it does not start.
    """

    def __init__(
        self,
        host: Host,
        platform: VmPlatform,
        options: VmOptions,
        *,
        saved: Saved | None = None,
    ) -> None:
        """`saved`: a guest of these options, in a file of the host, to wake instead of booting."""
        self.platform = platform
        self.options = options
        self.host = host
        """Its processes can start in the guests, by their `netns`."""
        self._boot_limit_s = boot_limit_s(host)
        self._saved = saved
        self.libvirt = Libvirt(host)
        """What runs them."""
        self._agents: dict[str, GuestAgent] = {}
        self._asleep: set[str] = set()

    def __enter__(self) -> Self:
        self.libvirt.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all of them. Idempotent."""
        self.libvirt.close()
        for name in list(self._agents):
            self._forget(name)
        self._asleep.clear()

    def start(
        self,
        guest: Guest,
        nic: AnyNic,
        mtu_bytes: int,
        neighbours: Mapping[str, str] | None = None,
    ) -> None:
        """Starts a guest, and returns when its agent answers and its NIC has a link.

        `neighbours` are permanent: MACs by IP address.

        Raises:
            PlanewiseError: it did not come up; it is left as it is.
        """
        begun = time.monotonic()
        agent = self.boot(guest)
        self.libvirt.attach(guest.netns, nic_xml(nic))
        # Polled from the host: a guest that polls takes its own CPU time.
        interface = f"/sys/class/net/{guest.interface}"
        self._await_file(guest, agent, f"{interface}/address", "", begun)
        agent.set_network(guest.interface, network_of(guest, mtu_bytes, neighbours))
        self._await_file(guest, agent, f"{interface}/carrier", "1", begun)

    def boot(self, guest: Guest) -> GuestAgent:
        """Starts a guest without a NIC, or wakes the saved one under its name.

        Raises:
            PlanewiseError: it did not come up; it is left as it is.
        """
        begun = time.monotonic()
        agent = self._agent_of(guest)
        xml = domain_xml(guest, self.platform, self.options, self._console(guest))
        if self._saved is None:
            self.libvirt.start(xml, guest.netns)
        else:
            self._wake(self._saved, guest.netns, xml)
        while not agent.ready():
            if time.monotonic() - begun > self._boot_limit_s:
                raise self._late_error(guest, f"the virtual machine {guest.name}")
            agent.pause(_POLL_S)
        return agent

    def _wake(self, saved: Saved, name: str, xml: str) -> None:
        file = f"{self.host.directory}/{name}.save"
        words = ("sh", file, str(saved.stream_at + 1), str(saved.path))
        head = saved.header(xml)
        try:
            self.host.run(["sh", "-c", _JOIN, *words], stdin=head, timeout_s=_COPY_S).check()
            self.libvirt.restore(file, name)
        finally:
            self.host.run(["rm", "-f", file])

    def _await_file(
        self, guest: Guest, agent: GuestAgent, path: str, content: str, begun: float
    ) -> None:
        """Waits until a file of a guest exists and starts with `content`."""
        while True:
            try:
                if agent.read(path).decode().startswith(content):
                    return
            except (GuestGoneError, HypervisorGoneError):
                raise
            except PlanewiseError:
                pass  # not there yet, or not yet to be read
            if time.monotonic() - begun > self._boot_limit_s:
                raise self._late_error(guest, f"the NIC of the virtual machine {guest.name}")
            agent.pause(_LOOK_S)

    def set_neighbours(self, guest: Guest, neighbours: Mapping[str, str]) -> None:
        """Sets permanent neighbours of a guest: MACs by IP address.

        Raises:
            PlanewiseError: the guest does not answer, or refuses.
        """
        words = [f"neighbour={address},{mac}" for address, mac in neighbours.items()]
        self._agents[guest.netns].set_network(guest.interface, words)

    def _agent_of(self, guest: Guest) -> GuestAgent:
        self._asleep.discard(guest.netns)
        agent = GuestAgent(
            self.libvirt,
            guest.netns,
            self.host.directory,
            partial(self._end_error, guest),
        )
        self._agents[guest.netns] = self.host.agents[guest.netns] = agent
        return agent

    def _forget(self, name: str) -> None:
        self._agents.pop(name, None)
        self.host.agents.pop(name, None)

    def _late_error(self, guest: Guest, what: str) -> PlanewiseError:
        return PlanewiseError(
            f"{what} was not ready within {self._boot_limit_s:g} s; {self._last_words(guest)}",
            remedy=self._end_error(guest).remedy,
        )

    def end(self, guest: Guest) -> None:
        """Ends a guest; one that has ended is no error."""
        if self.libvirt.alive:
            self.libvirt.destroy(guest.netns)
        self._forget(guest.netns)
        self._asleep.discard(guest.netns)

    def revive(self) -> None:
        """Starts libvirt where it does not run; its guests ended with it.

        Raises:
            PlanewiseError: it does not start.
        """
        if not self.libvirt.alive:
            self.libvirt.restart()

    def lost(self, guests: Iterable[Guest]) -> dict[Guest, PlanewiseError]:
        """Those of `guests` that have ended, with the reason.

        Raises:
            HypervisorGoneError: their libvirt did, and they with it.
        """
        states = self.libvirt.states()
        lost: dict[Guest, PlanewiseError] = {}
        for guest in guests:
            if guest.netns not in states:
                self._asleep.discard(guest.netns)
                lost[guest] = self._end_error(guest)
        return lost

    def is_awake(self, guest: Guest) -> bool:
        """Whether its CPUs run."""
        return guest.netns not in self._asleep

    def set_awake(self, guest: Guest, awake: bool) -> None:
        """Resumes a guest, or stops its CPUs; its memory and its NIC stay."""
        if awake == self.is_awake(guest):
            return
        if awake:
            self.libvirt.resume(guest.netns)
            self._asleep.discard(guest.netns)
        else:
            self.libvirt.suspend(guest.netns)
            self._asleep.add(guest.netns)

    def _console(self, guest: Guest) -> str:
        return f"{self.host.directory}/{guest.netns}.console"

    def _end_error(self, guest: Guest) -> GuestGoneError:
        """Why a guest ended, by its console, which is kept."""
        log = packages.cache_directory() / f"failed-{guest.name}.console"
        with suppress(PlanewiseError, OSError):
            scratch = log.with_name(f".{log.name}-{os.getpid()}")
            scratch.write_bytes(self.host.read(self._console(guest)))
            scratch.rename(log)
        return GuestGoneError(
            f"the virtual machine {guest.name} ended; {self._last_words(guest)}",
            remedy=f"its console is kept in {log}; the kernel's log (`dmesg`) reports a lack of "
            "memory",
        )

    def _last_words(self, guest: Guest) -> str:
        lines: list[str] = []
        with suppress(PlanewiseError):
            tail = ["tail", "-c", str(_CONSOLE_BYTES), self._console(guest)]
            lines = last_words(self.host.run(tail).check().stdout)
        return f"its console ends with: {lines[-1]}" if lines else "its console is empty"


def network_of(
    guest: Guest, mtu_bytes: int, neighbours: Mapping[str, str] | None
) -> tuple[str, ...]:
    """Arguments of `pw-probe network` in a guest; `neighbours` are MACs by IP address. Pure."""
    return (
        *(f"address={guest.ipv4}/15", f"address={guest.ipv6}/48", f"mtu={mtu_bytes}"),
        *(f"neighbour={ip},{mac}" for ip, mac in (neighbours or {}).items()),
    )


def last_words(console: str) -> list[str]:
    """The first failure on a console, else its lines. Pure."""
    lines = [line.strip() for line in console.splitlines() if line.strip()]
    failures = [line for line in lines if line.startswith(image.FAILED) or "Kernel panic" in line]
    return [failures[0].removeprefix(image.FAILED)] if failures else lines


def nic_of(
    model: NicModel,
    guest: Guest,
    port: str,
    guests: HostGuests,
    vm_options: Mapping[str, Any] = MappingProxyType({}),
) -> Nic:
    """A guest's NIC on an existing port of the host, with what differs from the host's options.
    Pure."""
    platform, options = guests.platform, replace(guests.options, **vm_options)
    return Nic(
        model=model,
        mac=guest.mac,
        port=port,
        vhost=options.vhost and platform.vhost and model == "virtio",
        queues=options.queues if model == "virtio" else 1,
        offloads=options.offloads,
        standby=options.managed and model == "virtio",
    )


# QEMU of a killed run ends a moment after its connection; the ports are removed after it.
_REMOVE = """
for process in /proc/[0-9]*; do
    case $(tr '\\0' ' ' 2>/dev/null <$process/cmdline) in
        *qemu*"guest=pw-$1-"*) kill -s KILL ${process#/proc/} 2>/dev/null; died="$died $process" ;;
    esac
done
n=0
for process in $died; do
    while [ -e $process ] && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.05; done
done
for link in $(ip -o link | sed -n "s/^[0-9]*: \\(pw$1[0-9a-f]*\\)[:@].*/\\1/p"); do
    ip link delete "$link"
done
"""


def remove_guests(host: Host, token: str) -> None:
    """Ends the virtual machines of this token on a host, and removes their ports.

    Raises:
        PlanewiseError: that failed.
    """
    done = host.run(["sh", "-c", _REMOVE, "sh", token], timeout_s=120)
    if done.stderr.strip():
        raise PlanewiseError(
            f"not all virtual machines could be removed from {host.place}: {done.last_line}",
            remedy="`planewise clean` tries again",
        )


_MAGIC = b"LibvirtQemudSave"
_NUMBERS = struct.Struct("<19I")
_HEADER = len(_MAGIC) + _NUMBERS.size
_LENGTH, _COOKIE = 1, 4
"""Places in the header of the length of the XML, and of the offset of a cookie behind it."""


@dataclass(frozen=True)
class Saved:
    """A file with a guest in it, as libvirt saves one.

    Source: libvirt's src/qemu/qemu_saveimage.h (virQEMUSaveHeader): version, length of the XML
    before the stream, whether it ran, format, offset of a cookie, and 14 unused numbers.
    """

    path: Path
    stream_at: int
    """Offset of QEMU's part of the file [byte]."""
    numbers: tuple[int, ...]
    """The numbers of the file's header."""

    def header(self, xml: str) -> bytes:
        """The part before the stream of a file that restores the guest as this domain. Pure."""
        text = xml.encode() + b"\0"
        numbers = list(self.numbers)
        numbers[_LENGTH], numbers[_COOKIE] = len(text), 0
        return _MAGIC + _NUMBERS.pack(*numbers) + text


def read(path: Path) -> Saved:
    """Reads a file that libvirt saved a guest to.

    Raises:
        PlanewiseError: the file is another one.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if len(header) < _HEADER or not header.startswith(_MAGIC):
        raise PlanewiseError(f"{path} holds no guest that libvirt saved", remedy="remove the file")
    numbers = _NUMBERS.unpack(header[len(_MAGIC) :])
    return Saved(path, _HEADER + numbers[_LENGTH], numbers)
