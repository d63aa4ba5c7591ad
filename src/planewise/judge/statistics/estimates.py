"""Order statistics, intervals of counts and effect sizes of single comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, gammaincinv

from planewise.judge.bounded import Bounded

CLUMP = 8.0
"""Packets that are taken to be lost together where too few were lost to tell: the overflow of a
queue drops several in a row."""


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
