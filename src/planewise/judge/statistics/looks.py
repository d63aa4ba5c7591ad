"""What sign flips show at the planned end of a run, and at each extension: the error spent on each.

Knows arrays of shifts, shape (blocks, comparisons); knows no level and no metric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planewise.judge.statistics import flips
from planewise.judge.statistics.flips import Floats

Mask = NDArray[np.bool_]

ALPHA = 0.05
"""False *better* or *worse*, and false *practically the same*, that are accepted in a family of
comparisons, over the planned end of a run and all its extensions."""


def least_blocks(look: int = 0, alpha: float = ALPHA) -> int:
    """Blocks with which a clear difference passes at the planned end, or the look-th extension."""
    return math.ceil(1 - math.log2(spent(look, alpha)))


def spent(look: int, alpha: float = ALPHA) -> float:
    """Error that the planned end spends, and the extensions after it: 4 %, 0.5 %, 0.25 %, …"""
    return alpha * (0.8 if look == 0 else 0.2 * 0.5**look)


@dataclass(frozen=True)
class Found:
    """What all looks show together; arrays have one entry a comparison."""

    p: Floats
    """Of no difference, over all looks: below 0 where a is less."""
    p_same: Floats
    low: Floats
    high: Floats


def over_looks(
    low: Floats,
    high: Floats,
    margins: Floats,
    strata: Sequence[str],
    looks: Sequence[Mask],
    *,
    seed: int = 0,
    alpha: float = ALPHA,
) -> Found:
    """The tests at the planned end and at each extension; what one of them showed stays.

    `low` and `high` are the ends of the shifts, shape (blocks, comparisons); a look is a choice of
    blocks.
    """
    size = len(margins)
    found = Found(np.ones(size), np.ones(size), np.full(size, -np.inf), np.full(size, np.inf))
    for look, blocks in enumerate(looks):
        share = spent(look, alpha)
        few = (~np.isnan(low[blocks])).sum(axis=0) < least_blocks(look, alpha)
        below = np.where(few & ~np.isnan(low[blocks]), -np.inf, low[blocks])
        above = np.where(few & ~np.isnan(high[blocks]), np.inf, high[blocks])
        p = flips.p_of_difference(below, above, strata, seed) * alpha / share
        same = flips.p_of_equivalence(below, above, margins, strata, seed) * alpha / share
        ends = flips.intervals(below, above, margins, share, seed)
        found = Found(
            np.where(np.abs(p) < np.abs(found.p), p, found.p),
            np.minimum(found.p_same, same),
            np.maximum(found.low, ends[0]),
            np.minimum(found.high, ends[1]),
        )
    return found
