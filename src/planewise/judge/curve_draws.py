"""Draws of the curves that the runs allow, and of their headroom. Knows no testbed.

The model, and why it is this one, is in docs/concepts/verdict.md. In short: at each load the
true mean PLR has Student's distribution around the sample mean; its scale comes from the runs'
deviation, shrunk towards what loads of such a loss usually show (so that two runs that happen to
agree prove little) and widened where consecutive runs resemble each other. Drawing the means of
all loads together, many times, and reading the headroom of each draw gives shares of draws, of
which `probability` makes probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planewise.judge.curve import Curve, Floats, Ints
from planewise.judge.headroom import LIMIT as HEADROOM_LIMIT
from planewise.judge.headroom import Headrooms, headrooms, over
from planewise.judge.rules import ETA

MIN_STEP: Final = 0.02
"""Loads closer than this share of the lower one are pooled: TIR between them is only noise."""

_MOST_GROUPS: Final = 100

_PRIOR_RUNS: Final = 2.0
"""Weight of the usual deviation, in runs."""
_PRIOR_RATIO: Final = 0.8
"""Usual deviation of a run's PLR at low loss: about the PLR itself …"""
_PRIOR_FLOOR: Final = 1e-3
"""… as if there always were this much loss …"""
_PRIOR_CAP: Final = 0.01
"""… and not more than this, however high the loss."""
_SATURATED_PLR: Final = 0.03
"""From here on runs vary as the system's capacity does: by the same share at all such loads."""
_POOLED_PRIOR_RUNS: Final = 4.0
"""Weight of those loads' common deviation at each of them, in runs."""
_SLOPE_SPREADS: Final = np.geomspace(0.01, 0.64, 7)
"""How far the TIR of saturated steps may lie apart; each is held equally likely beforehand."""
_FALL_SPREAD: Final = 1.0
"""How far the TIR of a step at which throughput falls may lie from the others'."""
_KNEE_SPREAD: Final = 0.3
"""The first step over the limit may hold the knee: its TIR may lie this far from the others'."""
_LEAST_PLR: Final = -1.0
_DISTURBED_PLR: Final = 0.02
_DISTURBED_DEVIATIONS: Final = 8.0
"""How far above the median a disturbed run is, at least, in PLR and in robust deviations."""
_POOLED_RUNS: Final = 10.0
"""Weight of all loads' share of disturbed runs at one load, in runs."""
_USUAL_CORRELATION: Final = 0.2
_CORRELATION_RUNS: Final = 8.0
"""Usual lag-1 correlation of consecutive runs, and its weight in runs."""
_MATERIAL_DRIFT: Final = 0.03
_CERTAIN_DRIFT: Final = 4.0
"""A trend counts when capacity changes by this share over the sweep, with this Student's t."""
_MIN_RUNS_DRIFT: Final = 10
_INTERLEAVED: Final = 0.25
"""Share of the time's variance within loads: with less, loads were measured one after another."""
_MOST_VISITS: Final = 500
"""Trials at a load whose distances in time are looked at."""
_MIN_RUNS_CORRELATION: Final = 8
"""With fewer runs a lag-1 correlation is not estimated."""

GOOD: Final = 0
BAD: Final = 1
OPEN: Final = 2
"""The ladder ends or begins too early, or its loads lie too far apart, however many runs it has."""


@dataclass(frozen=True)
class Moments:
    """A curve's ladder in the numbers that the model needs; all arrays of shape (G,), G loads."""

    offered_pps: Floats
    count: Floats
    """Runs at each load."""
    mean: Floats
    """Sample mean of all runs' PLR."""
    ordinary: Floats
    """Runs that are not disturbed."""
    ordinary_mean: Floats
    deviation: Floats
    """Sample deviation (K − 1) of the ordinary runs; 0 for a single one."""
    inflation: Floats
    """By how much autocorrelation multiplies the variance of their mean, at least 1."""
    depth: Floats
    """Share of its throughput that a disturbed run loses."""

    @cached_property
    def _spread(self) -> tuple[Floats, Floats]:
        """Deviation of ordinary runs under the model, and its degrees of freedom."""
        degrees = self.ordinary - 1
        usual = usual_deviation(self.ordinary_mean)
        prior = np.full(usual.size, _PRIOR_RUNS)
        saturated = self.ordinary_mean > _SATURATED_PLR
        if saturated.any():
            passed = np.maximum(1 - self.ordinary_mean[saturated], _PRIOR_FLOOR)
            free = degrees[saturated]
            # The median: where throughput falls it varies more than on the plateau.
            shares = (self.deviation[saturated] / passed)[free > 0] ** 2
            typical = 0.0
            if shares.size:
                typical = float(np.median(shares)) / _median_share(float(free[free > 0].mean()))
            common = (_PRIOR_RUNS * _PRIOR_CAP**2 + free.sum() * typical) / (
                _PRIOR_RUNS + free.sum()
            )
            usual[saturated] = passed * math.sqrt(common)
            prior[saturated] = np.minimum(_PRIOR_RUNS + free.sum() / 2, _POOLED_PRIOR_RUNS)
        variance = (prior * usual**2 + degrees * self.deviation**2) / (prior + degrees)
        return np.sqrt(variance), prior + degrees

    @property
    def scale(self) -> Floats:
        """Standard error of the ordinary runs' mean PLR under the model."""
        return self._spread[0] * np.sqrt(self.inflation / self.ordinary)

    @property
    def degrees(self) -> Floats:
        """Degrees of freedom of the ordinary mean's distribution."""
        prior = self._spread[1] - (self.ordinary - 1)
        return np.maximum(1.0, self.ordinary / self.inflation - 1 + prior)

    @property
    def disturbed(self) -> Floats:
        """Disturbed runs at each load."""
        return self.count - self.ordinary


@dataclass(frozen=True)
class Draws:
    """Draws of the true means, and the rule's outcome for each."""

    plr: Floats
    """True mean PLR, shape (draws, G)."""
    forwarded_pps: Floats
    """Shape (draws, G)."""
    outcome: NDArray[np.int8]
    """GOOD, BAD or OPEN of each draw, shape (draws,)."""
    first_over: Ints
    """Index of the first load over the limit; G where there is none; shape (draws,)."""
    headroom: Headrooms

    def share(self, outcome: int) -> float:
        """Share of the draws with this outcome."""
        return float((self.outcome == outcome).mean())

    @property
    def share_good(self) -> float:
        """Share of draws whose headroom is below its limit, PDR being anywhere between its
        readings; a draw that the ladder leaves open at one end counts half."""
        between = self.headroom.between
        low = np.where(self.outcome == BAD, 0.0, 0.5)
        return float(np.where(np.isnan(between), low, between < HEADROOM_LIMIT).mean())

    def shares_at(self, offered_pps: Floats, plr: float, headroom: float) -> tuple[float, float]:
        """Shares of GOOD and of BAD with other limits of loss and headroom."""
        readings = headrooms(offered_pps, self.plr, self.forwarded_pps, plr)
        return float((readings.high < headroom).mean()), float((readings.low >= headroom).mean())

    @property
    def shown(self) -> float:
        """The greatest share of draws in which one and the same load has more than the limit.

        Some load of many has it in most draws wherever runs vary much: every draw of an erratic
        curve has such a load, each another. That proves nothing about the system.
        """
        more = self.forwarded_pps >= (1 + HEADROOM_LIMIT) * self.headroom.at_pdr_pps[:, None]
        return float(more.mean(axis=0).max())


def _median_share(degrees: float) -> float:
    """Median of a chi-square variable as a share of its mean (Wilson and Hilferty 1931)."""
    return float((1 - 2 / (9 * degrees)) ** 3)


def lag1(values: Floats) -> float:
    """Lag-1 autocorrelation, without correction; 0 where there is no variation.

    `values` has shape (K,), in the runs' order, K at least 2.
    """
    centred = values - values.mean()
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if total > 0 else 0.0


def inflation(values: Floats) -> float:
    """Variance inflation (1 + ρ)/(1 − ρ) of the mean of an AR(1) series, at most K/2.

    ρ is the lag-1 correlation, corrected for its bias of −(1 + 3ρ)/K (Kendall 1954) and shrunk
    towards what is usual, which is all there is for few runs. Negative correlation is not
    believed: it would narrow the interval.
    """
    size = values.size
    rho = _USUAL_CORRELATION
    if size >= _MIN_RUNS_CORRELATION:
        raw = lag1(values)
        estimate = min(0.99, max(0.0, raw + (1 + 3 * raw) / size))
        rho = (size * estimate + _CORRELATION_RUNS * rho) / (size + _CORRELATION_RUNS)
    return min(max(size / 2, 1.5), (1 + rho) / (1 - rho))


def groups(offered_pps: Floats, min_step: float = MIN_STEP) -> list[slice]:
    """Runs of neighbouring loads that lie within `min_step` of the lowest of them.

    No ladder needs more than a hundred steps: `min_step` is doubled until there are no more.
    """
    stretches: list[slice] = []
    start = 0
    for index in range(1, offered_pps.size + 1):
        if index == offered_pps.size or offered_pps[index] >= offered_pps[start] * (
            1 + min_step
        ) * (1 - 1e-9):
            stretches.append(slice(start, index))
            start = index
    if len(stretches) > _MOST_GROUPS:
        return groups(offered_pps, 2 * min_step)
    return stretches


def usual_deviation(mean: Floats) -> Floats:
    """Usual deviation of runs at such a mean PLR: the prior of the model."""
    return np.minimum(_PRIOR_RATIO * (np.maximum(mean, 0) + _PRIOR_FLOOR), _PRIOR_CAP)


def moments(curve: Curve, min_step: float = MIN_STEP) -> Moments:
    """The ladder of `curve`, loads closer than `min_step` pooled (weighted by runs)."""
    offered, runs, places = [], [], []
    for group in groups(curve.offered_pps, min_step):
        points = curve.points[group]
        weights = [point.count for point in points]
        offered.append(float(np.average([point.offered_pps for point in points], weights=weights)))
        runs.append(
            levelled(
                np.repeat([point.offered_pps for point in points], weights),
                np.concatenate([point.plr_per_run for point in points]),
            )
        )
        places.append(np.concatenate([point.table.order for point in points]).astype(np.float64))
    orders = np.concatenate(places)
    ordered = bool((orders >= 0).all()) and np.unique(orders).size == orders.size
    return moments_of(np.array(offered), runs, places if ordered else None)


def levelled(offered_pps: Floats, plr: Floats) -> Floats:
    """PLR of runs at pooled loads, without the part that their different loads explain.

    Arrays of shape (K,). Within so short a stretch loss is taken to change linearly with load;
    with fewer than three runs nothing can be told apart.
    """
    plr = np.maximum(plr, _LEAST_PLR)
    if plr.size < 3 or offered_pps.min() == offered_pps.max():
        return plr
    centred: Floats = offered_pps / offered_pps.mean() - 1
    trend = float(centred @ plr) / float(centred @ centred)
    result: Floats = plr - trend * centred
    return result


def moments_of(
    offered_pps: Floats, runs: Sequence[Floats], places: Sequence[Floats] | None = None
) -> Moments:
    """The same from the PLR of the runs at each load, in order; every load has at least one.

    `places` are the runs' places in the order of the whole sweep, where they are known: then
    trials that follow each other at different loads show how slowly the system wavers.
    """
    rho = 0.0
    if places is not None:
        residuals = _residuals(places, runs)
        rho = 0.0 if residuals is None else residuals.correlation
    rows = np.empty((6, len(runs)))
    local = np.zeros(len(runs))
    losses: list[float] = []
    for index, counted in enumerate(runs):
        # Counts that cannot be (several times more received than sent) must not break numerics.
        plr = np.maximum(counted, _LEAST_PLR)
        ordinary = plr
        disturbed = _disturbed(plr)
        if disturbed is not None:
            ordinary = plr[~disturbed]
            lost = 1 - (1 - plr[disturbed]) / max(1e-9, 1 - float(ordinary.mean()))
            local[index] = lost.sum()
            losses.extend(lost.tolist())
        rows[:, index] = (
            plr.size,
            plr.mean(),
            ordinary.size,
            ordinary.mean(),
            ordinary.std(ddof=1) if ordinary.size > 1 else 0.0,
            inflation(ordinary),
        )
        if places is not None and rho > 0:
            # The variance of the mean of an AR(1) process seen at these places.
            apart = np.abs(places[index][:, None] - places[index])[:_MOST_VISITS, :_MOST_VISITS]
            rows[5, index] = max(rows[5, index], float((rho**apart).sum()) / apart.shape[0])
    # A load with no or few disturbed runs is taken to lose what those of all loads lost.
    pooled = float(np.mean(losses)) if losses else 0.0
    depth = (local + pooled) / (rows[0] - rows[2] + 1)
    count, mean, ordinary, ordinary_mean, deviation, widened = rows
    return Moments(offered_pps, count, mean, ordinary, ordinary_mean, deviation, widened, depth)


def _disturbed(plr: Floats) -> NDArray[np.bool_] | None:
    """Mask of the few runs that lost far more than the others; None when there is none.

    Far: 8 robust deviations and 2 % of the packets above the median. Few: no more than a fifth,
    else it is how the system runs.
    """
    if plr.size < 3:
        return None
    median = float(np.median(plr))
    if float(plr.max()) <= median + _DISTURBED_PLR:
        return None
    robust = 1.4826 * float(np.median(np.abs(plr - median)))
    usual = float(usual_deviation(np.array(median)))
    spread = math.sqrt((_PRIOR_RUNS * usual**2 + plr.size * robust**2) / (_PRIOR_RUNS + plr.size))
    far = plr > median + max(_DISTURBED_PLR, _DISTURBED_DEVIATIONS * spread)
    count = int(far.sum())
    return far if 0 < count <= max(1, plr.size // 5) else None


def draw(ladder: Moments, *, plr: float, draws: int = 4000, seed: int = 0) -> Draws:
    """Draws the true means `draws` times and reads PDR and headroom from each.

    GOOD: headroom is below its limit at both readings of PDR; BAD: at neither. OPEN: the loads lie
    too far apart, or begin or end too early, to tell.
    """
    rng = np.random.default_rng(seed)
    size = ladder.offered_pps.size
    noise = rng.standard_t(ladder.degrees, size=(draws, size))
    mean = np.minimum(ladder.ordinary_mean + noise * ladder.scale, 1.0)
    disturbed = ladder.disturbed
    if disturbed.any():
        # The share of disturbed runs: that of all loads counts like so many runs at each.
        pooled = float(disturbed.sum() / ladder.count.sum())
        share = rng.beta(
            disturbed + _POOLED_RUNS * pooled,
            ladder.ordinary + _POOLED_RUNS * (1 - pooled),
            size=(draws, size),
        )
        mean += share * ladder.depth * (1 - mean)
    first = over(mean, plr)
    forwarded = ladder.offered_pps * (1 - mean)
    for start in np.unique(first[first < size - 2]):
        rows = np.flatnonzero(first == start)
        forwarded[rows, start:] = _smoothed(ladder, int(start), forwarded[rows, start:], rng)
    readings = headrooms(ladder.offered_pps, mean, forwarded, plr, seed)
    outcome = np.full(draws, OPEN, dtype=np.int8)
    outcome[readings.high < HEADROOM_LIMIT] = GOOD
    outcome[readings.low >= HEADROOM_LIMIT] = BAD
    return Draws(mean, forwarded, outcome, first, readings)


def _smoothed(ladder: Moments, start: int, forwarded: Floats, rng: np.random.Generator) -> Floats:
    """Draws of the throughput from load `start` on, given that saturated steps resemble.

    Each step's TIR by itself is noise where loads are close, and the largest of many noisy TIR
    is large. So the true TIR of the steps after the first are taken to scatter around a common
    value, unknown, by an unknown spread; what the data say about the spread (its restricted
    likelihood) decides how far they are drawn together. Precise data are left as they are.
    `forwarded` has shape (draws, G − start): draws of the throughput by the runs alone.
    """
    width = np.diff(ladder.offered_pps[start:])
    steps = width.size
    degrees = ladder.degrees[start:]
    error = (
        np.maximum(ladder.scale[start:], 1e-9)
        * ladder.offered_pps[start:]
        * np.sqrt(np.minimum(3.0, degrees / np.maximum(degrees - 2, 1)))
    )
    slope = np.zeros((steps, steps + 1))
    slope[np.arange(steps), np.arange(steps)] = -1 / width
    slope[np.arange(steps), np.arange(steps) + 1] = 1 / width
    observed = slope @ (ladder.offered_pps * (1 - ladder.ordinary_mean))[start:]
    noise = (slope * error**2) @ slope.T
    spreads = np.repeat(_SLOPE_SPREADS[:, None] ** 2, steps, axis=1)
    spreads[:, 0] += _KNEE_SPREAD**2
    # Where throughput clearly falls, steps say nothing about how flat the others are.
    falling = observed + 2 * np.sqrt(np.diag(noise)) < 0
    spreads[:, falling & (observed < -ETA)] += _FALL_SPREAD**2
    diagonal = np.arange(steps)
    covariance = np.repeat(noise[None], _SLOPE_SPREADS.size, axis=0)
    covariance[:, diagonal, diagonal] += spreads
    precision = np.linalg.inv(covariance)
    column = precision.sum(axis=1)
    weight = column.sum(axis=1)
    residual = observed - (column @ observed / weight)[:, None]
    misfit = np.einsum("ij,ijk,ik->i", residual, precision, residual)
    likelihood = 0.5 * (
        np.linalg.slogdet(precision)[1] - np.log(np.maximum(weight, 1e-300)) - misfit
    )
    share = np.exp(likelihood - likelihood.max())
    chosen = rng.choice(_SLOPE_SPREADS.size, size=forwarded.shape[0], p=share / share.sum())
    # Perturb data and prior, then solve: exact for normal errors, and Student's tails stay.
    # The prior's common value is unknown: its precision has that direction taken out.
    certain = 1 / spreads
    prior = -certain[:, :, None] * certain[:, None, :] / certain.sum(axis=1)[:, None, None]
    prior[:, diagonal, diagonal] += certain
    pull = slope.T @ prior
    data = 1 / error**2
    system = pull @ slope
    system[:, np.arange(steps + 1), np.arange(steps + 1)] += data
    gain = np.linalg.inv(system)
    result = forwarded.copy()
    for index in np.unique(chosen):
        rows = np.flatnonzero(chosen == index)
        scatter = rng.standard_normal((rows.size, steps)) * np.sqrt(spreads[index])
        result[rows] = (forwarded[rows] * data + scatter @ pull[index].T) @ gain[index].T
    return result


def sensitivity(draws: Draws, ladder: Moments, bins: int = 12) -> Floats:
    """How much one more run at each load would tell about the outcome, shape (G,).

    First-order sensitivity (Sobol): the variance over draws of the share of GOOD given
    the load's mean, times the share of that mean's variance that one run removes, 1/(K + 1).
    """
    total = draws.outcome.size
    good = (draws.outcome == GOOD).astype(np.float64)
    overall = good.mean()
    bins = max(1, min(bins, total // 50))
    edges = np.linspace(0, total, bins + 1).astype(np.int64)
    order = np.argsort(draws.plr, axis=0)
    sorted_good = good[order]
    cumulative = np.vstack([np.zeros(sorted_good.shape[1]), np.cumsum(sorted_good, axis=0)])
    sizes = np.diff(edges)[:, None]
    means = np.diff(cumulative[edges], axis=0) / sizes
    between = (sizes * (means - overall) ** 2).sum(axis=0) / total
    # What binning noise alone would give is no information.
    noise = overall * (1 - overall) * (bins - 1) / total
    result: Floats = np.maximum(0.0, between - 2 * noise) / (ladder.count + 1)
    return result


@dataclass(frozen=True)
class CapacityTrend:
    """A trend of the system's capacity over a whole sweep."""

    change: float
    """From the first to the last trial, as a share; negative: it became slower."""
    t: float
    """Student's t of the trend, corrected for autocorrelation."""

    @property
    def material(self) -> bool:
        """Whether it is certain, and large enough to bend a curve."""
        return abs(self.change) >= _MATERIAL_DRIFT and abs(self.t) >= _CERTAIN_DRIFT


@dataclass(frozen=True)
class _Residuals:
    """How throughput at saturated loads deviates from each load's mean, in the sweep's order."""

    place: Floats
    load: Ints
    relative: Floats
    """Deviation as a share of the load's mean throughput. All of shape (N,)."""

    @property
    def correlation(self) -> float:
        """Correlation of trials that follow each other directly, 0 where that is not known."""
        follows = np.diff(self.place) == 1
        if int(follows.sum()) < _MIN_RUNS_DRIFT:
            return 0.0
        total = float((self.relative**2).mean())
        product = float((self.relative[1:] * self.relative[:-1])[follows].mean())
        return min(0.95, max(0.0, product / total)) if total > 0 else 0.0


def _residuals(places: Sequence[Floats], runs: Sequence[Floats]) -> _Residuals | None:
    """None where too little was saturated, or loads were measured one after another."""
    saturated = [
        index
        for index, plr in enumerate(runs)
        if plr.size > 1 and _SATURATED_PLR < float(plr.mean()) < 1
    ]
    if sum(runs[index].size for index in saturated) < _MIN_RUNS_DRIFT:
        return None
    place = np.concatenate([places[index] for index in saturated])
    load = np.repeat(np.arange(len(saturated)), [runs[index].size for index in saturated])
    relative = np.concatenate(
        [(1 - runs[index]) / (1 - float(runs[index].mean())) - 1 for index in saturated]
    )
    within = np.concatenate([places[index] - places[index].mean() for index in saturated])
    if float(within @ within) < _INTERLEAVED * float(((place - place.mean()) ** 2).sum()):
        return None
    by_place = np.argsort(place)
    return _Residuals(place[by_place], load[by_place], relative[by_place])


def sweep_drift(places: Sequence[Floats], runs: Sequence[Floats]) -> CapacityTrend | None:
    """Trend of throughput over the trials at saturated loads; None where it cannot be told.

    For each load: the places of its trials in the sweep's real order, and their PLR. Each load
    has its own level, the relative trend is common (least squares). Loads must have been
    interleaved, else a trend and the curve are the same thing.
    """
    residuals = _residuals(places, runs)
    if residuals is None:
        return None
    time = (residuals.place - residuals.place.min()) / max(1.0, float(np.ptp(residuals.place)))
    count = np.bincount(residuals.load)
    centred = time - (np.bincount(residuals.load, time) / count)[residuals.load]
    total = float(centred @ centred)
    degrees = residuals.place.size - count.size - 1
    if total <= 0 or degrees < 3:
        return None
    change = float(centred @ residuals.relative) / total
    residual = residuals.relative - change * centred
    error = math.sqrt(max(float(residual @ residual) / degrees, 1e-18) / total)
    rho = min(0.95, max(0.0, lag1(residual)))
    return CapacityTrend(change, change / error / math.sqrt((1 + rho) / (1 - rho)))


def curve_drift(curve: Curve) -> CapacityTrend | None:
    """The same of a curve whose runs carry their place in the sweep's order."""
    places = [point.table.order.astype(np.float64) for point in curve.points]
    orders = np.concatenate(places)
    if (orders < 0).any() or np.unique(orders).size < orders.size:
        return None
    return sweep_drift(places, [point.plr_per_run for point in curve.points])


def normal_tail(z: float) -> float:
    """Two-sided p-value of a standard normal deviate."""
    return math.erfc(abs(z) / math.sqrt(2))
