"""Guests that are network namespaces: the cheapest, and what containers are to the network."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.testbed.hosts.machine import MachineState, PlacedGuest, Resources
from planewise.testbed.model import Guest
from planewise.testbed.plan import Step, new_namespace


class NamespaceMaker:
    """See `GuestMaker`."""

    memory_mib = 3
    """An idle namespace with a process in it."""
    waits = False

    def lacking(self, resources: Resources) -> str:
        """Nothing: every Linux host has them."""
        return ""

    def steps(self, guest: Guest) -> tuple[Step, ...]:
        """An empty namespace."""
        return new_namespace(guest.netns)

    def create(self, state: MachineState, guests: Sequence[Guest]) -> list[PlacedGuest]:
        """Nothing beyond the steps."""
        return [PlacedGuest(guest) for guest in guests]

    def remove(self, state: MachineState, placed: PlacedGuest) -> None:
        """Removes the namespace's name."""
        state.host.run(["ip", "netns", "delete", placed.guest.netns])
