"""Tests and intervals on paired replicates, against R, published examples and scipy.

R's numbers are those of R 4.2.2: wilcox.test(…, conf.int=TRUE), p.adjust, psignrank.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from planewise.judge.statistics.paired import (
    Method,
    geometric_mean,
    holm,
    least_signed_rank_p,
    mean,
    rank_biserial,
    shift_of,
    signed_rank_p,
)

HAMILTON_BEFORE = np.array([1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30])
HAMILTON_AFTER = np.array([0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29])
"""Hamilton's depression scale factor before and after a tranquilizer: Hollander and Wolfe,
Nonparametric Statistical Methods, tables 3.1 and examples 3.1 to 3.4 (also in R's ?wilcox.test)."""

TWELVE = [0.42, -0.13, 0.88, 0.61, -0.27, 1.35, 0.05, 0.73, -0.09, 0.36, 1.02, 0.58]
TIED = [3, -1, 2, 2, -1, 4, 5, 2, 0, 3]

finite = st.floats(min_value=-1e6, max_value=1e6)


def test_the_published_example_of_hollander_and_wolfe() -> None:
    shift = shift_of(HAMILTON_AFTER - HAMILTON_BEFORE, "signed-rank")
    assert shift.estimate == pytest.approx(-0.46)
    assert (shift.low, shift.high) == pytest.approx((-0.786, -0.010))
    assert shift.p == pytest.approx(0.0390625)
    # T+ is 5 and T− 40: (5 − 40) / 45
    assert shift.rank_biserial == pytest.approx(-35 / 45)


def test_twelve_pairs_as_r_has_them() -> None:
    shift = shift_of(TWELVE, "signed-rank")
    assert shift.p == pytest.approx(0.01611328125)
    assert (shift.estimate, shift.low, shift.high) == pytest.approx((0.465, 0.135, 0.805))


def test_sixty_pairs_as_r_has_them() -> None:
    values = np.round(np.sin(np.arange(1, 61)) * 3 + 0.7, 4)
    shift = shift_of(values, "signed-rank")
    assert shift.p == pytest.approx(0.00682244236379, rel=1e-9)
    # R solves for zeros of the test statistic; order statistics lie next to them.
    assert shift.estimate == pytest.approx(0.744116640559, abs=0.002)
    assert (shift.low, shift.high) == pytest.approx((0.267589855088, 1.329732284086), abs=0.005)


def test_the_distribution_of_signed_ranks_as_r_has_it() -> None:
    # psignrank(0:4, 7); a statistic of w needs ranks that sum to w among 1..7.
    for shifts, below in (
        ([1, 2, 3, 4, 5, 6, 7], 0.0078125),
        ([-1, 2, 3, 4, 5, 6, 7], 0.0156250),
        ([1, 2, -3, 4, 5, 6, 7], 0.0390625),
        ([-1, 2, -3, 4, 5, 6, 7], 0.0546875),
    ):
        assert signed_rank_p(shifts) == pytest.approx(2 * below)


def test_ties_are_exact_and_zeros_left_out() -> None:
    # All 2⁹ signs of the nine non-zero values, counted.
    values = np.array([value for value in TIED if value], dtype=float)
    ranks = stats.rankdata(abs(values))
    signs = (np.arange(2**9)[:, None] >> np.arange(9)) & 1
    sums = (signs * ranks).sum(axis=1)
    seen = ranks[values > 0].sum()
    extreme = min(seen, ranks.sum() - seen)
    assert signed_rank_p(TIED) == pytest.approx(min(1, 2 * (sums <= extreme).mean()))
    # R has no exact p for ties; its approximation is near.
    assert signed_rank_p(TIED) == pytest.approx(0.0236438848938, abs=0.01)


@given(st.lists(finite, min_size=1, max_size=30))
def test_without_ties_it_is_scipys_exact_test(values: list[float]) -> None:
    moved = np.array([value for value in values if value != 0])
    if len(set(abs(moved))) < len(moved) or not moved.size:
        return
    assert signed_rank_p(values) == pytest.approx(stats.wilcoxon(moved, method="exact").pvalue)


def test_many_pairs_are_tested_as_scipy_approximates() -> None:
    rng = np.random.default_rng(2)
    values = np.round(rng.normal(0.1, 1, 400), 2)
    expected = stats.wilcoxon(values, method="asymptotic", correction=True).pvalue
    assert signed_rank_p(values) == pytest.approx(expected, rel=1e-6)


@given(st.lists(finite, min_size=6, max_size=40))
def test_the_interval_holds_the_shifts_that_the_test_does_not_reject(values: list[float]) -> None:
    shift = shift_of(values, "signed-rank")
    assert shift.low <= shift.estimate <= shift.high
    width = max(1e-9, abs(shift.high - shift.low))
    assert signed_rank_p(np.array(values) - (shift.low - width)) <= 0.05 + 1e-12
    assert signed_rank_p(np.array(values) - (shift.high + width)) <= 0.05 + 1e-12


def test_fewer_than_six_pairs_have_no_interval_by_ranks() -> None:
    assert math.isinf(shift_of([1, 2, 3, 4, 5], "signed-rank").high)
    assert math.isfinite(shift_of([1, 2, 3, 4, 5, 6], "signed-rank").high)
    assert least_signed_rank_p(5) == 2 / 32
    assert signed_rank_p([1, 2, 3, 4, 5]) == 2 / 32


def test_students_method_is_scipys_paired_t_test() -> None:
    shift = shift_of(TWELVE, "student")
    expected = stats.ttest_1samp(TWELVE, 0)
    interval = expected.confidence_interval(0.95)
    assert shift.p == pytest.approx(expected.pvalue)
    assert (shift.low, shift.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("method", ["signed-rank", "student"])
def test_a_single_pair_tells_nothing(method: Method) -> None:
    shift = shift_of([0.7], method)
    assert (shift.p, shift.low, shift.high) == (1, -math.inf, math.inf)


@pytest.mark.parametrize("method", ["signed-rank", "student"])
def test_pairs_without_any_change_are_certain_to_have_none(method: Method) -> None:
    shift = shift_of([0.0] * 8, method)
    assert (shift.estimate, shift.low, shift.high, shift.p) == (0, 0, 0, 1)
    assert shift.rank_biserial == 0


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf]])
def test_what_is_no_list_of_numbers_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match=r"no pairs|finite"):
        shift_of(bad, "signed-rank")


def test_rank_biserial_by_hand() -> None:
    # ranks 1, 2, 3 with signs + − +: (1 − 2 + 3) / 6
    assert rank_biserial([1, -2, 3]) == pytest.approx(2 / 6)


def test_holms_correction_as_r_has_it() -> None:
    assert holm([0.012, 0.004, 0.03, 0.2, 0.03]) == pytest.approx([0.048, 0.020, 0.090, 0.2, 0.090])
    assert holm([]) == []


def test_more_pairs_than_memory_likes_are_condensed() -> None:
    values = np.random.default_rng(4).normal(0.2, 1, 20_000)
    shift = shift_of(values, "signed-rank")
    assert shift.estimate == pytest.approx(0.2, abs=0.03)
    assert shift.low < shift.estimate < shift.high


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
    assert mean([7.0]).high == math.inf


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_positive_number_has_no_geometric_mean(bad: float) -> None:
    with pytest.raises(ValueError, match="not a positive number"):
        geometric_mean([1.0, bad])
