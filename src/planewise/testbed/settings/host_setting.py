"""Base class of settings of interfaces and kernels: one subclass of `HostSetting` a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import GUEST_WORDS, HOSTS, GuestKind, IpVersion
from planewise.testbed.planes import plane
from planewise.testbed.setting import Arrangement


@dataclass(frozen=True)
class Spot:
    """An interface where a setting is read and written."""

    host: Host
    netns: str
    """Empty: the host's own namespace."""
    interface: str

    def run(self, *argv: str) -> str:
        """The output of a command in its namespace; PlanewiseError when that fails."""
        return self.host.run(argv, netns=self.netns or None).check().stdout

    def __str__(self) -> str:
        return f"{self.interface} of {self.netns or self.host.place}"


class HostSetting(ABC):
    """A property of an interface or a kernel that a design varies."""

    name: ClassVar[str]
    """As a level of the factor `setting` has it before the equals sign."""
    description: ClassVar[str]
    """One sentence: what it changes, and where."""
    levels: ClassVar[str] = "on, off"
    """Its levels, in words."""
    programs: ClassVar[tuple[str, ...]] = ()
    """Programs that a host needs."""
    guests: ClassVar[tuple[GuestKind, ...]] = ("namespace", "container")
    """Kinds of main guests that it exists for."""
    machine_wide: ClassVar[tuple[str, ...]] = ()
    """Files below /proc/sys that it writes on a server, restored as noted in the ledger."""

    def accepts(self, level: str) -> bool:
        """Whether it has this level. Pure."""
        return level in ("on", "off")

    def refusal(self, name: str, kind: GuestKind) -> str:
        """Why it does not exist for a plane and kind of guest, as a sentence; empty where it does.
        Pure."""
        if kind not in self.guests:
            return f"{self.name}: the interface of {GUEST_WORDS[kind][0]} has a kernel of its own"
        if plane(name).vfs:
            return f"{self.name}: the guest's interface on {name} is a VF, which is the NIC's"
        return ""

    def ip_version(self, level: str) -> IpVersion | None:
        """IP version that trials send at a level; None: the usual one. Pure."""
        return None

    def spots(self, arrangement: Arrangement) -> Iterator[Spot]:
        """The interfaces that it changes, a parent before what sits on it."""
        yield from host_ends(arrangement)
        yield from guest_ends(arrangement)

    @abstractmethod
    def read(self, spot: Spot) -> str:
        """Its present level; PlanewiseError when it cannot be read."""

    @abstractmethod
    def write(self, spot: Spot, level: str) -> None:
        """Sets a level; PlanewiseError when the kernel refuses."""

    def change(self, spot: Spot, level: str) -> None:
        """Sets a level and checks that the kernel took it.

        Raises:
            PlanewiseError: it did not.
        """
        self.write(spot, level)
        if (now := self.read(spot)) != level:
            raise PlanewiseError(
                f"{self.name} of {spot} stays {now}: its driver does not take {level}",
                remedy="leave the level out for this plane (`constraints` in the design)",
            )


def guest_ends(arrangement: Arrangement) -> Iterator[Spot]:
    """The main guests' own interfaces."""
    for role in HOSTS:
        guest = arrangement.mains[role]
        yield Spot(arrangement.hosts[role], guest.netns, guest.interface)


def host_ends(arrangement: Arrangement) -> Iterator[Spot]:
    """The hosts' ends of the main guests' interfaces; none where a plane has none."""
    for role in HOSTS:
        if port := arrangement.ports[role]:
            yield Spot(arrangement.hosts[role], arrangement.sites[role].netns, port)
