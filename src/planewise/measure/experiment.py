"""Runs a design on a stage and writes the run directory: order, resume, failures, progress.

Knows schedules and records. What a cell *is* (namespaces, containers, VMs) is the stage's business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import polars as pl

from planewise.errors import PlanewiseError, StorageError
from planewise.measure.cells import Cell, cells_of
from planewise.measure.design import Design
from planewise.measure.schedule import (
    LoadTrial,
    RttTrial,
    Schedule,
    Visit,
    ladder_around,
    make_schedule,
)
from planewise.store.models import RunInfo, RunStatus, TrialRecord
from planewise.store.rundir import RunWriter

FAILURES_IN_A_ROW = 3
"""After so many the testbed, not the trial, is what is broken: the run stops."""

TRIAL_OVERHEAD_S = 0.35
"""Starting and stopping the probes of a trial; for the estimate of time left alone."""

PILOT_S = 0.3
"""How long the overload trial runs that finds a plane's range."""

VISIT_OVERHEAD_S = 0.5
"""Starting and stopping a cell's background load; for the estimate of time left alone."""


@dataclass(frozen=True)
class TrialResult:
    """What a trial measured, before it has a place in the run."""

    record: TrialRecord
    packets: pl.DataFrame | None = None


@dataclass(frozen=True)
class Place:
    """Where a trial stands in its run."""

    trial: str
    cell: dict[str, str | int | float]
    block: int
    order: int


class Station(Protocol):
    """One cell, set up and loaded: trials can be run on it."""

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Runs one RTT trial."""

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Runs one load trial."""


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


class Progress(Protocol):
    """Told what happens, so that a person sees it."""

    def begin(self, what: str, total_s: float) -> None:
        """A part of the work starts that will take about `total_s`."""

    def step(self, what: str, done_s: float) -> None:
        """`what` is next; `done_s` of the estimate have been worked off so far."""

    def note(self, text: str) -> None:
        """Something that a person should know at once."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    done: int
    failed: int
    info: RunInfo


def find_ladders(
    design: Design, stage: Stage, unavailable: Mapping[Cell, str], progress: Progress
) -> dict[Cell, tuple[float, ...]]:
    """The offered loads [pps] of every cell: the design's own, or around what a pilot forwards.

    The pilot is one overload trial for each plane, kind of guest and path, on its first cell
    without load (else its first cell); all cells of these share its ladder, so that their curves
    can be laid over one another.
    """
    if design.sweep is None:
        return {}
    cells = [cell for cell in cells_of(design) if cell not in unavailable]
    if design.sweep.offered_pps != "auto":
        return dict.fromkeys(cells, tuple(sorted(design.sweep.offered_pps)))
    ladders: dict[Cell, tuple[float, ...]] = {}
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.plane, cell.guest, cell.path), []).append(cell)
    each_s = PILOT_S + VISIT_OVERHEAD_S + TRIAL_OVERHEAD_S
    progress.begin("finding each plane's range", each_s * len(groups))
    for number, own in enumerate(groups.values()):
        progress.step(f"pilot on {own[0].plane}", number * each_s)
        first = next((cell for cell in own if cell.load_type == "none"), own[0])
        most = min(design.sweep.max_pps, stage.max_pps(first, design.factors.size_bytes[0]))
        forwarded = _pilot(design, stage, first, most)
        ladder = ladder_around(forwarded, design.sweep.loads, most)
        ladders.update(dict.fromkeys(own, ladder))
    return ladders


def _pilot(design: Design, stage: Stage, cell: Cell, offered_pps: float) -> float:
    """What `cell` forwards [pps] when as much as possible is offered."""
    assert design.sweep is not None
    trial = LoadTrial("pilot", offered_pps, design.factors.size_bytes[0], PILOT_S)
    with stage.station(cell) as station:
        record = station.load(trial, Place("pilot", cell.levels(), 0, 0)).record
    if record.counts is None or record.load is None or record.counts.received == 0:
        raise PlanewiseError(
            f"the pilot on plane {cell.plane} delivered no packet",
            remedy="see `planewise doctor`; leave the plane out of the design",
        )
    return record.load.achieved_pps * record.counts.received / max(record.counts.sent, 1)


def estimate_s(schedule: Schedule, finished: frozenset[str] = frozenset()) -> float:
    """About how long the schedule's unfinished trials take, in seconds."""
    return math.fsum(_visit_s(visit, finished) for visit in schedule.visits)


def _visit_s(visit: Visit, finished: frozenset[str]) -> float:
    left = [trial for trial in visit.trials if trial.name not in finished]
    if not left:
        return 0.0
    return VISIT_OVERHEAD_S + math.fsum(_trial_s(trial) for trial in left)


def _trial_s(trial: RttTrial | LoadTrial) -> float:
    if isinstance(trial, RttTrial):
        return TRIAL_OVERHEAD_S + trial.packets / trial.frequency_pps
    return TRIAL_OVERHEAD_S + trial.duration_s


def schedule_for(
    design: Design, ladders: Mapping[Cell, Sequence[float]], unavailable: Mapping[Cell, str]
) -> Schedule:
    """The run's schedule; PlanewiseError when nothing of the design can be run here."""
    schedule = make_schedule(design, ladders, unavailable)
    if not schedule.visits:
        reasons = "; ".join(left_out(unavailable))
        raise PlanewiseError(
            f"no cell of the design can be run here ({reasons})",
            remedy="`planewise doctor` lists the planes of this host",
        )
    return schedule


def left_out(unavailable: Mapping[Cell, str]) -> tuple[str, ...]:
    """What cannot be run here, one phrase a reason: `ipvlan: the kernel lacks it`."""
    planes: dict[str, dict[str, None]] = {}
    for cell, reason in unavailable.items():
        planes.setdefault(reason, {})[cell.plane] = None
    return tuple(f"{', '.join(names)}: {reason}" for reason, names in planes.items())


def run(schedule: Schedule, stage: Stage, writer: RunWriter, progress: Progress) -> Outcome:
    """Runs what is not finished yet, trial by trial, and closes the run directory's status.

    A trial that fails is recorded with its reason and the run goes on; FAILURES_IN_A_ROW in a row
    stop it. Ctrl-C stops it between two trials' records: everything finished is kept.
    """
    total = estimate_s(schedule, writer.finished)
    progress.begin("measuring", total)
    runner = _Runner(writer, progress, order=len(writer.finished))
    try:
        for visit in schedule.visits:
            runner.visit(visit, stage)
    except KeyboardInterrupt:
        return runner.close("interrupted", "stopped by the user")
    except PlanewiseError as error:
        with suppress(StorageError):  # a full disk has no room for this either
            runner.close("failed", error.what)
        raise
    return runner.close("done", "")


class _Runner:
    """The state of one run: counts, time worked off, failures in a row."""

    def __init__(self, writer: RunWriter, progress: Progress, order: int) -> None:
        self.writer = writer
        self.progress = progress
        self.order = order
        self.done = 0
        self.failed = 0
        self.in_a_row = 0
        self.worked_s = 0.0

    def visit(self, visit: Visit, stage: Stage) -> None:
        """Runs the unfinished trials of one cell in one block."""
        left = [trial for trial in visit.trials if trial.name not in self.writer.finished]
        if not left:
            return
        self.progress.step(self._where(visit), self.worked_s)
        pending = list(left)
        try:
            with stage.station(visit.cell) as station:
                self.worked_s += VISIT_OVERHEAD_S
                while pending:
                    self._trial(visit, pending[0], station)
                    self.worked_s += _trial_s(pending.pop(0))
                    self.progress.step(self._where(visit), self.worked_s)
        except (_TooManyFailuresError, StorageError):
            raise
        except PlanewiseError as error:
            # The cell could not be set up (or torn down): its open trials are failed ones.
            for trial in pending:
                self._failed(visit, trial, error)
                self.worked_s += _trial_s(trial)

    def _trial(self, visit: Visit, trial: RttTrial | LoadTrial, station: Station) -> None:
        place = Place(trial.name, cell_of(visit.cell, trial), visit.block, self.order)
        try:
            if isinstance(trial, RttTrial):
                result = station.rtt(trial, place)
            else:
                result = station.load(trial, place)
        except PlanewiseError as error:
            self._failed(visit, trial, error)
            return
        self.writer.append(result.record, result.packets)
        self.order += 1
        self.done += 1
        self.in_a_row = 0

    def _failed(self, visit: Visit, trial: RttTrial | LoadTrial, error: PlanewiseError) -> None:
        record = TrialRecord(
            trial=trial.name,
            kind="rtt" if isinstance(trial, RttTrial) else "load",
            cell=cell_of(visit.cell, trial),
            block=visit.block,
            replicate=visit.block,
            order=self.order,
            started=datetime.now(UTC),
            duration_s=0,
            status="failed",
            reason=error.what,
        )
        self.writer.append(record)
        self.progress.note(f"{trial.name} failed: {error.what}")
        self.order += 1
        self.failed += 1
        self.in_a_row += 1
        if self.in_a_row >= FAILURES_IN_A_ROW:
            raise _TooManyFailuresError(
                f"{FAILURES_IN_A_ROW} trials in a row failed, the last with: {error.what}",
                remedy=f"{error.remedy or 'mend the cause'}; then continue with "
                "`planewise run --resume`",
            )

    def _where(self, visit: Visit) -> str:
        cell = visit.cell
        load = "idle" if cell.load_type == "none" else f"{cell.load_type} load"
        return f"block {visit.block + 1}: {cell.plane}, {load}"

    def close(self, status: RunStatus, reason: str) -> Outcome:
        """Writes the run's end into run.json."""
        info = self.writer.info.model_copy(
            update={"status": status, "reason": reason, "finished": datetime.now(UTC)}
        )
        self.writer.finish(info)
        return Outcome(self.done, self.failed, info)


class _TooManyFailuresError(PlanewiseError):
    """The run was stopped because trial after trial failed."""


def cell_of(cell: Cell, trial: RttTrial | LoadTrial) -> dict[str, str | int | float]:
    """A trial's factor levels: its cell's, and its own traffic's."""
    levels = cell.levels() | {"size_bytes": trial.size_bytes}
    if isinstance(trial, RttTrial):
        levels |= {"frequency_pps": trial.frequency_pps, "protocol": trial.protocol}
    return levels


def default_directory(now: datetime | None = None) -> Path:
    """Where a run goes when no one says: `runs/<time>` below the current directory."""
    stamp = (now or datetime.now()).strftime("%Y-%m-%d-%H%M%S")  # noqa: DTZ005 - a person's clock
    return Path("runs") / stamp
