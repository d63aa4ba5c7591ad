"""Tests and intervals of block differences that hold whatever their distribution is, and however
often one looks. Knows no metric and no run.

A *shift* is the difference between two levels within one block. The order within each block was
drawn at random, so if the levels do not differ, exchanging them leaves the distribution alone: the
sign of each shift is a fair coin, whatever its size. Betting against that coin makes a test
martingale. Its value is evidence (1 at the start, 20 with a chance of at most 1/20, at whatever
block one stops: Ville 1939), and the shifts that it does not refute make an interval.

Sources: Ramdas, Grünwald, Vovk and Shafer 2023, doi 10.1214/23-STS894 (e-processes, section 4.2:
symmetric variables); Vovk and Wang 2021, doi 10.1214/20-AOS2020 (averages of e-values, closed
testing); Hollander, Wolfe and Chicken, 3rd edition, section 3.2 (Hodges-Lehmann); Kerby 2014, doi
10.2466/11.IT.3.1 (rank-biserial).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, gammaincinv

from planewise.judge.bounded import Bound, Bounded, bound_of

Floats = NDArray[np.float64]

BETS = np.array([0.6, 1.6, 4.0, 12.0])
"""Bets, in multiples of the typical size of the shifts: from small effects over many blocks to
large ones over few. The capital is split evenly, which costs at most a factor of four."""
MOST_LOG = 300.0
"""Logarithm of a capital beyond which more makes no difference."""
MOST_WALSH = 3000
"""Shifts from whose averages of two an estimate is made; of more, quantiles stand for them."""
_GRID = 33
_REFINEMENTS = 4


def mid_ranks(values: ArrayLike) -> Floats:
    """Ranks from 1, ties sharing the mean of theirs; shape (n,) as `values`.

    `scipy.stats` has it, too, and takes half a second to import.
    """
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place])


def capital(shifts: Floats) -> Floats:
    """Evidence that shifts are above 0 after each block, shape as `shifts`: (n,) or (n, …).

    Before a sign is seen, tanh(bet · |shift| / typical size so far, at most 1) of the capital is
    staked on plus: a stall that is a hundred times the usual cannot take more than a block of
    usual size. The typical size is a power mean with exponent 1/4. It is a supermartingale from 1
    if the shifts are symmetric about 0, or below. A shift of minus infinity (nothing is known
    downwards) loses everything.
    """
    finite = np.isfinite(shifts)
    size = np.where(finite, np.abs(shifts), 0.0)
    blocks = np.arange(1, len(shifts) + 1).reshape((-1,) + (1,) * (shifts.ndim - 1))
    typical = (np.cumsum(size**0.25, axis=0) / blocks) ** 4
    relative = np.minimum(np.divide(size, typical, out=np.zeros_like(size), where=typical > 0), 1)
    stake = np.tanh(BETS.reshape((-1,) + (1,) * shifts.ndim) * np.where(finite, relative, np.inf))
    with np.errstate(divide="ignore"):  # all is lost at a stake of 1
        grown = np.cumsum(np.log1p(np.sign(shifts) * stake), axis=1)
    return np.asarray(np.exp(np.minimum(grown, MOST_LOG)).mean(axis=0))


@dataclass(frozen=True)
class Shifts:
    """The shifts of one comparison in the order of their blocks, shape (n,)."""

    low: Floats
    high: Floats
    """The same as `low` where values are exact."""
    centre: Floats

    @classmethod
    def of(cls, shifts: Sequence[Bounded]) -> Shifts:
        """ValueError for none."""
        if not shifts:
            raise ValueError("no shifts")
        ends = np.array(
            [(shift.low, shift.high, shift.value) for shift in shifts], dtype=np.float64
        )
        return cls(ends[:, 0], ends[:, 1], ends[:, 2])

    def of_difference(self) -> Floats:
        """Evidence after each block that the two levels differ, either way."""
        return (capital(self.low) + capital(-self.high)) / 2

    def of_equivalence(self, margin: float) -> Floats:
        """Evidence after each block that they differ by less than `margin`, either way."""
        return np.minimum(capital(self.low + margin), capital(margin - self.high))

    @property
    def rises(self) -> bool:
        """Whether there is more evidence for a difference above 0 than for one below."""
        return bool(capital(self.low).max() > capital(-self.high).max())

    @property
    def estimate(self) -> float:
        """Hodges-Lehmann: the median of all averages of two shifts."""
        return _hodges_lehmann(self.centre)

    @property
    def bound(self) -> Bound:
        """What the estimate is: a bound where that of the lower, or upper, ends is open."""
        if np.isfinite(self.low).all() and np.isfinite(self.high).all():
            return "exact"
        return bound_of(_hodges_lehmann(self.low), _hodges_lehmann(self.high))

    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """The shifts that were not refuted after any block, with two-sided error `alpha`.

        A confidence sequence: it holds at all looks together. Infinite where nothing is refuted.
        """
        low, high = _lower_end(self.low, 2 / alpha), -_lower_end(-self.high, 2 / alpha)
        estimate = self.estimate
        return min(low, estimate), max(high, estimate)


def _hodges_lehmann(values: Floats) -> float:
    if values.size > MOST_WALSH:
        levels = (np.arange(MOST_WALSH) + 0.5) / MOST_WALSH
        finite = bool(np.isfinite(values).all())
        values = np.quantile(values, levels, method="linear" if finite else "nearest")
    i, j = np.triu_indices(values.size)
    return float(np.median((values[i] + values[j]) / 2))


def _lower_end(shifts: Floats, enough: float) -> float:
    """The largest value up to which all are refuted from above; minus infinity for none."""
    if not np.isfinite(shifts).all():
        return -math.inf
    least, most = float(shifts.min()), float(shifts.max())
    span = most - least
    if span == 0:
        return least if capital(np.ones(shifts.size)).max() >= enough else -math.inf
    low, high = least - 20 * span, most
    for _ in range(_REFINEMENTS):
        grid = np.linspace(low, high, _GRID)
        open_ = np.flatnonzero(capital(shifts[:, None] - grid).max(axis=0) < enough)
        if open_.size == 0:
            return most
        if open_[0] == 0:
            return -math.inf
        low, high = float(grid[open_[0] - 1]), float(grid[open_[0]])
    return low


@lru_cache
def least_blocks(comparisons: int, alpha: float = 0.05) -> int:
    """Blocks with which the clearest difference passes among as many comparisons, all others
    being true ties: fewer can decide nothing."""
    blocks = 1
    while capital(np.ones(blocks))[-1] / 2 < (1 / alpha) * comparisons:
        blocks += 1
    return blocks


def family_evidence(evidence: Floats, weights: Floats) -> Floats:
    """Evidence of each comparison that holds for the whole family: shape (…, m).

    `evidence` has shape (…, m, T): of m comparisons after T blocks; `weights` (m,). Closed testing
    with weighted averages of e-values (Vovk and Wang 2021, section 5): comparison i is refuted at
    level 1/c if for every set of comparisons with i the weighted average is at least c, that is
    w_i (e_i − c) ≥ Σ w_j (c − e_j)⁺. The largest such c at any time is what counts; so the chance
    of any false claim in the family, at any time, is at most 1/c.
    """
    at_times = np.moveaxis(evidence, -1, -2)
    order = np.argsort(at_times, axis=-1)
    ordered, share = np.take_along_axis(at_times, order, axis=-1), weights[order]
    # Σ w_j (c − e_j)⁺ is, between two neighbours in order, c·total − mass.
    total, mass = np.cumsum(share, axis=-1), np.cumsum(share * ordered, axis=-1)
    result = np.empty_like(at_times)
    for weight in np.unique(weights):
        knots = (total + weight) * ordered - mass
        same_weight = weights == weight
        for at in np.ndindex(at_times.shape[:-1]):
            weighted = weight * at_times[at][same_weight]
            last = np.maximum(np.searchsorted(knots[at], weighted, side="right") - 1, 0)
            result[at][same_weight] = (weighted + mass[at][last]) / (total[at][last] + weight)
    return np.asarray(result.max(axis=-2))


def rank_biserial(shifts: ArrayLike) -> float:
    """(favourable − unfavourable rank sum) / total rank sum; zero shifts are left out."""
    values = np.asarray(shifts, dtype=np.float64)
    values = values[values != 0]
    if not values.size:
        return 0.0
    ranks = mid_ranks(np.abs(values))
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


def exp(value: float) -> float:
    """e to the `value`; infinite where that is beyond floating point."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
