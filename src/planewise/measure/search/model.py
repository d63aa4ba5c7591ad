"""The model behind the `planewise` search: a posterior over local load-loss curves, by particles.

Pure statistics: knows trials as numbers, no measurer. Follows the idea of FD.io's PLRsearch (fit
a curve by Bayes, measure where it says most), with a curve and noise of our own.

Let x = ln(offered load), N packets sent, k lost, z = −ln(1 − k/N). In one trial the system's
capacity is off by a factor m, and

    z = floor(x) + h(x − c − ln m),    h(u) = β·w·ln(1 + exp(u/w))

h is a hinge with a rounded corner: without loss far below c, slope β beyond it (1: throughput
stays constant; less: it still grows; more: it falls), and the corner's width w. A corner of width
w is a power law of exponent 1/w below c. `floor` is a small loss at any load, b·exp(q·(x − x₀)).

    ln m ~ Normal(0, σ²) in most trials; in a share π of trials capacity drops by a large factor
    k given z: Poisson in clumps of φ packets

The likelihood of a trial is closed: with losses, u = h⁻¹(z − floor) is Normal(x − c, σ² + v) with
v the counting variance carried to u; without, the chance of no loss is a Gumbel-shaped curve in
u, taken as a normal one of its median and width. Particles are kept by sequential Monte Carlo:
reweighted by tempered steps, resampled, moved by differential-evolution Metropolis steps
(ter Braak 2006), which scale themselves to the posterior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

Array: TypeAlias = NDArray[np.float64]

_C, _SIGMA, _WIDTH, _SLOPE, _FLOOR, _FLOOR_POWER, _SPIKE, _CLUMP = range(8)
_DIMENSIONS = 8

_LOG_SIGMA = (math.log(1e-5), math.log(0.3))
_LOG_WIDTH = (math.log(1e-6), math.log(0.1))
_LOG_FLOOR = (math.log(1e-11), math.log(3e-3))
_SPIKE_DEPTH = 0.2
"""Mean of the exponential law of ln-capacity drops in spike trials."""
_STRAY = 1e-5
"""Weight of trials that no part of the model explains."""
_GUMBEL_VARIANCE = math.pi**2 / 6
_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Observations:
    """Trials as arrays of equal length."""

    x: Array
    """ln(load / reference load)."""
    sent: Array
    lost: Array

    def __len__(self) -> int:
        return self.x.size

    def extended(self, x: float, sent: float, lost: float) -> Observations:
        """These and one more."""
        return Observations(
            np.append(self.x, x), np.append(self.sent, sent), np.append(self.lost, lost)
        )


def no_observations() -> Observations:
    """An empty set."""
    empty = np.zeros(0)
    return Observations(empty, empty, empty)


def _corner(u: Array, width: Array, slope: Array) -> Array:
    """h(u)."""
    return np.asarray(slope * width * np.logaddexp(0.0, u / width))


def _corner_inverse(z: Array, width: Array, slope: Array) -> tuple[Array, Array]:
    """u with h(u) = z, and h'(u), for z > 0."""
    scaled = np.maximum(z / (slope * width), 1e-300)
    share = -np.expm1(-scaled)
    return width * (scaled + np.log(share)), slope * share


def log_prior(theta: Array) -> Array:
    """Log density of parameters of shape (P, 8), up to a constant."""
    inside = (
        (theta[:, _SIGMA] > _LOG_SIGMA[0])
        & (theta[:, _SIGMA] < _LOG_SIGMA[1])
        & (theta[:, _WIDTH] > _LOG_WIDTH[0])
        & (theta[:, _WIDTH] < _LOG_WIDTH[1])
        & (theta[:, _FLOOR] > _LOG_FLOOR[0])
        & (theta[:, _FLOOR] < _LOG_FLOOR[1])
        & (theta[:, _FLOOR_POWER] > 0.0)
        & (theta[:, _FLOOR_POWER] < 4.0)
        & (theta[:, _CLUMP] >= 0.0)
        & (theta[:, _CLUMP] < math.log(500.0))
    )
    density = (
        -0.5 * (theta[:, _C] / 0.2) ** 2
        - 0.5 * (theta[:, _SLOPE] / 0.3) ** 2
        - 0.5 * ((theta[:, _FLOOR_POWER] - 1.0) / 1.0) ** 2
        - 0.5 * ((theta[:, _SPIKE] + 4.0) / 1.3) ** 2
        - theta[:, _CLUMP]
    )
    return np.where(inside, density, -np.inf)


def draw_prior(count: int, random: np.random.Generator, spread: float) -> Array:
    """Parameters from the prior, the corner's place within about `spread` of the reference."""
    theta = np.empty((count, _DIMENSIONS))
    theta[:, _C] = random.normal(0.0, spread, count)
    theta[:, _SIGMA] = random.uniform(*_LOG_SIGMA, count)
    theta[:, _WIDTH] = random.uniform(*_LOG_WIDTH, count)
    theta[:, _SLOPE] = random.normal(0.0, 0.3, count)
    theta[:, _FLOOR] = random.uniform(*_LOG_FLOOR, count)
    theta[:, _FLOOR_POWER] = np.abs(random.normal(1.0, 1.0, count)).clip(0.01, 3.99)
    theta[:, _SPIKE] = random.normal(-4.0, 1.3, count)
    theta[:, _CLUMP] = np.minimum(random.exponential(1.0, count), 6.0)
    return theta


def log_likelihood(theta: Array, seen: Observations) -> Array:
    """Log likelihood of each trial under each parameter, shape (P, trials)."""
    c = theta[:, _C, None]
    sigma = np.exp(theta[:, _SIGMA, None])
    width = np.exp(theta[:, _WIDTH, None])
    slope = np.exp(theta[:, _SLOPE, None])
    spike = expit(theta[:, _SPIKE, None])
    clump = np.exp(theta[:, _CLUMP, None])
    x, sent, lost = seen.x[None, :], seen.sent[None, :], seen.lost[None, :]
    z = -np.log1p(-np.minimum(lost / sent, 1 - 1e-9))

    floor = np.exp(theta[:, _FLOOR, None] + theta[:, _FLOOR_POWER, None] * x)
    floor_clumps = sent * floor / clump
    t = x - c

    # No loss beyond the floor's: below the load at which the corner loses ln 2 clumps.
    edge, _ = _corner_inverse(math.log(2) * clump / sent, width, slope)
    clean = ndtr((edge - t) / np.sqrt(sigma**2 + _GUMBEL_VARIANCE * width**2))
    dropped = -np.expm1(np.minimum(t - edge, 0.0) / _SPIKE_DEPTH)
    kept = (1 - spike) * clean + spike * dropped
    if not lost.any():
        return np.asarray(np.log(kept * np.exp(-floor_clumps) + _STRAY * 1e-3))

    # Losses at the corner: Normal in u, as a mass per lost packet.
    excess = np.maximum(z - floor, 0.1 * z)
    u, steepness = _corner_inverse(np.maximum(excess, 1e-12), width, slope)
    counting = np.expm1(np.maximum(z, 1e-12)) / sent * clump / steepness**2
    variance = sigma**2 + counting
    per_packet = 1.0 / (sent * steepness)
    distance = u - t
    at_corner = np.exp(-0.5 * distance**2 / variance) / np.sqrt(2 * math.pi * variance)
    in_spike = np.where(
        distance > 0, np.exp(-np.maximum(distance, 0.0) / _SPIKE_DEPTH) / _SPIKE_DEPTH, 0.0
    )
    stray = 1.0 / (1.0 + (distance / 0.1) ** 2)
    # Losses of the floor alone: Poisson in clumps (Stirling's form serves for real clump counts).
    clumps = np.maximum(lost / clump, 0.5)
    rare = np.maximum(floor_clumps, 1e-300)
    poisson = (
        np.exp(clumps * np.log(rare / clumps) + clumps - rare - 0.5 * (_LOG_2PI + np.log(clumps)))
        / clump
    )
    with_loss = (
        kept * poisson + ((1 - spike) * at_corner + spike * in_spike + _STRAY * stray) * per_packet
    )
    without = kept * np.exp(-floor_clumps) + _STRAY * 1e-3
    return np.asarray(np.log(np.where(lost > 0, with_loss, without) + 1e-300))


def goal_loads(
    theta: Array, loss_exponent: float, reference_pps: float, duration_s: float
) -> Array:
    """x at which half of all trials meet a goal, per parameter, shape (P,).

    Args:
        theta: parameters, shape (P, 8).
        loss_exponent: −ln(1 − loss ratio) of the goal; 0 for NDR.
        reference_pps: load at x = 0.
        duration_s: duration of the trials that the goal is about (matters for NDR only).
    """
    c = theta[:, _C]
    sigma = np.exp(theta[:, _SIGMA])
    width = np.exp(theta[:, _WIDTH])
    slope = np.exp(theta[:, _SLOPE])
    spike = np.minimum(expit(theta[:, _SPIKE]), 0.45)
    clump = np.exp(theta[:, _CLUMP])
    floor, power = np.exp(theta[:, _FLOOR]), theta[:, _FLOOR_POWER]
    packets = reference_pps * duration_s
    if loss_exponent > 0:
        left = np.maximum(loss_exponent - floor * np.exp(power * c), 0.02 * loss_exponent)
        u, _ = _corner_inverse(left, width, slope)
        return np.asarray(c + u + sigma * ndtri(1 - 0.5 / (1 - spike)))
    deviation = np.sqrt(sigma**2 + _GUMBEL_VARIANCE * width**2)
    low, high = np.full(c.shape, -6.0), c + 1.0
    for _ in range(36):
        middle = 0.5 * (low + high)
        sent = packets * np.exp(middle)
        edge, _ = _corner_inverse(math.log(2) * clump / sent, width, slope)
        clean = ndtr((edge - middle + c) / deviation)
        kept = (1 - spike) * clean * np.exp(-sent * floor * np.exp(power * middle) / clump)
        good = kept >= 0.5
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return 0.5 * (low + high)


class Posterior:
    """Particles of the posterior, updated as trials come."""

    def __init__(
        self, seed: int, *, particles: int = 256, spread: float = 0.05, moves: int = 2
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._moves = moves
        self.seen = no_observations()
        self.theta = draw_prior(particles, self._random, spread)
        self._log_like = np.zeros(particles)

    def update(self, seen: Observations) -> None:
        """Takes the whole set of trials (those known before must come first)."""
        new = Observations(
            seen.x[len(self.seen) :], seen.sent[len(self.seen) :], seen.lost[len(self.seen) :]
        )
        if len(new) == 0:
            return
        previous = self.seen
        added = log_likelihood(self.theta, new).sum(axis=1)
        old = self._log_like.copy()
        done = 0.0
        while done < 1.0:
            step = self._temper_step(added, 1.0 - done)
            weights = np.exp(step * (added - added.max()))
            done += step
            chosen = self._resample(weights)
            self.theta, old, added = self.theta[chosen], old[chosen], added[chosen]
            for _ in range(self._moves):
                old, added = self._move(previous, new, done, old, added)
        self.seen = seen
        self._log_like = old + added

    def samples(self, moves: int) -> Array:
        """Parameters from the posterior, shape (particles·(moves + 1), 8)."""
        kept = [self.theta]
        zero = np.zeros_like(self._log_like)
        for _ in range(moves):
            self._log_like, _ = self._move(self.seen, None, 1.0, self._log_like, zero)
            kept.append(self.theta)
        return np.concatenate(kept)

    def noise(self) -> float:
        """Median of σ, the capacity's relative deviation between trials."""
        return float(np.exp(np.median(self.theta[:, _SIGMA])))

    def corner_width(self) -> float:
        """Median of w."""
        return float(np.exp(np.median(self.theta[:, _WIDTH])))

    def _temper_step(self, added: Array, left: float) -> float:
        def effective(step: float) -> float:
            weights = np.exp(step * (added - added.max()))
            return float(weights.sum() ** 2 / (weights**2).sum())

        wanted = 0.5 * added.size
        if effective(left) >= wanted:
            return left
        low, high = 0.0, left
        for _ in range(20):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if effective(middle) >= wanted else (low, middle)
        return max(low, 1e-4 * left, 1e-6)

    def _resample(self, weights: Array) -> NDArray[np.intp]:
        positions = (np.arange(weights.size) + self._random.random()) / weights.size
        return np.minimum(
            np.searchsorted(np.cumsum(weights / weights.sum()), positions), weights.size - 1
        )

    def _move(
        self,
        previous: Observations,
        new: Observations | None,
        share: float,
        old: Array,
        added: Array,
    ) -> tuple[Array, Array]:
        """One differential-evolution Metropolis step for all particles."""
        count = self.theta.shape[0]
        first = self._random.permutation(count)
        second = np.roll(first, 1 + int(self._random.integers(count - 1)))
        # Most steps change a part of the parameters only; one in six jumps between modes.
        part = self._random.random((count, _DIMENSIONS)) < self._random.choice([0.25, 0.5, 1.0])
        part[np.arange(count), self._random.integers(_DIMENSIONS, size=count)] = True
        dimensions = np.maximum(part.sum(axis=1), 1)
        scale = self._random.choice([2.38 / math.sqrt(2), 1.0 / math.sqrt(2)]) / np.sqrt(dimensions)
        if self._random.random() < 1 / 6:
            scale = np.ones(count)
        difference = (self.theta[first] - self.theta[second]) * part
        jitter = self._random.normal(0.0, 1e-6, self.theta.shape) * part
        proposal = self.theta + scale[:, None] * difference + jitter
        prior_now, prior_then = log_prior(self.theta), log_prior(proposal)
        safe = np.where(np.isfinite(prior_then)[:, None], proposal, self.theta)
        old_then = log_likelihood(safe, previous).sum(axis=1) if len(previous) else np.zeros(count)
        added_then = log_likelihood(safe, new).sum(axis=1) if new is not None else added
        change = prior_then - prior_now + (old_then - old) + share * (added_then - added)
        accept = np.log(self._random.random(count)) < change
        self.theta = np.where(accept[:, None], proposal, self.theta)
        return np.where(accept, old_then, old), np.where(accept, added_then, added)


def residuals(theta: Array, seen: Observations) -> tuple[Array, NDArray[np.bool_]]:
    """Each trial's residual at the median parameter, and whether it says anything.

    A trial with losses has (u − (x − c)) / deviation; one without has the mean of what a normal
    deviate could be, given that there was no loss. Trials without loss far below the edge say
    nothing.
    """
    middle = np.median(theta, axis=0)
    c = middle[_C]
    sigma, width, slope = (np.exp(middle[i, None]) for i in (_SIGMA, _WIDTH, _SLOPE))
    clump = math.exp(middle[_CLUMP])
    t = seen.x - c
    z = -np.log1p(-np.minimum(seen.lost / seen.sent, 1 - 1e-9))
    floor = np.exp(middle[_FLOOR] + middle[_FLOOR_POWER] * seen.x)
    u, steepness = _corner_inverse(np.maximum(z - floor, 1e-12), width, slope)
    variance = sigma**2 + np.expm1(np.maximum(z, 1e-12)) / seen.sent * clump / steepness**2
    edge, _ = _corner_inverse(math.log(2) * clump / seen.sent, width, slope)
    spread = np.sqrt(sigma**2 + _GUMBEL_VARIANCE * width**2)
    margin = (edge - t) / spread
    at_corner = (z > 3 * floor) & (seen.lost > 0)
    density = np.exp(-0.5 * np.minimum(margin**2, 200.0)) / math.sqrt(2 * math.pi)
    censored = -density / np.maximum(ndtr(margin), 1e-12)
    value = np.where(at_corner, (u - t) / np.sqrt(variance), censored)
    return np.asarray(value), np.asarray(at_corner | (margin < 3.0))
