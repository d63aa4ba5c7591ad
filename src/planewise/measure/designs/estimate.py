"""About how long a run takes: for the time left and for a time budget, never for a result. Pure.

A trial's duration is set; its overhead depends on the machine: the constants are those of two idle
cores, and a `pace` measured on the machine at hand multiplies them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from planewise.measure.designs.cells import CellTestbed
from planewise.measure.designs.schedule import Schedule, Visit
from planewise.measure.station import Trial
from planewise.testbed.planes.kinds import GuestKind

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
        cost = visit_s(visit, finished, pace)
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


def visit_s(visit: Visit, finished: frozenset[str] = frozenset(), pace: float = 1.0) -> float:
    """Time of the unfinished trials of one visit, without building its testbed [s]."""
    unfinished = [trial for trial in visit.trials if trial.name not in finished]
    if not unfinished:
        return 0.0
    trials = math.fsum(trial_s(trial, pace) for trial in (*visit.warmup, *unfinished))
    return pace * VISIT_OVERHEAD_S + trials


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
