"""NDR where loss rises smoothly: a posterior over the rate of losses, by particles.

Pure statistics: knows trials as numbers, no measurer. Far below saturation a system loses a few
packets in a trial or none, so these are counted, not read off a curve. In a trial of the goal's
duration at x = ln(offered load / reference load) the system loses on average

    λ(x) = ln 2 · exp(v − q·v²/2) + φ·exp(κ·x),   v = g·(x − p)

clumps of packets, in a shorter trial as many fewer; half of the trials lose nothing where it is
ln 2, but for the noise. The first term is the flank of the loss that leads to saturation (a power
g of the load, which may bend); the second what is lost at any load (PASTRAMI, section IV-B: early
loss; κ is 0 where it is so many a second, 1 where it is a share of the packets, 2 where that share
grows with the load).

The capacity's noise moves x from trial to trial by Normal(0, σ²); it is integrated out by Gauss
and Hermite's rule. Losses come in clumps of geometric length, b packets on average: a trial loses
nothing with probability exp(−λ), and k packets about as a Poisson count of k/(2b − 1), which has
their variance. Trials that lose many say only that: the rate need be right near NDR and nowhere
else. σ, and about how large b is, is known from trials nearer to saturation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, ndtr

from planewise.measure.search.particles import Array, Observations, Particles

PLACE, POWER, FLOOR, FLAT, BEND, CLUMP = range(6)
"""Columns of parameters: p, ln g, ln φ, κ, q, ln b."""

_PLACE = (-6.0, 1.0)
_PLACE_SCALE = 0.15
"""p has a Cauchy law of this scale about the reference: near it, or anywhere below."""
_LOG_POWER = (math.log(3.0), math.log(1000.0))
_FLOOR = (-7.0, 6.0)
_FLAT = (0.0, 2.0)
_MEAN_BEND, _MOST_BEND = 0.03, 0.15
_LOG_CLUMP = (-1.0, math.log(2000.0))
"""Below 0 losses are single packets, as in half of all systems of which nothing else is known."""
_FURTHEST = 12.0
"""|v| and ln λ beyond this are all the same."""
_MANY = 60.0
"""Trials that lose more packets, or more than the eighth that loses any, say only that: where
losses come in clumps of a size that is not known yet, all are many packets."""
_EIGHTH = 8
_NEAR = 0.01
"""Trials that lose a larger share are never counted."""
_STRAY = 0.01
"""Chance that a trial loses as it likes."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_SHARES = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class _Counts:
    """Trials, rows of shape (1, n)."""

    x: Array
    log_duration: Array
    """ln(duration / the goal's)."""
    lost: Array
    many: float
    """Trials that lose more packets say only that."""
    log_clump: tuple[float, float]
    """Mean and deviation of ln b by what other trials say."""


def draw_prior(count: int, random: np.random.Generator) -> Array:
    """Parameters from the prior, shape (count, 6)."""
    theta = np.empty((count, 6))
    least, most = (math.atan(end / _PLACE_SCALE) for end in _PLACE)
    theta[:, PLACE] = _PLACE_SCALE * np.tan(random.uniform(least, most, count))
    theta[:, POWER] = random.uniform(*_LOG_POWER, count)
    theta[:, FLOOR] = random.uniform(*_FLOOR, count)
    theta[:, FLAT] = random.uniform(*_FLAT, count)
    theta[:, BEND] = np.minimum(random.exponential(_MEAN_BEND, count), _MOST_BEND - 1e-6)
    theta[:, CLUMP] = random.uniform(*_LOG_CLUMP, count)
    return theta


def log_prior(theta: Array) -> Array:
    """Log density of parameters of shape (P, 6), up to a constant."""
    inside = np.ones(theta.shape[0], dtype=bool)
    for column, (low, high) in (
        (PLACE, _PLACE),
        (POWER, _LOG_POWER),
        (FLOOR, _FLOOR),
        (FLAT, _FLAT),
        (BEND, (0.0, _MOST_BEND)),
        (CLUMP, _LOG_CLUMP),
    ):
        inside &= (theta[:, column] >= low) & (theta[:, column] <= high)
    density = -np.log1p((theta[:, PLACE] / _PLACE_SCALE) ** 2) - theta[:, BEND] / _MEAN_BEND
    return np.where(inside, density, -np.inf)


def log_rate(theta: Array, x: Array) -> Array:
    """ln λ at `x`, which broadcasts with columns of shape (P, 1) or (P, 1, 1)."""
    columns = theta.T.reshape((theta.shape[1], -1) + (1,) * (x.ndim - 1))
    away = x - columns[PLACE]
    v = np.clip(np.exp(columns[POWER]) * away, -_FURTHEST, _FURTHEST)
    steep = math.log(math.log(2)) + v - 0.5 * columns[BEND] * v * v
    return np.asarray(np.logaddexp(steep, columns[FLOOR] + columns[FLAT] * x))


class LosslessPosterior(Particles[_Counts]):
    """The posterior, updated as trials come."""

    def __init__(
        self, seed: int, *, packets: float, noise: float, particles: int = 256, moves: int = 2
    ) -> None:
        """`packets` is what a trial of the goal's duration sends at x = 0, `noise` is σ."""
        self.packets = packets
        self.sigma = noise
        """May be changed between updates, as may `log_clump`."""
        self.log_clump = (1.0, 1.0)
        super().__init__(seed, particles=particles, moves=moves)

    def _packed(self, seen: Observations) -> _Counts:
        duration = seen.sent / (self.packets * np.exp(seen.x))
        some = np.sort(seen.lost[(seen.lost > 0) & (seen.lost < _NEAR * seen.sent)])[:_EIGHTH]
        many = max([_MANY, *some.tolist()])
        return _Counts(
            seen.x[None, :], np.log(duration)[None, :], seen.lost[None, :], many, self.log_clump
        )

    def _draw_prior(self, count: int) -> Array:
        return draw_prior(count, self._random)

    def _log_prior(self, theta: Array) -> Array:
        return log_prior(theta)

    def _likelihood(self, theta: Array, trials: _Counts) -> Array:
        moved = trials.x[:, :, None] - self.sigma * _NODES
        log_clumps = log_rate(theta, moved) + trials.log_duration[:, :, None]
        log_clumps = np.clip(log_clumps, -_FURTHEST, _FURTHEST)
        clump = np.exp(np.maximum(theta[:, CLUMP], 0.0))[:, None, None]
        counted = 2.0 * clump - 1.0
        lost = trials.lost[:, :, None]
        about, deviation = trials.log_clump
        none, many = lost <= 0, lost > trials.many
        log_mean = log_clumps + np.log(clump / counted)
        count = lost / counted
        some = count * log_mean - np.exp(log_mean) - gammaln(count + 1.0) - np.log(counted)
        # More than so many: a lognormal of the Poisson count's mean and variance.
        spread = np.exp(-0.5 * log_mean)
        more = ndtr((log_mean - np.log(trials.many / counted)) / np.minimum(spread, 1.0))
        chance = np.where(none, np.exp(-np.exp(log_clumps)), np.where(many, more, np.exp(some)))
        stray = _STRAY * np.where(none | many, 1.0, 1.0 / trials.many)
        mixed = (1.0 - _STRAY) * (chance @ _SHARES) + stray[:, :, 0]
        # A gamma law: it can be a bell, or fall from no clumps on.
        shape = max((about / deviation) ** 2, 1.0)
        log_clump = np.maximum(theta[:, CLUMP], 1e-3)
        prior = (shape - 1.0) * np.log(log_clump) - shape / about * log_clump
        return np.asarray(np.log(mixed).sum(axis=1) + prior)

    def _places(self) -> tuple[Array, Array]:
        """Where, with the noise, half of the trials lose nothing: by bisection."""
        low, high = (np.full(self.theta.shape[0], end) for end in _PLACE)
        for _ in range(24):
            middle = 0.5 * (low + high)
            rate = np.exp(log_rate(self.theta, middle[:, None] - self.sigma * _NODES))
            clean = np.exp(-rate) @ _SHARES > 0.5
            low, high = np.where(clean, middle, low), np.where(clean, high, middle)
        return 0.5 * (low + high), np.ones(low.size)

    def clump(self) -> float:
        """Median of b, the packets that are lost together."""
        return float(np.exp(max(np.median(self.theta[:, CLUMP]), 0.0)))

    def blur(self) -> float:
        """Median deviation of where trials begin to lose: of one trial's count, and the noise."""
        step = 1e-4
        place, _ = self._places()
        below, above = (log_rate(self.theta, place[:, None] + end) for end in (-step, step))
        power = ((above - below) / (2 * step))[:, 0]
        return float(np.median(np.hypot(self.sigma, 1.2 / np.maximum(power, 1e-3))))
