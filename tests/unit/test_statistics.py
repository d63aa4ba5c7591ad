"""Statistics on replicates, checked against scipy and worked values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from planewise.judge.statistics import compare, geometric_mean

positive = st.floats(min_value=1e-3, max_value=1e9)


def test_the_interval_of_the_geometric_mean_is_scipys_on_logarithms() -> None:
    values = [10.0, 12.0, 9.0, 15.0]
    logs = np.log(values)
    low, high = stats.t.interval(0.95, 3, loc=logs.mean(), scale=stats.sem(logs))
    interval = geometric_mean(values)
    assert interval.estimate == pytest.approx(stats.gmean(values))
    assert (interval.low, interval.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_one_replicate_has_an_open_interval() -> None:
    interval = geometric_mean([7.0])
    assert (interval.estimate, interval.low, interval.high) == (pytest.approx(7.0), 0.0, math.inf)


def test_a_clear_difference_is_named() -> None:
    comparison = compare([10, 11, 10.5, 10.2], [20, 22, 21.5, 20.1])
    assert comparison.outcome == "lower"
    assert comparison.rank_biserial == -1
    assert comparison.ratio.high < 0.6


def test_a_tiny_but_certain_difference_is_practically_the_same() -> None:
    base = np.array([100.0, 120.0, 90.0, 130.0])
    assert compare(list(base * 1.01), list(base)).outcome == "practically the same"


def test_few_noisy_replicates_leave_it_not_known() -> None:
    assert compare([10, 30], [20, 20]).outcome == "not known"
    assert compare([10], [20]).outcome == "not known"


def test_rank_biserial_matches_a_worked_example() -> None:
    # shifts on the log scale: +1, -2, +3 (ranks 1, 2, 3): (1 - 2 + 3) / 6
    a = [math.e, math.exp(-2), math.exp(3)]
    assert compare(a, [1.0, 1.0, 1.0]).rank_biserial == pytest.approx(2 / 6)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_positive_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not a positive number"):
        geometric_mean([1.0, bad])


@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=12), positive)
def test_comparing_does_not_depend_on_the_unit(
    pairs: list[tuple[float, float]], unit: float
) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    plain = compare(a, b)
    scaled = compare([x * unit for x in a], [y * unit for y in b])
    assert scaled.ratio.estimate == pytest.approx(plain.ratio.estimate, rel=1e-6)


def test_under_no_difference_a_difference_is_claimed_in_at_most_five_percent() -> None:
    generator = np.random.default_rng(5)
    claimed = 0
    runs = 4000
    for _ in range(runs):
        a, b = np.exp(generator.normal(0, 0.2, (2, 5)))
        claimed += compare(list(a), list(b)).outcome in ("lower", "higher")
    assert claimed / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
