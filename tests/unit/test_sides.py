"""Which trials met a goal bounds its load, whatever the loss was."""

import numpy as np

from planewise.measure.search.sides import Sides


def test_the_load_lies_between_trials_that_meet_the_goal_and_those_that_do_not():
    x = np.linspace(-0.1, 0.1, 21)
    sides = Sides.of(x, x < 0.005)
    low, high = np.quantile(sides.draw(np.random.default_rng(1), 4000), [0.025, 0.975])
    assert -0.05 < low < 0.005 < high < 0.05


def test_places_that_trials_contradict_have_no_support():
    x = np.linspace(-0.1, 0.1, 21)
    sides = Sides.of(x, x < 0.005)
    assert sides.support(np.full(10, 0.005)) > 0.3
    assert sides.support(np.full(10, 0.08)) < 0.05
    assert sides.support(np.full(10, 0.5)) == 0.0


def test_a_single_bad_trial_far_below_moves_little():
    x = np.linspace(-0.1, 0.1, 21)
    good = x < 0.005
    good[2] = False
    draws = Sides.of(x, good).draw(np.random.default_rng(1), 4000)
    assert -0.03 < np.median(draws) < 0.03


def test_intervals_by_sides_hold_the_load_where_the_edge_is_blurred():
    random = np.random.default_rng(2)
    held = 0
    for _ in range(100):
        x = 0.03 * random.standard_normal(20)
        good = 0.02 * random.standard_normal(20) > x
        draws = Sides.of(x, good).draw(random, 500)
        low, high = np.quantile(draws, [0.025, 0.975])
        held += low <= 0 <= high
    assert held >= 90


def test_a_load_that_every_trial_missed_may_lie_far_below_them():
    x = np.linspace(-0.1, 0.1, 21)
    draws = Sides.of(x, x > 1, least=-1.2).draw(np.random.default_rng(1), 4000)
    assert np.quantile(draws, 0.5) < -0.4
    assert draws.min() > -1.2001
