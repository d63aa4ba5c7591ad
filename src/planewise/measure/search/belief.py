"""Where a goal's load probably lies: a posterior on a grid. It places trials and claims nothing.

Three things are unknown: the load, the noise (how far trials differ, and how many fail at any
load), and how the loss grows, which says what a trial that lost something tells of the load's
place. Loss may grow in proportion to the excess load (by a slope), as a power of the load (where
packets are counted one by one, far below saturation), or in neither way; then only the side counts.
After the psi method of Kontsevich and Tyler (1999).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planewise.measure.search.counts import Floats, Outcome

_STEPS = 0.0003 * 1.34 ** np.arange(35)
OFFSETS = np.concatenate([-_STEPS[::-1], [0.0], _STEPS])
"""Loads about the grid's centre, ln: 0.03 % apart near it, and a factor of 2000 away at its end."""
_SIGMAS = (0.0004, 0.0015, 0.005, 0.012, 0.03, 0.08, 0.25)
_SIGMA_WEIGHTS = (1.0, 1, 1, 1, 0.8, 0.5, 0.25)
_PLATEAUS = ((0.12, 0.01, 0.3), (0.35, 0.01, 0.2), (0.01, 0.35, 0.2))
"""Where trials differ by more than noise: the share that fails below the edge, the share that
passes above it, and the weight."""
NOISES, NOISE_WEIGHT = (
    np.array(rows)
    for rows in (
        [(sigma, 0.01, 0.01) for sigma in _SIGMAS]
        + [(sigma, lapse, luck) for lapse, luck, _ in _PLATEAUS for sigma in _SIGMAS[1::2]],
        [*_SIGMA_WEIGHTS, *(weight for *_, weight in _PLATEAUS for _ in _SIGMAS[1::2])],
    )
)
"""Rows of σ, lapse and luck, and their weights."""
_SLOPES = (
    (1.0, 0.4), (0.72, 0.08), (0.52, 0.08), (0.37, 0.08), (0.26, 0.06), (0.17, 0.06), (0.1, 0.06),
    (0.05, 0.06), (0.02, 0.04), (0.007, 0.04),
)  # fmt: skip
"""Slopes of the loss beyond the edge, and their weights."""
_POWERS = tuple((power, 0.05) for power in (4.0, 6.0, 9.0, 14.0, 22.0, 35.0, 60.0, 110.0))
"""Powers by which the loss grows, where packets are counted one by one; of NDR alone."""
_NO_SHAPE = 0.15
_LOG_RANGE = 5.3
"""A loss that obeys no shape is anywhere in so wide a range of its logarithm."""
_TRUST, _TRUST_PASSED = 0.9, 0.2
"""How far the reading of a trial that failed, or passed with some loss, is believed."""
_BEND, _BEND_PASSED = 0.15, 1.0
"""A reading is wrong by this share of its distance from the trial."""
_LEAST = 0.0002
_TOO_MUCH = 0.5
"""A trial with a larger −ln(1 − loss) says only that it failed."""
_OUTSIDE = 0.03
"""Prior chance that the load lies below (above) the range."""
_NEAR, _FAR = 0.003, 0.06
"""Scales of the two Cauchy laws about the first guess that make the prior."""
_OFTEN, _FADE = 0.2, 0.1
_LOCAL = 4.0
"""The posterior's chance of a pass weighs like this many trials against those made there."""
_SURE = 0.01


def _rises(z: Floats) -> Floats:
    """The logistic law, scaled like the normal one."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(1.7 * z, -40, 40))))


class Belief:
    """The posterior of one goal's load, ln(load / reference)."""

    def __init__(self, goal_excess: float, guess: float, low: float, high: float, packets: float):
        """`goal_excess` is the goal's −ln(1 − loss), `low` and `high` the range of loads.

        `packets` is what a final trial sends at the reference load.
        """
        self._goal, self._guess, self._range = goal_excess, guess, (low, high)
        shapes = [(slope, 0.0, weight) for slope, weight in _SLOPES]
        if goal_excess <= 0:  # a slow rise from no loss at all is a power
            shapes = shapes[:5:2] + [(0.0, power, weight) for power, weight in _POWERS]
        shapes.append((0.0, 0.0, _NO_SHAPE))
        self._slope, self._power, self._shape_weight = np.array(shapes).T
        self._one_lost = math.log(math.log(2) / packets)
        self._used = 0
        self.median = guess
        self.deviation = _FAR
        self._grid(guess)

    def update(self, outcomes: Sequence[Outcome]) -> None:
        """Takes in the outcomes beyond those it has had; the grid follows the median."""
        for _ in range(3):
            for outcome in outcomes[self._used :]:
                self._log += self._log_likelihood(outcome)
            self._used = len(outcomes)
            share = np.exp(self._log - self._log.max())
            share /= share.sum()
            by_load = share.sum(axis=(1, 2))
            below = np.cumsum(by_load) - by_load / 2
            low, self.median, high = (
                float(np.interp(level, below, self._centre + OFFSETS))
                for level in (0.16, 0.5, 0.84)
            )
            self.deviation = (high - low) / 2
            if abs(self.median - self._centre) <= max(0.001, self.deviation):
                break
            self._grid(self.median)
        joint = share.sum(axis=2)
        kept = joint > 1e-3 * joint.max()
        self._loads = np.broadcast_to(self._m[:, :, 0], joint.shape)[kept]
        self._sigmas, self._lapses, self._lucks = (
            np.broadcast_to(column, joint.shape)[kept] for column in NOISES.T
        )
        self._weights = joint[kept] / joint[kept].sum()
        self.noise = float(self._sigmas @ self._weights)

    def fails(self, at: Floats, outcomes: Sequence[Outcome]) -> Floats:
        """Chance that a final trial fails at each load, corrected by trials made near it."""
        column = np.asarray(at, dtype=np.float64)[:, None]
        chance = _rises((column - self._loads) / self._sigmas)
        # Where many trials fail below the edge, or pass above it, there is another one further on.
        fade = np.exp(-np.abs(column - self._loads) / _FADE)
        lapses = self._lapses * np.where(self._lapses > _OFTEN, fade, 1.0)
        lucks = self._lucks * np.where(self._lucks > _OFTEN, fade, 1.0)
        chance = (lapses + (1 - lapses - lucks) * chance) @ self._weights
        if outcomes:
            places = np.array([outcome.at for outcome in outcomes])
            failed = np.array([not outcome.passed for outcome in outcomes])
            near = np.abs(places - column) <= 0.25 * np.abs(column - self.median) + 0.0005
            chance = (_LOCAL * chance + (near & failed).sum(axis=1)) / (_LOCAL + near.sum(axis=1))
        return np.asarray(np.clip(chance, _SURE, 1 - _SURE))

    def _grid(self, centre: float) -> None:
        """The prior about a new centre; outcomes are to be taken in again."""
        self._centre, self._used = centre, 0
        self._m = (centre + OFFSETS)[:, None, None]
        loads, (low, high) = centre + OFFSETS, self._range
        away = loads - self._guess
        density = np.gradient(OFFSETS) * sum(
            scale / (scale * scale + away * away) for scale in (_NEAR, _FAR)
        )
        inside = (loads >= low) & (loads <= high)
        if (density * inside).sum() > 0:
            density = density / (density * inside).sum()
        for part in ((loads < low) & (loads > low - 0.3), (loads > high) & (loads < high + 0.3)):
            total = (density * part).sum()
            density = np.where(part, density * _OUTSIDE / total if total > 0 else 0.0, density)
        density = np.where((loads > low - 0.3) & (loads < high + 0.3), density, 0.0)
        prior = density[:, None, None] * NOISE_WEIGHT[:, None] * self._shape_weight
        self._log = np.log(np.maximum(prior, 1e-300))

    def _log_likelihood(self, outcome: Outcome) -> Floats:
        """Of one trial, for every cell: loads × noises × shapes."""
        sigma, lapse, luck = (column[:, None] for column in NOISES.T)
        # A count of single packets blurs the edge, the more the slower the loss grows.
        blurred = np.hypot(sigma, np.where(self._power > 0, 1.2 / np.maximum(self._power, 1), 0.0))
        fails = _rises((outcome.at - self._m) / blurred)
        if outcome.excess <= 0:
            likelihood = 1 - fails
            if self._goal > 0:
                shift = np.where(self._slope > 0, self._goal / np.maximum(self._slope, 1e-9), 0.0)
                clean = 1 - _rises((outcome.at + shift - self._m) / blurred)
                likelihood = _TRUST * clean + (1 - _TRUST) * likelihood
            return np.asarray(np.log((1 - lapse - luck) * likelihood + luck))
        trust, bend = (_TRUST_PASSED, _BEND_PASSED) if outcome.passed else (_TRUST, _BEND)
        log_excess = math.log(outcome.excess)
        linear = self._slope > 0
        per_log = np.where(linear, outcome.excess / np.maximum(self._slope, 1e-9), 0.0)
        distance = (outcome.excess - self._goal) / np.maximum(self._slope, 1e-9)
        steep = np.maximum(self._power, 1.0)
        distance = np.where(linear, distance, (log_excess - self._one_lost + outcome.at) / steep)
        per_log = np.where(linear, per_log, 1.0 / steep)
        counting = np.where(linear, 0.0, 1.0 / steep)
        scale = np.sqrt(sigma**2 + (bend * distance) ** 2 + counting**2 / 4 + _LEAST**2)
        at = _rises((outcome.at - distance - self._m) / scale)
        reading = 1.7 * at * (1 - at) / scale * per_log
        side = (1 - fails if outcome.passed else fails) / _LOG_RANGE
        shaped = (self._slope > 0) | (self._power > 0)
        likelihood = np.where(shaped, trust * reading + (1 - trust) * side, side)
        stray = (luck if outcome.passed else lapse) / _LOG_RANGE
        if outcome.excess > _TOO_MUCH:
            likelihood = fails / _LOG_RANGE
        return np.asarray(np.log((1 - lapse - luck) * likelihood + stray))
