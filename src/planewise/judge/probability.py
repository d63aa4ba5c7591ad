"""How probable it is that a curve's true means fulfil the written rule. Knows no testbed.

The model, and why it is this one, is in docs/concepts/verdict.md. In short: at each load the
true mean PLR has Student's distribution around the sample mean; its scale comes from the runs'
deviation, shrunk towards what loads of such a loss usually show (so that two runs that happen to
agree prove little) and widened where consecutive runs resemble each other. Drawing the means of
all loads together, many times, and applying the rule to each draw gives the probabilities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planewise.judge.curve import Curve, Floats, LoadPoint
from planewise.judge.rules import ETA

MIN_STEP: Final = 0.035
"""Loads closer than this share of the lower one are pooled: TIR between them is only noise."""

_PRIOR_RUNS: Final = 2.0
"""Weight of the usual deviation, in runs."""
_PRIOR_RATIO: Final = 0.8
"""Usual deviation of a run's PLR at low loss: about the PLR itself …"""
_PRIOR_FLOOR: Final = 1e-3
"""… as if there always were this much loss …"""
_PRIOR_CAP: Final = 0.01
"""… and not more than this, however high the loss."""
_MIN_RUNS_CORRELATION: Final = 8
"""With fewer runs a lag-1 correlation is not estimated."""

OUTCOMES: Final = ("GOOD", "BAD", "OPEN")
GOOD: Final = 0
BAD: Final = 1
OPEN: Final = 2
"""The ladder ends (or begins) too early to tell, however many runs it has."""


@dataclass(frozen=True)
class Moments:
    """A curve's ladder in the numbers that the model needs; all arrays of shape (G,), G loads."""

    offered_pps: Floats
    count: Floats
    """Runs at each load."""
    mean: Floats
    """Sample mean of the runs' PLR."""
    deviation: Floats
    """Sample deviation (K − 1); 0 for a single run."""
    inflation: Floats
    """By how much autocorrelation multiplies the variance of the mean, at least 1."""

    @property
    def scale(self) -> Floats:
        """Standard error of the mean PLR under the model."""
        usual = np.minimum(_PRIOR_RATIO * (np.maximum(self.mean, 0) + _PRIOR_FLOOR), _PRIOR_CAP)
        degrees = self.count - 1
        variance = (_PRIOR_RUNS * usual**2 + degrees * self.deviation**2) / (_PRIOR_RUNS + degrees)
        return np.sqrt(variance * self.inflation / self.count)

    @property
    def degrees(self) -> Floats:
        """Degrees of freedom of the mean's distribution."""
        return np.maximum(1.0, self.count / self.inflation - 1 + _PRIOR_RUNS)


@dataclass(frozen=True)
class Draws:
    """Draws of the true means and what the rule says to each."""

    plr: Floats
    """True mean PLR, shape (draws, G)."""
    forwarded_pps: Floats
    """Shape (draws, G)."""
    outcome: NDArray[np.int8]
    """GOOD, BAD or OPEN of each draw, shape (draws,)."""
    first_over: NDArray[np.int64]
    """Index of the first load over the limit; G where there is none; shape (draws,)."""

    def probability(self, outcome: int) -> float:
        """Share of the draws with this outcome."""
        return float((self.outcome == outcome).mean())


def lag1(values: Floats) -> float:
    """Lag-1 autocorrelation, without correction; 0 where there is no variation.

    `values` has shape (K,), in the runs' order, K at least 2.
    """
    centred = values - values.mean()
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if total > 0 else 0.0


def inflation(values: Floats) -> float:
    """Variance inflation (1 + ρ)/(1 − ρ) of the mean of an AR(1) series, between 1 and K/2.

    The estimate of ρ is corrected for its bias of −(1 + 3ρ)/K (Kendall 1954). Negative
    correlation is not believed: it would narrow the interval.
    """
    size = values.size
    if size < _MIN_RUNS_CORRELATION:
        return 1.0
    raw = lag1(values)
    rho = min(0.99, max(0.0, raw + (1 + 3 * raw) / size))
    return min(size / 2, (1 + rho) / (1 - rho))


def groups(offered_pps: Floats, min_step: float = MIN_STEP) -> list[slice]:
    """Runs of neighbouring loads that lie within `min_step` of the lowest of them."""
    found = []
    start = 0
    for index in range(1, offered_pps.size + 1):
        if index == offered_pps.size or offered_pps[index] >= offered_pps[start] * (
            1 + min_step
        ) * (1 - 1e-9):
            found.append(slice(start, index))
            start = index
    return found


def moments(curve: Curve, min_step: float = MIN_STEP) -> Moments:
    """The ladder of `curve`, loads closer than `min_step` pooled (weighted by runs)."""
    rows = []
    for group in groups(curve.offered_pps, min_step):
        points = curve.points[group]
        if len(points) == 1:
            rows.append(_row(points[0].offered_pps, points[0].plr_per_run))
        else:
            rows.append(_pooled(points))
    columns = np.array(rows, dtype=np.float64).T
    return Moments(*columns)


def _row(offered_pps: float, plr: Floats) -> tuple[float, float, float, float, float]:
    deviation = float(plr.std(ddof=1)) if plr.size > 1 else 0.0
    return offered_pps, plr.size, float(plr.mean()), deviation, inflation(plr)


def _pooled(points: tuple[LoadPoint, ...]) -> tuple[float, float, float, float, float]:
    weights = np.array([point.count for point in points], dtype=np.float64)
    offered = np.array([point.offered_pps for point in points])
    return _row(
        float(np.average(offered, weights=weights)),
        np.concatenate([point.plr_per_run for point in points]),
    )


def draw(
    ladder: Moments, *, plr: float, eta: float = ETA, draws: int = 4000, seed: int = 0
) -> Draws:
    """Draws the true means `draws` times and applies the written rule to each.

    The rule (PASTRAMI, figure 7): from the first load whose PLR exceeds `plr`, every TIR to the
    next load is below `eta`. OPEN: no load exceeds it, or only the last does; or the first load
    already does and every TIR is low, so that the curve's beginning is not seen.
    """
    rng = np.random.default_rng(seed)
    size = ladder.offered_pps.size
    noise = rng.standard_t(ladder.degrees, size=(draws, size))
    mean = np.minimum(ladder.mean + noise * ladder.scale, 1.0)
    return apply(ladder.offered_pps, mean, plr=plr, eta=eta)


def apply(offered_pps: Floats, mean: Floats, *, plr: float, eta: float = ETA) -> Draws:
    """The written rule on many curves of mean PLR at once; `mean` has shape (draws, G)."""
    size = offered_pps.size
    forwarded = offered_pps * (1 - mean)
    over = mean > plr
    first = np.where(over.any(axis=1), over.argmax(axis=1), size)
    outcome = np.full(mean.shape[0], OPEN, dtype=np.int8)
    if size > 1:
        high = np.diff(forwarded, axis=1) >= eta * np.diff(offered_pps)
        # A step counts from the first load over the limit on.
        counted = np.arange(size - 1) >= first[:, None]
        violated = (high & counted).any(axis=1)
        seen = first < size - 1
        outcome[seen & violated] = BAD
        outcome[seen & ~violated & (first > 0)] = GOOD
    return Draws(mean, forwarded, outcome, first)


def sensitivity(draws: Draws, ladder: Moments, bins: int = 12) -> Floats:
    """How much one more run at each load would tell about the outcome, shape (G,).

    First-order sensitivity (Sobol): the variance over draws of the probability of GOOD given
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


def quantiles(values: Floats, level: float = 0.95) -> tuple[float, float]:
    """Central interval of `values` that holds `level` of them."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def normal_tail(z: float) -> float:
    """Two-sided p-value of a standard normal deviate."""
    return math.erfc(abs(z) / math.sqrt(2))
