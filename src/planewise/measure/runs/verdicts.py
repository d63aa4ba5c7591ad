"""Load trials beyond a run's schedule: those that the verdicts on its curves still need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from planewise.measure.designs.cells import Cell
from planewise.measure.designs.schedule import Schedule
from planewise.measure.runs.sut import run_of
from planewise.measure.search.measurer import Loads
from planewise.measure.search.sequential import Placement, SequentialPlan
from planewise.measure.station import Trial
from planewise.measure.trials.load import LoadTrial
from planewise.store.levels import keeps_levels
from planewise.store.models import TrialRecord


class Verdicts:
    """The curves of a run, each of a cell and a frame size, and the trials that would decide the
    verdicts on them."""

    def __init__(self, schedule: Schedule, ranges: Mapping[Cell, Loads], seed: int) -> None:
        """`ranges`: the loads that can be offered to each cell with a ladder."""
        ladders: dict[tuple[Cell, int], dict[float, LoadTrial]] = defaultdict(dict)
        for visit in schedule.visits:
            for trial in visit.trials:
                if isinstance(trial, LoadTrial):
                    ladders[visit.cell, trial.size_bytes][trial.offered_pps] = trial
        self._trials = {curve: next(iter(ladder.values())) for curve, ladder in ladders.items()}
        self._placements = {
            curve: Placement(ranges[curve[0]], sorted(ladder), SequentialPlan(), True, seed)
            for curve, ladder in ladders.items()
        }
        self._next: dict[tuple[Cell, int], list[float] | None] = dict.fromkeys(ladders)
        """Loads of the next trials; None: not known since the last one."""
        self._taken = 0

    def add(self, cell: Cell, trial: Trial, record: TrialRecord) -> None:
        """Takes a trial in; one that does not count only costs its turn."""
        if not isinstance(trial, LoadTrial):
            return
        curve, load = (cell, trial.size_bytes), trial.offered_pps
        self._taken += 1
        planned = self._next[curve] or []
        if load in planned:
            planned.remove(load)
        if record.counts and record.counts.sent and keeps_levels(record):
            self._placements[curve].add(load, run_of(record))
        self._next[curve] = planned or None

    def next_trial(self, cell: Cell, block: int) -> LoadTrial | None:
        """The next trial of a cell; None where its verdicts are decided or cannot be."""
        for curve, trial in self._trials.items():
            if curve[0] != cell:
                continue
            loads = self._next[curve]
            if loads is None:
                loads = self._next[curve] = self._placements[curve].next_loads()
            if loads:
                name = f"{trial.name.rpartition('#')[0]}#r{block}.{self._taken}@{loads[0]:.0f}"
                return replace(trial, name=name, offered_pps=loads[0])
        return None

    def open_cells(self) -> set[Cell]:
        """The cells that a trial would help."""
        return {cell for cell, _ in self._trials if self.next_trial(cell, 0) is not None}
