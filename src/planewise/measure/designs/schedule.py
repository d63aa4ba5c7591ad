"""From a design to an ordered list of visits: pure, the same for the same seed.

A *visit* is one cell in one block: its background load is started once, then its RTT and load
trials are run, each kind in random order. Within a block the cells come in a random order, and
every block holds every cell, so that drift of the machine hits all planes alike.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from planewise.measure.designs.cells import Cell, CellTestbed, expand
from planewise.measure.designs.design import Design, Randomise
from planewise.measure.station import Trial
from planewise.measure.trials import kinds_of
from planewise.measure.trials.kind import TrialRequest


@dataclass(frozen=True)
class Visit:
    """One cell in one block, with its trials in the order in which they are run."""

    block: int
    cell: Cell
    trials: tuple[Trial, ...]
    warmup: tuple[Trial, ...] = ()
    """Run before the trials, and thrown away."""


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
    blocks: int
    """Blocks of the design; those that a time budget has no room for among them."""

    @property
    def trials(self) -> int:
        """Number of trials."""
        return sum(len(visit.trials) for visit in self.visits)

    def by_block(self) -> Iterator[tuple[int, tuple[Visit, ...]]]:
        """Each block's number, from 0, and its visits in order."""
        for block, visits in groupby(self.visits, key=lambda visit: visit.block):
            yield block, tuple(visits)


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
        for cell in _order(runnable, design.randomise, shuffler):
            trials, warmup = list[Trial](), list[Trial | None]()
            for kind in kinds_of(design):
                traffic = cells[cell].get(kind.part, ())
                request = TrialRequest(design, cell, block, traffic, ladders.get(cell, ()))
                of_kind = kind.trials(request)
                shuffler.shuffle(of_kind)
                trials += of_kind
                warmup.append(kind.warmup(design, of_kind))
            warmup_trials = tuple(trial for trial in warmup if trial is not None)
            visits.append(Visit(block, cell, tuple(trials), warmup_trials))
    return Schedule(tuple(visits), skipped, design.blocks)


def _order(cells: Sequence[Cell], randomise: Randomise, shuffler: random.Random) -> list[Cell]:
    """A random order of the cells; with `testbeds`, those of one testbed stay together."""
    if randomise == "cells":
        order = list(cells)
        shuffler.shuffle(order)
        return order
    groups: dict[CellTestbed, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.testbed, []).append(cell)
    testbeds = list(groups.values())
    shuffler.shuffle(testbeds)
    for group in testbeds:
        shuffler.shuffle(group)
    return [cell for group in testbeds for cell in group]
