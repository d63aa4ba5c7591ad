"""The model behind the `planewise` search: a posterior over local load-loss curves, by particles.

Pure statistics: knows trials as numbers, no measurer. Follows the idea of FD.io's PLRsearch (fit
a curve by Bayes, measure where it says most), with a curve and noise of our own.

Let x = ln(offered load), N packets sent, k lost, z = −ln(1 − k/N). In one trial the system's
capacity is off by a factor m, and

    z = floor(x) + h(x − c − ln m),    h(u) = a·exp(g·u) for u < 0, a + β·u for u ≥ 0

h is PASTRAMI's realistic curve (section IV-B): loss grows like a power g of the load up to the
share a at saturation c; beyond, slope β (1: throughput stays constant; less: it still grows;
more: it falls). With a tiny a it is the ideal curve. It need be right only near a goal's edge:
trials elsewhere are left out by the caller. `floor` is a small loss at any load, b·exp(q·x).

    ln m ~ Normal(0, σ²) in most trials; in a share π of trials capacity drops by a large factor
    k given z: Poisson in clumps of φ packets

The likelihood of a trial is closed: with losses, u = h⁻¹(z − floor) is Normal(x − c, σ² + v) with
v the counting variance carried to u; without, the chance of no loss below c is a Gumbel-shaped
curve in u, taken as a normal one of its median and width. Particles are kept by sequential Monte
Carlo: reweighted by tempered steps, resampled, moved by differential-evolution Metropolis steps
(ter Braak 2006), which scale themselves to the posterior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

Array: TypeAlias = NDArray[np.float64]
Single: TypeAlias = NDArray[np.float32]
_F = np.float32

_PLACE, _SIGMA, _RISE, _POWER, _SLOPE, _FLOOR, _FLOOR_POWER, _SPIKE, _CLUMP = range(9)
_DIMENSIONS = 9
_FLOOR_PARTS = [_FLOOR, _FLOOR_POWER, _CLUMP]

_LOG_SIGMA = (math.log(1e-5), math.log(0.3))
_LOG_RISE = (math.log(1e-9), math.log(0.05))
_LOG_MUCH = math.log(1e-3)
_MUCH_LIKELIER = math.log(3.5)
"""Half of all systems are taken to lose 0.1 % or more at saturation (PASTRAMI: about 1 %)."""
_LOG_POWER = (math.log(5), math.log(3000))
_LOG_FLOOR = (math.log(1e-11), math.log(1e-3))
_SPIKE_DEPTH = 0.2
"""Mean of the exponential law of ln-capacity drops in spike trials."""
_STRAY = 1e-5
"""Weight of trials that no part of the model explains."""
_JUMPS = 0.3
"""Share of moves that propose another shape."""
_JUMP_WIDTH = 0.15
_GUMBEL_VARIANCE = math.pi**2 / 6
_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class _Trials:
    """What the likelihood needs of trials, columns of shape (n, 1) in single precision."""

    x: Single
    z: Single
    log_sent: Single
    log_lost: Single
    log_edge: Single
    """ln(ln 2 / sent)."""
    counting: Single
    """Counting variance of z, for independent losses."""
    per_packet: Single
    """1 / sent."""

    @classmethod
    def of(cls, x: Array, sent: Array, lost: Array) -> _Trials:
        z = loss_exponent(lost, sent)
        columns = (
            x,
            z,
            np.log(sent),
            np.log(np.maximum(lost, 0.5)),
            np.log(math.log(2) / sent),
            np.expm1(z) / sent,
            1 / sent,
        )
        return cls(*(column.astype(np.float32)[:, None] for column in columns))


@dataclass(frozen=True)
class Observations:
    """Trials as arrays of equal length."""

    x: Array
    """ln(load / reference load)."""
    sent: Array
    lost: Array

    def __len__(self) -> int:
        return self.x.size

    def same_as(self, other: Observations) -> bool:
        """Whether these are the same trials."""
        return np.array_equal(self.x, other.x) and np.array_equal(self.lost, other.lost)

    @cached_property
    def split(self) -> tuple[_Trials, _Trials]:
        """Those without loss, those with."""
        lossy = self.lost > 0
        clean = ~lossy
        return (
            _Trials.of(self.x[clean], self.sent[clean], self.lost[clean]),
            _Trials.of(self.x[lossy], self.sent[lossy], self.lost[lossy]),
        )


def no_observations() -> Observations:
    """An empty set."""
    empty = np.zeros(0)
    return Observations(empty, empty, empty)


def loss_exponent(lost: Array, sent: Array) -> Array:
    """z = −ln(1 − lost/sent), for a total loss a large number."""
    return np.asarray(-np.log1p(-np.minimum(lost / sent, 1 - 1e-9)))


@dataclass(frozen=True)
class _Curve:
    """h for many parameters at once: columns of shape (P, 1)."""

    rise: Array
    power: Array
    slope: Array

    @classmethod
    def of(cls, theta: Array) -> _Curve:
        return cls(
            np.exp(theta[:, _RISE, None]),
            np.exp(theta[:, _POWER, None]),
            np.exp(theta[:, _SLOPE, None]),
        )

    def inverse(self, z: Array) -> tuple[Array, Array]:
        """u with h(u) = z, and h'(u), for z > 0."""
        rising = z < self.rise
        u = np.where(
            rising,
            np.log(np.minimum(z / self.rise, 1.0)) / self.power,
            (z - self.rise) / self.slope,
        )
        return u, np.where(rising, self.power * z, self.slope)

    def edge(self, z: Array) -> tuple[Array, Array]:
        """u at which h(u) = z, and the variance of where losses begin about it."""
        u, _ = self.inverse(z)
        return u, np.where(z < self.rise, _GUMBEL_VARIANCE / self.power**2, 0.0)


def corner(theta: Array, anchor: float) -> Array:
    """c of each parameter, shape (P,): the curve loses `anchor` (as z) at its place."""
    u, _ = _Curve.of(theta).inverse(np.array([[anchor]]))
    return np.asarray(theta[:, _PLACE] - u[:, 0])


def log_prior(theta: Array) -> Array:
    """Log density of parameters of shape (P, 9), up to a constant."""
    inside = (
        (theta[:, _SIGMA] > _LOG_SIGMA[0])
        & (theta[:, _SIGMA] < _LOG_SIGMA[1])
        & (theta[:, _RISE] > _LOG_RISE[0])
        & (theta[:, _RISE] < _LOG_RISE[1])
        & (theta[:, _POWER] > _LOG_POWER[0])
        & (theta[:, _POWER] < _LOG_POWER[1])
        & (theta[:, _FLOOR] > _LOG_FLOOR[0])
        & (theta[:, _FLOOR] < _LOG_FLOOR[1])
        & (theta[:, _FLOOR_POWER] > 0.0)
        & (theta[:, _FLOOR_POWER] < 4.0)
        & (theta[:, _CLUMP] >= 0.0)
        & (theta[:, _CLUMP] < math.log(500.0))
    )
    density = (
        -0.5 * (theta[:, _PLACE] / 0.3) ** 2
        - 0.5 * (theta[:, _SLOPE] / 0.3) ** 2
        + _log_prior_of_floor(theta)
        - 0.5 * ((theta[:, _SPIKE] + 5.0) / 1.5) ** 2
        + np.where(theta[:, _RISE] > _LOG_MUCH, _MUCH_LIKELIER, 0.0)
    )
    return np.where(inside, density, -np.inf)


def _log_prior_of_floor(theta: Array) -> Array:
    """The part of the prior's log density that is about floor and clumps, within bounds."""
    return np.asarray(-0.5 * (theta[:, _FLOOR_POWER] - 1.0) ** 2 - theta[:, _CLUMP])


def draw_prior(count: int, random: np.random.Generator, spread: float) -> Array:
    """Parameters from the prior, the corner's place within about `spread` of the reference."""
    theta = np.empty((count, _DIMENSIONS))
    theta[:, _PLACE] = random.normal(0.0, spread, count)
    theta[:, _SIGMA] = random.uniform(*_LOG_SIGMA, count)
    much = random.random(count) < 0.5
    theta[:, _RISE] = np.where(
        much,
        random.uniform(_LOG_MUCH, _LOG_RISE[1], count),
        random.uniform(_LOG_RISE[0], _LOG_MUCH, count),
    )
    theta[:, _POWER] = random.uniform(*_LOG_POWER, count)
    theta[:, _SLOPE] = random.normal(0.0, 0.3, count)
    theta[:, _FLOOR] = random.uniform(*_LOG_FLOOR, count)
    theta[:, _FLOOR_POWER] = np.abs(random.normal(1.0, 1.0, count)).clip(0.01, 3.99)
    theta[:, _SPIKE] = random.normal(-5.0, 1.5, count)
    theta[:, _CLUMP] = np.minimum(random.exponential(1.0, count), 6.0)
    return theta


def log_likelihood(theta: Array, seen: Observations, anchor: float) -> Array:
    """Log likelihood of all trials together under each parameter, shape (P,)."""
    total = np.zeros(theta.shape[0])
    parameters = _Single.of(theta, anchor)
    clean, lossy = seen.split
    if clean.x.size:
        total += _log_without_loss(parameters, clean).sum(axis=0, dtype=np.float64)
    if lossy.x.size:
        total += _log_with_loss(parameters, lossy).sum(axis=0, dtype=np.float64)
    return total


@dataclass(frozen=True)
class _Single:
    """Parameters as rows of shape (1, P) in single precision, which is several times as quick.

    Enough: x is relative to a load near the edge, so differences of 1e-5 keep three digits.
    """

    c: Single
    sigma2: Single
    log_rise: Single
    rise: Single
    power: Single
    slope: Single
    log_floor: Single
    floor_power: Single
    spike: Single
    log_clump: Single
    clump: Single

    @classmethod
    def of(cls, theta: Array, anchor: float) -> _Single:
        def row(values: Array) -> Single:
            return values.astype(np.float32)[None, :]

        return cls(
            c=row(corner(theta, anchor)),
            sigma2=row(np.exp(2 * theta[:, _SIGMA])),
            log_rise=row(theta[:, _RISE]),
            rise=row(np.exp(theta[:, _RISE])),
            power=row(np.exp(theta[:, _POWER])),
            slope=row(np.exp(theta[:, _SLOPE])),
            log_floor=row(theta[:, _FLOOR]),
            floor_power=row(theta[:, _FLOOR_POWER]),
            spike=row(expit(theta[:, _SPIKE])),
            log_clump=row(theta[:, _CLUMP]),
            clump=row(np.exp(theta[:, _CLUMP])),
        )


def _normal_cdf(x: Single) -> Single:
    """Φ(x) to 1e-7 (Abramowitz and Stegun 7.1.26), in single precision."""
    y = np.abs(x) * _F(math.sqrt(0.5))
    t = 1 / (1 + _F(0.3275911) * y)
    series = t * (
        _F(0.254829592)
        + t
        * (_F(-0.284496736) + t * (_F(1.421413741) + t * (_F(-1.453152027) + t * _F(1.061405429))))
    )
    tail = _F(0.5) * series * np.exp(-y * y)
    return np.asarray(_F(0.5) + np.copysign(_F(0.5) - tail, x))


def _kept(p: _Single, t: Single, trials: _Trials) -> Single:
    """Chance of no loss beyond the floor's: below where ln 2 clumps are lost on average."""
    log_z = trials.log_edge + p.log_clump
    rising = log_z < p.log_rise
    edge = np.where(rising, (log_z - p.log_rise) / p.power, (np.exp(log_z) - p.rise) / p.slope)
    blur = rising * (_F(_GUMBEL_VARIANCE) / (p.power * p.power))
    clean = _normal_cdf(np.asarray((edge - t) / np.sqrt(p.sigma2 + blur), dtype=np.float32))
    dropped = 1 - np.exp(np.minimum(t - edge, _F(0)) / _F(_SPIKE_DEPTH))
    return np.asarray(clean + p.spike * (dropped - clean))


def _log_without_loss(p: _Single, trials: _Trials) -> Single:
    kept = _kept(p, trials.x - p.c, trials)
    floor_clumps = np.exp(trials.log_sent + p.log_floor + p.floor_power * trials.x - p.log_clump)
    return np.asarray(np.log(kept * np.exp(-floor_clumps) + _F(_STRAY * 1e-3)))


def _log_with_loss(p: _Single, trials: _Trials) -> Single:
    t = trials.x - p.c
    kept = _kept(p, t, trials)
    log_floor = p.log_floor + p.floor_power * trials.x
    floor = np.exp(log_floor)

    # Losses at the corner: Normal in u, as a mass per lost packet.
    excess = np.maximum(trials.z - floor, _F(0.1) * trials.z)
    rising = excess < p.rise
    u = np.where(rising, (np.log(excess) - p.log_rise) / p.power, (excess - p.rise) / p.slope)
    steepness = np.where(rising, p.power * excess, p.slope)
    variance = p.sigma2 + trials.counting * p.clump / (steepness * steepness)
    distance = u - t
    at_corner = np.exp(_F(-0.5) * distance * distance / variance) / np.sqrt(
        _F(2 * math.pi) * variance
    )
    in_spike = np.where(
        distance > 0,
        np.exp(-np.maximum(distance, _F(0)) / _F(_SPIKE_DEPTH)) / _F(_SPIKE_DEPTH),
        _F(0),
    )
    stray = _F(_STRAY) / (1 + distance * distance * _F(100))
    density = at_corner + p.spike * (in_spike - at_corner) + stray

    # Losses of the floor alone: Poisson in clumps (Stirling's form serves for real clump counts).
    log_rate = trials.log_sent + log_floor - p.log_clump
    log_clumps = np.maximum(trials.log_lost - p.log_clump, _F(-0.7))
    clumps = np.exp(log_clumps)
    poisson = np.exp(
        clumps * (log_rate - log_clumps)
        + clumps
        - np.exp(log_rate)
        - _F(0.5) * (_F(_LOG_2PI) + log_clumps)
        - p.log_clump
    )
    total = kept * poisson + density * trials.per_packet / steepness
    return np.asarray(np.log(total + _F(1e-37)))


def goal_loads(
    theta: Array, anchor: float, loss_exponent: float, reference_pps: float, duration_s: float
) -> Array:
    """x at which half of all trials meet a goal, per parameter, shape (P,).

    Args:
        theta: parameters, shape (P, 9).
        anchor: as the posterior's.
        loss_exponent: −ln(1 − loss ratio) of the goal; 0 for NDR.
        reference_pps: load at x = 0.
        duration_s: duration of the trials that the goal is about (matters for NDR only).
    """
    c = corner(theta, anchor)[:, None]
    sigma = np.exp(theta[:, _SIGMA, None])
    curve = _Curve.of(theta)
    spike = np.minimum(expit(theta[:, _SPIKE, None]), 0.45)
    clump = np.exp(theta[:, _CLUMP, None])
    floor, power = np.exp(theta[:, _FLOOR, None]), theta[:, _FLOOR_POWER, None]
    if loss_exponent > 0:
        left = np.maximum(loss_exponent - floor * np.exp(power * c), 0.02 * loss_exponent)
        u, _ = curve.inverse(left)
        return np.asarray(c + u + sigma * ndtri(1 - 0.5 / (1 - spike)))[:, 0]
    packets = reference_pps * duration_s
    low, high = np.full(c.shape, -6.0), c + 1.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        sent = packets * np.exp(middle)
        edge, blur = curve.edge(math.log(2) * clump / sent)
        clean = ndtr((edge - middle + c) / np.sqrt(sigma**2 + blur))
        kept = (1 - spike) * clean * np.exp(-sent * floor * np.exp(power * middle) / clump)
        good = kept >= 0.5
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return np.asarray(0.5 * (low + high))[:, 0]


class Posterior:
    """Particles of the posterior, updated as trials come.

    The curve is held at its place: the x at which it loses `anchor` (as z), which a goal asks
    about, and which the trials near it fix whatever the curve does elsewhere. Its corner c
    follows. Thus the place hardly depends on the other parameters, and the moves mix well.
    """

    def __init__(
        self,
        seed: int,
        anchor: float,
        *,
        particles: int = 1024,
        spread: float = 0.05,
        moves: int = 2,
    ) -> None:
        self.anchor = anchor
        self._random = np.random.default_rng(seed)
        self._moves = moves
        self.seen = no_observations()
        self.theta = draw_prior(particles, self._random, spread)
        self._log_like = np.zeros(particles)

    def update(self, seen: Observations) -> None:
        """Takes the trials that are to count from now on, whichever counted before."""
        previous = self.seen
        if seen.same_as(previous):
            return
        old = self._log_like
        new = log_likelihood(self.theta, seen, self.anchor)
        done = 0.0
        while done < 1.0:
            step = self._temper_step(new - old, 1.0 - done)
            weights = np.exp(step * (new - old - (new - old).max()))
            done = 1.0 if step >= 1.0 - done else done + step
            chosen = self._resample(weights)
            self.theta, old, new = self.theta[chosen], old[chosen], new[chosen]
            for _ in range(self._moves):
                old, new = self._move(previous, seen, done, old, new)
        self.seen = seen
        self._log_like = new

    def samples(self, moves: int) -> Array:
        """Parameters from the posterior, shape (particles·(moves + 1), 9)."""
        kept = [self.theta]
        for _ in range(moves):
            _, self._log_like = self._move(None, self.seen, 1.0, self._log_like, self._log_like)
            kept.append(self.theta)
        return np.concatenate(kept)

    def noise(self) -> float:
        """Median of σ, the capacity's relative deviation between trials."""
        return float(np.exp(np.median(self.theta[:, _SIGMA])))

    def blur(self, packets: float) -> float:
        """Median deviation of the edge at which trials of so many packets begin to lose."""
        curve = _Curve.of(self.theta)
        clump = np.exp(self.theta[:, _CLUMP, None])
        _, variance = curve.edge(math.log(2) * clump / packets)
        sigma = np.exp(self.theta[:, _SIGMA, None])
        return float(np.median(np.sqrt(sigma**2 + variance)))

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
        previous: Observations | None,
        seen: Observations,
        share: float,
        old: Array,
        new: Array,
    ) -> tuple[Array, Array]:
        """One Metropolis step for all particles.

        The target is prior · L(previous)^(1 − share) · L(seen)^share; `old` and `new` are the
        log likelihoods of both sets of trials at the particles, before and (returned) after.
        """
        if self._random.random() < _JUMPS:
            proposal, correction = self._jump(seen)
        else:
            proposal, correction = self._step(), np.zeros(self.theta.shape[0])
        prior_now, prior_then = log_prior(self.theta), log_prior(proposal)
        safe = np.where(np.isfinite(prior_then)[:, None], proposal, self.theta)
        new_then = log_likelihood(safe, seen, self.anchor)
        old_then = old
        if previous is not None and share < 1.0:
            old_then = log_likelihood(safe, previous, self.anchor)
        change = (
            prior_then
            - prior_now
            + correction
            + (1 - share) * (old_then - old)
            + share * (new_then - new)
        )
        accept = np.log(self._random.random(self.theta.shape[0])) < change
        self.theta = np.where(accept[:, None], proposal, self.theta)
        return np.where(accept, old_then, old), np.where(accept, new_then, new)

    def _step(self) -> Array:
        """A differential-evolution step: along the difference of two other particles."""
        count = self.theta.shape[0]
        first = self._random.permutation(count)
        second = np.roll(first, 1 + int(self._random.integers(count - 1)))
        # Most steps change a part of the parameters only; one in six jumps between modes.
        part = self._random.random((count, _DIMENSIONS)) < self._random.choice([0.25, 0.5, 1.0])
        part[np.arange(count), self._random.integers(_DIMENSIONS, size=count)] = True
        scale = self._random.choice([2.38, 1.0]) / np.sqrt(2.0 * part.sum(axis=1))
        if self._random.random() < 1 / 6:
            scale = np.ones(count)
        difference = (self.theta[first] - self.theta[second]) * part
        jitter = self._random.normal(0.0, 1e-6, self.theta.shape) * part
        return np.asarray(self.theta + scale[:, None] * difference + jitter)

    def _jump(self, seen: Observations) -> tuple[Array, Array]:
        """A new shape at the same place, partly as the losses of neighbouring trials suggest.

        Shapes far from all particles are never reached by steps. Returns the proposals and the
        log of how much less likely they are proposed than what they would replace.
        """
        count = self.theta.shape[0]
        rises, powers = _suggested_shapes(seen)
        proposal = self.theta.copy()
        guided = self._random.random((2, count)) < 0.5
        proposal[:, _RISE] = np.where(
            guided[0],
            self._random.uniform(*rises, count),
            self._random.uniform(*_LOG_RISE, count),
        )
        proposal[:, _POWER] = np.where(
            guided[1],
            self._random.choice(powers, count) + self._random.normal(0.0, _JUMP_WIDTH, count),
            self._random.uniform(*_LOG_POWER, count),
        )
        proposal[:, _SLOPE] = self._random.normal(0.0, 0.3, count)
        # The loss at any load is drawn from its prior, which then cancels.
        redrawn = np.asarray(self._random.random(count) < 0.5)
        fresh = draw_prior(count, self._random, 0.0)[:, _FLOOR_PARTS]
        proposal[:, _FLOOR_PARTS] = np.where(redrawn[:, None], fresh, proposal[:, _FLOOR_PARTS])
        rescaled = self._random.random(count) < 0.5
        proposal[:, _SIGMA] += rescaled * self._random.normal(0.0, 1.5, count)

        def log_density(theta: Array) -> Array:
            within = (theta[:, _RISE] >= rises[0]) & (theta[:, _RISE] <= rises[1])
            rise = within / (rises[1] - rises[0]) + 1 / (_LOG_RISE[1] - _LOG_RISE[0])
            off = (theta[:, _POWER, None] - powers[None, :]) / _JUMP_WIDTH
            near = np.exp(-0.5 * off**2).mean(axis=1) / (_JUMP_WIDTH * math.sqrt(2 * math.pi))
            power = near + 1 / (_LOG_POWER[1] - _LOG_POWER[0])
            return np.asarray(
                np.log(rise * power)
                - 0.5 * (theta[:, _SLOPE] / 0.3) ** 2
                + redrawn * _log_prior_of_floor(theta)
            )

        return proposal, log_density(self.theta) - log_density(proposal)


def _suggested_shapes(seen: Observations) -> tuple[tuple[float, float], Array]:
    """Range of ln(rise), and values of ln(power), that pairs of neighbouring trials suggest."""
    lossy = seen.lost > 0
    order = np.argsort(seen.x[lossy])
    x = seen.x[lossy][order]
    log_z = np.log(loss_exponent(seen.lost[lossy][order], seen.sent[lossy][order]))
    apart = np.diff(x) > 5e-4 if x.size > 1 else np.zeros(0, np.bool_)
    powers = np.diff(log_z)[apart] / np.diff(x)[apart] if x.size > 1 else np.zeros(0)
    powers = powers[powers > 1]
    log_powers = np.log(np.clip(powers, 6.0, 2900.0)) if powers.size else np.array([4.0])
    low = float(log_z.min()) if x.size else -10.0
    high = float(log_z.max()) + 0.7 if x.size else -4.0
    low = max(low, _LOG_RISE[0] + 0.1)
    high = min(max(high, low + 0.5), _LOG_RISE[1])
    return (min(low, high - 0.5), high), log_powers


def residuals(theta: Array, anchor: float, seen: Observations) -> tuple[Array, NDArray[np.bool_]]:
    """Each trial's residual at the median parameter, and whether it says anything.

    A trial with losses has (u − (x − c)) / deviation; one without has the mean of what a normal
    deviate could be, given that there was no loss. Trials without loss far below the edge say
    nothing.
    """
    middle = np.median(theta, axis=0)
    c = float(corner(middle[None, :], anchor)[0])
    sigma, curve = math.exp(middle[_SIGMA]), _Curve.of(middle[None, :])
    clump = math.exp(middle[_CLUMP])
    t = seen.x - c
    z = loss_exponent(seen.lost, seen.sent)
    floor = np.exp(middle[_FLOOR] + middle[_FLOOR_POWER] * seen.x)
    u, steepness = (part[0] for part in curve.inverse(np.maximum(z - floor, 1e-12)))
    variance = sigma**2 + np.expm1(np.maximum(z, 1e-12)) / seen.sent * clump / steepness**2
    edge, blur = (part[0] for part in curve.edge(math.log(2) * clump / seen.sent))
    margin = (edge - t) / np.sqrt(sigma**2 + blur)
    at_corner = (z > 3 * floor) & (seen.lost > 0)
    density = np.exp(-0.5 * np.minimum(margin**2, 200.0)) / math.sqrt(2 * math.pi)
    censored = -density / np.maximum(ndtr(margin), 1e-12)
    value = np.where(at_corner, (u - t) / np.sqrt(variance), censored)
    return np.asarray(value), np.asarray(at_corner | (margin < 3.0))
