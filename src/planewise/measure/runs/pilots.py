"""Where PDR lies, roughly, from a few short trials: for the place of a ladder, never for a result.

Knows a function that offers a load; knows no testbed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planewise.judge.statistics.values import PLR

MOST_PILOTS = 5
"""Trials of a search."""
_BELOW = 0.97
"""Of what a lossy trial forwarded: if throughput is flat, nothing is lost there."""
_ABOVE = 1.15
"""Of the highest load without loss, while none with loss is known."""
_CLOSE = 1.1
"""A load with loss and one without, no further apart than this, say where PDR is."""


@dataclass(frozen=True)
class PilotTrial:
    """The result of one pilot."""

    plr: float
    forwarded_pps: float


def find_pdr(
    measure: Callable[[float], PilotTrial | None], forwarded_pps: float, most_pps: float
) -> float:
    """PDR [pps], as far as MOST_PILOTS trials find it; infinite where `most_pps` loses nothing.

    `measure` offers a load; None: the generator did not send it, which says nothing of the plane.
    `forwarded_pps` is what came through in overload: PDR lies above it where overload harms, below
    it where throughput rises beyond PDR.
    """
    clean_pps, lossy_pps, carried_pps = 0.0, math.inf, forwarded_pps
    for _ in range(MOST_PILOTS):
        load_pps = min(_next_load(clean_pps, lossy_pps, carried_pps), most_pps)
        trial = measure(load_pps)
        if trial is None:
            continue
        if trial.plr > PLR:
            lossy_pps, carried_pps = load_pps, trial.forwarded_pps
        else:
            clean_pps = load_pps
        if clean_pps >= most_pps:
            return math.inf
        if clean_pps and lossy_pps <= _CLOSE * clean_pps:
            break
    # What a lossy load forwarded is at most throughput at PDR, if that is flat from there on.
    return min(max(clean_pps, carried_pps), lossy_pps)


def _next_load(clean_pps: float, lossy_pps: float, carried_pps: float) -> float:
    if not clean_pps:
        return _BELOW * carried_pps
    if math.isinf(lossy_pps):
        return _ABOVE * clean_pps
    return math.sqrt(clean_pps * lossy_pps)
