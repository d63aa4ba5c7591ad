"""The interface that searches and sequential sweeps measure through."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from planewise.errors import PlanewiseError
from planewise.judge.curve import Run


class ExhaustedError(PlanewiseError):
    """All recorded trials of this load are used up."""


class Loads(Protocol):
    """A range of loads."""

    @property
    def min_load_pps(self) -> float:
        """Lowest load that may be offered."""

    @property
    def max_load_pps(self) -> float:
        """Highest load that may be offered: line rate, or the generator's own maximum."""


@runtime_checkable
class Measurer(Loads, Protocol):
    """Runs one trial at a time: a testbed, a synthetic SUT, or a recording that is replayed."""

    def trial(self, offered_pps: float, duration_s: float) -> Run:
        """Offers `offered_pps` for `duration_s` and returns the counts.

        `limited` is set in a Run that something else than the SUT limited. Raises PlanewiseError
        when the trial could not be run.
        """
