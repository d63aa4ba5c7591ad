"""Tests and intervals from the signs of whole blocks, for all comparisons of a metric together.

A *shift* is the difference between two levels within one block. The order within a block is drawn
at random and its testbeds are built anew, so levels that do not differ are exchangeable: exchanging
them in a block turns the signs of all its shifts. One coin a block serves all comparisons, so that
p can reach 2/2^blocks however many comparisons there are. Arrays of shifts have shape (blocks,
comparisons), NaN where a block lacks a comparison.

Sources: Romano and Wolf 2005, doi 10.1198/016214504000000539, and Westfall and Young 1993
(step-down max-T); Hemerik and Goeman 2018, doi 10.1007/s11749-017-0571-1, and Phipson and Smyth
2010 (exact p of random flips); Hartigan 1969 (intervals from sign flips).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

ALPHA = 0.05
"""False *better* or *worse*, and false *practically the same*, that are accepted in a family of
comparisons, over the planned end of a run and all its extensions."""
MOST_FLIPS = 2048
"""Sign vectors, mirror images counted once: all of them up to 12 blocks, else a random choice."""
PRIOR_BLOCKS = 12.0
"""Weight of the stratum's typical noise in a comparison's noise."""
CLIP = 3.0
"""A shift counts as at most so many times the median size, so that a stall hides nothing else."""
_GRID = 16
_BISECTIONS = 12
_MOST_WALSH = 300
_LAG_ORDERS = 999


def sign_vectors(blocks: int, seed: int = 0) -> Floats:
    """Signs, shape (vectors, blocks), the observed ones first; mirror images are left out."""
    if blocks == 0 or 2 ** (blocks - 1) <= MOST_FLIPS:
        rest = np.array(list(product((1.0, -1.0), repeat=max(blocks - 1, 0))))
        return np.concatenate([np.ones((len(rest), min(blocks, 1))), rest], axis=1)
    signs = np.random.default_rng(seed).choice(np.array([1.0, -1.0]), (MOST_FLIPS, blocks))
    signs[0] = 1.0
    return np.asarray(signs)


def clipped(shifts: Floats) -> Floats:
    """Shifts of at most `CLIP` times the median size of each comparison; 0 where there is none."""
    size = np.sort(np.where(np.isfinite(shifts) & (shifts != 0), np.abs(shifts), np.inf), axis=0)
    count = np.isfinite(size).sum(axis=0)
    middle = np.stack([np.maximum(count - 1, 0) // 2, count // 2])
    medians = np.take_along_axis(size, middle, axis=0).mean(axis=0)
    limit = np.where(count > 0, CLIP * medians, 0.0)
    return np.clip(np.where(np.isfinite(shifts), shifts, 0.0), -limit, limit)


def scores(shifts: Floats, strata: Sequence[str]) -> Floats:
    """Clipped shifts over their noise, comparable among comparisons.

    The noise is the variation of the sizes |shift|, which an effect leaves alone; with so few
    blocks it borrows from the other comparisons of the stratum. It depends on sizes only, so every
    flip is as likely as the observed signs.
    """
    there = np.isfinite(shifts)
    blocks = there.sum(axis=0)
    values = clipped(shifts)
    mean = np.abs(values).sum(axis=0) / np.maximum(blocks, 1)
    square = (values**2).sum(axis=0) / np.maximum(blocks, 1)
    variance = np.maximum(square - mean**2, 0.0)
    names = np.asarray(strata)
    pooled = np.empty_like(variance)
    for name in set(strata):
        pooled[names == name] = np.median(variance[names == name])
    own = np.maximum(blocks - 1, 0)
    noise = np.sqrt((own * variance + PRIOR_BLOCKS * pooled) / (own + PRIOR_BLOCKS))
    scale = np.maximum(noise, 1e-3 * np.sqrt(square)) * np.sqrt(np.maximum(blocks, 1))
    return np.asarray(np.divide(values, scale, out=np.zeros_like(values), where=scale > 0))


def _flipped(shifts: Floats, strata: Sequence[str], seed: int) -> Floats:
    """Sums of the scores under all flips and their mirror images, the observed one first.

    Shape (flips, comparisons). A comparison with a shift that is open downwards shows nothing.
    """
    half = sign_vectors(len(shifts), seed) @ scores(shifts, strata)
    sums = np.concatenate([half, -half])
    sums[:, np.isneginf(shifts).any(axis=0)] = -np.inf
    return sums


def _step_down(sums: Floats) -> Floats:
    """Family-wise p of each column's observed sum, the first row, by step-down max-T."""
    order = np.argsort(-sums[0], kind="stable")
    greatest = np.maximum.accumulate(sums[:, order[::-1]], axis=1)[:, ::-1]
    p = np.empty(len(order))
    p[order] = np.maximum.accumulate((greatest >= _reach(sums[0, order])).mean(axis=0))
    return p


def _reach(observed: Floats) -> Floats:
    """The observed sums, less what rounding may take from an equal one."""
    return observed - 1e-9 * (1 + np.abs(observed))


def p_of_difference(low: Floats, high: Floats, strata: Sequence[str], seed: int = 0) -> Floats:
    """Two-sided family-wise p that each comparison's shifts are 0; below 0 where they fall.

    `low` and `high` are the ends of the shifts, alike where values are exact: that a level is
    greater rests on the lower ends, that it is less on the upper ones.
    """
    if np.array_equal(low, high, equal_nan=True) and not np.isinf(low).any():
        sums = sign_vectors(len(low), seed) @ scores(low, strata)
        return np.asarray(np.where(sums[0] >= 0, 1.0, -1.0) * _step_down(np.abs(sums)))
    up, down = _flipped(low, strata, seed), _flipped(-high, strata, seed)
    rises = up[0] >= down[0]
    alone = np.where(rises, _share_above(up), _share_above(down))
    p = np.maximum(_step_down(np.maximum(up, down)), np.minimum(2 * alone, 1.0))
    return np.asarray(np.where(rises, p, -p))


def _share_above(sums: Floats) -> Floats:
    return np.asarray((sums >= _reach(sums[0])).mean(axis=0))


def p_of_equivalence(
    low: Floats, high: Floats, margins: Floats, strata: Sequence[str], seed: int = 0
) -> Floats:
    """Family-wise p that a shift is as far from 0 as its margin: both one-sided tests of every
    comparison in one step-down (Schuirmann 1987), doubled as the interval has two ends."""
    sides = np.concatenate([low + margins, margins - high], axis=1)
    names = [f"{name} {side}" for side in ("above", "below") for name in strata]
    p = _step_down(_flipped(sides, names, seed))
    return np.asarray(np.minimum(2 * np.maximum(p[: len(margins)], p[len(margins) :]), 1.0))


def centres(shifts: Floats) -> Floats:
    """Hodges-Lehmann estimates: the median of all averages of two shifts (Hollander and Wolfe,
    section 3.2). Of very many blocks, quantiles stand for them."""
    columns = [column[~np.isnan(column)] for column in shifts.T]
    if len(shifts) > _MOST_WALSH:
        levels = (np.arange(_MOST_WALSH) + 0.5) / _MOST_WALSH
        columns = [np.quantile(column, levels, method="nearest") for column in columns]
    return np.array([_centre(column) for column in columns])


def _centre(values: Floats) -> float:
    i, j = np.triu_indices(len(values))
    averages = (values[i] + values[j]) / 2
    # An even number's middle two may be open both ways, or one of them.
    low, high = np.partition(averages, middle := [(len(i) - 1) // 2, len(i) // 2])[middle]
    return float(
        low if low == high or np.isinf(low) else high if np.isinf(high) else (low + high) / 2
    )


def intervals(
    low: Floats, high: Floats, margins: Floats, alpha: float, seed: int = 0
) -> tuple[Floats, Floats]:
    """The shifts that each comparison's own flips do not refute at the two-sided level `alpha`.

    Every family-wise claim refutes 0, or the margin, for the comparison alone as well, so that no
    interval contradicts a claim.
    """
    signs = sign_vectors(len(low), seed)
    return (
        _lower_ends(low, margins, alpha / 2, signs),
        -_lower_ends(-high, margins, alpha / 2, signs),
    )


def _lower_ends(shifts: Floats, margins: Floats, alpha: float, signs: Floats) -> Floats:
    """Walks down from each estimate to the first value that is refuted; infinite for none."""
    there = np.isfinite(shifts)
    is_open = np.isneginf(shifts).any(axis=0) | (2.0 ** -there.sum(axis=0) > alpha)
    result = np.full(shifts.shape[1], -np.inf)
    if is_open.all():
        return result
    values, margins = shifts[:, ~is_open], margins[~is_open]
    kept = centres(values)
    least = np.nanmin(values, axis=0)

    def refuted(at: Floats) -> NDArray[np.bool_]:
        y = clipped(values - at)
        half = signs @ y
        reach = half[0] - 1e-9 * np.abs(y).sum(axis=0)
        return np.asarray(((half >= reach).mean(0) + (-half >= reach).mean(0)) / 2 <= alpha)

    # Below the least shift all agree, which refutes; 0 and the margins are what claims are about.
    span = kept - least
    grid = [kept - span * step / _GRID for step in range(1, _GRID)]
    grid += [np.clip(mark, least, kept) for mark in (np.zeros_like(kept), margins, -margins)]
    first = least - np.maximum(1e-9 * np.abs(least), 1e-12)
    walking = np.ones(len(kept), dtype=np.bool_)
    for at in -np.sort(-np.stack(grid), axis=0):
        no = refuted(at) & walking & (at < kept)
        first = np.where(no, at, first)
        walking &= ~no
        kept = np.where(walking, at, kept)
    for _ in range(_BISECTIONS):
        middle = (kept + first) / 2
        no = refuted(middle)
        first, kept = np.where(no, middle, first), np.where(no, kept, middle)
    result[~is_open] = kept
    return result


def lag_correlation(shifts: Floats, seed: int = 0) -> tuple[float, float]:
    """Correlation of the shifts of neighbouring blocks, over all comparisons, and its one-sided p.

    The p is the share of random orders of the blocks with as high a correlation.
    """
    blocks = len(shifts)
    if blocks < 4:
        return 0.0, 1.0
    values = clipped(shifts - np.nanmedian(shifts, axis=0))
    values -= values.mean(axis=0)
    size = np.sqrt((values**2).sum(axis=0))
    values = values[:, size > 0] / size[size > 0]
    if not values.size:
        return 0.0, 1.0
    alike = values @ values.T / values.shape[1]
    rng = np.random.default_rng(seed)
    orders = np.tile(np.arange(blocks), (1 + _LAG_ORDERS, 1))
    orders[1:] = rng.permuted(orders[1:], axis=1)
    found = alike[orders[:, :-1], orders[:, 1:]].sum(axis=1)
    return float(found[0]), float((found >= found[0] - 1e-12).mean())


# --- looks --------------------------------------------------------------------------------------


def least_blocks(look: int = 0, alpha: float = ALPHA) -> int:
    """Blocks with which a clear difference passes at the planned end, or the look-th extension."""
    return math.ceil(1 - math.log2(spent(look, alpha)))


def spent(look: int, alpha: float = ALPHA) -> float:
    """Error that the planned end spends, and the extensions after it: 4 %, 0.5 %, 0.25 %, …"""
    return alpha * (0.8 if look == 0 else 0.2 * 0.5**look)


def over_looks(
    ends: tuple[Floats, Floats],
    margins: Floats,
    strata: Sequence[str],
    looks: Sequence[Mask],
    *,
    seed: int = 0,
    alpha: float = ALPHA,
) -> Floats:
    """The tests at the planned end and at each extension; what one of them showed stays.

    `ends` are the lower and upper ends of the shifts, shape (blocks, comparisons); a look is a
    choice of blocks. Returns, a row each: p of no difference over all looks, below 0 where a is
    less; p of none that matters; and the ends of the interval.
    """
    size = len(margins)
    found = np.array([np.ones(size), np.ones(size), np.full(size, -np.inf), np.full(size, np.inf)])
    for look, blocks in enumerate(looks):
        share = spent(look, alpha)
        low, high = (end[blocks] for end in ends)
        few = ~np.isnan(low) & ((~np.isnan(low)).sum(axis=0) < least_blocks(look, alpha))
        low, high = np.where(few, -np.inf, low), np.where(few, np.inf, high)
        p = p_of_difference(low, high, strata, seed) * alpha / share
        same = p_of_equivalence(low, high, margins, strata, seed) * alpha / share
        below, above = intervals(low, high, margins, share, seed)
        found = np.array(
            [
                np.where(np.abs(p) < np.abs(found[0]), p, found[0]),
                np.minimum(found[1], same),
                np.maximum(found[2], below),
                np.minimum(found[3], above),
            ]
        )
    return found
