"""Particles of a posterior that is updated as trials come: sequential Monte Carlo.

Pure statistics: knows neither curve nor noise, which are its subclasses' (`model`, `lossless`).
Particles are reweighted by tempered steps, resampled, and moved by differential-evolution
Metropolis steps (ter Braak 2006) and by draws from the prior.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
TrialsT = TypeVar("TrialsT")


@dataclass(frozen=True)
class Observations:
    """Trials as arrays of equal length."""

    x: Array
    """ln(load / reference load)."""
    sent: Array
    lost: Array

    def same_as(self, other: Observations) -> bool:
        """Whether these are the same trials."""
        return np.array_equal(self.x, other.x) and np.array_equal(self.lost, other.lost)


@dataclass(frozen=True)
class Law:
    """Distribution of the goal's ln(load / reference load): a weighted sample, sorted."""

    x: Array
    weight: Array
    """Sums to 1."""

    def quantile(self, share: float) -> float:
        """The x below which this share of the law lies."""
        cumulated = np.cumsum(self.weight)
        return float(np.interp(share, cumulated - 0.5 * self.weight, self.x))


class Particles(ABC, Generic[TrialsT]):
    """Particles, their update and their moves. `TrialsT` is a likelihood's form of observations."""

    def __init__(self, seed: int, *, particles: int, moves: int) -> None:
        self._random = np.random.default_rng(seed)
        self._moves = moves
        self.observations = Observations(np.zeros(0), np.zeros(0), np.zeros(0))
        self._trials = self._prepared(self.observations)
        self.theta = self._draw_prior(particles)
        """Parameters, shape (P, dimensions)."""
        self._log_like = self._likelihood(self.theta, self._trials)

    @abstractmethod
    def _prepared(self, observed: Observations) -> TrialsT:
        """Convert observations for the likelihood."""

    @abstractmethod
    def _draw_prior(self, count: int) -> Array:
        """Draw parameters from the prior, shape (count, dimensions)."""

    @abstractmethod
    def _log_prior(self, theta: Array) -> Array:
        """Log density of the prior up to a constant, shape (P,)."""

    @abstractmethod
    def _likelihood(self, theta: Array, trials: TrialsT) -> Array:
        """Log likelihood of all trials, shape (P,)."""

    @abstractmethod
    def _edges(self) -> tuple[Array, Array]:
        """A weighted sample of the goal's ln(load / reference load): values and weights."""

    def update(self, observed: Observations) -> None:
        """Replace the trials that count by `observed`."""
        if observed.same_as(self.observations):
            return
        previous, trials = self._trials, self._prepared(observed)
        old = self._log_like
        new = self._likelihood(self.theta, trials)
        done = 0.0
        while done < 1.0:
            step = self._temper_step(new - old, 1.0 - done)
            weights = np.exp(step * (new - old - (new - old).max()))
            done = 1.0 if step >= 1.0 - done else done + step
            chosen = self._resample(weights)
            self.theta, old, new = self.theta[chosen], old[chosen], new[chosen]
            for _ in range(self._moves):
                old, new = self._move(previous, trials, done, old, new)
        self.observations, self._trials, self._log_like = observed, trials, new

    def refine(self, moves: int) -> None:
        """Move all particles `moves` times more."""
        for _ in range(moves):
            _, self._log_like = self._move(
                self._trials, self._trials, 1.0, self._log_like, self._log_like
            )

    def law(self, moves: int = 0) -> Law:
        """Distribution of the goal's load; `moves` more sets of particles make it smoother."""
        sets = [self._edges()]
        for _ in range(moves):
            self.refine(1)
            sets.append(self._edges())
        x = np.concatenate([part[0] for part in sets])
        weight = np.concatenate([part[1] for part in sets])
        order = np.argsort(x)
        return Law(x[order], weight[order] / weight.sum())

    def _temper_step(self, added: Array, remaining: float) -> float:
        def effective(step: float) -> float:
            weights = np.exp(step * (added - added.max()))
            return float(weights.sum() ** 2 / (weights**2).sum())

        target = 0.5 * added.size
        if effective(remaining) >= target:
            return remaining
        low, high = 0.0, remaining
        for _ in range(12):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if effective(middle) >= target else (low, middle)
        return max(low, 1e-3 * remaining, 1e-6)

    def _resample(self, weights: Array) -> NDArray[np.intp]:
        positions = (np.arange(weights.size) + self._random.random()) / weights.size
        return np.minimum(
            np.searchsorted(np.cumsum(weights / weights.sum()), positions), weights.size - 1
        )

    def _move(
        self, previous: TrialsT, trials: TrialsT, share: float, old: Array, new: Array
    ) -> tuple[Array, Array]:
        """One Metropolis step for all particles.

        The target is prior · L(previous)^(1 − share) · L(trials)^share; `old` and `new` are the
        log likelihoods of both sets of trials at the particles, before and (returned) after.
        """
        proposal, with_prior = self._proposal()
        proposed_prior = self._log_prior(proposal)
        fine = np.isfinite(proposed_prior)
        safe = np.where(fine[:, None], proposal, self.theta)
        proposed_new = self._likelihood(safe, trials)
        proposed_old = self._likelihood(safe, previous) if share < 1.0 else old
        change = (1 - share) * (proposed_old - old) + share * (proposed_new - new)
        if not with_prior:
            change = change + proposed_prior - self._log_prior(self.theta)
        accept = fine & (np.log(self._random.random(fine.size)) < change)
        self.theta = np.where(accept[:, None], proposal, self.theta)
        return np.where(accept, proposed_old, old), np.where(accept, proposed_new, new)

    def _proposal(self) -> tuple[Array, bool]:
        """New parameters; and whether they were drawn from the prior, which then cancels."""
        count, dimensions = self.theta.shape
        part = self._random.random((count, dimensions)) < 0.4
        part[np.arange(count), self._random.integers(dimensions, size=count)] = True
        if self._random.random() < 0.3:
            fresh = self._draw_prior(count)
            return np.where(part, fresh, self.theta), True
        # Along the difference of two other particles; one in six steps jumps between modes.
        first = self._random.permutation(count)
        second = np.roll(first, 1 + int(self._random.integers(count - 1)))
        scale = self._random.choice([2.38, 1.0]) / np.sqrt(2.0 * part.sum(axis=1))
        if self._random.random() < 1 / 6:
            scale = np.ones(count)
        jitter = self._random.normal(0.0, 1e-3, self.theta.shape)
        difference = (self.theta[first] - self.theta[second] + jitter) * part
        return np.asarray(self.theta + scale[:, None] * difference), False
