"""Comparing levels of a factor on replicates: ratios, intervals, effect sizes, in plain words.

A replicate is one block's summary of one cell (say, the median RTT of its packets). Packets within
a replicate are not independent and are never the unit of inference (DESIGN principle 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

EQUIVALENCE_MARGIN = 0.05
"""Two levels whose ratio surely lies within 1 ± this are practically the same."""

Outcome = Literal["lower", "higher", "practically the same", "not known"]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval, in the unit of the data; open where n < 2."""

    estimate: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """Level `a` against level `b`, paired by block."""

    ratio: Interval
    """Of a to b: below 1 means that `a` is lower."""
    rank_biserial: float
    """Matched-pairs rank-biserial correlation (Kerby 2014): −1 a is lower in every block, +1 it is
    higher in every block."""
    outcome: Outcome


def geometric_mean(values: Sequence[float]) -> Interval:
    """Geometric mean of positive replicates, with Student's t interval on their logarithms.

    Times and rates are skewed and compared as ratios, hence the logarithm. ValueError when a value
    is not positive and finite, or when there is none.
    """
    logs = [_log(value) for value in values]
    centre, half = _mean_and_half_width(logs)
    return Interval(math.exp(centre), _exp(centre - half), _exp(centre + half), len(logs))


def compare(
    a: Sequence[float], b: Sequence[float], margin: float = EQUIVALENCE_MARGIN
) -> Comparison:
    """Compares replicates of two levels; a[i] and b[i] come from the same block.

    The outcome follows from the 95 % interval of the ratio and the equivalence margin alone:
    entirely within the margin is *practically the same*; entirely beyond 1 is *lower* or *higher*;
    all else is *not known*. (An interval within the margin is the two one-sided tests procedure at
    2.5 % each, Schuirmann 1987.)
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} replicates cannot be paired")
    shifts = [_log(x) - _log(y) for x, y in zip(a, b, strict=True)]
    centre, half = _mean_and_half_width(shifts)
    low, high = centre - half, centre + half
    outcome: Outcome
    if -math.log1p(margin) <= low and high <= math.log1p(margin):
        outcome = "practically the same"
    elif high < 0:
        outcome = "lower"
    elif low > 0:
        outcome = "higher"
    else:
        outcome = "not known"
    ratio = Interval(math.exp(centre), _exp(low), _exp(high), len(shifts))
    return Comparison(ratio, _rank_biserial(shifts), outcome)


def _rank_biserial(shifts: Sequence[float]) -> float:
    """(favourable − unfavourable rank sum) / total rank sum, zero shifts left out."""
    moved = [shift for shift in shifts if shift != 0]
    if not moved:
        return 0.0
    ranks = stats.rankdata([abs(shift) for shift in moved])
    signed = sum(math.copysign(rank, shift) for rank, shift in zip(ranks, moved, strict=True))
    return float(signed / ranks.sum())


def _mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        raise ValueError("no replicates")
    n = len(values)
    centre = math.fsum(values) / n
    if n < 2:
        return centre, math.inf
    variance = math.fsum((value - centre) ** 2 for value in values) / (n - 1)
    return centre, float(stats.t.ppf(0.975, n - 1)) * math.sqrt(variance / n)


def _log(value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{value!r} is not a positive number")
    return math.log(value)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
