"""Kendall's rank correlation of each level's indicator with a metric.

The publications draw it as bars: for each technology, tau-b between "this trial ran on it" (0 or
1) and the metric. With an indicator, tau-b is a rescaled area under the ROC curve, and the area
has a variance for values that come in clusters (Obuchowski 1997, doi 10.2307/2533958): here a
cluster is a block with one context, whose values share the state of the host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from planewise.store.models import Level

Floats = NDArray[np.floating]
Places = NDArray[np.intp]


@dataclass(frozen=True)
class TauB:
    """Kendall's tau-b with a 95 % interval."""

    tau: float
    low: float
    high: float
    n: int
    clusters: int


@dataclass(frozen=True)
class KendallBar:
    """One bar of the publications' figure: one level, one stratum."""

    level: Level
    stratum: str
    correlation: TauB | None
    """Positive: the metric is greater with this level than with the others. None: too few values,
    or there is no other level."""


def tau_b(indicator: ArrayLike, values: ArrayLike, clusters: ArrayLike) -> TauB | None:
    """Tau-b between an indicator (0 or 1) and values, all of shape (n,), in numbered clusters.

    None where one of the two groups is empty, or all values are equal.
    """
    chosen = np.asarray(indicator, dtype=np.bool_)
    y = np.asarray(values, dtype=np.float64)
    _, codes = np.unique(np.asarray(clusters), return_inverse=True)
    inside, outside = y[chosen], y[~chosen]
    m, n, size = inside.size, outside.size, int(codes.max(initial=-1)) + 1
    if not m or not n or y.min() == y.max():
        return None
    area, scale = area_and_scale(np.sort(inside), np.sort(outside))
    low, high = -1.0, 1.0
    if size > 1:
        # Share of the other group that each value exceeds, ties counted half, against the mean.
        place_in = np.add(*placed(inside, np.sort(outside))) / (2 * n) - area
        place_out = 1 - np.add(*placed(outside, np.sort(inside))) / (2 * m) - area
        sum_in = np.bincount(codes[chosen], weights=place_in, minlength=size)
        sum_out = np.bincount(codes[~chosen], weights=place_out, minlength=size)
        squares = float(((sum_in / m + sum_out / n) ** 2).sum())
        low, high = _interval(2 * area - 1, 2 * math.sqrt(size / (size - 1) * squares), size, m * n)
    return TauB((2 * area - 1) * scale, low * scale, high * scale, y.size, size)


def placed(values: Floats, others: Floats) -> tuple[Places, Places]:
    """How many of the sorted `others` are below each value, and how many are not above it."""
    below = np.searchsorted(others, values, side="left")
    return below, np.searchsorted(others, values, side="right")


def area_and_scale(x: Floats, y: Floats) -> tuple[float, float]:
    """Area under the ROC curve of two sorted groups, and tau-b over 2·area − 1; 0 where all values
    are tied."""
    below, upto = placed(x, y)
    area = (float(below.sum()) + float(upto.sum())) / (2 * float(x.size) * y.size)
    size = float(x.size + y.size)
    ties = sum(float((count * (count - 1)).sum()) for count in map(tie_counts, (x, y)))
    untied = (size * (size - 1) - ties) / 2 - int((upto - below).sum())
    return area, math.sqrt(float(x.size) * y.size / untied) if untied else 0.0


def tie_counts(ordered: Floats) -> NDArray[np.float64]:
    """How often each of the sorted values occurs."""
    ends = np.flatnonzero(np.diff(ordered)) + 1
    return np.diff(np.concatenate([[0], ends, [ordered.size]])).astype(np.float64)


def _interval(difference: float, error: float, clusters: int, pairs: int) -> tuple[float, float]:
    """95 % interval on the scale of atanh, where it stays between −1 and 1."""
    inner = max(-1 + 1 / pairs, min(1 - 1 / pairs, difference))
    half = float(stdtrit(clusters - 1, 0.975)) * error / (1 - inner**2)
    low, high = math.tanh(math.atanh(inner) - half), math.tanh(math.atanh(inner) + half)
    return min(low, difference), max(high, difference)
