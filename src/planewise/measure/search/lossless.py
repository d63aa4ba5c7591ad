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
and Hermite's rule. Losses come in clumps of geometric length, b packets on average, and their
number has Poisson's law, so that packets have Pólya and Aeppli's: exact for few packets
(`clumped`), and for more an approximation (`_count_chances`). σ, and about how large b is, is known
from trials nearer to saturation. Trials that lose many say only that, and the rate's logarithm is
taken to be wrong by a share of itself: the curve has to be right near NDR and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, i1e, ndtr

from planewise.measure.search.particles import Array, Observations, Particles

EDGE, POWER, FLOOR, FLAT, BEND, CLUMP = range(6)
"""Columns of parameters: p, ln g, ln φ, κ, q, ln b."""

_EDGE = (-6.0, 1.0)
_EDGE_SCALE = 0.15
"""p has a Cauchy law of this scale about the reference: near it, or anywhere below."""
_LOG_POWER = (math.log(3.0), math.log(1000.0))
_FLOOR = (-7.0, 6.0)
_FLAT = (0.0, 2.0)
_MEAN_BEND, _MOST_BEND = 0.03, 0.15
_LOG_CLUMP = (-3.0, math.log(2000.0))
"""Below 0 losses are single packets, as in half of all systems of which nothing else is known."""
_FURTHEST = 12.0
"""|v| and ln λ are cut off here."""
_MANY = 60.0
"""Trials that lose more packets, or more than the eighth that loses any, say only that: where
losses come in clumps of a size that is not known yet, all are many packets."""
_EIGHTH = 8
_NEAR = 0.01
"""Trials that lose a larger share are not counted packet by packet."""
_STRAY = 0.01
"""Chance that a trial follows no law."""
_SINGLY = 10.0
"""Up to so many lost packets the law is exact."""
_FEW = 4.0
"""Below this many clumps the likelihood is summed over the nodes of the noise. With more, its peak
is narrower than their distance: a lognormal law has the variances of counting and noise."""
_LONG = 3.0
"""Lengths of clumps that are larger than this on average count as exponential, not geometric."""
_DISCREPANCY = 0.08
"""ln λ may be wrong by this share of itself: deviation."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_SHARES = _WEIGHTS / _WEIGHTS.sum()
_MIDDLE = _NODES.size // 2


@dataclass(frozen=True)
class _Counts:
    """Trials, rows of shape (1, n)."""

    x: Array
    log_duration: Array
    """ln(duration / the goal's)."""
    lost: Array
    many: float
    """Above this a trial counts as having lost many, without their number."""
    log_clump: tuple[float, float]
    """Mean and deviation of ln b by what other trials say."""


def draw_prior(count: int, random: np.random.Generator) -> Array:
    """Parameters from the prior, shape (count, 6)."""
    theta = np.empty((count, 6))
    least, most = (math.atan(end / _EDGE_SCALE) for end in _EDGE)
    theta[:, EDGE] = _EDGE_SCALE * np.tan(random.uniform(least, most, count))
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
        (EDGE, _EDGE),
        (POWER, _LOG_POWER),
        (FLOOR, _FLOOR),
        (FLAT, _FLAT),
        (BEND, (0.0, _MOST_BEND)),
        (CLUMP, _LOG_CLUMP),
    ):
        inside &= (theta[:, column] >= low) & (theta[:, column] <= high)
    density = -np.log1p((theta[:, EDGE] / _EDGE_SCALE) ** 2) - theta[:, BEND] / _MEAN_BEND
    return np.where(inside, density, -np.inf)


def log_rate(theta: Array, x: Array) -> Array:
    """ln λ at `x`, which broadcasts with columns of shape (P, 1) or (P, 1, 1)."""
    columns = theta.T.reshape((theta.shape[1], -1) + (1,) * (x.ndim - 1))
    away = x - columns[EDGE]
    v = np.clip(np.exp(columns[POWER]) * away, -_FURTHEST, _FURTHEST)
    steep = math.log(math.log(2)) + v - 0.5 * columns[BEND] * v * v
    return np.asarray(np.logaddexp(steep, columns[FLOOR] + columns[FLAT] * x))


def clumped(lost: Array, log_clumps: Array, clump: Array) -> Array:
    """Chance to lose `lost` packets, 1 or more, in exp(`log_clumps`) clumps on average.

    Clumps of geometric length, `clump` packets on average, their number Poisson's: the law of
    Pólya and Aeppli, by its recursion (Johnson, Kemp and Kotz, 2005, section 9.7). Shapes: `lost`
    (1, n), `log_clumps` (P, n, nodes), `clump` (P, 1, 1).
    """
    mean, more = np.exp(log_clumps), 1.0 - 1.0 / clump
    earlier, last = np.zeros_like(mean), np.exp(-mean)
    chance = np.zeros_like(mean)
    for k in range(1, int(lost.max()) + 1):
        grown = (mean * (1.0 - more) + 2.0 * more * (k - 1)) * last
        earlier, last = last, (grown - more**2 * (k - 2) * earlier) / k
        chance = np.where(lost[:, :, None] == k, last, chance)
    return np.maximum(chance, 0.0)


def _count_chances(trials: _Counts, log_clumps: Array, clump: Array) -> tuple[Array, Array]:
    """Chances of the observed count of lost packets, and of losing many; shapes (P, n).

    `log_clumps` has shape (P, n, nodes), `clump` (P, 1). A count of k/(2b − 1) has Poisson's mean
    and variance; where clumps are long, their sum's density is a Bessel function (a compound
    Poisson law of exponential lengths).
    """
    lost = np.maximum(trials.lost, 1.0)
    per_count = 2.0 * clump - 1.0
    count = lost / per_count
    log_mean = log_clumps + np.log(clump / per_count)[:, :, None]
    few = np.exp(
        count[:, :, None] * log_mean
        - np.exp(log_mean)
        - (gammaln(count + 1.0) + np.log(per_count))[:, :, None]
    )
    argument = 2.0 * np.sqrt(np.exp(log_clumps) * (lost / clump)[:, :, None])
    outside = lost / clump + 0.5 * np.log(lost * clump)
    long = i1e(argument) * np.exp(
        argument - np.exp(log_clumps) + 0.5 * log_clumps - outside[:, :, None]
    )
    weighed = np.where(clump[:, :, None] > _LONG, long, few) @ _SHARES

    # The noise of the logarithm, by the nodes beside the middle.
    left, middle, right = (log_mean[:, :, _MIDDLE + step] for step in (-1, 0, 1))
    noise = np.abs(right - left) / (2.0 * _NODES[_MIDDLE + 1])
    blur = noise**2 + (_DISCREPANCY * middle) ** 2
    variance = blur + 1.0 / np.maximum(count, 1.0)
    away = np.log(count) - middle
    smooth = np.exp(-0.5 * away**2 / variance) / (np.sqrt(2.0 * np.pi * variance) * lost)
    counted = np.minimum(np.exp(-middle), 1.0)
    more = ndtr((middle - np.log(trials.many / per_count)) / np.sqrt(blur + counted))
    return np.where(count < _FEW, weighed, smooth), np.asarray(more)


class LosslessPosterior(Particles[_Counts]):
    """Posterior of the rate of losses and of NDR."""

    def __init__(
        self, seed: int, *, packets: float, noise: float, particles: int = 256, moves: int = 2
    ) -> None:
        """`packets` is what a trial of the goal's duration sends at x = 0, `noise` is σ."""
        self.packets = packets
        self.sigma = noise
        """May be changed between updates, as may `log_clump`."""
        self.log_clump = (1.0, 1.0)
        super().__init__(seed, particles=particles, moves=moves)

    def _prepared(self, observed: Observations) -> _Counts:
        x, sent, lost = observed.x, observed.sent, observed.lost
        duration = sent / (self.packets * np.exp(x))
        some = np.sort(lost[(lost > 0) & (lost < _NEAR * sent)])[:_EIGHTH]
        many = max([_MANY, *some.tolist()])
        return _Counts(x[None, :], np.log(duration)[None, :], lost[None, :], many, self.log_clump)

    def _draw_prior(self, count: int) -> Array:
        return draw_prior(count, self._random)

    def _log_prior(self, theta: Array) -> Array:
        return log_prior(theta)

    def _likelihood(self, theta: Array, trials: _Counts) -> Array:
        clump = np.exp(np.maximum(theta[:, CLUMP], 0.0))[:, None]
        moved = trials.x[:, :, None] - self.sigma * _NODES
        log_clumps = log_rate(theta, moved) + trials.log_duration[:, :, None]
        log_clumps = np.clip(log_clumps, -_FURTHEST, _FURTHEST)
        none, many = trials.lost <= 0, trials.lost > trials.many
        singly = np.flatnonzero((~none & (trials.lost <= _SINGLY))[0])

        some, more = _count_chances(trials, log_clumps, clump)
        clean = np.exp(-np.exp(log_clumps)) @ _SHARES
        chance = np.where(none, clean, np.where(many, more, some))
        if singly.size:
            law = clumped(trials.lost[:, singly], log_clumps[:, singly], clump[:, :, None])
            chance[:, singly] = law @ _SHARES
        stray = _STRAY * np.where(none | many, 1.0, 1.0 / trials.many)
        mixed = (1.0 - _STRAY) * chance + stray
        # A gamma law: it can be a bell, or fall from no clumps on.
        about, deviation = trials.log_clump
        shape = max((about / deviation) ** 2, 1.0)
        log_clump = np.maximum(theta[:, CLUMP], 1e-3)
        prior = (shape - 1.0) * np.log(log_clump) - shape / about * log_clump
        return np.asarray(np.log(mixed).sum(axis=1) + prior)

    def _edges(self) -> tuple[Array, Array]:
        """The x at which half of the trials lose nothing, noise included: by bisection."""
        low, high = (np.full(self.theta.shape[0], end) for end in _EDGE)
        for _ in range(24):
            middle = 0.5 * (low + high)
            rate = np.exp(log_rate(self.theta, middle[:, None] - self.sigma * _NODES))
            clean = np.exp(-rate) @ _SHARES > 0.5
            low, high = np.where(clean, middle, low), np.where(clean, high, middle)
        return 0.5 * (low + high), np.ones(low.size)

    def clump(self) -> float:
        """Median of b, packets of a clump."""
        return float(np.exp(max(np.median(self.theta[:, CLUMP]), 0.0)))

    def blur(self) -> float:
        """Median deviation of the load at which trials begin to lose: counting and noise."""
        step = 1e-4
        edge, _ = self._edges()
        below, above = (log_rate(self.theta, edge[:, None] + end) for end in (-step, step))
        power = ((above - below) / (2 * step))[:, 0]
        return float(np.median(np.hypot(self.sigma, 1.2 / np.maximum(power, 1e-3))))
