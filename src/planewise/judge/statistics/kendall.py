"""Kendall's rank correlation of each level's indicator with a metric.

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
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from planewise.store.models import Level


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
    from scipy.stats import kendalltau, rankdata  # half a second to import

    chosen = np.asarray(indicator, dtype=np.bool_)
    y = np.asarray(values, dtype=np.float64)
    inside, outside = y[chosen], y[~chosen]
    m, n = inside.size, outside.size
    if not m or not n or y.min() == y.max():
        return None
    tau = float(kendalltau(chosen, y).statistic)
    ranks = rankdata(y)
    # Share of the other group that each value exceeds, ties counted half.
    place_in = (ranks[chosen] - rankdata(inside)) / n
    place_out = 1 - (ranks[~chosen] - rankdata(outside)) / m
    area = float(place_in.mean())
    names = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    codes = np.array([names[name] for name in clusters])
    size = len(names)
    _, counts = np.unique(y, return_counts=True)
    untied = float(y.size * (y.size - 1) - (counts * (counts - 1)).sum()) / 2
    low, high = -1.0, 1.0
    if size > 1:
        sum_in = np.bincount(codes[chosen], weights=place_in - area, minlength=size)
        sum_out = np.bincount(codes[~chosen], weights=place_out - area, minlength=size)
        squares = float(((sum_in / m + sum_out / n) ** 2).sum())
        low, high = _interval(2 * area - 1, 2 * math.sqrt(size / (size - 1) * squares), size, m * n)
    scale = math.sqrt(m * n / untied)
    return TauB(tau, low * scale, high * scale, y.size, size)


def _interval(difference: float, error: float, clusters: int, pairs: int) -> tuple[float, float]:
    """95 % interval on the scale of atanh, where it stays between −1 and 1."""
    inner = max(-1 + 1 / pairs, min(1 - 1 / pairs, difference))
    half = float(stdtrit(clusters - 1, 0.975)) * error / (1 - inner**2)
    low, high = math.tanh(math.atanh(inner) - half), math.tanh(math.atanh(inner) + half)
    return min(low, difference), max(high, difference)
