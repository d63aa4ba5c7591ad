"""From a design to an ordered list of visits: pure, the same for the same seed.

A *visit* is one cell in one block: its background load is started once, then its RTT and load
trials are run, each kind in random order. Within a block the cells come in a random order, and
every block holds every cell, so that drift of the machine hits all planes alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from planewise.measure.designs.cells import Cell, CellTestbed, expand
from planewise.measure.designs.design import Design, Randomise
from planewise.measure.station import Request, Trial
from planewise.measure.trials import kinds_of
from planewise.testbed.model import GuestKind


@dataclass(frozen=True)
class Visit:
    """One cell in one block, with its trials in the order in which they are run."""

    block: int
    cell: Cell
    trials: tuple[Trial, ...]
    warmup: tuple[Trial, ...] = ()
    """Run before the trials, and thrown away."""


@dataclass(frozen=True)
class Schedule:
    """Everything that a run will do, in order."""

    visits: tuple[Visit, ...]
    skipped: Mapping[Cell, str]
    """Cells that cannot be run here, with the reason."""
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
    skipped = {cell: unavailable[cell] for cell in cells if cell in unavailable}
    shuffler = random.Random(design.seed)
    visits = []
    for block in range(design.blocks):
        for cell in _order(runnable, design.randomise, shuffler):
            trials, warmup = list[Trial](), list[Trial | None]()
            for kind in kinds_of(design):
                traffic = cells[cell].get(kind.key, ())
                request = Request(design, cell, block, traffic, ladders.get(cell, ()))
                of_kind = kind.requested(request)
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


TRIAL_OVERHEAD_S = 0.35
"""Starting and stopping the probes of a trial."""

VISIT_OVERHEAD_S = 0.5
"""Starting and stopping a cell's background load."""

BUILD_S: Mapping[GuestKind, tuple[float, float]] = MappingProxyType(
    {
        "namespace": (0.3, 0.04),
        "container": (1.0, 0.5),
        "vm": (10.0, 2.0),
        "process": (2.0, 0.5),
    }
)
"""Building a testbed: without background guests, and more for each of them (one on each host), or
for each function of a chain."""

KEPT: frozenset[GuestKind] = frozenset({"namespace"})
"""Guests that idle without a cost: their testbeds stay up side by side, and each is built once a
block."""


def estimate_s(
    schedule: Schedule, finished: frozenset[str] = frozenset(), pace: float = 1.0
) -> float:
    """Time of the schedule's unfinished trials [s]."""
    return math.fsum(visit_costs_s(schedule.visits, finished, pace))


def visit_costs_s(
    visits: Sequence[Visit], finished: frozenset[str] = frozenset(), pace: float = 1.0
) -> tuple[float, ...]:
    """Time of the unfinished trials of each visit, and of building its testbed where that is not
    built yet [s]; 0 where nothing is left to do."""
    costs = []
    built: set[CellTestbed] = set()
    block = -1
    for visit in visits:
        if visit.block != block:
            block, built = visit.block, {testbed for testbed in built if testbed.kind not in KEPT}
        unfinished = [trial for trial in visit.trials if trial.name not in finished]
        cost = 0.0
        if unfinished:
            trials = (trial_s(trial, pace) for trial in (*visit.warmup, *unfinished))
            cost = pace * VISIT_OVERHEAD_S + math.fsum(trials)
        testbed = visit.cell.testbed
        if cost and testbed not in built:
            cost += pace * build_s(testbed)
            built = {testbed for testbed in built if testbed.kind in KEPT} | {testbed}
        costs.append(cost)
    return tuple(costs)


def build_s(testbed: CellTestbed) -> float:
    """Time to build a testbed [s]."""
    first_s, each_s = BUILD_S[testbed.kind]
    return first_s + each_s * (testbed.background_guests + testbed.vnfs)


def trial_s(trial: Trial, pace: float = 1.0) -> float:
    """Time of one trial [s]."""
    return pace * TRIAL_OVERHEAD_S + trial.expected_s


def blocks_within(schedule: Schedule, budget_s: float) -> int:
    """How many whole blocks, the first ones, a time budget has room for."""
    spent_s = 0.0
    for visit, cost_s in zip(schedule.visits, visit_costs_s(schedule.visits), strict=True):
        spent_s += cost_s
        if spent_s > budget_s:
            return visit.block
    return schedule.blocks
