"""The words between a run and what it measures on: places, results, stations, stages.

Vocabulary alone. `experiment` orders trials and knows no testbed; a stage knows no order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import polars as pl

from planewise.measure.designs.cells import Cell
from planewise.store.models import KpiSample, Level, TrialKind, TrialRecord

OnSample = Callable[[KpiSample], None]
"""Receives a sample about once a second while a trial runs."""


@dataclass(frozen=True)
class TrialResult:
    """What a trial measured, before it has a place in the run."""

    record: TrialRecord
    packets: pl.DataFrame | None = None
    recording: bytes | None = None
    """What an allocator's daemon recorded."""


@dataclass(frozen=True)
class Place:
    """Where a trial stands in its run."""

    trial: str
    cell: dict[str, str | int | float]
    block: int
    order: int

    @property
    def fields(self) -> dict[str, Any]:
        """Its part of a `TrialRecord`."""
        return {**vars(self), "replicate": self.block}


class Station(Protocol):
    """One cell, set up and loaded. Further protocols, each beside the trial that needs it
    (`trials.rtt.RttStation`, …), say what can be measured on it."""


class Trial(Protocol):
    """One measurement to be made on a station."""

    @property
    def name(self) -> str:
        """Unique in its run."""

    @property
    def kind(self) -> TrialKind:
        """The kind in its trial record."""

    @property
    def samples(self) -> bool:
        """Whether it reports to `on_sample` itself, so that no meter need read the guests."""

    @property
    def expected_s(self) -> float:
        """How long its traffic lasts [s], without what starting and stopping the probes takes."""

    def traffic(self) -> dict[str, Level]:
        """The factor levels that it has beside those of its cell."""

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        """Runs on a station.

        Raises:
            UnsupportedError: it cannot be measured on this station.
            PlanewiseError: it could not be run, or ended early.
        """


class Stage(Protocol):
    """Sets cells up. Made for one run; what it built is gone when it is closed."""

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """The generator's own maximum [packet/s]: nothing above it is worth offering."""

    def station(self, cell: Cell) -> AbstractContextManager[Station]:
        """Sets `cell` up and starts its background load."""

    def __enter__(self) -> Stage: ...

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class StageFacts:
    """What a reader of a run must know of the stage that it was measured on."""

    emulated: str = ""
    """Why absolute times are not those of hardware; empty when they are."""
    differences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By plane, what differs from the other planes besides the plane, and cannot be made alike."""


@runtime_checkable
class RebuildingStage(Protocol):
    """A stage that can build anew what it keeps, cheaply enough to do so for every block."""

    def new_block(self) -> None:
        """Ends what stands, so that a block is a build of its own: what chance settles when a
        testbed is built then differs from block to block, as noise does."""


@runtime_checkable
class ClearableStage(Protocol):
    """A stage whose guests need the NICs of two servers for themselves."""

    def clear(self) -> None:
        """Removes what stands on the servers; the next cell builds anew."""


@runtime_checkable
class FactualStage(Protocol):
    """A stage with facts that a reader of its runs must know."""

    def facts(self) -> StageFacts:
        """Its facts; complete once `unavailable` was called."""
