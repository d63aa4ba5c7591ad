"""The protocol of the kinds of guest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from planewise.testbed.hosts.machine import MachineState, PlacedGuest, Resources
from planewise.testbed.model import Guest
from planewise.testbed.plan import Step


class GuestMaker(Protocol):
    """Makes guests of one kind, not yet plugged in."""

    @property
    def memory_mib(self) -> int:
        """Memory that an idle guest takes."""

    @property
    def waits(self) -> bool:
        """Whether `create` waits for another program."""

    def lacking(self, resources: Resources) -> str:
        """Why a machine cannot have such guests, as a sentence; empty when it can. Pure."""

    def steps(self, guest: Guest) -> tuple[Step, ...]:
        """Steps that make a guest; none where `create` does it."""

    def create(self, state: MachineState, guests: Sequence[Guest]) -> list[PlacedGuest]:
        """Makes guests on a machine, after their steps, and returns them.

        Raises:
            UnsupportedError: the machine lacks something.
            PlanewiseError: one could not be made.
        """

    def remove(self, state: MachineState, placed: PlacedGuest) -> None:
        """Ends a guest, alive or not."""
