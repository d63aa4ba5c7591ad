"""The sequential sweep and the replay of recordings."""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from planewise.errors import BadInputError, PlanewiseError
from planewise.judge import synthetic
from planewise.judge.curve import Curve, LoadPoint, Run, by_column
from planewise.judge.verdict import judge
from planewise.measure.search.measurer import ExhaustedError, Measurer
from planewise.measure.search.sequential import (
    NothingMeasuredError,
    SequentialPlan,
    sweep_until_verdict,
)
from tests import shapes
from tests.replay import Replay
from tests.unit.published_data import labels, needs_published_data, recorded

LADDER = [0.3e6, 0.45e6, 0.62e6, 0.8e6, 0.95e6, 1.1e6, 1.3e6, 1.5e6]


def recording(runs: int = 25) -> Curve:
    rng = np.random.default_rng(1)
    points = []
    for load in LADDER:
        passed = np.minimum(load, 1e6 * (1 + rng.normal(0, 0.003, runs)))
        points.append(
            LoadPoint(
                load,
                by_column(
                    np.full(runs, round(load)),
                    np.round(passed).astype(np.int64),
                    drops=np.arange(runs),
                ),
            )
        )
    return Curve("recording", tuple(points))


class Scripted:
    """A measurer whose runs a function makes."""

    min_load_pps = 1e3
    max_load_pps = 3e6

    def __init__(self, make: object) -> None:
        self.make = make
        self.trials: list[float] = []

    def trial(self, offered_pps: float, duration_s: float) -> Run:
        self.trials.append(offered_pps)
        run: Run = self.make(offered_pps)  # type: ignore[operator]
        return run


def ideal(load: float) -> Run:
    return Run(round(load), round(min(load, 1e6)), 1.0)


def test_a_replay_gives_every_recorded_run_once_and_then_no_more() -> None:
    curve = recording()
    replay = Replay(curve, seed=3)
    assert isinstance(replay, Measurer)
    point = curve.points[2]
    drawn = [replay.trial(point.offered_pps, 10) for _ in range(point.count)]
    assert sorted(run.received for run in drawn) == sorted(run.received for run in point.runs)
    assert [run.order for run in drawn] == list(range(25))
    assert replay.remaining(point.offered_pps) == 0
    with pytest.raises(ExhaustedError, match="all 25 recorded runs at 620000 pps are used up"):
        replay.trial(point.offered_pps, 10)
    with pytest.raises(ExhaustedError, match="no run at 1 pps was recorded"):
        replay.trial(1.0, 10)


def test_a_replay_can_keep_the_recorded_order() -> None:
    curve = recording()
    for seed in range(5):
        replay = Replay(curve, seed, shuffled=False)
        numbers = [replay.trial(LADDER[0], 10).drops for _ in range(25)]
        steps = {
            (b - a) % 25 for a, b in itertools.pairwise(numbers) if a is not None and b is not None
        }
        assert steps == {1}


def test_the_same_seed_gives_the_same_sweep() -> None:
    sweeps = [
        sweep_until_verdict(Replay(recording(), 5), LADDER, duration_s=10, seed=5) for _ in range(2)
    ]
    assert sweeps[0].verdict == sweeps[1].verdict
    assert sweeps[0].trials == sweeps[1].trials
    other = sweep_until_verdict(Replay(recording(), 6), LADDER, duration_s=10, seed=6)
    assert other.verdict.verdict == sweeps[0].verdict.verdict


def test_a_clear_system_is_decided_with_few_trials_and_all_are_told() -> None:
    told: list[tuple[float, Run]] = []
    measurer = Scripted(ideal)
    result = sweep_until_verdict(
        measurer, LADDER, duration_s=1, on_trial=lambda load, run: told.append((load, run))
    )
    assert result.verdict.verdict == "GOOD"
    assert result.stopped == "decided"
    assert result.trials == len(told) == len(measurer.trials) == sum(result.curve.counts)
    assert result.trials <= 6 * len(LADDER)
    assert result.traffic_s == pytest.approx(result.trials)
    assert min(result.curve.counts) >= 2


def test_every_load_that_decides_has_six_runs_that_agree_before_good_is_said() -> None:
    result = sweep_until_verdict(Scripted(ideal), LADDER, duration_s=1)
    assert result.verdict.verdict == "GOOD"
    relevant = result.curve.counts[result.curve.offered_pps >= 0.95e6]
    assert set(relevant.tolist()) == {6}
    assert set(result.curve.counts[result.curve.offered_pps < 0.95e6].tolist()) == {2}


def test_a_run_that_disagrees_costs_three_more() -> None:
    seen = 0

    def once_bad(load: float) -> Run:
        nonlocal seen
        seen += load == 0.95e6
        return Run(round(load), 900_000, 1.0) if load == 0.95e6 and seen == 1 else ideal(load)

    result = sweep_until_verdict(Scripted(once_bad), LADDER, duration_s=1)
    counts = dict(zip(result.curve.offered_pps.tolist(), result.curve.counts.tolist(), strict=True))
    assert result.verdict.verdict != "GOOD" or counts[0.95e6] >= 10


def test_trials_go_to_the_load_whose_throughput_is_near_the_limit() -> None:
    rng = np.random.default_rng(8)

    def near(load: float) -> Run:
        if load == 1.5e6:
            return Run(1_500_000, round(1.06e6 * (1 + 0.08 * rng.standard_normal())), 1.0)
        return ideal(load)

    loads = [0.3e6, 0.47e6, 0.64e6, 0.8e6, 0.98e6, 1.1e6, 1.3e6, 1.5e6]
    plan = SequentialPlan(max_mean_runs=20)
    result = sweep_until_verdict(Scripted(near), loads, duration_s=1, plan=plan)
    counts = dict(zip(result.curve.offered_pps.tolist(), result.curve.counts.tolist(), strict=True))
    assert counts[1.5e6] == max(counts.values())
    assert counts[1.5e6] > 2 * counts[0.47e6]


@pytest.mark.parametrize("kind", ["realistic", "gradual", "spikes", "autocorrelated"])
def test_a_sweep_that_stops_as_decided_has_a_verdict_that_is(kind: str) -> None:
    for seed in range(6):
        sut = shapes.make(kind, noise_sd=0.01, seed=seed)
        loads = (np.arange(0.5, 1.6, 0.11) * sut.capacity_pps).tolist()
        result = sweep_until_verdict(sut.start(seed), loads, duration_s=1, extend=True, seed=seed)
        assert result.stopped != "decided" or result.verdict.verdict != "UNDECIDED"


def test_a_load_is_added_where_two_lie_too_far_apart() -> None:
    coarse = [0.5e6, 0.8e6, 1.2e6, 1.6e6]
    told = sweep_until_verdict(Scripted(ideal), coarse, duration_s=1)
    assert (told.stopped, told.verdict.open) == ("ladder too short", "ladder too short")
    extended = sweep_until_verdict(Scripted(ideal), coarse, duration_s=1, extend=True)
    assert extended.verdict.verdict == "GOOD"
    assert any(0.9e6 < load < 1.0e6 for load in extended.curve.offered_pps)


def test_no_load_is_measured_twice_in_a_row_within_a_round_of_the_ladder() -> None:
    measurer = Scripted(ideal)
    sweep_until_verdict(measurer, LADDER, duration_s=1)
    first_two_rounds = measurer.trials[: 2 * len(LADDER)]
    assert sorted(first_two_rounds[: len(LADDER)]) == LADDER
    assert sorted(first_two_rounds[len(LADDER) :]) == LADDER


def test_a_budget_of_trials_is_kept() -> None:
    sut = synthetic.by_name("ideal-3pct")
    plan = SequentialPlan(max_mean_runs=4)
    loads = (np.arange(0.55, 1.4, 0.05) * 1e6).tolist()
    result = sweep_until_verdict(sut.start(1), loads, duration_s=1, plan=plan)
    assert result.stopped == "budget spent"
    assert result.trials <= 4 * len(loads)


def test_a_ladder_that_ends_too_early_is_told_or_extended() -> None:
    short = [0.5e6, 0.7e6, 0.9e6]
    told = sweep_until_verdict(Scripted(ideal), short, duration_s=1)
    assert told.stopped == "ladder too short"
    assert told.verdict.verdict == "UNDECIDED"
    assert told.trials <= 4 * len(short)
    extended = sweep_until_verdict(Scripted(ideal), short, duration_s=1, extend=True)
    assert extended.verdict.verdict == "GOOD"
    assert extended.curve.offered_pps[-1] > 1.1e6


def test_a_ladder_that_begins_too_late_is_extended_downwards() -> None:
    late = [1.2e6, 1.4e6, 1.6e6]
    extended = sweep_until_verdict(Scripted(ideal), late, duration_s=1, extend=True)
    assert extended.verdict.verdict == "GOOD"
    assert extended.curve.offered_pps[0] < 1e6


def test_a_ladder_is_not_extended_beyond_the_generator() -> None:
    measurer = Scripted(lambda load: Run(round(load), round(load), 1.0))
    result = sweep_until_verdict(measurer, [1e6, 2e6, 2.9e6], duration_s=1, extend=True)
    assert result.stopped == "ladder too short"
    assert max(measurer.trials) <= measurer.max_load_pps


def test_a_load_that_the_generator_cannot_offer_is_given_up() -> None:
    def weak(load: float) -> Run:
        run = ideal(load)
        return run if load < 1.4e6 else Run(run.sent, run.received, 1.0, limited=True)

    measurer = Scripted(weak)
    result = sweep_until_verdict(measurer, LADDER, duration_s=1)
    assert measurer.trials.count(1.5e6) == 2
    assert result.verdict.verdict == "GOOD"
    assert result.curve.offered_pps[-1] == 1.5e6
    assert result.curve.points[-1].limited == 2


def test_nothing_is_said_of_a_system_that_never_was_the_limit() -> None:
    measurer = Scripted(lambda load: Run(round(load), 0, 1.0, limited=True))
    with pytest.raises(PlanewiseError, match="none of 16 trials says anything"):
        sweep_until_verdict(measurer, LADDER, duration_s=1)


@pytest.mark.parametrize(
    ("loads", "says"),
    [
        ([], "at least two offered loads"),
        ([1e6], "at least two offered loads"),
        ([1e6, 1e6], "positive and rise"),
        ([2e6, 1e6], "positive and rise"),
        ([10.0, 1e6], "10 pps cannot be measured"),
        ([1e6, 9e6], "9000000 pps cannot be measured"),
    ],
)
def test_a_ladder_that_cannot_be_measured_is_named(loads: list[float], says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        sweep_until_verdict(Scripted(ideal), loads, duration_s=1)


@settings(phases=[Phase.generate])
@given(
    st.lists(st.integers(1, 400), min_size=2, max_size=6, unique=True),
    st.data(),
)
def test_any_system_comes_to_an_end_within_the_budget(
    ladder: list[int], data: st.DataObject
) -> None:
    plan = SequentialPlan(max_mean_runs=6)
    loads = [1e4 * step for step in sorted(ladder)]

    def anything(load: float) -> Run:
        received = data.draw(st.integers(0, round(load)))
        return Run(round(load), received, 1.0, limited=data.draw(st.integers(0, 9)) == 0)

    measurer = Scripted(anything)
    measurer.max_load_pps = 4e6
    with suppress(NothingMeasuredError):
        sweep_until_verdict(measurer, loads, duration_s=1, plan=plan)
    assert 0 < len(measurer.trials) <= 6 * len(loads)


@needs_published_data
def test_replayed_recordings_get_the_verdict_of_all_their_runs() -> None:
    """A sample of what benches/judge_replay.py prints in full."""
    opposite, spent, sweeps = 0, 0.0, 0
    for seed, row in enumerate(labels()[::4]):
        curve = recorded(row["file"])
        full = judge(curve)
        loads = [point.offered_pps for point in curve.points]
        result = sweep_until_verdict(Replay(curve, seed), loads, duration_s=10, seed=seed)
        spent += result.trials / len(loads)
        sweeps += 1
        opposite += {full.verdict, result.verdict.verdict} == {"GOOD", "BAD"}
    assert opposite == 0
    assert spent / sweeps <= 15
