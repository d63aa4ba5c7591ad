"""Runs a schedule and writes the run directory: order, resume, failures, progress."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Protocol

from planewise.errors import PlanewiseError, StorageError
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design
from planewise.measure.designs.schedule import (
    Schedule,
    Visit,
    make_schedule,
    trial_s,
    visit_costs_s,
)
from planewise.measure.runs.meter import Meter
from planewise.measure.runs.pause import Pauses
from planewise.measure.runs.stations import Stations
from planewise.measure.runs.verdicts import Verdicts
from planewise.measure.station import Place, Station, Trial, TrialResult
from planewise.store.levels import marked, missed_levels
from planewise.store.models import RunInfo, RunStatus, TrialRecord
from planewise.store.rundir import RunWriter
from planewise.testbed.hosts.state import LocalWatch

FAILURES_IN_A_ROW = 3
"""After so many failed trials in a row a cell is given up; after so many cells in a row of which
no trial succeeded, the testbed is what is broken, and the run stops."""

_MOST_WARNINGS = 3
"""Trials off their level that are warned of while the run goes on."""
_LEAST_FURTHER = 2
"""Trials for verdicts in a visit, however little time there is: two loads alone decide nothing."""


class Progress(Protocol):
    """Reports how the work goes, to a person."""

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


def schedule_for(
    design: Design, ladders: Mapping[Cell, Sequence[float]], unavailable: Mapping[Cell, str]
) -> Schedule:
    """The run's schedule; PlanewiseError when nothing of the design can be run here."""
    schedule = make_schedule(design, ladders, unavailable)
    if not schedule.visits:
        reasons = "; ".join(refusals(unavailable))
        raise PlanewiseError(
            f"no cell of the design can be run here ({reasons})",
            remedy="mend what the reason names; `planewise doctor` lists the planes of this host",
        )
    return schedule


def refusals(unavailable: Mapping[Cell, str]) -> tuple[str, ...]:
    """What cannot be run here, one phrase a reason: `ipvlan: the kernel lacks it`."""
    planes: dict[str, dict[str, None]] = {}
    for cell, reason in unavailable.items():
        planes.setdefault(reason, {})[cell.plane] = None
    return tuple(f"{', '.join(names)}: {reason}" for reason, names in planes.items())


def run(
    schedule: Schedule,
    stations: Stations,
    writer: RunWriter,
    progress: Progress,
    *,
    watch: LocalWatch | None = None,
    pauses: Pauses | None = None,
    budget_s: float | None = None,
    meter: Meter | None = None,
    pace: float = 1.0,
    least_blocks: int = 1,
    after_s: float = 0.0,
    fill: bool = False,
    verdicts: Verdicts | None = None,
) -> Outcome:
    """Runs what is not finished yet, trial by trial, and closes the run directory's status.

    A failed trial is recorded with its reason, and the run continues; FAILURES_IN_A_ROW cells in a
    row without a successful trial stop it. Ctrl-C stops it between two trials' records. `watch`
    looks at the hosts around every trial; a trial that `pauses` calls disturbed is measured again.
    After `least_blocks`, no block is begun that does not fit into `budget_s` at the pace so far.
    With `fill` blocks that are left out were never part of the design. What the schedule leaves of
    the budget goes to open `verdicts`, block by block. The time left that `progress` shows is the
    estimate at the machine's `pace`, the budget's while a verdict is open, and `after_s` for what
    follows.
    """
    runner = _Runner(
        *(schedule, stations, writer, progress, watch, pauses or Pauses(), meter, pace),
        budget_s=math.inf if budget_s is None else budget_s,
        after_s=after_s,
        verdicts=None if budget_s is None else verdicts,
    )
    try:
        left_out = runner.blocks(least_blocks)
    except KeyboardInterrupt:
        return runner.close("interrupted", "stopped by the user")
    except PlanewiseError as error:
        with suppress(StorageError):  # a full disk has no room for this either
            runner.close("failed", error.what)
        raise
    except Exception as error:
        with suppress(StorageError):
            runner.close("failed", f"planewise itself failed: {type(error).__name__}")
        raise
    if runner.last_error and not runner.done and not writer.finished:
        runner.close("failed", runner.last_error.what)
        raise runner.last_error
    if left_out and fill:
        return runner.close("done", "", blocks=schedule.blocks - left_out)
    if left_out:
        message = f"the time budget is spent: {left_out} of {schedule.blocks} blocks are left out"
        progress.note(message)
        return runner.close("done", message)
    return runner.close("done", "")


@dataclass
class _Runner:
    """The state of one run: counts, time worked off, failures in a row."""

    schedule: Schedule
    stations: Stations
    writer: RunWriter
    progress: Progress
    watch: LocalWatch | None
    pauses: Pauses
    meter: Meter | None
    pace: float
    budget_s: float
    after_s: float
    verdicts: Verdicts | None
    done: int = 0
    failed: int = 0
    failed_cells: int = 0
    missed: int = 0
    worked_s: float = 0.0
    """Estimate of what has been done of the schedule."""
    further_s: float = 0.0
    """Time spent for verdicts."""
    begun_s: float = 0.0
    """What `progress` was told last that is left."""
    last_error: PlanewiseError | None = None

    def __post_init__(self) -> None:
        self.order = self.writer.next_order
        self.began = time.monotonic() - self.pauses.paused_s
        visits = self.schedule.visits
        self.costs = dict(
            zip(visits, visit_costs_s(visits, self.writer.finished, self.pace), strict=True)
        )
        self.estimate_s = math.fsum(self.costs.values())
        self.deciding = self.verdicts is not None
        """Whether a verdict was open when last seen."""
        self.begin("measuring")

    def blocks(self, least: int) -> int:
        """Runs block after block, `least` at least; returns how many the budget had no room for."""
        begun = left_out = 0
        for block, visits in self.schedule.by_block():
            estimate = math.fsum(self.costs[visit] for visit in visits)
            if not estimate:
                continue
            if begun >= least and self.spent_s + estimate * self.slowness > self.budget_s:
                left_out += 1
                self.estimate_s -= estimate
                continue
            begun += 1
            self.stations.new_block()
            for number, visit in enumerate(visits, start=1):
                self.visit(visit, f"block {block + 1}, cell {number} of {len(visits)}")
        return left_out

    @property
    def spent_s(self) -> float:
        """Time since the beginning, pauses left out."""
        return time.monotonic() - self.pauses.paused_s - self.began

    @property
    def slowness(self) -> float:
        """Time that the schedule takes over its estimate, so far."""
        return (self.spent_s - self.further_s) / self.worked_s if self.worked_s else 1.0

    @property
    def left_s(self) -> float:
        """Time until the end: that of the schedule, or the budget's while a verdict is open."""
        left_s = self.estimate_s - self.worked_s
        return max(left_s, self.budget_s - self.spent_s) if self.deciding else left_s

    def begin(self, what: str) -> None:
        """Tells how long the rest takes."""
        self.begun_s = self.left_s
        self.progress.begin(what, self.begun_s + self.after_s)

    def step(self, what: str) -> None:
        """Tells what is next."""
        self.progress.step(what, self.begun_s - self.left_s)

    def visit(self, visit: Visit, where: str) -> None:
        """Runs the unfinished trials of one cell in one block."""
        pending = [trial for trial in visit.trials if trial.name not in self.writer.finished]
        if not pending:
            return
        where = f"{where}: {_cell_text(visit.cell)}"
        succeeded = self.done
        self.step(where)
        self.worked_s += self.costs[visit] - sum(trial_s(trial, self.pace) for trial in pending)
        try:
            while pending:
                self._measure_undisturbed(visit, pending, where)
        except (_TooManyFailuresError, StorageError):
            raise
        except PlanewiseError as error:
            # The cell could not be set up (or torn down): its open trials are failed ones.
            if not pending:
                self.progress.note(f"{_cell_text(visit.cell)}: {error.what}")
            self._give_up(visit, pending, error)
        self._count_cell(visit, self.done > succeeded)

    def _measure_undisturbed(self, visit: Visit, pending: list[Trial], where: str) -> None:
        """Sets the cell up and runs `pending` trials until a pause; those done are taken out."""
        failures = 0
        mark = self.pauses.mark()
        try:
            with self.stations.station(visit.cell) as station, self._watching(station):
                place = Place("warm-up", visit.cell.levels(), visit.block, self.order)
                for warmup in visit.warmup:
                    station.measure(warmup, place, lambda _: None)
                while pending and not self.pauses.requested:
                    trial = pending[0]
                    mark = self.pauses.mark()
                    measured = self._trial(visit, trial, station)
                    if self.pauses.disturbed_since(mark):
                        self.progress.note(f"{_where(visit)}: disturbed by a pause, repeating")
                        return
                    self._keep(visit, trial, measured)
                    self.worked_s += trial_s(pending.pop(0), self.pace)
                    self.step(where)
                    failures = failures + 1 if isinstance(measured, PlanewiseError) else 0
                    if failures >= FAILURES_IN_A_ROW and isinstance(measured, PlanewiseError):
                        self._give_up(visit, pending, measured)
                if not failures:
                    self._decide(visit, station, where)
        except (_TooManyFailuresError, StorageError):
            raise
        except PlanewiseError:
            # What was built may not have outlived a pause.
            if not self.pauses.disturbed_since(mark):
                raise
        if self.pauses.requested:
            self.progress.note("paused between two trials; continue with `fg` or SIGCONT")
            self.pauses.pause()
            self.progress.note("continuing")

    def _decide(self, visit: Visit, station: Station, where: str) -> None:
        """Runs trials for the verdicts in this visit's part of the time left for them."""
        if self.verdicts is None:
            return
        open_cells = self.verdicts.open_cells()
        if bool(open_cells) != self.deciding:
            self.deciding = bool(open_cells)
            self.begin(
                "measuring" if open_cells else "every verdict is decided, measuring the rest"
            )
        began_s = self.spent_s
        spare_s = self.budget_s - began_s - (self.estimate_s - self.worked_s) * self.slowness
        visits = max(1, len(open_cells)) * (self.schedule.blocks - visit.block)
        end_s = began_s + spare_s / visits
        for number in count():
            trial = self.verdicts.next_trial(visit.cell, visit.block)
            if trial is None or self.pauses.requested:
                break
            if number >= _LEAST_FURTHER and self.spent_s + trial_s(trial, self.pace) > end_s:
                break
            mark = self.pauses.mark()
            measured = self._trial(visit, trial, station)
            if self.pauses.disturbed_since(mark):
                break
            self._keep(visit, trial, measured)
            if isinstance(measured, PlanewiseError):
                break
            self.step(where)
        self.further_s += self.spent_s - began_s

    def _watching(self, station: Station) -> AbstractContextManager[None]:
        return nullcontext() if self.meter is None else self.meter.watching(station)

    def _metered(self, trial: Trial, place: Place) -> AbstractContextManager[None]:
        if self.meter is None:
            return nullcontext()
        return self.meter.silent() if trial.samples else self.meter.trial(place)

    def _place(self, visit: Visit, trial: Trial) -> Place:
        return Place(trial.name, cell_of(visit.cell, trial), visit.block, self.order)

    def _trial(self, visit: Visit, trial: Trial, station: Station) -> TrialResult | PlanewiseError:
        place = self._place(visit, trial)
        # By this machine's clock: a restored guest's clock shows when it was saved.
        update: dict[str, object] = {"started": datetime.now(UTC)}
        if self.watch is not None:
            self.watch.start()
        try:
            with self._metered(trial, place):
                result = station.measure(trial, place, self.writer.sample)
        except PlanewiseError as error:
            return error
        if self.watch is not None:
            update["host"] = self.watch.stop()
        return replace(result, record=result.record.model_copy(update=update))

    def _keep(self, visit: Visit, trial: Trial, measured: TrialResult | PlanewiseError) -> None:
        if isinstance(measured, PlanewiseError):
            self._failed(visit, trial, measured)
            return
        record = marked(measured.record)
        self._warn_of_missed(visit, record)
        self.writer.append(record, measured.packets, measured.recording)
        if self.verdicts is not None:
            self.verdicts.add(visit.cell, trial, record)
        self.order += 1
        self.done += 1

    def _warn_of_missed(self, visit: Visit, record: TrialRecord) -> None:
        """The first few; on a busy machine there are dozens, and the report has them all."""
        missed = missed_levels(record)
        if not missed:
            return
        self.missed += 1
        if self.missed <= _MOST_WARNINGS:
            sentences = "; ".join(trial.sentence for trial in missed)
            self.progress.note(f"{_where(visit)}: {sentences}, not counted")
        if self.missed == _MOST_WARNINGS:
            self.progress.note("further misses appear only in the report")

    def _give_up(self, visit: Visit, pending: list[Trial], error: PlanewiseError) -> None:
        """Records what is left of a cell as failed; its reason is the same for all."""
        for number, trial in enumerate(pending):
            self._failed(visit, trial, error, note=number == 0)
            self.worked_s += trial_s(trial, self.pace)
        pending.clear()

    def _failed(
        self, visit: Visit, trial: Trial, error: PlanewiseError, *, note: bool = True
    ) -> None:
        record = TrialRecord(
            **self._place(visit, trial).fields,
            kind=trial.kind,
            started=datetime.now(UTC),
            duration_s=0,
            status="failed",
            reason=error.what,
        )
        self.writer.append(record)
        if note:
            self.progress.note(f"{_where(visit)}: {trial.kind} trial failed: {error.what}")
        self.order += 1
        self.failed += 1
        self.last_error = PlanewiseError(f"{_where(visit)}: {error.what}", remedy=error.remedy)

    def _count_cell(self, visit: Visit, succeeded: bool) -> None:
        self.failed_cells = 0 if succeeded else self.failed_cells + 1
        if self.failed_cells >= FAILURES_IN_A_ROW and (last := self.last_error):
            remedy = "fix the cause, then continue with `planewise run --resume`"
            raise _TooManyFailuresError(
                f"{FAILURES_IN_A_ROW} cells in a row failed, the last with: {last.what}",
                remedy=f"{last.remedy}; {remedy}" if last.remedy else remedy,
            )

    def close(self, status: RunStatus, reason: str, *, blocks: int | None = None) -> Outcome:
        """Writes the run's end into run.json; `blocks` is how many it turned out to have."""
        info = self.writer.info.model_copy(
            update={"status": status, "reason": reason, "finished": datetime.now(UTC)}
        )
        if blocks is not None:
            design = {**info.design, "blocks": blocks}
            planned = sum(
                len(visit.trials) for visit in self.schedule.visits if visit.block < blocks
            )
            info = info.model_copy(update={"design": design, "trials_planned": planned})
        self.writer.finish(info)
        return Outcome(self.done, self.failed, info)


def _where(visit: Visit) -> str:
    return f"{_cell_text(visit.cell)}, block {visit.block + 1}"


def _cell_text(cell: Cell) -> str:
    if cell.vnfs:
        functions = " containers" if cell.guest == "container" else ""
        return f"{cell.plane}, chain of {cell.vnfs}{functions}, {cell.path}"
    name = "CPU" if cell.load_type == "cpu" else cell.load_type
    load = "idle" if name == "none" else f"under {name} load"
    guests = f", {cell.background_guests} guests" if cell.background_guests else ""
    return f"{cell.plane} {load}{guests}{cell.setting and f', {cell.setting}'}"


class _TooManyFailuresError(PlanewiseError):
    """The run was stopped because trial after trial failed."""


def cell_of(cell: Cell, trial: Trial) -> dict[str, str | int | float]:
    """A trial's factor levels: its cell's, and its own traffic's."""
    return cell.levels() | trial.traffic()


def default_directory() -> Path:
    """The run directory when none is named: `runs/<time>` below the current directory."""
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")  # noqa: DTZ005 - a person's clock
    return Path("runs") / stamp
