"""Where a goal's load probably lies: a posterior on a grid. It places trials and claims nothing.

It uses which trials passed and ignores how much the others lost, because the same loss can mean a
different distance from the edge on each system. Two more things are unknown: the noise (how far
trials differ) and the shares of trials that fail however low, or pass however high, the load is.
After the psi method of Kontsevich and Tyler (1999).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planewise.measure.search.counts import Floats, Outcome

_STEPS = 0.0003 * 1.34 ** np.arange(35)
OFFSETS = np.concatenate([-_STEPS[::-1], [0.0], _STEPS])
"""Loads about the grid's centre, ln: 0.03 % apart near it, and a factor of 2000 away at its end."""
_WIDTHS = np.gradient(OFFSETS)
_SIGMAS = (0.0004, 0.0015, 0.005, 0.012, 0.03, 0.08, 0.25)
_SHARES = (0.01, 0.12, 0.27, 0.42)
"""Of trials that fail far below the load, and of those that pass far above it."""
SIGMA, LAPSE, LUCK = np.array(
    [
        (sigma, lapse, luck)
        for sigma in _SIGMAS
        for lapse in _SHARES
        for luck in _SHARES
        if lapse + luck < 0.8
    ]
).T
_WEIGHT = np.where(LAPSE + LUCK < 0.1, 1.0, 0.02) * np.where(SIGMA > 0.05, 0.5, 1.0)
_OUTSIDE = 0.03
"""Prior chance that the load lies below (above) the range."""
_NEAR, _FAR = 0.006, 0.06
"""Scales of the two Cauchy laws about the first guess that make the prior."""
_OFTEN, _FADE = 0.2, 0.1
"""A larger share of such trials belongs to another state of the system, with another edge: it falls
by 1/e within so much of ln(load)."""
_TAILS = 1.2
"""Trials come out wrong as if noise were so much wider: bounds lie where tails matter."""
_LOCAL = 4.0
"""The posterior's chance of a pass weighs like this many trials against those made there."""
_SURE = 0.01


def _rises(z: Floats) -> Floats:
    """The logistic law, scaled like the normal one."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(1.7 * z, -40, 40))))


class Belief:
    """The posterior of one goal's load, ln(load / reference)."""

    def __init__(self, guess: float, low: float, high: float):
        """`low` and `high` are the range of loads."""
        self._guess, self._range = guess, (low, high)
        self._used = 0
        self.median = guess
        self.deviation = _FAR
        self._grid(guess)

    def update(self, outcomes: Sequence[Outcome]) -> None:
        """Takes in the outcomes beyond those it has had; the grid follows the mode."""
        for _ in range(3):
            for outcome in outcomes[self._used :]:
                fails = LAPSE + (1 - LAPSE - LUCK) * _rises((outcome.at - self._loads) / SIGMA)
                self._log += np.log(1 - fails if outcome.passed else fails)
            self._used = len(outcomes)
            share = np.exp(self._log - self._log.max())
            share /= share.sum()
            by_load = share.sum(axis=1)
            below = np.cumsum(by_load) - by_load / 2
            low, self.median, high = (
                float(np.interp(level, below, self._loads[:, 0])) for level in (0.16, 0.5, 0.84)
            )
            self.deviation = (high - low) / 2
            density = by_load / _WIDTHS
            mode = float(self._loads[density.argmax(), 0])
            if abs(mode - self._centre) <= max(0.001, 0.5 / density.max()):
                break
            self._grid(mode)
        self._kept = share > 0.01 * share.max()
        self._weights = share[self._kept] / share[self._kept].sum()
        self.noise = float(share.sum(axis=0) @ SIGMA)

    def fails(self, at: Floats, outcomes: Sequence[Outcome]) -> Floats:
        """Chance that a final trial fails at each load, corrected by trials made near it."""
        column = np.asarray(at, dtype=np.float64)[:, None]
        loads, sigmas, lapses, lucks = (
            np.broadcast_to(part, self._kept.shape)[self._kept]
            for part in (self._loads, SIGMA, LAPSE, LUCK)
        )
        fade = np.exp(-np.abs(column - loads) / _FADE)
        lapses = lapses * np.where(lapses > _OFTEN, fade, 1.0)
        lucks = lucks * np.where(lucks > _OFTEN, fade, 1.0)
        chance = lapses + (1 - lapses - lucks) * _rises((column - loads) / sigmas / _TAILS)
        chance = chance @ self._weights
        if outcomes:
            places = np.array([outcome.at for outcome in outcomes])
            failed = np.array([not outcome.passed for outcome in outcomes])
            near = np.abs(places - column) <= 0.25 * np.abs(column - self.median) + 0.0005
            chance = (_LOCAL * chance + (near & failed).sum(axis=1)) / (_LOCAL + near.sum(axis=1))
        return np.asarray(np.clip(chance, _SURE, 1 - _SURE))

    def _grid(self, centre: float) -> None:
        """The prior about a new centre; outcomes are to be taken in again."""
        self._centre, self._used = centre, 0
        loads, (low, high) = centre + OFFSETS, self._range
        self._loads = loads[:, None]
        away = loads - self._guess
        density = _WIDTHS * sum(scale / (scale**2 + away**2) for scale in (_NEAR, _FAR))
        inside = (loads >= low) & (loads <= high)
        if (density * inside).sum() > 0:
            density = density / (density * inside).sum()
        for part in ((loads < low) & (loads > low - 0.3), (loads > high) & (loads < high + 0.3)):
            total = (density * part).sum()
            density = np.where(part, density * _OUTSIDE / total if total > 0 else 0.0, density)
        density = np.where((loads > low - 0.3) & (loads < high + 0.3), density, 0.0)
        self._log = np.log(np.maximum(density[:, None] * _WEIGHT, 1e-300))
