"""A median's interval holds the median whatever the law of the readings."""

import numpy as np
import pytest

from planewise.measure.search.median import (
    SearchReadings,
    draw_median,
    open_above,
    rarer_state_share,
    sets_of,
)


def readings_of(values, bounds=None, most=None, states=False):
    values = np.asarray(values)
    bounds = np.zeros(values.size, dtype=bool) if bounds is None else bounds
    most = float(values.max()) if most is None else most
    times = np.arange(float(values.size))
    return SearchReadings(np.repeat(values[None, :], 4, axis=0), bounds, times, most, states)


def interval(values, *, bounds=None, trending=0.0, seed=1, most=None, states=False):
    readings = readings_of(values, bounds, most, states)
    drawn = draw_median(
        readings, np.random.default_rng(seed), 1000, trending, (len(values) - 1) / 2
    )
    assert drawn is not None
    return np.quantile(drawn[0], [0.025, 0.975]), float(drawn[1].mean())


def two_states(random, count):
    """The upper state in 60 % of readings: the median is in its lower part."""
    return np.where(random.random(count) < 0.4, -7.0, 0.0) + 0.3 * random.standard_normal(count)


LAWS = {
    "normal": (lambda random, n: random.standard_normal(n), 0.0),
    "skewed": (lambda random, n: -random.exponential(1.0, n), -np.log(2)),
    "heavy": (lambda random, n: random.standard_t(1.5, n), 0.0),
    # A sixth of the upper state lies below: Φ⁻¹(1/6)·0.3.
    "two states": (two_states, -0.9674 * 0.3),
}


@pytest.mark.parametrize("law", LAWS)
def test_nine_of_ten_intervals_and_more_hold_the_median(law):
    random = np.random.default_rng(3)
    draw, truth = LAWS[law]
    held = 0
    for _ in range(60):
        (low, high), _ = interval(draw(random, 15))
        held += low <= truth <= high
    # Of 60 intervals at 95 % fewer than 52 hold with probability 0.008.
    assert held >= 52


def test_a_normal_law_is_plausible_for_normal_readings_and_not_for_two_states():
    random = np.random.default_rng(4)
    assert interval(random.standard_normal(18))[1] > 0.4
    assert interval(two_states(random, 18))[1] < 0.05


def test_readings_in_long_runs_have_a_wider_interval():
    apart = np.tile([0.0, 1.0], 10) + np.linspace(0, 0.01, 20)
    together = np.repeat([0.0, 1.0], 10) + np.linspace(0, 0.01, 20)
    mixed, _ = interval(np.where(np.arange(20) % 3 == 0, 0.0, 0.1) + apart)
    runs, _ = interval(together)
    assert np.ptp(runs) > np.ptp(mixed)
    assert np.ptp(runs) > 0.95


def test_bounds_count_as_larger_and_those_below_all_readings_not_at_all():
    values = np.concatenate([np.linspace(0.0, 1.0, 10), np.full(6, 0.5)])
    bounds = np.arange(16) >= 10
    (low, high), _ = interval(values, bounds=bounds)
    (plain_low, plain_high), _ = interval(values[:10])
    assert low > plain_low + 0.05
    assert high < plain_high + 0.1
    below = np.concatenate([np.linspace(0.0, 1.0, 10), np.full(6, -5.0)])
    assert interval(below, bounds=bounds)[0] == pytest.approx([plain_low, plain_high], abs=0.05)


def test_a_state_that_was_seen_twice_in_a_row_may_be_the_one_of_half_of_all_trials():
    noise = 0.1 * np.random.default_rng(7).standard_normal(16)
    apart, together = np.zeros(16), np.zeros(16)
    apart[[3, 11]] = together[[3, 4]] = -5.0
    # Two of sixteen that come alone are a rare state; in a row they tell of one that lasts.
    assert interval(apart + noise, states=True)[0][0] > -1.0
    assert interval(together + noise, states=True)[0][0] < -4.0


def test_the_rarer_state_has_its_share_of_readings_and_one_state_has_none():
    noise = 0.1 * np.random.default_rng(8).standard_normal(16)
    for side in (-5.0, 5.0):
        rare = np.where(np.isin(np.arange(16), [3, 11]), side, 0.0)
        assert rarer_state_share(readings_of(rare + noise)) == 2 / 16
    assert rarer_state_share(readings_of(noise)) == 0.0


def test_bounds_above_all_readings_reach_up_to_the_most_that_was_found():
    # Half of the trials found more than the other half: how much more, none of them could tell.
    values = np.concatenate([np.linspace(0.0, 0.1, 8), np.full(8, 0.2)])
    bounds = np.arange(16) >= 8
    assert open_above(readings_of(values, bounds))
    (low, high), _ = interval(values, bounds=bounds, most=3.0)
    assert low < 0.1
    assert high > 2.0
    assert interval(values, bounds=bounds, most=0.2)[0][1] < 0.3


def test_few_bounds_above_all_readings_leave_the_median_where_it_is():
    order = np.random.default_rng(6).permutation(16)
    values = np.concatenate([np.linspace(0.0, 0.1, 13), np.full(3, 0.11)])[order]
    bounds = order >= 13
    assert not open_above(readings_of(values, bounds))
    assert interval(values, bounds=bounds, most=0.13)[0][1] < 0.12
    assert not open_above(readings_of(values, np.ones(16, dtype=bool)))


def test_the_median_of_a_trend_is_told_for_the_time_asked_about():
    random = np.random.default_rng(5)
    values = np.linspace(-3.0, 3.0, 15) + 0.05 * random.standard_normal(15)
    (low, high), _ = interval(values, trending=1.0)
    assert low < 0 < high
    assert high - low < 0.4
    assert np.ptp(interval(values)[0]) > 1.5


def test_too_few_readings_give_no_interval():
    values = np.zeros((2, 5))
    readings = SearchReadings(values, np.zeros(5, dtype=bool), np.arange(5.0), 1.0)
    assert draw_median(readings, np.random.default_rng(1), 10, 0.0, 2.0) is None
    assert sets_of(np.zeros((300, 2))).shape[0] <= 40
