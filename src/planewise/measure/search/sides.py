"""A goal's load from which trials met it alone: the check on every other distribution of it.

Pure statistics. A trial below the goal's load meets the goal with a probability of a half or more,
one above it with a half or less; both probabilities are unknown, uniform, and integrated out.
Nothing else is assumed. The distribution is wide; one that contradicts it is wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from planewise.measure.search.particles import Array

_BEYOND = 0.05
"""The load may lie so far beyond the trials, in ln(load)."""


@dataclass(frozen=True)
class Sides:
    """The law of a goal's ln(load): constant between neighbouring trials."""

    edges: Array
    """Loads of the trials in order, and the ends; shape (n + 2,)."""
    log_likelihood: Array
    """Between them, shape (n + 1,)."""

    @classmethod
    def of(cls, x: Array, good: NDArray[np.bool_], least: float = math.inf) -> Sides:
        """From trials at `x`, and whether they met the goal; at least one trial. The load may lie
        as low as `least`."""
        order = np.argsort(x)
        met = np.concatenate([[0], np.cumsum(good[order])]).astype(np.float64)
        number = np.arange(x.size + 1.0)
        below = _log_mostly(met, number - met)
        missed_above = (number[-1] - met[-1]) - (number - met)
        above = _log_mostly(missed_above, met[-1] - met)
        ends = np.array([min(x.min() - _BEYOND, least), x.max() + _BEYOND])
        return cls(np.concatenate([ends[:1], x[order], ends[1:]]), below + above)

    def support(self, draws: Array) -> float:
        """Mean likelihood of draws over that of this law's: next to 0 where trials contradict."""
        index = np.searchsorted(self.edges, draws) - 1
        inside = (index >= 0) & (index < self.log_likelihood.size)
        index = index.clip(0, self.log_likelihood.size - 1)
        relative = np.exp(self.log_likelihood - self.log_likelihood.max())
        return float(np.where(inside, relative[index], 0.0).mean() / (self._weight() @ relative))

    def draw(self, random: np.random.Generator, count: int) -> Array:
        """Draws of the goal's ln(load)."""
        chosen = random.choice(self.log_likelihood.size, count, p=self._weight())
        width = np.diff(self.edges)[chosen]
        return np.asarray(self.edges[chosen] + random.random(count) * width)

    def _weight(self) -> Array:
        """Probability of each place between trials."""
        weight = np.exp(self.log_likelihood - self.log_likelihood.max()) * np.diff(self.edges)
        return np.asarray(weight / weight.sum())


def _log_mostly(as_expected: Array, otherwise: Array) -> Array:
    """ln ∫ 2·(1 − q)^a·q^b dq over q from 0 to 1/2."""
    a, b = as_expected + 1.0, otherwise + 1.0
    half = np.maximum(special.betainc(b, a, 0.5), 1e-300)
    return np.asarray(math.log(2.0) + special.betaln(a, b) + np.log(half))
