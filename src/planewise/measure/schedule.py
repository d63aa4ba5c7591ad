"""From a design to an ordered list of visits: pure, the same for the same seed.

A *visit* is one cell in one block: its background load is started once, then its RTT and load
trials are run. Within a block the cells come in a random order, and every block holds every cell,
so that drift of the machine hits all planes alike (DESIGN principle 4).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planewise.measure.design import Design, LoadLocation, LoadType
from planewise.store.models import Level


@dataclass(frozen=True, order=True)
class Cell:
    """One combination of factor levels."""

    plane: str
    load_type: LoadType
    load_location: LoadLocation
    background_guests: int

    def levels(self) -> dict[str, Level]:
        """As a trial record has them."""
        return {
            "plane": self.plane,
            "load_type": self.load_type,
            "load_location": self.load_location,
            "background_guests": self.background_guests,
        }

    @property
    def name(self) -> str:
        """Short and unique in a run: `bridge,cpu,responder,8`."""
        return f"{self.plane},{self.load_type},{self.load_location},{self.background_guests}"


@dataclass(frozen=True)
class RttTrial:
    """One RTT trial to run."""

    name: str
    frequency_pps: float
    size_bytes: int
    packets: int


@dataclass(frozen=True)
class LoadTrial:
    """One load trial to run."""

    name: str
    offered_pps: float
    size_bytes: int
    duration_s: float


@dataclass(frozen=True)
class Visit:
    """One cell in one block, with its trials in the order in which they are run."""

    block: int
    cell: Cell
    trials: tuple[RttTrial | LoadTrial, ...]


@dataclass(frozen=True)
class Skipped:
    """A cell that cannot be run here, and why."""

    cell: Cell
    reason: str


@dataclass(frozen=True)
class Schedule:
    """Everything that a run will do, in order."""

    visits: tuple[Visit, ...]
    skipped: tuple[Skipped, ...]

    @property
    def trials(self) -> int:
        """How many trials there are."""
        return sum(len(visit.trials) for visit in self.visits)


def cells_of(design: Design) -> tuple[Cell, ...]:
    """All cells in the order of the design. Without load, its location has no meaning: one cell.

    A load without background guests cannot be: such combinations are left out.
    """
    factors = design.factors
    cells: dict[Cell, None] = {}
    for plane in factors.plane:
        for load_type in factors.load_type:
            for location in factors.load_location:
                for guests in factors.background_guests:
                    if load_type == "none":
                        cells[Cell(plane, load_type, factors.load_location[0], guests)] = None
                    elif guests > 0:
                        cells[Cell(plane, load_type, location, guests)] = None
    return tuple(cells)


def make_schedule(
    design: Design,
    ladders: Mapping[Cell, Sequence[float]],
    unavailable: Mapping[str, str],
) -> Schedule:
    """Expands `design` into visits.

    `ladders` has the offered loads [pps] of each cell (only read when the design has a sweep);
    `unavailable` maps a plane that this testbed cannot do to the reason.
    """
    cells = cells_of(design)
    runnable = [cell for cell in cells if cell.plane not in unavailable]
    skipped = tuple(
        Skipped(cell, unavailable[cell.plane]) for cell in cells if cell.plane in unavailable
    )
    shuffler = random.Random(design.seed)
    visits = []
    for block in range(design.blocks):
        order = list(runnable)
        shuffler.shuffle(order)
        for cell in order:
            trials: list[RttTrial | LoadTrial] = _rtt_trials(design, cell, block)
            load_trials = _load_trials(design, cell, block, ladders.get(cell, ()))
            shuffler.shuffle(load_trials)
            trials.extend(load_trials)
            visits.append(Visit(block, cell, tuple(trials)))
    return Schedule(tuple(visits), skipped)


def _rtt_trials(design: Design, cell: Cell, block: int) -> list[RttTrial | LoadTrial]:
    if design.rtt is None:
        return []
    part = design.rtt
    return [
        RttTrial(
            name=f"rtt:{cell.name},{frequency:g}pps,{size}B#r{block}",
            frequency_pps=frequency,
            size_bytes=size,
            packets=part.packets,
        )
        for frequency in part.frequency_pps
        for size in part.size_bytes
    ]


def _load_trials(
    design: Design, cell: Cell, block: int, ladder: Sequence[float]
) -> list[RttTrial | LoadTrial]:
    if design.sweep is None:
        return []
    part = design.sweep
    return [
        LoadTrial(
            name=f"load:{cell.name},{size}B#r{block}@{offered:.0f}",
            offered_pps=offered,
            size_bytes=size,
            duration_s=part.duration_s,
        )
        for size in part.size_bytes
        for offered in ladder
    ]


# Where a ladder's steps lie, as shares of the rate that an overload trial forwarded: the low ones
# show loss that begins early, the dense ones find the knee, the high ones tell whether throughput
# then stays (GOOD), creeps on, or falls (PASTRAMI, section 4).
_LADDER_LOW, _LADDER_HIGH = 0.3, 1.6


def ladder_around(forwarded_pps: float, loads: int, max_pps: float) -> tuple[float, ...]:
    """`loads` offered loads [pps] around the rate that an overload trial forwarded.

    Evenly spaced, so that no TIR is taken between loads that are almost the same; none above
    `max_pps`. Cut to two digits (three where they would meet), so that a person can read them.
    """
    low = min(_LADDER_LOW * forwarded_pps, max_pps)
    high = min(_LADDER_HIGH * forwarded_pps, max_pps)
    steps = [low + (high - low) * place / (loads - 1) for place in range(loads)]
    for digits in (2, 3):
        ladder = {max(1.0, _cut(step, digits)) for step in steps}
        if len(ladder) == loads:
            break
    return tuple(sorted(ladder))


def _cut(value: float, digits: int) -> float:
    """`value` with all but its first `digits` digits made zero; never more than `value`."""
    size = 10.0 ** (math.floor(math.log10(value)) - digits + 1) if value > 0 else 1.0
    return math.floor(value / size + 1e-9) * size
