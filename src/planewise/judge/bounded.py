"""A measured value and where the truth may lie: exact, at least, at most.

The type in which values cross from the metrics to comparisons, recommendations and advice, so that
a bound cannot become an exact value on the way. A mean of bounds is a bound; the median of values
of which fewer than half are bounds may be exact (order statistics of the lower and of the upper
ends, as for interval-censored data: Peto 1973).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, gammaincinv

Bound = Literal["exact", "at least", "at most", "unbounded"]
CLUMP = 8.0
"""Packets that are taken to be lost together where too few were lost to tell: the overflow of a
queue drops several in a row."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A value that is known to lie from `low` to `high`, in the unit of its metric."""

    value: float
    """What is shown: the reading, or the finite end of a bound."""
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} is not within {self.low} to {self.high}")

    @property
    def bound(self) -> Bound:
        """Which ends are open."""
        return bound_of(self.low, self.high)


def bound_of(low: float, high: float) -> Bound:
    """The kind of bound that an interval with such ends is."""
    open_low, open_high = math.isinf(low), math.isinf(high)
    if open_low and open_high:
        return "unbounded"
    return "at most" if open_low else "at least" if open_high else "exact"


def opposite(bound: Bound) -> Bound:
    """The bound of the value with the other sign."""
    return "at most" if bound == "at least" else "at least" if bound == "at most" else bound


def exact(value: float) -> Bounded:
    """The value itself."""
    return Bounded(value, value, value)


def at_least(value: float) -> Bounded:
    """This or more."""
    return Bounded(value, value, math.inf)


def mapped(value: Bounded, function: Callable[[float], float]) -> Bounded:
    """A rising `function` of the value; open ends stay open."""
    return Bounded(
        function(value.value),
        function(value.low) if math.isfinite(value.low) else value.low,
        function(value.high) if math.isfinite(value.high) else value.high,
    )


def mean_of(values: Sequence[Bounded]) -> Bounded:
    """The arithmetic mean: a bound as soon as one value is a bound."""
    return _bounded(fmean(v.value for v in values), *_ends(values, fmean))


def median_of(values: Sequence[Bounded]) -> Bounded:
    """The median: exact where fewer than half of the values are bounds on either side."""
    return _bounded(median(v.value for v in values), *_ends(values, _median))


def minus(a: Bounded, b: Bounded) -> Bounded:
    """The difference: from the least of a less the most of b, to the opposite."""
    return Bounded(a.value - b.value, a.low - b.high, a.high - b.low)


def _ends(
    values: Sequence[Bounded], centre: Callable[[Sequence[float]], float]
) -> tuple[float, float]:
    lows, highs = [v.low for v in values], [v.high for v in values]
    return centre(lows), centre(highs)


def _median(ends: Sequence[float]) -> float:
    ordered = sorted(ends)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (
        low + (high - low) / 2 if math.isfinite(low) and math.isfinite(high) else _open(low, high)
    )


def _open(low: float, high: float) -> float:
    """Between an open end and a finite one, or two of a kind: the open one."""
    return low if math.isinf(low) else high


def _bounded(value: float, low: float, high: float) -> Bounded:
    """A bound is shown by its finite end."""
    if math.isinf(high) and math.isfinite(low):
        return Bounded(low, low, high)
    if math.isinf(low) and math.isfinite(high):
        return Bounded(high, low, high)
    return Bounded(min(max(value, low), high), low, high)


# --- intervals and effect sizes -----------------------------------------------------------------


def rank_biserial(shifts: ArrayLike) -> float:
    """(favourable − unfavourable rank sum) / total rank sum; zero shifts are left out.

    Kerby 2014, doi 10.2466/11.IT.3.1.
    """
    values = np.asarray(shifts, dtype=np.float64)
    values = values[values != 0]
    if not values.size:
        return 0.0
    _, place, ties = np.unique(np.abs(values), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    return float((np.sign(values) * ranks).sum() / ranks.sum())


def median_interval(values: Sequence[Bounded], alpha: float = 0.05) -> tuple[float, float]:
    """Order statistics that hold the median of independent blocks; infinite with fewer than six.

    David and Nagaraja, Order Statistics, section 7.1: no distribution is assumed.
    """
    n = len(values)
    out = 0
    while out < n // 2 and bdtr(out, n, 0.5) <= alpha / 2:
        out += 1
    if out == 0:
        return -math.inf, math.inf
    lows, highs = sorted(v.low for v in values), sorted(v.high for v in values)
    return lows[out - 1], highs[n - out]


def count_interval(
    lost: int, sent: int, dispersion: float, alpha: float = 0.05
) -> tuple[float, float]:
    """Interval of a loss ratio from counts that come in clumps (quasi-Poisson).

    Garwood 1936 on lost/dispersion events; `dispersion` is the variance over the mean of counts
    (McCullagh and Nelder, section 6.2), that is, about the packets in a clump.
    """
    events = lost / dispersion
    low = gammaincinv(events, alpha / 2) if events else 0.0
    high = gammaincinv(events + 1, 1 - alpha / 2)
    return float(low * dispersion / sent), min(1.0, float(high * dispersion / sent))


def dispersion(groups: Iterable[Sequence[tuple[int, int]]]) -> float:
    """Variance over mean of the lost packets of like trials, given as (lost, sent) by cell.

    Pearson's statistic by its degrees of freedom (McCullagh and Nelder, section 6.2), `CLUMP`
    counting for as much as six trials.
    """
    pearson, degrees = 6 * CLUMP, 6.0
    for counts in groups:
        share = sum(lost for lost, _ in counts) / sum(sent for _, sent in counts)
        if share > 0 and len(counts) > 1:
            pearson += sum((lost - share * sent) ** 2 / (share * sent) for lost, sent in counts)
            degrees += len(counts) - 1
    return max(1.0, pearson / degrees)
