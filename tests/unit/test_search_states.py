"""Searches of systems whose trials differ by more than noise: states, and pauses at any load."""

import numpy as np
import pytest

from planewise.measure.search import model
from planewise.measure.search.fits import Fits, PlanewiseOptions
from planewise.measure.search.goals import Goal
from planewise.measure.search.median import SearchReadings, have_states
from planewise.measure.search.particles import Observations
from planewise.measure.search.run import run_search
from planewise.measure.search.session import Limits, SearchSession
from tests.adversaries import Adversary, CapacityFactors

PDR = Goal(0.005)
STATES = Adversary("two-states", 1e6, CapacityFactors((0.8, 1.0), (0.55, 0.45), sd=0.003))


def held(system: Adversary, seeds: range) -> int:
    """How many intervals hold the truth."""
    truth = system.truth().pdr_pps
    assert truth is not None
    goals = [run_search(system.start(seed), [PDR]).goal(PDR.name) for seed in seeds]
    return sum(
        goal.low_pps is not None
        and goal.high_pps is not None
        and goal.low_pps <= truth <= goal.high_pps
        for goal in goals
    )


def test_the_interval_of_a_system_with_two_states_holds_the_one_of_half_of_all_trials() -> None:
    # Of 12 intervals at 95 %, fewer than 9 would hold with probability 2e-3.
    assert held(STATES, range(12)) >= 9


def test_states_are_told_apart_by_trials_that_overload_the_highest() -> None:
    result = run_search(STATES.start(3), [PDR])
    above = [t for t in result.trials if t.duration_s == 1.0 and t.offered_pps > 1.01e6]
    assert len(above) >= 4
    assert all(trial.loss_ratio > 0.005 for trial in above)


def test_a_capacity_with_states_gets_more_trials() -> None:
    # 18 before: which state the median lies in is to be told, too.
    result = run_search(STATES.start(5), [PDR])
    assert sum(trial.duration_s == 1.0 for trial in result.trials) > 18


@pytest.mark.parametrize(("lossless", "step"), [(0, 0.03), (1, 0.06), (2, 0.12), (9, 0.24)])
def test_trials_go_further_up_for_each_that_lost_nothing_there(lossless: int, step: float) -> None:
    value = np.concatenate([np.linspace(0.0, 0.01, 8), np.full(lossless, 0.02)])
    bound = np.arange(value.size) >= 8
    fits = Fits(SearchSession(STATES.start(1), Limits()), PlanewiseOptions())
    seen = SearchReadings(value[None, :], bound, np.arange(float(value.size)), 0.02)
    assert fits.step_above(seen) == pytest.approx(step)


def test_a_loss_that_hardly_depends_on_the_load_leaves_a_wide_interval() -> None:
    # As of a server that often pauses for long: 0.6 % in the median, by half more or less.
    random = np.random.default_rng(1)
    sent = np.full(16, 1e6)
    lost = 0.006 * sent * np.exp(0.5 * random.standard_normal(16))
    seen = Observations(np.linspace(-0.1, 0.1, 16), sent, lost)
    share = PDR.loss_exponent
    posterior = model.Posterior(1, model.Scope(share, share / 25, share * 6), spread=0.2)
    posterior.update(seen)
    law = posterior.law(6)
    assert law.quantile(0.025) < -0.25


# Each load is offered twice, and both states lose packets at the highest.
LOADS = np.repeat([0.55, 0.70, 0.80, 0.95, 1.05], 2)
WAVERING = 1 + 0.002 * np.array([1, -1, 0.5, -0.5, 0, 0.3, -0.3, 0.8, -0.8, 0.1])


def readings(capacity: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What trials at `LOADS` forward, their loads, and which lost nothing."""
    return np.log(np.minimum(LOADS, capacity)), np.log(LOADS), capacity >= LOADS


def test_trials_that_forward_two_rates_whatever_the_load_are_of_two_states() -> None:
    lower = np.arange(LOADS.size) % 2 == 1
    assert have_states(*readings(np.where(lower, 0.6, 0.9) * WAVERING))


@pytest.mark.parametrize(
    "capacity",
    [
        0.65 * WAVERING,
        np.where(LOADS > 0.9, 0.9, 0.6) * WAVERING,
        0.25 + 0.4 * LOADS,
        np.full(LOADS.size, 2.0),
    ],
    ids=["one state", "steps", "rising", "no loss"],
)
def test_other_trials_are_of_one_state(capacity: np.ndarray) -> None:
    assert not have_states(*readings(capacity))


def test_a_trial_that_lost_nothing_far_above_all_readings_is_of_a_higher_state() -> None:
    capacity = 0.6 * WAVERING
    capacity[6] = 1.2
    assert have_states(*readings(capacity))


def test_a_trial_that_lost_nothing_where_others_lost_much_is_of_a_higher_state() -> None:
    # All but one trial of the lower state were offered less than it, but lost more.
    load = np.array([1.0, 1.001, 1.002, 1.003, 1.004, 1.005, 1.006, 1.007, 1.04, 1.03])
    capacity = 0.99 + 0.001 * np.array([1, -1, 0, 2, -2, 1, 0, -1, 1, 200])
    assert have_states(np.log(np.minimum(load, capacity)), np.log(load), capacity >= load)


@pytest.mark.parametrize("count", [5, 8, 16])
def test_noise_is_seldom_taken_for_states_by_few_trials_too(count: int) -> None:
    random = np.random.default_rng(count)
    never = np.zeros(count, dtype=bool)
    taken = sum(
        have_states(random.standard_normal(count), random.random(count), never) for _ in range(400)
    )
    # At 1 %, more than 12 of 400 come with probability 1e-4.
    assert taken <= 12
