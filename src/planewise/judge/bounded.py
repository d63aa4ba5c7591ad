"""A measured value and where the truth may lie: exact, at least, at most.

The type in which values cross from the metrics to comparisons, recommendations and advice, so that
a bound cannot become an exact value on the way. A mean of bounds is a bound; the median of values
of which fewer than half are bounds may be exact (order statistics of the lower and of the upper
ends, as for interval-censored data: Peto 1973).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

Bound = Literal["exact", "at least", "at most", "unbounded"]


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
