"""The bounds that a search claims, by counting trials that pass and fail.

A goal's load θ is where half of all trials of the final duration pass. The chance that a trial
passes may fall with the load in any way; nothing else is assumed. Before a trial the search says
which side it serves. Load x is a lower bound once, for it and every lower load, the lower side's
trials at loads of at least x have passes ≥ lead + 3 · fails.

Were θ below x, each of these trials would pass with a chance of at most 1/2, whatever was measured
before. "+1 for a pass, −3 for a fail" is then at most a fair walk, which ever reaches +lead with a
chance of r^lead, r = 0.5437 being the root of r = (1 + r⁴)/2 (gambler's ruin; Ville 1939). So
loads and the end of the search may be chosen by any look at the data. Upper bounds mirror this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Side = Literal[-1, 0, 1]
"""1: the trial serves the lower bound; -1: the upper bound; 0: it only helps to place others."""

PRICE = 3
"""Trials that must come out right for each that came out wrong."""
_RUIN = 0.5436890126920764


def lead_for(confidence: float) -> int:
    """The lead that comes nearest to a confidence of both bounds together: 6 for 95 %."""
    return max(1, round(math.log((1 - confidence) / 2) / math.log(_RUIN)))


def confidence_of(lead: int) -> float:
    """The confidence of both bounds together."""
    return 1 - 2 * _RUIN**lead


@dataclass(frozen=True)
class Outcome:
    """A trial as one goal sees it."""

    at: float
    """ln(load as sent / reference)."""
    passed: bool
    side: Side
    meant: float = -math.inf
    """ln(load that was asked for / reference)."""

    @property
    def right(self) -> bool:
        """Whether it came out as its side needs."""
        return self.passed == (self.side > 0)


def lacking(outcomes: Sequence[Outcome], at: ArrayLike, side: Side, lead: int) -> Floats:
    """How many more trials must come out right until each load `at` is a bound of `side`.

    Shape of `at`; 0 or less: it is a bound.
    """
    wanted = np.asarray(at, dtype=np.float64)
    mine = [outcome for outcome in outcomes if outcome.side == side]
    if not mine:
        return np.full(wanted.shape, float(lead))
    places = np.array([outcome.at for outcome in mine])
    steps = np.array([1 if outcome.right else -PRICE for outcome in mine])
    points = np.unique(np.concatenate([places, wanted.ravel()]))
    walk = ((side * (places - points[:, None]) >= -1e-12) * steps).sum(axis=1)
    # The walk must stand at every load further from the edge, too.
    least = np.minimum.accumulate(walk) if side > 0 else np.minimum.accumulate(walk[::-1])[::-1]
    return np.asarray(lead - least[np.searchsorted(points, wanted)].astype(np.float64))


def bound(outcomes: Sequence[Outcome], side: Side, lead: int) -> float | None:
    """The nearest bound of a side; None while there is none."""
    places = np.unique([outcome.at for outcome in outcomes if outcome.side == side])
    proven = places[lacking(outcomes, places, side, lead) <= 0] if places.size else places
    if not proven.size:
        return None
    return float(proven.max() if side > 0 else proven.min())
