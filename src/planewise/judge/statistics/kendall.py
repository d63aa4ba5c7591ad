"""Kendall's rank correlation of each level's indicator with a metric. Knows no file.

The publications draw it as bars: for each technology, tau-b between "this trial ran on it" (0 or
1) and the metric. With an indicator, tau-b is a rescaled area under the ROC curve, and the area
has a variance for values that come in clusters (Obuchowski 1997, doi 10.2307/2533958): here a
cluster is a block with one context, whose values share the state of the host.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from planewise.judge.statistics.paired import mid_ranks
from planewise.store.models import Level

Floats = NDArray[np.float64]


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


def tau_b(indicator: ArrayLike, values: ArrayLike, clusters: Sequence[Hashable]) -> TauB | None:
    """Tau-b between an indicator (0 or 1) and values, all of shape (n,).

    None where one of the two groups is empty, or all values are equal.
    """
    chosen = np.asarray(indicator, dtype=np.bool_)
    y = np.asarray(values, dtype=np.float64)
    inside, outside = y[chosen], y[~chosen]
    m, n = inside.size, outside.size
    untied = _untied_pairs(y)
    if not m or not n or not untied:
        return None
    ranks = mid_ranks(y)
    # Share of the other group that each value exceeds, ties counted half.
    place_in = (ranks[chosen] - mid_ranks(inside)) / n
    place_out = 1 - (ranks[~chosen] - mid_ranks(outside)) / m
    area = float(place_in.mean())
    scale = math.sqrt(m * n / untied)
    names = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    codes = np.array([names[name] for name in clusters])
    error = 2 * _standard_error(place_in - area, place_out - area, codes, chosen, len(names))
    difference = 2 * area - 1
    low, high = _interval(difference, error, len(names), m * n)
    return TauB(difference * scale, low * scale, high * scale, y.size, len(names))


def _untied_pairs(values: Floats) -> float:
    _, counts = np.unique(values, return_counts=True)
    n = values.size
    return float(n * (n - 1) - (counts * (counts - 1)).sum()) / 2


def _standard_error(
    inside: Floats, outside: Floats, codes: NDArray[np.int64], chosen: NDArray[np.bool_], size: int
) -> float:
    """Standard error of the area, for clustered values; infinite with a single cluster."""
    if size < 2:
        return math.inf
    m, n = inside.size, outside.size
    sum_in = np.bincount(codes[chosen], weights=inside, minlength=size)
    sum_out = np.bincount(codes[~chosen], weights=outside, minlength=size)
    return math.sqrt(size / (size - 1) * float(((sum_in / m + sum_out / n) ** 2).sum()))


def _interval(difference: float, error: float, clusters: int, pairs: int) -> tuple[float, float]:
    """95 % interval on the scale of atanh, where it stays between −1 and 1."""
    if math.isinf(error):
        return -1.0, 1.0
    inner = max(-1 + 1 / pairs, min(1 - 1 / pairs, difference))
    half = float(stdtrit(clusters - 1, 0.975)) * error / (1 - inner**2)
    low, high = math.tanh(math.atanh(inner) - half), math.tanh(math.atanh(inner) + half)
    return min(low, difference), max(high, difference)
