"""Sign flips and intervals of block differences, against enumeration, scipy and publications."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from planewise.judge.bounded import (
    Bounded,
    at_least,
    count_interval,
    exact,
    mean_of,
    median_interval,
    median_of,
    minus,
    rank_biserial,
)
from planewise.judge.statistics import flips
from planewise.judge.statistics.flips import Floats
from planewise.judge.statistics.pooled import log10_p, tau_b

HAMILTON = np.array([0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]) - np.array(
    [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
)
"""Hollander and Wolfe, Nonparametric Statistical Methods, table 3.1."""


def at_most(value: float) -> Bounded:
    return Bounded(value, -math.inf, value)


finite = st.floats(min_value=-1e6, max_value=1e6)
anything = st.one_of(
    finite.map(exact),
    finite.map(at_least),
    finite.map(at_most),
    st.tuples(finite, st.floats(min_value=0, max_value=1e3)).map(
        lambda parts: Bounded(parts[0], parts[0], parts[0] + parts[1])
    ),
)


sizes = hnp.arrays(np.float64, st.tuples(st.integers(6, 8), st.integers(1, 3)),
                   elements=st.floats(min_value=1e-3, max_value=1e3))  # fmt: skip


@given(sizes)
@settings(max_examples=15)
def test_over_all_signs_of_blocks_a_family_claims_no_more_often_than_its_level(
    size: Floats,
) -> None:
    strata = ["one"] * size.shape[1]
    least = []
    for signs in itertools.product((1.0, -1.0), repeat=len(size)):
        flipped = np.array(signs)[:, None] * size
        least.append(np.abs(flips.p_of_difference(flipped, flipped, strata)).min())
    for level in (0.04, 0.1, 0.3):
        assert np.mean(np.array(least) <= level) <= level


@given(sizes)
@settings(max_examples=15)
def test_over_all_signs_equivalence_at_the_margin_is_claimed_no_more_often_than_its_level(
    size: Floats,
) -> None:
    margins, strata = np.full(size.shape[1], 0.3), ["one"] * size.shape[1]
    claims = 0
    for signs in itertools.product((1.0, -1.0), repeat=len(size)):
        at_margin = 0.3 + np.array(signs)[:, None] * size
        same = flips.p_of_equivalence(at_margin, at_margin, margins, strata)
        claims += same.min() <= 0.04
    assert claims / 2 ** len(size) <= 0.02


shift_arrays = hnp.arrays(
    np.float64, st.tuples(st.integers(3, 9), st.integers(1, 5)),
    elements=st.one_of(st.floats(-10, 10), st.sampled_from([0.0, 0.05, 1.0])),
)  # fmt: skip


@given(shift_arrays, st.floats(0.01, 3))
def test_no_claim_disagrees_with_its_interval(shifts: Floats, margin: float) -> None:
    strata, margins = ["one"] * shifts.shape[1], np.full(shifts.shape[1], margin)
    p = flips.p_of_difference(shifts, shifts, strata)
    same = flips.p_of_equivalence(shifts, shifts, margins, strata)
    low, high = flips.intervals(shifts, shifts, margins, 0.04)
    assert ((low > 0) | (high < 0))[np.abs(p) <= 0.04].all()
    assert ((low >= -margin) & (high <= margin))[same <= 0.04].all()
    middle = flips.centres(shifts)
    assert ((low <= middle) & (middle <= high)).all()


def test_the_clearest_p_is_two_of_all_flips_whatever_the_number_of_comparisons() -> None:
    rng = np.random.default_rng(3)
    shifts = 0.3 + rng.normal(0, 0.03, (6, 40))
    p = flips.p_of_difference(shifts, shifts, ["one"] * 40)
    assert p == pytest.approx(np.full(40, 2 / 2**6))


def test_step_down_by_hand() -> None:
    # Sums under the observed flip and three others; the greatest of those not yet told counts.
    sums = np.array([[5.0, 3.0, 1.0], [6.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 0.5]])
    assert flips._step_down(sums) == pytest.approx([2 / 4, 2 / 4, 2 / 4])
    assert flips._step_down(sums[:, 1:]) == pytest.approx([2 / 4, 2 / 4])
    assert flips._step_down(sums[:, 2:]) == pytest.approx([1 / 4])


def test_more_than_twelve_blocks_take_a_random_choice_of_flips_that_the_seed_repeats() -> None:
    assert len(flips.sign_vectors(12)) == 2048
    first, again = flips.sign_vectors(30, seed=4), flips.sign_vectors(30, seed=4)
    assert first.shape == (2048, 30)
    assert (first == again).all()
    assert (first[0] == 1).all()


def test_a_missing_block_counts_for_its_own_comparison_only() -> None:
    shifts = np.full((7, 2), 0.2) + np.arange(7)[:, None] / 100
    shifts[3, 1] = np.nan
    p = flips.p_of_difference(shifts, shifts, ["one"] * 2)
    assert p == pytest.approx([2 / 2**7, 2 / 2**6])


def test_the_estimate_is_hollander_and_wolfes() -> None:
    assert flips.centres(HAMILTON[:, None])[0] == pytest.approx(-0.46)
    # T+ is 5 and T- 40: (5 - 40) / 45
    assert rank_biserial(HAMILTON) == pytest.approx(-35 / 45)


@pytest.mark.parametrize("blocks", [6, 8, 14])
def test_the_interval_covers_the_centre_of_a_heavy_tailed_difference(blocks: int) -> None:
    rng = np.random.default_rng(17)
    shifts = 0.3 + rng.exponential(1, (blocks, 800)) - rng.exponential(1, (blocks, 800))
    low, high = flips.intervals(shifts, shifts, np.zeros(800), 0.04)
    covered = ((low <= 0.3) & (high >= 0.3)).mean()
    assert 0.94 <= covered <= 0.99


def test_a_shift_of_which_nothing_is_known_downwards_is_no_evidence_upwards() -> None:
    low, high = np.ones((9, 1)), np.ones((9, 1))
    low[4] = -math.inf
    assert abs(flips.p_of_difference(low, high, ["one"])[0]) == 1
    assert flips.intervals(low, high, np.zeros(1), 0.04)[0] == -math.inf
    assert flips.p_of_equivalence(low, high, np.full(1, 10.0), ["one"])[0] == 1
    low, high = np.ones((9, 1)), np.ones((9, 1))
    high[4] = math.inf
    assert 0 < flips.p_of_difference(low, high, ["one"])[0] <= 0.04


def test_very_many_blocks_are_condensed() -> None:
    shifts = np.random.default_rng(4).normal(0.2, 1, (4_000, 1))
    low, high = flips.intervals(shifts, shifts, np.zeros(1), 0.04)
    assert flips.centres(shifts)[0] == pytest.approx(0.2, abs=0.06)
    assert low[0] < 0.2 < high[0]


@pytest.mark.parametrize("seed", range(3))
def test_pooled_tests_are_scipys_with_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(0, 30, 400).astype(float) for _ in range(2))
    expected = stats.wilcoxon(x - y, correction=True, method="asymptotic").pvalue
    assert log10_p(x - y) == pytest.approx(math.log10(expected), rel=1e-6)
    of_x = stats.kendalltau([1] * 400 + [0] * 400, [*x, *y]).statistic
    assert tau_b(x, y) == pytest.approx(of_x)


@given(st.lists(anything, min_size=1, max_size=9), st.data())
def test_the_truth_within_the_ends_stays_within_the_ends_of_what_is_made_of_it(
    values: list[Bounded], data: st.DataObject
) -> None:
    truths = [
        data.draw(st.floats(min_value=max(v.low, -1e7), max_value=min(v.high, 1e7))) for v in values
    ]
    slack = 1e-6 * (1 + max(abs(truth) for truth in truths))
    for made, truth in (
        (mean_of(values), float(np.mean(truths))),
        (median_of(values), float(np.median(truths))),
        (minus(values[0], values[-1]), truths[0] - truths[-1]),
    ):
        assert made.low - slack <= truth <= made.high + slack


def test_a_median_is_exact_where_fewer_than_half_are_bounds() -> None:
    assert median_of([exact(1.0), exact(2.0), at_least(3.0)]) == exact(2.0)
    assert median_of([exact(1.0), at_least(2.0), at_least(3.0)]).bound == "at least"
    assert median_of([exact(1.0), exact(2.0), at_most(0.5)]) == exact(1.0)
    assert mean_of([exact(1.0), at_least(3.0)]).bound == "at least"


def test_order_statistics_hold_the_median_as_the_sign_test_has_it() -> None:
    values = [exact(float(value)) for value in range(1, 11)]
    # David and Nagaraja, table 7.1: with ten values the second and the ninth, 97.9 %.
    assert median_interval(values) == (2, 9)
    assert median_interval(values[:5]) == (-math.inf, math.inf)
    assert median_interval(values[:6]) == (1, 6)


def test_counts_without_clumps_have_garwoods_interval() -> None:
    low, high = count_interval(4, 1000, 1.0)
    assert low == pytest.approx(stats.chi2.ppf(0.025, 8) / 2000)
    assert high == pytest.approx(stats.chi2.ppf(0.975, 10) / 2000)
    assert count_interval(0, 1000, 1.0)[0] == 0
    assert count_interval(0, 1000, 20.0)[1] == pytest.approx(20 * count_interval(0, 1000, 1.0)[1])


def test_rank_biserial_by_hand() -> None:
    # ranks 1, 2, 3 with signs + - +: (1 - 2 + 3) / 6
    assert rank_biserial([1, -2, 3]) == pytest.approx(2 / 6)


@pytest.mark.parametrize("ends", [(2.0, 1.0, 3.0), (0.0, 1.0, 3.0), (math.nan, 0.0, 1.0)])
def test_a_value_outside_its_ends_is_refused(ends: tuple[float, float, float]) -> None:
    value, low, high = ends if ends[0] != 2.0 else (4.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="is not within"):
        Bounded(value, low, high)
