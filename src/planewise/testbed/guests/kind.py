"""What a kind of guest does on one machine; a testbed's life cycle calls it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step
from planewise.testbed.planes import plane
from planewise.testbed.planes.plane import Plane
from planewise.testbed.vfs.nic import ListedVf


@dataclass
class PlacedGuest:
    """A guest on a machine."""

    guest: Guest
    site: Site
    """The machine as the guest's plane sees it."""
    within: bool = False
    """Whether its peer lives on the same machine."""
    ready: bool = False
    """Whether it has its interface, and a virtual machine has come up."""
    asleep: bool = False
    """Whether a virtual machine's CPUs are stopped."""
    vf: ListedVf | None = None
    port: str | None = None
    """The host side of its interface, once it was looked up."""
    socket: str = ""
    """Of a switch in user space that has its port already; empty: its plane makes the port."""
    peer: Guest | None = None
    """The guest that it was introduced to."""
    vm_options: Mapping[str, int] = field(default_factory=dict)
    """See `Setting`."""

    @property
    def plane(self) -> Plane:
        """Its plane."""
        return plane(self.guest.plane)


class Guests(ABC):
    """The guests of one kind on one machine."""

    def __init__(self, state: MachineState) -> None:
        self.state = state

    @abstractmethod
    def prepare(self, placed: Sequence[PlacedGuest], steps: Sequence[Step]) -> None:
        """Performs `steps`, then makes guests and plugs them in; virtual machines start later.

        Raises:
            PlanewiseError: one could not be made; `remove` is called before the next setting.
        """

    def start(self, pairs: Sequence[tuple[PlacedGuest, Guest]]) -> None:
        """Starts or wakes guests, and introduces each to its peer: no address is ever resolved.

        Raises:
            PlanewiseError: one does not start.
        """
        strangers = [(placed, peer) for placed, peer in pairs if placed.peer != peer]
        self.state.host.perform(
            step
            for placed, peer in strangers
            for step in placed.plane.static_neighbours(
                placed.site, placed.guest, peer, placed.within
            )
        )
        for placed, peer in strangers:
            placed.peer = peer

    def suspend(self, placed: Sequence[PlacedGuest]) -> None:  # noqa: B027 - most cost nothing
        """Lets guests rest until the next setting that asks for them."""

    @abstractmethod
    def remove(self, placed: PlacedGuest) -> None:
        """Ends a guest, alive or not, and takes back what outlives it."""

    def lost(self, placed: Sequence[PlacedGuest]) -> list[tuple[PlacedGuest, PlanewiseError]]:
        """Guests that have ended by themselves, each with the reason."""
        return []

    def close(self) -> None:  # noqa: B027 - most end with what their state opened
        """Ends all of them."""


Key = TypeVar("Key")


def remove_lost(kind: Guests, placed: dict[Key, PlacedGuest]) -> set[Key]:
    """Removes guests that ended or never came up, with their VFs; returns the former."""
    ready = [one for one in placed.values() if one.ready]
    ended = [id(one) for one, _ in kind.lost(ready)] if ready else []
    lost: set[Key] = set()
    for key, one in list(placed.items()):
        if not one.ready or id(one) in ended:
            kind.remove(placed.pop(key))
            lost |= {key} if one.ready else set()
    return lost
