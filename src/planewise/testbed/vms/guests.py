"""Lifecycle of one host's virtual machines: start, wake, suspend, and the reason of an end.

Knows a host and its libvirt; no plane, and not what the guests are for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Self

from planewise.boot import packages
from planewise.errors import PlanewiseError
from planewise.testbed.host import Host
from planewise.testbed.model import Guest
from planewise.testbed.vms import image
from planewise.testbed.vms.agent import GuestAgent, Why
from planewise.testbed.vms.daemon import Libvirt
from planewise.testbed.vms.domain import (
    AnyNic,
    DomainSpec,
    Nic,
    NicModel,
    VmOptions,
    domain_xml,
    nic_xml,
)
from planewise.testbed.vms.host import VmHost
from planewise.testbed.vms.hypervisor import GuestGoneError, Hypervisor, HypervisorGoneError
from planewise.testbed.vms.platform import VmPlatform
from planewise.testbed.vms.saved import Saved, saved_header

_POLL_S = 0.05
_LOOK_S = 0.2
_CONSOLE_BYTES = 4096
_COPY_S = 300.0

_JOIN = '{ cat; tail -c +"$2" "$3"; } >"$1"'
"""A file from a head, and what follows in another file."""


BOOT_LIMIT_S = 300.0
"""From start to ready. An emulated guest takes 3 s of a CPU, beside others in proportion."""

LAB_BOOT_LIMIT_S = 1800.0
"""The same in a lab, where the guest's emulated CPU is emulated once more: a minute and a half
where nothing else runs, and many where much does."""


def boot_limit_s(host: Host) -> float:
    """How long a guest may take on a host from start to ready [s]. Pure."""
    return LAB_BOOT_LIMIT_S if host.place.startswith("lab:") else BOOT_LIMIT_S


@dataclass(frozen=True)
class Started:
    """How a guest came up."""

    guest: Guest
    ready_s: float
    """From libvirt's start of it to its agent's first answer."""


class HostGuests:
    """The virtual machines of one host; leaving its `with` block ends them and their libvirt.

    Raises on entry:
        UnsupportedError: the host has no libvirt, or it does not start.
    """

    def __init__(
        self,
        host: Host,
        ours: VmPlatform,
        options: VmOptions,
        *,
        saved: Saved | None = None,
    ) -> None:
        """`saved`: a guest of these options, in a file of the host, to wake instead of booting."""
        self.ours = ours
        self.options = options
        self._host = host
        self._boot_limit_s = boot_limit_s(host)
        self._saved = saved
        self._libvirt = Libvirt(host)
        self._agents: dict[str, GuestAgent] = {}
        self._asleep: set[str] = set()
        self.host = VmHost(host, self._agents)
        """A guest's `netns` reaches into its virtual machine."""

    @property
    def hypervisor(self) -> Hypervisor:
        """The libvirt that runs them."""
        return self._libvirt.hypervisor

    @property
    def libvirt_socket(self) -> str:
        """Where that libvirt listens, on its host."""
        return self._libvirt.socket

    def __enter__(self) -> Self:
        self._libvirt.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all of them. Idempotent."""
        self._libvirt.close()
        self._agents.clear()
        self._asleep.clear()

    def start(
        self,
        guest: Guest,
        nic: AnyNic,
        mtu_bytes: int,
        neighbours: Mapping[str, str] | None = None,
    ) -> Started:
        """Starts a guest, and returns when its agent answers and its NIC has a link.

        `neighbours` are addresses, with their MACs, that it never needs to ask for.

        Raises:
            PlanewiseError: it did not come up; it is left as it is.
        """
        if self._saved is None:
            return self.boot(self.domain(guest, nic, mtu_bytes, neighbours), guest)
        return self._wake(self._saved, guest, nic, network_of(guest, mtu_bytes, neighbours))

    def boot(self, spec: DomainSpec, guest: Guest) -> Started:
        """As `start`, for a virtual machine of one's own design."""
        begun = time.monotonic()
        agent = self._agent_of(guest)
        self.hypervisor.start(domain_xml(spec), guest.netns)
        self._await_ready(guest, agent, begun)
        return Started(guest, time.monotonic() - begun)

    def _wake(self, saved: Saved, guest: Guest, nic: AnyNic, network: Sequence[str]) -> Started:
        begun = time.monotonic()
        agent = self._agent_of(guest)
        head = saved_header(saved, guest.netns, self._console(guest))
        file = f"{self._host.directory}/{guest.netns}.save"
        words = ("sh", file, str(saved.stream_at + 1), str(saved.path))
        try:
            self._host.run(["sh", "-c", _JOIN, *words], stdin=head, timeout_s=_COPY_S).check()
            self.hypervisor.restore(file, guest.netns)
        finally:
            self._host.run(["rm", "-f", file])
        self._await_ready(guest, agent, begun)
        self.hypervisor.attach(guest.netns, nic_xml(nic))
        # Watched from here: a guest that polls takes from itself what CPU it has.
        interface = f"/sys/class/net/{guest.interface}"
        self._await_file(guest, agent, f"{interface}/address", "", begun)
        agent.set_network(guest.interface, network)
        self._await_file(guest, agent, f"{interface}/carrier", "1", begun)
        return Started(guest, time.monotonic() - begun)

    def _await_file(
        self, guest: Guest, agent: GuestAgent, path: str, content: str, begun: float
    ) -> None:
        """Waits until a file of a guest is there, and begins so."""
        while True:
            try:
                if agent.read(path).decode().startswith(content):
                    return
            except (GuestGoneError, HypervisorGoneError):
                raise
            except PlanewiseError:
                pass  # not there yet, or not yet to be read
            if time.monotonic() - begun > self._boot_limit_s:
                raise PlanewiseError(
                    f"the NIC of the virtual machine {guest.name} was not ready within "
                    f"{self._boot_limit_s:g} s; {self._last_words(guest)}",
                    remedy=self._end_reason(guest).remedy,
                )
            agent.pause(_LOOK_S)

    def set_neighbours(self, guest: Guest, neighbours: Mapping[str, str]) -> None:
        """Tells a guest of addresses, with their MACs, that it never needs to ask for.

        Raises:
            PlanewiseError: it cannot be told.
        """
        words = [f"neighbour={address},{mac}" for address, mac in neighbours.items()]
        self._agents[guest.netns].set_network(guest.interface, words)

    def _agent_of(self, guest: Guest) -> GuestAgent:
        self._asleep.discard(guest.netns)
        made = GuestAgent(
            lambda: self.hypervisor,
            guest.netns,
            self._host.directory,
            partial(self._end_reason, guest),
        )
        self._agents[guest.netns] = made
        return made

    def _await_ready(self, guest: Guest, agent: GuestAgent, begun: float) -> None:
        while not agent.ready():
            if time.monotonic() - begun > self._boot_limit_s:
                why = self._end_reason(guest)
                raise PlanewiseError(
                    f"the virtual machine {guest.name} was not ready within "
                    f"{self._boot_limit_s:g} s; {self._last_words(guest)}",
                    remedy=why.remedy,
                )
            agent.pause(_POLL_S)

    def end(self, guest: Guest) -> None:
        """Ends a guest; one that has ended is no error."""
        self.hypervisor.destroy(guest.netns)
        self._agents.pop(guest.netns, None)
        self._asleep.discard(guest.netns)

    def ended(self, guests: Iterable[Guest]) -> tuple[Guest, ...]:
        """Which of these guests have ended. A libvirt that went away is started again.

        Raises:
            PlanewiseError: that failed.
        """
        if not self._libvirt.alive:
            self._libvirt.restart()
        there = self.hypervisor.states()
        gone = tuple(guest for guest in guests if guest.netns not in there)
        self._asleep -= {guest.netns for guest in gone}
        return gone

    def check(self, guests: Iterable[Guest]) -> None:
        """Does nothing while all of these guests live.

        Raises:
            GuestGoneError: one ended.
            HypervisorGoneError: their libvirt did, and they with it.
        """
        there = self.hypervisor.states()
        for guest in guests:
            if guest.netns not in there:
                why = self._end_reason(guest)
                raise GuestGoneError(why.sentence, remedy=why.remedy)

    def is_awake(self, guest: Guest) -> bool:
        """Whether its CPUs run."""
        return guest.netns not in self._asleep

    def set_awake(self, guest: Guest, awake: bool) -> None:
        """Lets a guest run, or stops its CPUs; its memory and its place on the network stay."""
        if awake == self.is_awake(guest):
            return
        if awake:
            self.hypervisor.resume(guest.netns)
            self._asleep.discard(guest.netns)
        else:
            self.hypervisor.suspend(guest.netns)
            self._asleep.add(guest.netns)

    def domain(
        self,
        guest: Guest,
        nic: AnyNic | None,
        mtu_bytes: int,
        neighbours: Mapping[str, str] | None = None,
    ) -> DomainSpec:
        """The virtual machine that this guest is; without a NIC, it has no network. Pure."""
        ours, options = self.ours, self.options
        network = network_of(guest, mtu_bytes, neighbours)
        return DomainSpec(
            name=guest.netns,
            accelerator=ours.accelerator.name,
            emulator=ours.qemu,
            kernel=str(ours.image.kernel),
            initrd=str(ours.image.initrd),
            command_line=ours.image.command_line(
                cpus=options.vcpus,
                network=() if nic is None else network,
            ),
            memory_mib=options.memory_mib or ours.image.memory_mib,
            vcpus=options.vcpus,
            console=self._console(guest),
            nic=nic,
            shared_memory=options.shared_memory,
            cpus=options.main_cpus if guest.role == "main" else options.background_cpus,
            managed=options.managed,
        )

    def _console(self, guest: Guest) -> str:
        return f"{self._host.directory}/{guest.netns}.console"

    def _end_reason(self, guest: Guest) -> Why:
        """Why a guest ended, as its console tells; the console is kept."""
        kept = packages.cache_directory() / f"failed-{guest.name}.console"
        with suppress(PlanewiseError, OSError):
            scratch = kept.with_name(f".{kept.name}-{os.getpid()}")
            self._host.fetch(self._console(guest), scratch)
            scratch.rename(kept)
        return Why(
            f"the virtual machine {guest.name} ended; {self._last_words(guest)}",
            f"its console is kept in {kept}; the kernel's log (`dmesg`) tells of a lack of memory",
        )

    def _last_words(self, guest: Guest) -> str:
        words: list[str] = []
        with suppress(PlanewiseError):
            last = ["tail", "-c", str(_CONSOLE_BYTES), self._console(guest)]
            words = last_words(self._host.run(last).check().stdout)
        return f"its console ends with: {words[-1]}" if words else "its console is empty"


def network_of(
    guest: Guest, mtu_bytes: int, neighbours: Mapping[str, str] | None
) -> tuple[str, ...]:
    """What a guest is told of its network. Pure."""
    return image.network_words(f"{guest.ipv4}/15", f"{guest.ipv6}/48", mtu_bytes, neighbours or {})


def last_words(console: str) -> list[str]:
    """The lines of a console that tell something: what failed first, else all. Pure."""
    lines = [line.strip() for line in console.splitlines() if line.strip()]
    failures = [line for line in lines if line.startswith(image.FAILED) or "Kernel panic" in line]
    return [failures[0].removeprefix(image.FAILED)] if failures else lines


def nic_of(model: NicModel, guest: Guest, port: str, guests: HostGuests) -> Nic:
    """A NIC on a port of the host that is there already. Pure."""
    ours, options = guests.ours, guests.options
    return Nic(
        model=model,
        mac=guest.mac,
        port=port,
        vhost=options.vhost and ours.vhost and model == "virtio",
        queues=options.queues if model == "virtio" else 1,
        offloads=options.offloads,
        standby=options.managed and model == "virtio",
    )
