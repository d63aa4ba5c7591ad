"""Tests and intervals on paired replicates: numbers in, numbers out. Knows no metric and no run.

A *shift* is the difference between two levels within one pair: of two logarithms where ratios are
compared, of two values where differences are. Sources: Hollander, Wolfe and Chicken, Nonparametric
Statistical Methods, 3rd edition, sections 3.1 to 3.3 (signed ranks, Hodges–Lehmann, interval);
Kerby 2014, doi 10.2466/11.IT.3.1 (rank-biserial); Holm 1979.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

Floats = NDArray[np.float64]

Method = Literal["signed-rank", "student"]
"""How a shift was tested: by signed ranks, or (too few pairs for those) by Student's t."""

EXACT_UP_TO = 50
"""Pairs up to which the signed-rank distribution is computed exactly, ties included."""
MOST_WALSH = 3000
"""Pairs from whose all averages of two an interval is made; of more, quantiles stand for them."""


def mid_ranks(values: ArrayLike) -> Floats:
    """Ranks from 1, ties sharing the mean of theirs; shape (n,) as `values`.

    By polars, which is there anyway: `scipy.stats` takes half a second to import.
    """
    return pl.Series(np.asarray(values, dtype=np.float64)).rank("average").to_numpy()


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval, in the unit of the data; open where n < 2."""

    estimate: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Shift:
    """What the shifts of n pairs say about the typical one."""

    estimate: float
    """Hodges–Lehmann: the median of all averages of two shifts; with `student` the mean."""
    low: float
    high: float
    """95 % interval; infinite where there are too few pairs for one."""
    p: float
    """Of the test that the shift is 0, two-sided."""
    rank_biserial: float
    """Matched-pairs rank-biserial correlation: −1 every pair falls, +1 every pair rises."""
    n: int
    method: Method


def shift_of(shifts: ArrayLike, method: Method, confidence: float = 0.95) -> Shift:
    """The typical shift of `shifts`, shape (n,), n ≥ 1, with interval and test.

    ValueError for no shift, or one that is not finite.
    """
    values = np.asarray(shifts, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError("no pairs")
    if not np.isfinite(values).all():
        raise ValueError("a shift is not a finite number")
    effect = rank_biserial(values)
    if method == "student":
        mean, half = _student(values, confidence)
        p = _student_p(values)
        return Shift(mean, mean - half, mean + half, p, effect, values.size, method)
    walsh = _walsh(values)
    low, high = _walsh_interval(walsh, min(values.size, MOST_WALSH), confidence)
    estimate = _median_of_sorted(walsh)
    return Shift(estimate, low, high, signed_rank_p(values), effect, values.size, method)


def least_signed_rank_p(n: int) -> float:
    """The smallest p that signed ranks of n pairs can reach: 2 of 2ⁿ signs, two-sided."""
    return min(1.0, 2.0 ** (1 - n)) if n else 1.0


def signed_rank_p(shifts: ArrayLike) -> float:
    """Wilcoxon's signed-rank test, two-sided; zeros are left out, ties get their mean rank.

    Up to `EXACT_UP_TO` pairs the distribution over all signs is exact (with ties, too); beyond,
    it is the normal approximation with corrections for ties and continuity.
    """
    values = np.asarray(shifts, dtype=np.float64)
    values = values[values != 0]
    n = values.size
    if n == 0:
        return 1.0
    ranks2 = _double_ranks(np.abs(values))
    plus = int(ranks2[values > 0].sum())
    total = n * (n + 1)
    extreme = min(plus, total - plus)
    if n <= EXACT_UP_TO:
        untied = bool((np.diff(np.sort(ranks2)) > 0).all())
        below = _null_untied(n) if untied else _null(tuple(sorted(ranks2.tolist())))
        return min(1.0, 2 * float(below[extreme]))
    variance = float((ranks2.astype(np.float64) ** 2).sum()) / 4
    # In doubled ranks the continuity correction of one half is 1.
    z = (extreme + 1 - total / 2) / math.sqrt(variance)
    return min(1.0, 2 * float(ndtr(min(z, 0.0))))


def rank_biserial(shifts: ArrayLike) -> float:
    """(favourable − unfavourable rank sum) / total rank sum; zero shifts are left out."""
    values = np.asarray(shifts, dtype=np.float64)
    values = values[values != 0]
    if not values.size:
        return 0.0
    ranks2 = _double_ranks(np.abs(values))
    return float((np.sign(values) * ranks2).sum() / ranks2.sum())


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given: reject where they are at most α."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted = [1.0] * len(p)
    worst = 0.0
    for place, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - place) * p[index]))
        adjusted[index] = worst
    return adjusted


def geometric_mean(values: Sequence[float]) -> Interval:
    """Geometric mean of positive replicates, with Student's t interval on their logarithms.

    Times and rates are skewed and compared as ratios, hence the logarithm. ValueError when a value
    is not positive and finite, or when there is none.
    """
    if not len(values):
        raise ValueError("no replicates")
    for value in values:
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{value!r} is not a positive number")
    centre, half = _student(np.log(values), 0.95)
    return Interval(math.exp(centre), exp(centre - half), exp(centre + half), len(values))


def mean(values: Sequence[float]) -> Interval:
    """Mean of replicates with Student's t interval. ValueError when there is none."""
    if not len(values):
        raise ValueError("no replicates")
    centre, half = _student(np.asarray(values, dtype=np.float64), 0.95)
    return Interval(centre, centre - half, centre + half, len(values))


def exp(value: float) -> float:
    """e to the `value`; infinite where that is beyond floating point."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _student(values: Floats, confidence: float) -> tuple[float, float]:
    """Mean and half width of its interval; infinite for a single value."""
    n = values.size
    centre = math.fsum(values) / n
    if n < 2:
        return centre, math.inf
    deviation = math.sqrt(math.fsum((values - centre) ** 2) / (n - 1))
    return centre, float(stdtrit(n - 1, (1 + confidence) / 2)) * deviation / math.sqrt(n)


def _student_p(values: Floats) -> float:
    n = values.size
    centre, _ = _student(values, 0.95)
    if n < 2:
        return 1.0
    error = math.sqrt(math.fsum((values - centre) ** 2) / (n - 1) / n)
    if error == 0:
        return 1.0 if centre == 0 else 0.0
    return min(1.0, 2 * float(stdtr(n - 1, -abs(centre) / error)))


def _double_ranks(magnitudes: Floats) -> NDArray[np.int64]:
    """Twice the mean ranks, which are whole numbers: shape (n,)."""
    order = np.argsort(magnitudes, kind="stable")
    ordered = magnitudes[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.append(first[1:], ordered.size)
    doubled = np.empty(ordered.size, dtype=np.int64)
    doubled[order] = np.repeat(first + 1 + ends, ends - first)
    return doubled


@lru_cache(maxsize=128)
def _null_untied(n: int) -> Floats:
    """P(doubled W⁺ ≤ w) for w = 0, 1, …, n(n + 1), ranks without ties."""
    return _cumulated(2 * np.arange(1, n + 1))


@lru_cache(maxsize=4096)
def _null(ranks2: tuple[int, ...]) -> Floats:
    """The same for any doubled ranks, conditional on them."""
    return _cumulated(np.array(ranks2))


def _cumulated(ranks2: NDArray[np.int64]) -> Floats:
    """Distribution of the sum of those doubled ranks whose sign is plus, each with chance ½."""
    size = int(ranks2.sum()) + 1
    mass = np.zeros(size)
    mass[0] = 1.0
    for rank in ranks2:
        moved = mass.copy()
        moved[rank:] += mass[: size - rank]
        mass = moved / 2
    return np.asarray(np.cumsum(mass))


def _walsh(values: Floats) -> Floats:
    """All averages of two (a value with itself, too), rising."""
    if values.size > MOST_WALSH:
        values = np.quantile(values, (np.arange(MOST_WALSH) + 0.5) / MOST_WALSH)
    i, j = np.triu_indices(values.size)
    return np.sort((values[i] + values[j]) / 2)


def _median_of_sorted(values: Floats) -> float:
    middle = values.size // 2
    if values.size % 2:
        return float(values[middle])
    return float((values[middle - 1] + values[middle]) / 2)


def _walsh_interval(walsh: Floats, n: int, confidence: float) -> tuple[float, float]:
    """The interval that goes with the signed-rank test: order statistics of Walsh averages."""
    alpha = 1 - confidence
    if n <= EXACT_UP_TO:
        below = _null_untied(n)[::2]  # P(W⁺ ≤ w), undoubled
        # The largest c with P(W⁺ < c) ≤ α/2: the c-th smallest average is the lower end.
        c = int(np.searchsorted(below, alpha / 2, side="right"))
    else:
        centre, variance = n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24
        c = math.floor(centre + float(ndtri(alpha / 2)) * math.sqrt(variance))
    if c < 1:
        return -math.inf, math.inf
    return float(walsh[c - 1]), float(walsh[walsh.size - c])
