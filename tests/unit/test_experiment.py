"""The runner: order, resume, failures and full disks, on fake stations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from planewise.errors import PlanewiseError
from planewise.judge.from_store import curves_from_trials
from planewise.judge.verdict import judge
from planewise.measure.designs.cells import Cell, cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.schedule import Schedule
from planewise.measure.runs.experiment import cell_of, run, schedule_for
from planewise.measure.runs.pilots import find_ranges
from planewise.measure.runs.verdicts import Verdicts
from planewise.measure.station import Place, TrialResult
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.rtt import RttTrial
from planewise.store.models import Counts, OfferedLoad, TrialRecord
from planewise.store.rundir import RunReader, RunWriter
from tests.unit import made_up_run
from tests.unit.test_run_directory import START, make_info

CAPACITY_PPS = 1000.0


class FakeStations:
    """Forwards up to CAPACITY_PPS; `fails` names trials that fail, `dies` the one that kills."""

    def __init__(
        self,
        fails: Sequence[str] = (),
        dies: str = "",
        no_cell: Cell | None = None,
        slow: float = 1.0,
    ) -> None:
        self.slow = slow
        self.fails = fails
        self.dies = dies
        self.no_cell = no_cell
        self.ran: list[str] = []
        self.attempts = 0
        self.open_cells = 0

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        return {cell: "the kernel lacks it" for cell in cells if cell.plane == "ipvlan"}

    def max_pps(self, size_bytes: int) -> float:
        return 1e9

    def new_block(self) -> None:
        return

    def measure(self, trial: RttTrial | LoadTrial, place: Place, on_sample: object) -> TrialResult:
        return self.rtt(trial, place) if isinstance(trial, RttTrial) else self.load(trial, place)

    def __enter__(self) -> FakeStations:
        return self

    def __exit__(self, *_: object) -> None:
        return

    @contextmanager
    def station(self, cell: Cell) -> Iterator[FakeStations]:
        if cell == self.no_cell:
            raise PlanewiseError("the bridge cannot be made")
        self.open_cells += 1
        try:
            yield self
        finally:
            self.open_cells -= 1

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        return TrialResult(self._record(trial, place), pl.DataFrame({"seq": [0]}))

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        return TrialResult(self._record(trial, place))

    def _record(self, trial: RttTrial | LoadTrial, place: Place) -> TrialRecord:
        self.attempts += 1
        if trial.name == self.dies:
            raise KeyboardInterrupt
        if trial.name in self.fails:
            raise PlanewiseError("the guest died", remedy="look at its console")
        self.ran.append(trial.name)
        offered = trial.offered_pps if isinstance(trial, LoadTrial) else trial.frequency_pps
        sent = int(offered)
        received = min(sent, int(CAPACITY_PPS))
        return made_up_run.trial(
            trial.name,
            "load" if isinstance(trial, LoadTrial) else "rtt",
            place.cell,
            place.block,
            order=place.order,
            started=next(GUESTS_CLOCK),
            load=OfferedLoad(intended_pps=offered, achieved_pps=self.slow * offered, size_bytes=64),
            counts=Counts(sent=sent, received=received, lost=sent - received),
        )


GUESTS_CLOCK = itertools.cycle(datetime(2020, 1, day, tzinfo=UTC) for day in (2, 1, 3))


class Silent:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.worked: list[float] = []
        self.total = 0.0

    def begin(self, what: str, total_s: float) -> None:
        self.total = total_s

    def step(self, what: str, done_s: float) -> None:
        self.worked.append(done_s)

    def note(self, text: str) -> None:
        self.notes.append(text)


def make_schedule() -> Schedule:
    design = Design.model_validate(
        {
            "factors": {
                "plane": ["veth", "bridge", "ipvlan"],
                "load_type": ["none", "cpu"],
                "background_guests": [4],
            },
            "rtt": {},
            "sweep": {"offered_pps": [500, 2000]},
            "blocks": 2,
        }
    )
    stage = FakeStations()
    unavailable = stage.unavailable(cells_of(design))
    return schedule_for(
        design, find_ranges(design, stage, unavailable, Silent()).ladders(design), unavailable
    )


def names(schedule: Schedule) -> list[str]:
    return [trial.name for visit in schedule.visits for trial in visit.trials]


def test_dozens_of_trials_off_their_level_are_told_of_in_four_lines(tmp_path: Path) -> None:
    schedule, progress = make_schedule(), Silent()
    stage = FakeStations(slow=0.9)
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        run(schedule, stage, writer, progress)
    missed = [trial for trial in RunReader(tmp_path / "run").trials() if trial.missed]
    assert len(missed) == 8, "the RTT trials"
    assert len(progress.notes) == 4
    assert "900 pps of 1 kpps" in progress.notes[0]
    assert "only in the report" in progress.notes[3]


def test_a_run_measures_every_trial_once_in_the_schedules_order(tmp_path: Path) -> None:
    schedule, stage, progress = make_schedule(), FakeStations(), Silent()
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        outcome = run(schedule, stage, writer, progress)
    assert stage.ran == names(schedule)
    assert (outcome.done, outcome.failed, outcome.info.status) == (24, 0, "done")
    trials = RunReader(tmp_path / "run").trials()
    assert [trial.order for trial in trials] == list(range(24))
    assert stage.open_cells == 0
    assert progress.worked == sorted(progress.worked)
    assert progress.worked[-1] == pytest.approx(progress.total)


def test_trials_began_by_one_clock_whatever_time_a_guest_or_server_has(tmp_path: Path) -> None:
    begun = datetime.now(UTC)
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        run(make_schedule(), FakeStations(), writer, Silent())
    started = [trial.started for trial in RunReader(tmp_path / "run").trials()]
    assert started == sorted(started)
    assert begun <= started[0] <= started[-1] <= datetime.now(UTC)


def test_resume_after_ctrl_c_repeats_and_loses_nothing(tmp_path: Path) -> None:
    schedule = make_schedule()
    first = FakeStations(dies=names(schedule)[10])
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        outcome = run(schedule, first, writer, Silent())
    assert outcome.info.status == "interrupted"
    assert first.open_cells == 0
    second = FakeStations()
    with RunWriter.resume(tmp_path / "run") as writer:
        outcome = run(schedule, second, writer, Silent())
    assert outcome.info.status == "done"
    assert first.ran + second.ran == names(schedule)
    assert len(RunReader(tmp_path / "run").trials()) == 24


def test_one_failed_trial_is_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    schedule, progress = make_schedule(), Silent()
    stage = FakeStations(fails=[names(schedule)[3]])
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        outcome = run(schedule, stage, writer, progress)
    assert (outcome.done, outcome.failed) == (23, 1)
    (failed,) = [t for t in RunReader(tmp_path / "run").trials() if t.status == "failed"]
    assert failed.reason == "the guest died"
    (note,) = progress.notes
    assert note.endswith(" trial failed: the guest died")
    assert ", block 1" in note
    assert "rtt:" not in note, "words, not the trial's key"


def test_three_cells_in_a_row_without_success_stop_the_run_with_the_cause(tmp_path: Path) -> None:
    schedule = make_schedule()
    # Of the second cell one trial succeeds; the third, fourth and fifth fail whole.
    stage = FakeStations(fails=names(schedule)[4:])
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        with pytest.raises(PlanewiseError, match=r"3 cells in a row failed.*the guest died"):
            run(schedule, stage, writer, Silent())
        assert writer.info.status == "failed"
    assert len(RunReader(tmp_path / "run").trials()) == 5 * 3
    assert stage.open_cells == 0


def test_a_cell_that_cannot_be_set_up_fails_its_trials_and_the_run_goes_on(tmp_path: Path) -> None:
    schedule, progress = make_schedule(), Silent()
    bad = schedule.visits[1].cell
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        outcome = run(schedule, FakeStations(no_cell=bad), writer, progress)
    trials = RunReader(tmp_path / "run").trials()
    failed = [trial for trial in trials if trial.status == "failed"]
    assert (outcome.done, outcome.failed) == (24 - 6, 6)
    assert {trial.reason for trial in failed} == {"the bridge cannot be made"}
    assert all(bad.levels().items() <= trial.cell.items() for trial in failed)
    assert len(progress.notes) == 2  # once a cell and block, not once a trial


def test_a_cell_is_given_up_after_three_failed_trials_in_a_row(tmp_path: Path) -> None:
    design = Design.model_validate(
        {
            "factors": {"plane": ["veth", "bridge"]},
            "sweep": {"offered_pps": list(range(100, 1000, 100))},
            "blocks": 1,
        }
    )
    stage = FakeStations()
    schedule = schedule_for(design, find_ranges(design, stage, {}, Silent()).ladders(design), {})
    stage = FakeStations(fails=[trial.name for trial in schedule.visits[0].trials])
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        outcome = run(schedule, stage, writer, Silent())
    assert (outcome.done, outcome.failed) == (9, 9)
    assert stage.attempts == 3 + 9


def test_a_design_of_which_nothing_can_run_here_says_why() -> None:
    design = Design.model_validate({"factors": {"plane": ["ipvlan"]}})
    with pytest.raises(PlanewiseError, match="ipvlan: the kernel lacks it"):
        schedule_for(design, {}, FakeStations().unavailable(cells_of(design)))


def test_an_automatic_ladder_lies_around_what_the_pilot_forwarded() -> None:
    design = Design.model_validate(
        {"factors": {"plane": ["veth"]}, "sweep": {"max_pps": 100_000, "loads": 9}}
    )
    ladders = find_ranges(design, FakeStations(), {}, Silent()).ladders(design)
    (ladder,) = ladders.values()
    assert len(ladder) == 9
    assert ladder[0] < CAPACITY_PPS < ladder[-1]


def until_verdict(planes: Sequence[str], **more: object) -> Design:
    sweep = {"until_verdict": True, "duration_s": 0.1, **more}
    return Design.model_validate({"factors": {"plane": planes}, "sweep": sweep, "blocks": 4})


class Harmed(FakeStations):
    """Forwards less than it can in far overload."""

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        record = super().load(trial, place).record
        if trial.offered_pps < 5 * CAPACITY_PPS:
            return TrialResult(record)
        sent, received = int(trial.offered_pps), int(0.9 * CAPACITY_PPS)
        counts = Counts(sent=sent, received=received, lost=sent - received)
        return TrialResult(record.model_copy(update={"counts": counts}))


@pytest.mark.parametrize("stations", [FakeStations(), Harmed()])
def test_a_ladder_that_grows_has_two_loads_beyond_pdr_though_overload_harms(
    stations: FakeStations,
) -> None:
    design = until_verdict(["veth"], max_pps=20_000)
    (ladder,) = find_ranges(design, stations, {}, Silent()).ladders(design).values()
    assert len(ladder) == 2
    assert CAPACITY_PPS < ladder[0] < 1.2 * CAPACITY_PPS
    assert ladder[1] > 2 * CAPACITY_PPS


def measured_until_verdict(
    out: Path, stations: FakeStations, budget_s: float
) -> tuple[list[TrialRecord], Schedule, Silent]:
    design, progress = until_verdict(["veth", "bridge"], max_pps=20_000), Silent()
    ranges = find_ranges(design, stations, {}, progress)
    schedule = schedule_for(design, ranges.ladders(design), {})
    verdicts = Verdicts(schedule, ranges.by_cell, design.seed)
    with RunWriter.create(out, make_info()) as writer:
        options = {"budget_s": budget_s, "pace": 0.01}
        run(schedule, stations, writer, progress, verdicts=verdicts, **options)  # type: ignore[arg-type]
    return RunReader(out).trials(), schedule, progress


def test_a_run_measures_what_its_verdicts_need_and_no_more_once_they_are_decided(
    tmp_path: Path,
) -> None:
    trials, schedule, progress = measured_until_verdict(tmp_path / "run", FakeStations(), 60)
    for _, curve in curves_from_trials(trials):
        assert judge(curve).verdict == "GOOD"
        assert curve.offered_pps[0] < 0.7 * CAPACITY_PPS
        assert sum(curve.counts) < 40
    assert len({trial.trial for trial in trials}) == len(trials)
    of_block = [sum(trial.block == block for trial in trials) for block in range(4)]
    assert of_block[3] == schedule.trials / 4
    assert progress.total < 60  # told anew, without the time that nobody needs


def test_without_time_left_a_visit_has_two_trials_beyond_the_schedule(tmp_path: Path) -> None:
    trials, schedule, _ = measured_until_verdict(tmp_path / "run", FakeStations(), 0)
    assert {trial.block for trial in trials} == {0}
    assert len(trials) == schedule.trials / 4 + 2 * 2


def test_a_plane_that_loses_nothing_takes_no_trials_from_the_others(tmp_path: Path) -> None:
    trials, _, _ = measured_until_verdict(tmp_path / "run", Lossless(), 60)
    assert len(trials) < 40


class Lossless(FakeStations):
    """Forwards all that is sent."""

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        record = super().load(trial, place).record
        sent = int(trial.offered_pps)
        counts = Counts(sent=sent, received=sent, lost=0)
        return TrialResult(record.model_copy(update={"counts": counts}))


class Costly(FakeStations):
    """A plane that loses nothing and takes so much of the generator's CPU that it sends less."""

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        record = super().load(trial, place).record
        most = OfferedLoad(intended_pps=trial.offered_pps, achieved_pps=900, size_bytes=64)
        counts = Counts(sent=270, received=270, lost=0)
        return TrialResult(
            record.model_copy(update={"load": most, "counts": counts, "limits": ("generator",)})
        )


def test_no_ladder_goes_beyond_what_the_generator_can_send_to_that_plane() -> None:
    design = Design.model_validate({"factors": {"plane": ["macvlan"]}, "sweep": {"loads": 5}})
    (ladder,) = find_ranges(design, Costly(), {}, Silent()).ladders(design).values()
    assert len(ladder) == 5
    assert 800 < ladder[-1] < 900


def test_a_run_that_fills_its_time_has_as_many_blocks_as_there_was_room_for(
    tmp_path: Path,
) -> None:
    schedule, progress = make_schedule(), Silent()
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        outcome = run(schedule, FakeStations(), writer, progress, budget_s=1e-9, fill=True)
    trials = RunReader(tmp_path / "run").trials()
    assert {trial.block for trial in trials} == {0}
    assert (outcome.info.status, outcome.info.reason, progress.notes) == ("done", "", [])
    assert outcome.info.design["blocks"] == 1
    assert outcome.info.trials_planned == len(trials)


def test_a_trials_cell_names_its_traffic() -> None:
    cell = Cell("veth", "none", "responder", 0)
    assert cell_of(cell, RttTrial("t", 1000, 64, 10)) == {
        "plane": "veth",
        "guest": "namespace",
        "background_plane": "same",
        "background_guests": 0,
        "load_type": "none",
        "load_location": "responder",
        "path": "north-south",
        "size_bytes": 64,
        "frequency_pps": 1000,
        "protocol": "icmp",
    }
    assert START.tzinfo is not None
