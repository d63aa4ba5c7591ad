"""A setting as a value: what it changes, where, and the shell that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import GUEST_WORDS, HOSTS, GuestKind
from planewise.testbed.planes import Plane, plane
from planewise.testbed.setting import Arrangement

DEFAULT = "default"
"""Level of the factor `setting`: everything as the testbed makes it."""
LINK = 'link=$(ip -o link show dev "$1"); echo "$link"'
"""Shell that prints an interface on one line."""


@dataclass(frozen=True)
class Spot:
    """An interface where a setting is read and written."""

    host: Host
    netns: str
    """Empty: the host's own namespace."""
    interface: str

    def __str__(self) -> str:
        return f"{self.interface} of {self.netns or self.host.place}"


@dataclass(frozen=True)
class HostSetting:
    """A property of an interface or a kernel."""

    name: str
    """As a level of the factor `setting` has it before the equals sign."""
    description: str
    """One sentence: what it changes, and where."""
    reads: str = ""
    """Shell that prints the level of the interface `$1`."""
    writes: str = ""
    """Shell that sets the level `$2`; `$3` is the path of `file` on the host."""
    levels: str = "on, off"
    """Its levels, in words."""
    accepts: Callable[[str], bool] = ("on", "off").__contains__
    """Whether it has a level."""
    places: tuple[Literal["uplink", "bridge", "port", "guest"], ...] = ("port", "guest")
    """Where it is set, a parent before what sits on it: NIC and switch, the host's bridge, the
    host's end of the main guest's interface where there is one, or that interface. Empty: no
    interface changes."""
    programs: tuple[str, ...] = ()
    """Programs that a host needs."""
    file: str = ""
    """A file of this machine that it needs."""
    machine_wide: tuple[str, ...] = ()
    """Files below /proc/sys that it writes on a server, restored as noted in the ledger."""
    notes: str = ""
    """Shell that prints, on a server with the NIC `$1`, lines that restore it, for the ledger."""
    refuses: Callable[[Plane], str] = lambda _: ""
    """Why it does not exist for a plane, as a clause; empty where it does."""
    verified: bool = True
    """Whether reading a level gives the one that was written."""
    vm_options: Callable[[str], Mapping[str, int]] = lambda _: {}
    """Fields of `VmOptions` with which virtual machines' NICs are made at a level."""

    def refusal(self, name: str, kind: GuestKind) -> str:
        """Why it does not exist for a plane and kind of guest, as a sentence; empty where it does.
        Pure."""
        if self.places and kind not in ("namespace", "container"):
            reason = f"the interface of {GUEST_WORDS[kind][0]} has a kernel of its own"
        elif self.places and (plane(name).vfs or plane(name).is_host):
            reason = f"the guest's interface on {name} is the NIC's"
        else:
            reason = self.refuses(plane(name))
        return reason and f"{self.name}: {reason}"

    def spots(self, arrangement: Arrangement) -> Iterator[Spot]:
        """The interfaces that it changes."""
        for place in self.places:
            for role in HOSTS:
                host, site = arrangement.hosts[role], arrangement.sites[role]
                guest, port = arrangement.mains[role], arrangement.ports[role]
                if place == "guest":
                    yield Spot(host, guest.netns, guest.interface)
                    continue
                own = {"uplink": (site.nic, site.uplink), "bridge": (site.bridge,), "port": (port,)}
                for interface in dict.fromkeys(filter(None, own[place])):
                    yield Spot(host, site.netns, interface)

    def read(self, spot: Spot) -> str:
        """Its present level; PlanewiseError when it cannot be read."""
        if level := self._run(spot, self.reads, "read"):
            return level
        raise PlanewiseError(f"{self.name} of {spot} is not reported")

    def write(self, spot: Spot, level: str) -> None:
        """Sets a level; PlanewiseError when the kernel refuses."""
        file = spot.host.program(self.file) if self.file else ""
        self._run(spot, self.writes, f"set to {level}", level, file)

    def change(self, spot: Spot, level: str) -> None:
        """Sets a level and checks that the kernel took it.

        Raises:
            PlanewiseError: it did not.
        """
        self.write(spot, level)
        if self.verified and (now := self.read(spot)) != level:
            raise PlanewiseError(
                f"{self.name} of {spot} stays {now}: its driver does not take {level}",
                remedy="leave the level out for this plane (`constraints` in the design)",
            )

    def _run(self, spot: Spot, script: str, aim: str, *words: str) -> str:
        argv = ("sh", "-ec", script, "sh", spot.interface, *words)
        done = spot.host.run(argv, netns=spot.netns or None)
        if done.exit_code == 0:
            return done.stdout.strip()
        raise PlanewiseError(f"{self.name} of {spot} cannot be {aim}: {done.last_line}")


def between(low: int, high: int) -> Callable[[str], bool]:
    """Whether a level is a whole number from `low` to `high`. Pure."""
    return lambda level: level.isdigit() and low <= int(level) <= high
