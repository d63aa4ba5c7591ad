"""The model behind the `planewise` search: a posterior over local load-loss curves, by particles.

Pure statistics: knows trials as numbers, no measurer. Follows the idea of FD.io's PLRsearch (fit
a curve by Bayes, measure where it says most), with a curve and noise of our own.

Let x = ln(offered load), N packets sent, k lost, z = −ln(1 − k/N). In one trial the system's
capacity is off by a factor m, and z = h(x − c − ln m) with c the corner and

    h(u) = a·exp(g·u) for u < 0,  a + β·u for u ≥ 0,   ln m ~ Normal(0, σ²)

h is PASTRAMI's realistic curve (section IV-B): loss grows like a power g of the load up to the
share a at saturation; beyond, slope β (1: throughput stays constant; less: it still grows; more:
it falls). With a tiny a it is the ideal curve. A bend q lets the power fall towards the corner, as
on the flank of a bump of loss: ln h has the slope g·√(1 + q·ln(a/h)). Losses come in clumps of b
packets on average.

A trial thus says where the curve loses the goal's share, the *edge*: y = x − h⁻¹(z) + h⁻¹(goal) is
Normal about it, with variance σ² and what counting adds. h is never quite the system's curve: a
reading from afar has the variance of an error of shape, in proportion to its distance, as well (a
discrepancy term as in Kennedy & O'Hagan 2001, without correlation). Trials that lose far less or
far more than the goal's share say only on which side they lie: the curve has to be right near the
goal and nowhere else. A share ε of trials is bad: they find less capacity by an unknown amount,
and their readings lie anywhere (a mixture with a flat law, Box & Tiao 1968).

Given shape and noise the edge is about normally distributed (Laplace's approximation, its middle
found by weighing each trial with the chance that it is not bad), reweighted on a few nodes by the
trials that say only on which side they lie. Particles therefore carry shape and noise, and the edge
is integrated out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv, ndtr, ndtri

from planewise.measure.search.particles import Array, Observations, Particles

Bools: TypeAlias = NDArray[np.bool_]

RISE, POWER, SLOPE, BEND, SIGMA, CLUMP, BAD = range(7)
"""Columns of parameters: ln a, ln g, ln β, q, ln σ, ln b, ln ε."""
_DIMENSIONS = 7

_LOG_SIGMA = (math.log(1e-5), math.log(0.3))
_LOG_RISE = (math.log(1e-9), math.log(0.1))
_LOG_MUCH = math.log(1e-3)
"""Half of all systems are taken to lose 0.1 % or more at saturation (PASTRAMI: about 1 %)."""
_LOG_SLOPE = (math.log(0.1), math.log(3.0))
_CONSTANT = 0.6
"""Share of systems whose throughput is constant beyond saturation, but for `_CONSTANT_SD`."""
_CONSTANT_SD = 0.03
_MEAN_BEND = 0.3
_LOG_CLUMP = math.log(2000.0)
_NODES = np.linspace(-4.5, 4.5, 11)
_LOG_BAD = (math.log(1e-4), math.log(0.3))
_BAD_COUNTS = (0.15, 8.0)
"""The share of bad trials has a beta law with these prior counts of bad and of good trials: two
per cent in the mean, and next to none in most systems."""
_BAD_DEPTH = 0.5
"""Bad trials find anything down to this much less capacity, in ln(load)."""
_MISFIT = 0.03
"""Error of the curve's shape, as a share of the distance from the edge."""
_REWEIGHTINGS = 3
_STRAY = 1e-3
"""Chance that a trial loses less, or more, than its side of the edge allows, for no reason."""


@dataclass(frozen=True)
class Scope:
    """Which losses the curve is fitted to, as z: the goal's and some around it."""

    anchor: float
    """The loss at the edge."""
    low: float
    """Trials that lose less say only that their capacity was larger."""
    high: float
    """Trials that lose more say only that it was smaller."""
    log_power: tuple[float, float] = (math.log(0.3), math.log(1000.0))
    """Range of ln g. Long pauses of a server lose about the same share at any load: g is near 0."""
    few: bool = False
    """Whether trials that lose a few packets count as such."""
    least_rise: float = 1e-9
    """Least loss at which saturation begins."""

    @property
    def log_rise(self) -> tuple[float, float]:
        """Range of ln a."""
        return max(_LOG_RISE[0], math.log(self.least_rise)), _LOG_RISE[1]

    @property
    def middle_log_rise(self) -> float:
        """Median of the prior of ln a."""
        least, most = self.log_rise
        return max(_LOG_MUCH, 0.5 * (least + most))


def loss_exponent(lost: Array, sent: Array) -> Array:
    """z = −ln(1 − lost/sent); finite where all was lost."""
    return np.asarray(-np.log1p(-np.minimum(lost / sent, 1 - 1e-9)))


@dataclass(frozen=True)
class _Trials:
    """Input of the likelihood, rows of shape (1, n): trials near the goal's share (`z`), and those
    on one side of it."""

    x: Array
    z: Array
    log_z: Array
    half_packet: Array
    """Half a packet over those lost: E ln(k + b/2) is the logarithm of the mean, but for terms of
    the second order."""
    counting: Array
    """Counting variance of z, for independent losses."""
    below_x: Array
    below_log_z: Array
    """Least loss that the trial excludes (without clumps)."""
    below_log_packet: Array
    """ln(ln 2 / sent): the loss at which half of the trials lose nothing."""
    below_sent: Array
    above_x: Array

    @classmethod
    def of(cls, observed: Observations, scope: Scope) -> _Trials:
        z = loss_exponent(observed.lost, observed.sent)
        below = (z < scope.low) | (observed.lost <= 0)
        above = z > scope.high
        near = ~below & ~above
        sent = observed.sent[below][None, :]
        return cls(
            x=observed.x[near][None, :],
            z=z[near][None, :],
            log_z=np.log(np.maximum(z[near], 1e-300))[None, :],
            half_packet=scope.few * 0.5 / np.maximum(observed.lost[near], 0.5)[None, :],
            counting=(np.expm1(z[near]) / observed.sent[near])[None, :],
            below_x=observed.x[below][None, :],
            below_log_z=np.full(sent.shape, math.log(max(scope.low, 1e-300))),
            below_log_packet=np.log(math.log(2) / sent),
            below_sent=sent,
            above_x=observed.x[above][None, :],
        )


@dataclass(frozen=True)
class _Curves:
    """Curves of P particles: columns of shape (P, 1)."""

    log_rise: Array
    rise: Array
    power: Array
    slope: Array
    bend: Array

    @classmethod
    def of(cls, theta: Array) -> _Curves:
        log_rise = theta[:, RISE, None]
        return cls(
            log_rise,
            np.exp(log_rise),
            np.exp(theta[:, POWER, None]),
            np.exp(theta[:, SLOPE, None]),
            theta[:, BEND, None],
        )

    def inverse(self, z: Array, log_z: Array, skew: Array | float = 0.0) -> tuple[Array, Array]:
        """u with h(u) = z, and h'(u). Where loss rises like a power, z is taken times 1 + skew."""
        under = np.minimum(log_z + np.log1p(skew) - self.log_rise, 0.0)
        root = np.sqrt(1.0 - self.bend * under)
        rising = z < self.rise
        u = np.where(
            rising, 2.0 * under / (self.power * (1.0 + root)), (z - self.rise) / self.slope
        )
        return u, np.where(rising, self.power * root * z, self.slope)


def log_prior(theta: Array, scope: Scope) -> Array:
    """Log density of parameters of shape (P, 7), up to a constant."""
    low, high = scope.log_power
    least, most = scope.log_rise
    inside = (
        (theta[:, RISE] > least)
        & (theta[:, RISE] < most)
        & (theta[:, POWER] > low)
        & (theta[:, POWER] < high)
        & (theta[:, SLOPE] > _LOG_SLOPE[0])
        & (theta[:, SLOPE] < _LOG_SLOPE[1])
        & (theta[:, BEND] >= 0.0)
        & (theta[:, BEND] < 5.0)
        & (theta[:, SIGMA] > _LOG_SIGMA[0])
        & (theta[:, SIGMA] < _LOG_SIGMA[1])
        & (theta[:, CLUMP] >= 0.0)
        & (theta[:, CLUMP] < _LOG_CLUMP)
        & (theta[:, BAD] > _LOG_BAD[0])
        & (theta[:, BAD] < _LOG_BAD[1])
    )
    middle = scope.middle_log_rise
    much = math.log((middle - least) / (most - middle))
    constant = np.exp(-0.5 * (theta[:, SLOPE] / _CONSTANT_SD) ** 2) / (
        _CONSTANT_SD * math.sqrt(2 * math.pi)
    )
    slope = _CONSTANT * constant + (1 - _CONSTANT) / (_LOG_SLOPE[1] - _LOG_SLOPE[0])
    density = (
        np.where(theta[:, RISE] > middle, much, 0.0)
        + np.log(slope)
        - theta[:, BEND] / _MEAN_BEND
        - theta[:, CLUMP]
        + _BAD_COUNTS[0] * theta[:, BAD]
        + (_BAD_COUNTS[1] - 1.0) * np.log1p(-np.exp(np.minimum(theta[:, BAD], -0.1)))
    )
    return np.where(inside, density, -np.inf)


def draw_prior(count: int, random: np.random.Generator, scope: Scope) -> Array:
    """Parameters from the prior, shape (count, 7)."""
    theta = np.empty((count, _DIMENSIONS))
    least, most = scope.log_rise
    middle = scope.middle_log_rise
    theta[:, RISE] = np.where(
        random.random(count) < 0.5,
        random.uniform(middle, most, count),
        random.uniform(least, middle, count),
    )
    theta[:, POWER] = random.uniform(*scope.log_power, count)
    theta[:, SLOPE] = np.where(
        random.random(count) < _CONSTANT,
        random.normal(0.0, _CONSTANT_SD, count),
        random.uniform(*_LOG_SLOPE, count),
    )
    theta[:, BEND] = np.minimum(random.exponential(_MEAN_BEND, count), 4.99)
    theta[:, SIGMA] = random.uniform(*_LOG_SIGMA, count)
    theta[:, CLUMP] = np.minimum(random.exponential(1.0, count), _LOG_CLUMP - 0.01)
    # The beta law cut off at the ends of its range, by quantiles.
    least_bad, most_bad = (float(betainc(*_BAD_COUNTS, math.exp(end))) for end in _LOG_BAD)
    drawn = betaincinv(*_BAD_COUNTS, random.uniform(least_bad, most_bad, count))
    theta[:, BAD] = np.clip(np.log(np.asarray(drawn)), _LOG_BAD[0] + 1e-9, _LOG_BAD[1] - 1e-9)
    return theta


@dataclass(frozen=True)
class EdgeLaw:
    """Distribution of the edge by particle: normal, reweighted on nodes."""

    log_likelihood: Array
    """Of all trials, the edge integrated out; shape (P,)."""
    middle: Array
    deviation: Array
    """Of the normal law, shape (P,)."""
    log_weights: Array
    """Of its nodes, shape (P, nodes), up to a constant each."""


def edge_law(theta: Array, trials: _Trials, scope: Scope, spread: float) -> EdgeLaw:
    """The likelihood of parameters, and the distribution of the edge given each."""
    curves = _Curves.of(theta)
    sigma2 = np.exp(2 * theta[:, SIGMA, None])
    clump = np.exp(theta[:, CLUMP, None])
    counted = 2.0 * clump - 1.0
    anchor = np.full((1, 1), scope.anchor)
    at_anchor, _ = curves.inverse(anchor, np.log(anchor))

    bad = np.exp(theta[:, BAD, None])

    u, steepness = curves.inverse(trials.z, trials.log_z, clump * trials.half_packet)
    y = trials.x - u + at_anchor
    variance = sigma2 + counted * trials.counting / (steepness * steepness)
    variance = variance + (_MISFIT * (u - at_anchor)) ** 2
    middle, precision, log_like = _robust_middle(y, variance, bad, spread)
    log_like = log_like - np.log(steepness).sum(axis=1)
    deviation = 1.0 / np.sqrt(precision)

    nodes = middle[:, None] + deviation[:, None] * _NODES
    log_weights = np.broadcast_to(-0.5 * _NODES**2, nodes.shape)
    if trials.below_x.size:
        log_z = np.maximum(trials.below_log_z, trials.below_log_packet + theta[:, CLUMP, None])
        z = np.exp(log_z)
        u, steepness = curves.inverse(z, log_z)
        scale = np.sqrt(sigma2 + counted * z / trials.below_sent / (steepness * steepness))
        offset = (u - at_anchor - trials.below_x) / scale
        inside = ndtr(
            ((nodes[:, None, :] / scale[:, :, None]) + offset[:, :, None]).astype(np.float32)
        )
        fine = (1.0 - np.maximum(bad, _STRAY))[:, :, None].astype(np.float32)
        log_weights = log_weights + np.log(_STRAY + fine * inside).sum(axis=1, dtype=np.float64)
    if trials.above_x.size:
        z = np.full((1, 1), scope.high)
        u, _ = curves.inverse(z, np.log(z))
        offset = (trials.above_x - u + at_anchor)[:, :, None] - nodes[:, None, :]
        inside = ndtr((offset / np.sqrt(sigma2)[:, :, None]).astype(np.float32))
        stray = np.maximum(bad, _STRAY)[:, :, None].astype(np.float32)
        log_weights = log_weights + np.log(stray + (1 - stray) * inside).sum(
            axis=1, dtype=np.float64
        )
    top = log_weights.max(axis=1)
    log_like = log_like + top + np.log(np.exp(log_weights - top[:, None]).sum(axis=1))
    return EdgeLaw(log_like, middle, deviation, log_weights)


def _robust_middle(
    y: Array, variance: Array, bad: Array, spread: float
) -> tuple[Array, Array, Array]:
    """Middle and precision of the edge, and the log likelihood of the readings `y` (P, n).

    p(y) = (1 − ε)·Normal(y; edge, variance) + ε·Uniform(y; edge − depth, edge), and next to
    nothing elsewhere. The middle maximises this times the edge's prior (iterated reweighting,
    starting at the median); the precision is that of the trials that are not bad.
    """
    weight = 1.0 / variance
    middle = np.median(y, axis=1) if y.shape[1] else np.zeros(y.shape[0])
    scale = (1.0 - bad) * np.sqrt(weight / (2 * math.pi))

    def laws(middle: Array) -> tuple[Array, Array]:
        away = y - middle[:, None]
        less = (away < 0.0) & (away > -_BAD_DEPTH)
        return scale * np.exp(-0.5 * weight * away**2), (bad * less + _STRAY) / _BAD_DEPTH

    for _ in range(_REWEIGHTINGS):
        normal, flat = laws(middle)
        good = normal / (normal + flat)
        precision = (good * weight).sum(axis=1) + 1.0 / spread**2
        middle = (good * weight * y).sum(axis=1) / precision
    normal, flat = laws(middle)
    log_mixture = np.log(normal + flat)
    log_like = log_mixture.sum(axis=1) - 0.5 * (np.log(precision) + (middle / spread) ** 2)
    return middle, precision, log_like


class Posterior(Particles[_Trials]):
    """Posterior of curve, noise and edge."""

    def __init__(
        self,
        seed: int,
        scope: Scope,
        *,
        particles: int = 256,
        spread: float = 0.05,
        moves: int = 2,
        packets: float = math.inf,
        lossless: bool = False,
    ) -> None:
        """`spread` is the prior deviation of the edge about x = 0, `packets` the packets of a trial
        of the goal's duration there, `lossless` whether the goal is NDR."""
        self.scope = scope
        self.packets = packets
        self.lossless = lossless
        self.spread = spread
        super().__init__(seed, particles=particles, moves=moves)

    def _prepared(self, observed: Observations) -> _Trials:
        return _Trials.of(observed, self.scope)

    def _draw_prior(self, count: int) -> Array:
        return draw_prior(count, self._random, self.scope)

    def _log_prior(self, theta: Array) -> Array:
        return log_prior(theta, self.scope)

    def _edges(self) -> tuple[Array, Array]:
        law = edge_law(self.theta, self._trials, self.scope, self.spread)
        x = law.middle[:, None] + law.deviation[:, None] * _NODES
        weight = np.exp(law.log_weights - law.log_weights.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        return (x + self.shift()[:, None]).ravel(), weight.ravel()

    def shift(self) -> Array:
        """Distance from the anchor to where half of the trials meet the goal, shape (P,).

        Half of all trials is a larger share of those that are not bad. Where losses are clumps the
        median trial loses half a clump less than the mean one. Half of the trials lose nothing
        where ln 2 clumps are lost on average.
        """
        sigma, bad = np.exp(self.theta[:, SIGMA]), np.exp(self.theta[:, BAD])
        return self._clumps_shift() - sigma * ndtri(0.5 / (1.0 - bad))

    def _clumps_shift(self) -> Array:
        if math.isinf(self.packets):
            return np.zeros(self.theta.shape[0])
        curves = _Curves.of(self.theta)
        anchor = np.full((1, 1), self.scope.anchor)
        at_anchor, _ = curves.inverse(anchor, np.log(anchor))
        clump = np.exp(self.theta[:, CLUMP, None])
        if not self.lossless:
            more = 0.5 * (clump - 1.0) / self.packets
            z = np.minimum(anchor + more, 3 * anchor)
            u, _ = curves.inverse(z, np.log(z))
            return np.asarray((u - at_anchor)[:, 0])
        middle = float(np.median(self.edge_middles()))
        shift = np.zeros_like(clump)
        for _ in range(4):
            z = math.log(2) * clump / (self.packets * np.exp(middle + shift))
            u, _ = curves.inverse(z, np.log(z))
            shift = np.clip(0.5 * (shift + u - at_anchor), -3.0, 3.0)
        return np.asarray(shift[:, 0])

    def edge_middles(self) -> Array:
        """Middle of the edge by particle."""
        return edge_law(self.theta, self._trials, self.scope, self.spread).middle

    def noise(self) -> float:
        """Median of σ, the capacity's relative deviation between trials."""
        return float(np.exp(np.median(self.theta[:, SIGMA])))

    def clump(self) -> float:
        """Median of b, packets of a clump."""
        return float(np.exp(np.median(self.theta[:, CLUMP])))

    def log_clump(self) -> tuple[float, float]:
        """Mean and deviation of ln b, the deviation at least a third, as the law is approximate;
        those of the prior where the trials do not tell."""
        mean, deviation = float(self.theta[:, CLUMP].mean()), float(self.theta[:, CLUMP].std())
        return (mean, math.hypot(deviation, 1 / 3)) if deviation < 0.5 else (1.0, 1.0)

    def blur(self) -> float:
        """Median deviation of the load at which trials begin to miss the goal."""
        return float(
            np.median(np.sqrt(np.exp(2 * self.theta[:, SIGMA]) + self._counting_variance()))
        )

    def _counting_variance(self) -> Array:
        curves = _Curves.of(self.theta)
        anchor = np.full((1, 1), self.scope.anchor)
        _, steepness = curves.inverse(anchor, np.log(anchor))
        counted = 2.0 * np.exp(self.theta[:, CLUMP, None]) - 1.0
        packets = self.packets if math.isfinite(self.packets) else 1e9
        return np.asarray((counted * np.expm1(anchor) / packets / steepness**2)[:, 0])

    def loss_noise(self) -> float:
        """Median of β·σ: deviation of z in overload."""
        return float(np.exp(np.median(self.theta[:, SIGMA] + self.theta[:, SLOPE])))

    def flatter(self) -> Bools:
        """Whether throughput still rises beyond saturation, by particle."""
        return np.asarray(self.theta[:, SLOPE] < -3 * _CONSTANT_SD)

    def soft(self) -> float:
        """Probability that the loss rises smoothly through the goal's share."""
        return float((self.theta[:, RISE] > math.log(self.scope.anchor / 3)).mean())

    def _likelihood(self, theta: Array, trials: _Trials) -> Array:
        return edge_law(theta, trials, self.scope, self.spread).log_likelihood


@dataclass(frozen=True)
class ParticleReadings:
    """Each trial's reading of the edge, by particle: shape (P, n)."""

    edge: Array
    """Edge by the trial alone; where it lost too little, the lowest that it allows."""
    away: Array
    """The same minus the edge by all trials; of bounds, the mean of what they allow."""
    deviation: Array
    bound: Bools
    """Whether the reading is a lower bound; shape (n,)."""
    informative: Bools
    """Whether the trial is near enough to tell of the middle; shape (n,)."""


def readings(posterior: Posterior, observed: Observations) -> ParticleReadings:
    """Each trial's reading of the edge."""
    theta, scope = posterior.theta, posterior.scope
    curves = _Curves.of(theta)
    anchor = np.full((1, 1), scope.anchor)
    at_anchor, _ = curves.inverse(anchor, np.log(anchor))
    sigma2 = np.exp(2 * theta[:, SIGMA, None])
    clump = np.exp(theta[:, CLUMP, None])
    z = loss_exponent(observed.lost, observed.sent)
    bound, above = (z < scope.low) | (observed.lost <= 0), z > 1.0
    least = np.maximum(scope.low, math.log(2) * clump / observed.sent[None, :])
    loss = np.where(bound, least, np.minimum(z, 1.0))
    skew = np.where(bound, 0.0, scope.few * 0.5 * clump / np.maximum(observed.lost, 0.5))
    u, steepness = curves.inverse(loss, np.log(loss), skew)
    edge = observed.x[None, :] - u + at_anchor
    y = edge - posterior.edge_middles()[:, None]
    deviation = np.sqrt(
        sigma2 + (2 * clump - 1) * np.expm1(loss) / observed.sent[None, :] / steepness**2
    )
    margin = -y / deviation
    # A bound: the trial's own reading lies above it; the mean of a normal deviate cut off there.
    cut = np.exp(-0.5 * np.minimum(margin**2, 200.0)) / math.sqrt(2 * math.pi)
    away = np.where(bound, deviation * cut / np.maximum(ndtr(margin), 1e-12), y)
    informative = np.where(bound, margin < 2.5, ~above).mean(axis=0) > 0.5
    return ParticleReadings(
        edge,
        away,
        np.broadcast_to(deviation, away.shape),
        bound,
        informative & (np.median(away, axis=0) > -2.0),
    )
