"""A search's estimate: the median of a law with skew, from readings that may be bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from planewise.measure.search.median import SearchReadings, at_time
from planewise.measure.search.skew import skewed_median


def errors(draw, truth, estimate, systems=150, readings=15):
    """Absolute errors of an estimate over many systems."""
    random = np.random.default_rng(7)
    return np.array([abs(estimate(draw(random, readings)) - truth) for _ in range(systems)])


def of_law(value):
    return skewed_median(value, np.zeros(value.size, dtype=bool))


def test_it_scatters_less_than_the_middle_reading_where_capacity_is_only_lost():
    def draw(random, count):
        return -random.exponential(1.0, count)

    ours = errors(draw, -np.log(2), of_law)
    middle = errors(draw, -np.log(2), np.median)
    assert np.mean(ours) < 0.9 * np.mean(middle)


def test_it_scatters_hardly_more_than_the_mean_where_the_law_is_normal():
    def draw(random, count):
        return random.standard_normal(count)

    ours = errors(draw, 0.0, of_law)
    assert np.mean(ours) < 1.1 * np.mean(errors(draw, 0.0, np.mean))
    assert np.mean(ours) < np.mean(errors(draw, 0.0, np.median))


@pytest.mark.parametrize("side", [-1, 1])
def test_it_scatters_as_the_middle_reading_where_one_in_ten_lies_far_to_a_side(side):
    def draw(random, count):
        value = random.standard_normal(count)
        value[random.random(count) < 0.1] += side * 20
        return value

    # Half of all readings are 0.4 of 0.9 of those that are not far off.
    truth = side * stats.norm.ppf(0.5 / 0.9)
    assert np.mean(errors(draw, truth, of_law)) < 1.1 * np.mean(errors(draw, truth, np.median))


def test_a_bound_pulls_it_up_and_one_far_below_tells_nothing():
    value = np.linspace(-1.0, 1.0, 12)
    exact = np.zeros(12, dtype=bool)
    plain = skewed_median(value, exact)
    above = skewed_median(np.append(value, [0.9, 0.9]), np.append(exact, [True, True]))
    below = skewed_median(np.append(value, [-9.0, -9.0]), np.append(exact, [True, True]))
    assert above > plain
    assert below == pytest.approx(plain)


def test_one_reading_far_off_moves_it_little():
    value = np.linspace(-1.0, 1.0, 15)
    assert abs(of_law(np.append(value, -50.0)) - of_law(value)) < 0.15


def test_readings_that_are_all_alike_are_their_own_median():
    assert of_law(np.full(8, 0.25)) == 0.25


def test_fewer_than_six_readings_have_none():
    assert skewed_median(np.arange(9.0), np.arange(9) > 4) is None


@given(
    st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=25),
    st.floats(-3.0, 3.0),
    st.floats(0.01, 100.0),
)
def test_it_moves_and_stretches_with_the_readings(values, shift, factor):
    value = np.array(values)
    if np.median(np.abs(value - np.median(value))) < 1e-6:
        return
    moved = of_law(shift + factor * value)
    # The grid is fine to a twelfth of a deviation, and rounding may choose its next point.
    spread = 1.4826 * np.median(np.abs(value - np.median(value)))
    assert moved == pytest.approx(shift + factor * of_law(value), abs=0.2 * factor * spread)


def test_readings_that_drift_are_told_for_the_time_asked_for():
    times = np.arange(12.0)
    value = 0.1 * times
    readings = SearchReadings(value[None, :], np.zeros(12, dtype=bool), times, float(value.max()))
    assert at_time(readings, 0.9, 5.0) == pytest.approx(np.full(12, 0.5))
    assert at_time(readings, 0.1, 5.0) == pytest.approx(value)
