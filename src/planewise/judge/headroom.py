"""Headroom: by how much a system forwards more than at PDR.

    H = (highest throughput − throughput at PDR) / throughput at PDR

for offered loads from PDR to twice PDR, and beyond where they were measured. Loads between those of
a ladder are not known, so PDR has two readings. Both rest on this alone: throughput, as a function
of load, is concave (it bends down only).

    at least   PDR of the straight line between the last load within the limit and the first beyond;
               or, if that is higher, of a line through the first load beyond that loses a share of
               what is added: a fifth, or half where throughput is flat from there on. A small loss
               at the first load beyond, or a plateau, so shows that PDR is near
    at most    PDR of the line through the first load beyond it and the highest throughput after it,
               drawn backwards: a concave curve rises at least as fast before as after; and of the
               line through the last two loads within the limit, drawn onwards

Where the ladder ends below twice PDR, throughput is taken to go on rising as it did over the outer
half of the loads beyond PDR: a concave curve rises no faster. So H lies between two readings as
well, which do not depend on where between two loads PDR lies, but on how far they are apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from planewise.judge.curve import Floats, Ints

LIMIT: Final = 0.1
"""Headroom from which PDR does not stand for the curve. A TIR of PASTRAMI's limit, 0.1, from PDR to
twice PDR is a headroom of 0.1."""
LEAST_LOST: Final = 0.2
LEAST_LOST_FLAT: Final = 0.5
FLAT: Final = 0.02
"""Between PDR and the first load beyond, at least such a share of the added load is lost; the
higher one if no later load passes more than that by this share."""
REACH: Final = 2.0
"""Throughput counts up to so many times PDR, measured or not."""


@dataclass(frozen=True)
class Headrooms:
    """Readings for many curves at once; every array has shape (N,)."""

    pdr_low_pps: Floats
    """0 where the first load is over the limit."""
    pdr_high_pps: Floats
    """At most; infinite where no load is over the limit."""
    low: Floats
    high: Floats
    """Headroom at the two readings of PDR. Infinite `high`: the ladder does not bound it."""
    low_by_load: Floats
    """Headroom at each load, at the higher reading of PDR; shape (N, G)."""
    high_by_load: Floats
    """The same at the lower one, and at twice PDR where the ladder ends before it; (N, G + 1)."""
    first_over: Ints
    """Index of the first load over the limit; G where there is none."""


def over(plr: Floats, limit: float) -> Ints:
    """Index of the first load of each row that loses more than `limit`; G where none does."""
    beyond = plr > limit
    first: Ints = np.where(beyond.any(axis=1), beyond.argmax(axis=1), plr.shape[1])
    return first


def headrooms(offered_pps: Floats, plr: Floats, limit: float) -> Headrooms:
    """Headroom of curves with mean loss `plr`, shape (N, G).

    `offered_pps` has shape (G,) and rises; `limit` is PDR's loss ratio.
    """
    size = offered_pps.size
    forwarded = offered_pps * (1 - plr)
    first = over(plr, limit)
    beyond = np.arange(size) >= first[:, None]
    best_at = np.where(beyond, forwarded, -np.inf).argmax(axis=1)
    low_pps, high_pps = _readings(offered_pps, plr, forwarded, first, best_at, limit)
    level, slope = _tails(offered_pps, forwarded, first)
    bounded = (first > 0) & (first < size - 1)
    at_pdr = np.where(bounded, low_pps, 1.0) * (1 - limit)
    reach = REACH * low_pps
    tail = np.where(reach > offered_pps[-1], level + slope * reach, 0.0)
    passed = np.column_stack([np.where(beyond, forwarded, 0.0), tail])
    at_most = np.where(first < size, high_pps, 1.0)[:, None] * (1 - limit)
    low_by_load = np.maximum(passed[:, :-1] / at_most - 1, 0)
    high_by_load = np.maximum(passed / at_pdr[:, None] - 1, 0)
    high_by_load[~bounded] = np.inf
    high = np.maximum(high_by_load.max(axis=1), low_by_load.max(axis=1))
    return Headrooms(
        low_pps, high_pps, low_by_load.max(axis=1), high, low_by_load, high_by_load, first
    )


def exact_headroom(
    loss: Callable[[Floats], Floats], around_pps: float, limit: float, points: int = 1200
) -> float | None:
    """Headroom of a curve that is known: mean loss ratio by offered load, shapes (K,).

    Looks at loads from a fiftieth of `around_pps` to six times that; None where the first loses
    more than `limit`, or none does.
    """
    # Saturation lies near `around_pps`: a third of the points are spent there.
    fine = np.linspace(0.7 * around_pps, 1.1 * around_pps, points // 3)
    loads = np.union1d(np.geomspace(around_pps / 50, 6 * around_pps, points - fine.size), fine)
    plr = loss(loads)
    first = int(over(plr[None, :], limit)[0])
    if first in (0, loads.size):
        return None
    share = (limit - plr[first - 1]) / (plr[first] - plr[first - 1])
    pdr_pps = loads[first - 1] + share * (loads[first] - loads[first - 1])
    counted = (loads >= pdr_pps) & (loads <= REACH * pdr_pps)
    return max(0.0, float((loads * (1 - plr))[counted].max() / (pdr_pps * (1 - limit))) - 1)


def _readings(
    offered: Floats, plr: Floats, forwarded: Floats, first: Ints, best_at: Ints, limit: float
) -> tuple[Floats, Floats]:
    """PDR at least and at most."""
    size = offered.size
    rows = np.arange(plr.shape[0])
    at = np.minimum(first, size - 1)
    below = np.maximum(at - 1, 0)
    plr_below, plr_at = plr[rows, below], plr[rows, at]
    share = (limit - plr_below) / np.where(plr_at > plr_below, plr_at - plr_below, 1)
    chord = offered[below] + np.clip(share, 0, 1) * (offered[at] - offered[below])
    least = np.where(first > 0, chord, 0.0)
    lowest = np.maximum(least, 1e-9 * offered[at])
    if limit < LEAST_LOST:
        flat = forwarded[rows, best_at] <= (1 + FLAT) * forwarded[rows, at]
        lost = np.where(flat & (first < size - 1), LEAST_LOST_FLAT, LEAST_LOST)
        near = offered[at] * (lost - plr_at) / (lost - limit)
        lowest = np.maximum(lowest, np.where(first > 0, np.minimum(near, offered[at]), 0.0))
        least = np.where(first > 0, lowest, 0.0)
    # The line R_at − slope · (O_at − O) meets O · (1 − limit).
    rate, run = forwarded[rows, at], offered[best_at] - offered[at]
    rise = np.maximum(forwarded[rows, best_at] - rate, 0)
    slope = np.minimum(rise / np.where(run > 0, run, np.inf), 0.9 * (1 - limit))
    meets = (rate - slope * offered[at]) / (1 - limit - slope)
    # The line L_below + rising · (O − O_below) meets O · limit.
    before = np.maximum(below - 1, 0)
    lost, lost_before = plr_below * offered[below], plr[rows, before] * offered[before]
    apart = offered[below] - offered[before]
    rising = (lost - lost_before) / np.where(apart > 0, apart, np.inf)
    steep = (rising > limit) & (first > 1)
    excess = np.where(steep, rising - limit, 1.0)
    onwards = np.where(steep, (rising * offered[below] - lost) / excess, np.inf)
    meets = np.clip(np.minimum(meets, onwards), lowest, offered[at])
    never_over = first == size
    return (
        np.where(never_over, offered[-1], least),
        np.where(never_over, np.inf, meets),
    )


def _tails(offered: Floats, forwarded: Floats, first: Ints) -> tuple[Floats, Floats]:
    """Straight line through the throughput of the outer half of the loads beyond PDR: its value at
    load 0 and its slope, which is not below 0. Both 0 with fewer than two loads beyond PDR."""
    level, slope = np.zeros(first.size), np.zeros(first.size)
    for start in np.unique(first[first < offered.size - 1]):
        rows = np.flatnonzero(first == start)
        half = int(np.searchsorted(offered, (offered[start] + offered[-1]) / 2))
        outer = slice(min(half, offered.size - 2), None)
        load, rate = offered[outer], forwarded[rows, outer]
        centred = load - load.mean()
        slope[rows] = np.maximum(rate @ centred / (centred @ centred), 0)
        level[rows] = rate.mean(axis=1) - slope[rows] * load.mean()
    return level, slope
