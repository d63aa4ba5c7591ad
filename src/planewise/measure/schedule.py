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

from planewise.measure.cells import Cell, Traffic, expand
from planewise.measure.design import Design, Protocol


@dataclass(frozen=True)
class RttTrial:
    """One RTT trial to run."""

    name: str
    frequency_pps: float
    size_bytes: int
    packets: int
    protocol: Protocol = "icmp"


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


def make_schedule(
    design: Design,
    ladders: Mapping[Cell, Sequence[float]],
    unavailable: Mapping[Cell, str],
) -> Schedule:
    """Expands `design` into visits.

    `ladders` has the offered loads [pps] of each cell (only read when the design has a sweep);
    `unavailable` maps a cell that cannot be run here to the reason.
    """
    cells = expand(design)
    runnable = [cell for cell in cells if cell not in unavailable]
    skipped = tuple(Skipped(cell, unavailable[cell]) for cell in cells if cell in unavailable)
    shuffler = random.Random(design.seed)
    visits = []
    for block in range(design.blocks):
        order = list(runnable)
        shuffler.shuffle(order)
        for cell in order:
            traffic = cells[cell]
            rtt_trials = _rtt_trials(design, cell, block, traffic)
            shuffler.shuffle(rtt_trials)
            load_trials = _load_trials(design, cell, block, traffic, ladders.get(cell, ()))
            shuffler.shuffle(load_trials)
            visits.append(Visit(block, cell, (*rtt_trials, *load_trials)))
    return Schedule(tuple(visits), skipped)


def _rtt_trials(design: Design, cell: Cell, block: int, traffic: Traffic) -> list[RttTrial]:
    if design.rtt is None:
        return []
    return [
        RttTrial(
            name=f"rtt:{cell.name},{one.frequency_pps:g}pps,{one.size_bytes}B,{one.protocol}"
            f"#r{block}",
            frequency_pps=one.frequency_pps,
            size_bytes=one.size_bytes,
            packets=design.rtt.packets,
            protocol=one.protocol,
        )
        for one in traffic.rtt
    ]


def _load_trials(
    design: Design, cell: Cell, block: int, traffic: Traffic, ladder: Sequence[float]
) -> list[LoadTrial]:
    if design.sweep is None:
        return []
    return [
        LoadTrial(
            name=f"load:{cell.name},{size}B#r{block}@{offered:.0f}",
            offered_pps=offered,
            size_bytes=size,
            duration_s=design.sweep.duration_s,
        )
        for size in traffic.load_sizes_bytes
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
