"""Evidence and intervals from block differences, against enumeration, scipy and publications."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from planewise.judge.bounded import Bounded, at_least, exact, mean_of, median_of, minus
from planewise.judge.statistics.comparison import family_weights
from planewise.judge.statistics.paired import (
    Floats,
    Shifts,
    capital,
    count_interval,
    family_evidence,
    least_blocks,
    median_interval,
    rank_biserial,
)
from planewise.judge.statistics.pairing import OVERALL

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


def shifts(values: list[float] | Floats) -> Shifts:
    return Shifts.of([exact(float(value)) for value in values])


@given(st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=1, max_size=9))
def test_over_all_signs_evidence_is_one_on_average_after_every_block(sizes: list[float]) -> None:
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(sizes)))).T
    grown = capital(signs * np.array(sizes)[:, None])
    assert grown.mean(axis=1) == pytest.approx(np.ones(len(sizes)))
    assert (grown >= 0).all()


@given(st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=2, max_size=8))
def test_over_all_signs_a_difference_is_claimed_once_in_twenty_at_whatever_block_one_looks(
    sizes: list[float],
) -> None:
    claims = 0
    for signs in itertools.product((1, -1), repeat=len(sizes)):
        both = shifts(np.array(signs) * np.array(sizes)).of_difference()
        claims += both.max() >= 20
    assert claims / 2 ** len(sizes) <= 0.05


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_up_to_five_blocks_decide_nothing_however_clear_they_are(blocks: int) -> None:
    clear = shifts([1.0 + 1e-9 * block for block in range(blocks)])
    assert clear.of_difference().max() < 20
    assert clear.of_equivalence(10.0).max() < 33
    assert (clear.interval()[0], clear.interval()[1]) == (-math.inf, math.inf)


def test_six_blocks_that_agree_decide_a_single_comparison() -> None:
    assert shifts([1.0] * 6).of_difference().max() >= 20
    assert least_blocks(1) == 6
    assert least_blocks(12) > least_blocks(3) > 6


def test_the_estimate_is_hollander_and_wolfes() -> None:
    assert shifts(HAMILTON).estimate == pytest.approx(-0.46)
    # T+ is 5 and T- 40: (5 - 40) / 45
    assert rank_biserial(HAMILTON) == pytest.approx(-35 / 45)


@given(st.lists(finite, min_size=6, max_size=30))
def test_the_interval_holds_the_estimate_and_beyond_it_all_is_refuted(values: list[float]) -> None:
    several = shifts(values)
    low, high = several.interval()
    assert low <= several.estimate <= high
    width = max(1e-6, max(values) - min(values))
    if math.isfinite(low):
        assert capital(np.array(values) - (low - 30 * width)).max() >= 40


def test_the_interval_covers_a_skewed_median_at_every_look() -> None:
    rng = np.random.default_rng(17)
    missed = 0
    for _ in range(300):
        # Differences of two exponential values: symmetric about the true shift of 0.3.
        values = 0.3 + rng.exponential(1, 24) - rng.exponential(1, 24)
        several = shifts(values)
        low, high = several.interval()
        missed += not low <= 0.3 <= high
    assert missed <= 0.05 * 300


def test_a_shift_of_which_nothing_is_known_downwards_is_no_evidence_upwards() -> None:
    several = Shifts.of([*[exact(1.0)] * 9, at_most(2.0)])
    assert capital(several.low)[-1] == 0
    assert several.interval()[0] == -math.inf


@given(st.lists(anything, min_size=1, max_size=12), st.floats(min_value=0.01, max_value=1e7))
def test_equivalence_never_rests_on_a_bound(values: list[Bounded], margin: float) -> None:
    several = Shifts.of(values)
    if any(value.bound != "exact" for value in values):
        first = next(i for i, value in enumerate(values) if value.bound != "exact")
        assert several.of_equivalence(margin)[first:].max() == 0
        low, high = several.interval()
        kinds = {value.bound for value in values}
        assert low == -math.inf or "at most" not in kinds
        assert high == math.inf or "at least" not in kinds


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


@pytest.mark.parametrize("seed", range(5))
def test_closed_testing_gives_the_largest_evidence_that_every_set_of_comparisons_allows(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    weights = family_weights([OVERALL] * 3 + ["cpu"] * 6)
    evidence = np.exp(rng.normal(0, 2, 9))
    evidence[4] = evidence[2]

    def refuted(index: int, at: float) -> bool:
        others = float(weights @ np.maximum(at - evidence, 0))
        return bool(weights[index] * (evidence[index] - at) >= others)

    for index, largest in enumerate(family_evidence(evidence[:, None], weights)):
        assert refuted(index, largest * (1 - 1e-9))
        assert not refuted(index, largest * (1 + 1e-9))


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


def test_closed_testing_by_hand() -> None:
    # The least average over all sets: of all three, of the second with the third, the third alone.
    evidence = np.array([[120.0], [60.0], [0.5]])
    passed = family_evidence(evidence, np.full(3, 1 / 3))
    assert passed == pytest.approx([180.5 / 3, 30.25, 0.5], rel=1e-6)
    alone = family_evidence(evidence[:1], np.ones(1))
    assert alone == pytest.approx([120])


@given(
    st.lists(st.floats(min_value=0, max_value=500), min_size=1, max_size=5),
    st.lists(st.floats(min_value=0.05, max_value=1), min_size=5, max_size=5),
)
def test_closed_testing_is_the_least_average_over_all_sets(
    evidence: list[float], weights: list[float]
) -> None:
    size = len(evidence)
    share = np.array(weights[:size]) / sum(weights[:size])
    for index, passed in enumerate(family_evidence(np.array(evidence)[:, None], share)):
        least = min(
            float(np.average(np.array(evidence)[list(chosen)], weights=share[list(chosen)]))
            for count in range(1, size + 1)
            for chosen in itertools.combinations(range(size), count)
            if index in chosen
        )
        assert passed == pytest.approx(least, rel=1e-5, abs=1e-6)


def test_rank_biserial_by_hand() -> None:
    # ranks 1, 2, 3 with signs + - +: (1 - 2 + 3) / 6
    assert rank_biserial([1, -2, 3]) == pytest.approx(2 / 6)


def test_more_blocks_than_memory_likes_are_condensed() -> None:
    values = np.random.default_rng(4).normal(0.2, 1, 4_000)
    several = shifts(values)
    low, high = several.interval()
    assert several.estimate == pytest.approx(0.2, abs=0.06)
    assert low < 0.2 < high


@pytest.mark.parametrize("ends", [(2.0, 1.0, 3.0), (0.0, 1.0, 3.0), (math.nan, 0.0, 1.0)])
def test_a_value_outside_its_ends_is_refused(ends: tuple[float, float, float]) -> None:
    value, low, high = ends if ends[0] != 2.0 else (4.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="is not within"):
        Bounded(value, low, high)
