"""planewised on a host of a testbed, with the VFs of its NIC and the guests that it manages there.

The guests are namespaces (containers are, too), or virtual machines. At its end guests are
released, VFs and the bonding module removed; after a kill `planewise clean` does that, as the VFs
carry the testbed's token and the guests are the testbed's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.host import Host, HostProcess, ProcessTimeoutError
from planewise.testbed.hosts.machine import MAC_FILTERS, Resources
from planewise.testbed.model import Guest
from planewise.testbed.vfs.alloc_client import Client, Status
from planewise.testbed.vfs.nic import Pf, Tool

START_S = 60.0
"""How long the daemon may take until it answers."""
GUEST_S = 20.0
"""How long it may take to start or end managing a guest; an emulated host is slow."""
MACHINE_S = 300.0
"""The same for a virtual machine, which a lab's host emulates on an emulated CPU; and the limit of
a step of its move."""
_POLL_S = 0.2

Stance = Literal["free", "pinned", "excluded"]
Condition = Callable[[Status], bool]
"""Whether a status is the awaited one."""


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings of a daemon, as keys of its configuration (docs/reference/alloc.md)."""

    policy: str
    stances: Mapping[str, Stance] = field(default_factory=dict)
    """By guest; `free` by default."""
    interval_s: float = 1.0
    max_moves: int = 2
    min_residency_s: float = 5.0
    fair_turn_s: float = 10.0


def configuration(
    settings: AllocatorSettings,
    guests: Sequence[Guest],
    directory: str,
    nic: str,
    libvirt: str = "",
) -> str:
    """The daemon's configuration file, with its files in `directory`. Pure.

    Guests are the virtual machines of a libvirt where its socket is given, else namespaces.
    """
    lines = [
        f'socket = "{directory}/socket"',
        f'state_directory = "{directory}/state"',
        f'recording = "{directory}/recording"',
        f"sample_s = {float(settings.interval_s)}",
        *([f"step_timeout_s = {MACHINE_S}"] if libvirt else []),
        "[pool]",
        f'pfs = ["{nic}"]',
        "[containers]",
        'docker = ""',
        "[machines]",
        f'sockets = ["{libvirt or f"{directory}/none"}"]',
        "[alloc]",
        f'policy = "{settings.policy}"',
        f"interval_s = {float(settings.interval_s)}",
        f"max_moves = {settings.max_moves}",
        f"min_residency_s = {float(settings.min_residency_s)}",
        f"fair_turn_s = {float(settings.fair_turn_s)}",
    ]
    for guest in guests:
        if not libvirt:
            lines += [
                f"[containers.namespaces.{guest.name}]",
                f'netns = "{guest.netns}"',
                f'interface = "{guest.interface}"',
            ]
        stance = settings.stances.get(guest.name, "free")
        lines += [f"[guests.{guest.name}]", f'stance = "{stance}"']
    return "\n".join(lines) + "\n"


def shortage(resources: Resources, pf: Pf | None, vfs: int, guests: int) -> str:
    """What a host lacks for an allocator of `vfs` VFs and `guests` guests, as a sentence; empty
    when it suffices. Pure."""
    if pf is None or not resources.vfs:
        return f"{resources.nic} of {resources.place} has no SR-IOV, and the allocator gives VFs"
    if vfs > resources.vfs:
        return f"needs {vfs} VFs on {resources.place}, and {resources.nic} has {resources.vfs}"
    usable = sum(vf.usable for vf in pf.vfs)
    if pf.num_vfs and usable != vfs:
        return (
            f"{resources.nic} of {resources.place} was given {pf.num_vfs} VFs, of which {usable} "
            f"are free: the allocator would give all of these, and the design says {vfs}"
        )
    filters = MAC_FILTERS.get(resources.driver)
    # Guests, the main one, the NIC itself, and each VF.
    if filters and (needed := guests + 2 + vfs) > filters:
        return (
            f"{guests} guests and {vfs} VFs need {needed} MAC addresses, and {resources.driver} of "
            f"{resources.nic} on {resources.place} receives for {filters}"
        )
    return ""


class Allocator:
    """A host prepared for planewised: VFs on the NIC, their driver for guests, a directory.

    Raises on entry:
        UnsupportedError: the NIC has no SR-IOV, or planewised is not installed here.
        PlanewiseError: the VFs, the driver or the machines cannot be had.
    """

    def __init__(
        self,
        host: Host,
        nic: str,
        token: str,
        vfs: int,
        guests: Sequence[Guest],
        machines: AbstractContextManager[str] | None = None,
    ) -> None:
        """`machines` runs `guests` as virtual machines, and gives the socket of their libvirt on
        the host; None: they are namespaces of it."""
        self.host = host
        self.guests = guests
        """Those that are managed; virtual machines have the names of their domains."""
        self._nic = nic
        self._owner = f"pw-{token}"
        self._vfs = vfs
        self._machines = machines
        self._libvirt = ""
        self._undo = ExitStack()
        self._tool: Tool | None = None
        self._started = False

    @property
    def directory(self) -> str:
        """Directory of the daemon's files."""
        return f"{self.host.directory}/allocator"

    @property
    def recording(self) -> str:
        """File with the daemon's inputs and decisions since it was started."""
        return f"{self.directory}/recording"

    def __enter__(self) -> Self:
        tool = self._tool = Tool.on(self.host)
        with ExitStack() as undo:
            self.host.run(["mkdir", "-p", f"{self.directory}/state"]).check()
            if self._machines is not None:
                self.host.run(["modprobe", "-a", *_VFIO]).check()
            elif self.host.run(["sh", "-ec", _LOAD_BONDING]).check().stdout.strip() == "loaded":
                # Fails, and leaves it, where another program uses it by then.
                undo.callback(self.host.run, ["modprobe", "-r", "bonding"])
            undo.callback(tool.restore, self._owner)
            if not tool.pf(self._nic).num_vfs:
                tool.run("setup", self._nic, "--count", str(self._vfs), "--owner", self._owner)
                self.host.run(["ip", "link", "set", self._nic, "up"]).check()
            if self._machines is None:
                undo.callback(self._release_guests)
            else:
                # They end before the VFs are removed: the kernel waits for ever for one in use.
                self._libvirt = undo.enter_context(self._machines)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @contextmanager
    def running(self, settings: AllocatorSettings) -> Iterator[Client]:
        """The daemon, which manages all guests; when it has ended, no guest holds a VF.

        Raises:
            PlanewiseError: it does not start, or refuses a guest.
        """
        with self._daemon(settings, self.guests) as (process, client):
            self._await_managed(process, client)
            yield client
            client.order("PUT", "/drain", {"on": True})
            self._await(
                process,
                client,
                lambda status: not any(vf.holder for vf in status.vfs),
                "did not reclaim its VFs",
            )
            self._end(process)

    @contextmanager
    def _daemon(
        self, settings: AllocatorSettings, guests: Sequence[Guest]
    ) -> Iterator[tuple[HostProcess, Client]]:
        self._started = True
        text = configuration(settings, guests, self.directory, self._nic, self._libvirt)
        config = f"{self.directory}/config.toml"
        # Removes the orders that an earlier daemon got by its API.
        write = 'rm -f "$1/state/wishes.json" "$1/socket"; cat >"$1/config.toml"'
        argv = ["sh", "-ec", write, "sh", self.directory]
        self.host.run(argv, stdin=text.encode()).check()
        assert self._tool is not None
        with self.host.start([self._tool.path, "daemon", "--config", config]) as process:
            client = Client(Path(self.host.socket(f"{self.directory}/socket")))
            self._await(process, client, lambda _: True, "does not answer")
            yield process, client

    def _await_managed(self, process: HostProcess, client: Client) -> None:
        names = {guest.name for guest in self.guests}

        def managed(status: Status) -> bool:
            refused = [error for error in status.errors if "cannot be managed" in error.what]
            if refused:
                raise PlanewiseError(refused[0].what, remedy=refused[0].remedy)
            return names <= {guest.id for guest in status.guests if guest.paravirtual_up}

        self._await(process, client, managed, "did not take over all guests")

    def _await(
        self,
        process: HostProcess,
        client: Client,
        condition: Condition,
        failure: str,
    ) -> None:
        """Waits for a status.

        Raises:
            PlanewiseError: the daemon ended, or `failure` with its latest error after a while.
        """
        guest_s = MACHINE_S if self._libvirt else GUEST_S
        end_s = time.monotonic() + START_S + guest_s * len(self.guests)
        last = ""
        while True:
            status = None
            with suppress(PlanewiseError):
                status = client.status()
            if status is not None and condition(status):
                return
            if status is not None and status.errors:
                last = f": {status.errors[-1].what}"
            if not process.running:
                process.wait().check()
                raise PlanewiseError(f"planewised on {self.host.place} ended")
            if time.monotonic() > end_s:
                raise PlanewiseError(f"planewised on {self.host.place} {failure}{last}")
            time.sleep(_POLL_S)

    def _end(self, process: HostProcess) -> None:
        process.interrupt()
        with suppress(ProcessTimeoutError):
            process.wait(GUEST_S)

    def _release_guests(self) -> None:
        """Restores guests to their state before they were managed."""
        if not self._started:
            return
        with self._daemon(AllocatorSettings("static"), ()) as (process, client):
            script = 'ls "$1/state/guests" 2>/dev/null | head -n 1'
            argv = ["sh", "-c", script, "sh", self.directory]

            def released(_: Status) -> bool:
                return not self.host.run(argv).check().stdout.strip()

            self._await(process, client, released, "did not release all guests")
            self._end(process)


_VFIO = ("vfio-pci", "vfio_iommu_type1")
"""Drivers that pass a VF through to a virtual machine."""
_LOAD_BONDING = """
[ -d /sys/module/bonding ] || { modprobe bonding max_bonds=0; echo loaded; }
"""


def bonding_shortage(host: Host) -> str:
    """Why the kernel of a host cannot bond a guest's two paths; empty where it can. Changes
    nothing."""
    script = "[ -d /sys/module/bonding ] || modprobe --dry-run --quiet bonding"
    if host.run(["sh", "-c", script]).exit_code == 0:
        return ""
    return f"the kernel of {host.place} has no bonding, by which a guest's two paths are joined"
