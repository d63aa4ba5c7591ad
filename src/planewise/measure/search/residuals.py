"""Do the trials behave as the model says? Drift, autocorrelation and outliers, with evidence.

Pure statistics on trials in their order. A trial's reading is the edge by it alone,
minus the edge by all: positive where it found more capacity than the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from planewise.measure.search.goals import ViolatedAssumption
from planewise.measure.search.particles import Array
from planewise.units import percent_text

_MIN_TRIALS = 8
_SIGNIFICANCE = 0.01
_OUTLYING = 5.0
"""Deviations."""
_CORRELATIONS = np.array([0.0, 0.2, 0.4, 0.55, 0.65, 0.75, 0.82, 0.88, 0.93])
_CORRELATED = 0.3
"""Prior probability that successive trials are correlated, all levels alike."""
_TRENDING = 0.25
"""Prior probability that capacity drifts."""
_TREND_SD = 1.0
"""Prior deviation of the drift from the first trial to the last, in units of its own scale: the
larger of the noise and 1 %."""


@dataclass(frozen=True)
class OrderEffect:
    """Correction of the edge's distribution for the order of the trials.

    A mixture of Student laws: `shift` + `scale` · t(degrees), with `weight`; and `plain_sd`, the
    deviation of independent trials about a steady edge.
    """

    weight: Array
    shift: Array
    scale: Array
    degrees: float
    plain_sd: float
    correlated: float
    """Probability of correlation between successive trials."""
    trending: float
    """Probability of drift."""

    def draw(self, random: np.random.Generator, count: int, sd: float = 0.0) -> Array:
        """Terms to add to draws that suppose independent trials about a steady edge.

        `sd` is the deviation of those draws. Where it exceeds `plain_sd` (the readings of trials
        that say only on which side of the edge they lie are means, which scatter less), the
        correction of the deviation is taken as a ratio.
        """
        chosen = random.choice(self.weight.size, count, p=self.weight)
        wider = max(sd / self.plain_sd, 1.0) if self.plain_sd > 0 else 1.0
        more = wider * np.sqrt(np.maximum(self.scale[chosen] ** 2 - self.plain_sd**2, 0.0))
        return np.asarray(self.shift[chosen] + more * random.standard_t(self.degrees, count))


def order_effect(
    y: Array, deviation: Array, time_s: Array, at_s: float, position: Array | None = None
) -> OrderEffect | None:
    """How drift and correlation change the edge's distribution, weighed by their probability.

    Args:
        y: readings in their order.
        deviation: each reading's own, relative to which they are weighed.
        time_s: when each was measured.
        at_s: the time that the result is for.
        position: the trial's number, where trials between them gave no reading.

    Each pair of a correlation ρ (AR(1) by trial) and drift or none has its generalised
    least-squares estimate of the edge and its evidence (unknown variance, integrated out).
    None where there are too few trials to tell.
    """
    count = y.size
    if count < _MIN_TRIALS:
        return None
    span = float(time_s.max() - time_s.min())
    position = np.arange(float(count)) if position is None else position
    lag = np.abs(np.subtract.outer(position, position))
    noise = float(np.sqrt(np.mean(y**2)))
    unit = np.ones(count) / deviation
    slope = (time_s - at_s) / max(span, 1e-9) / deviation
    standard = y / deviation
    # The drift's prior, in the units of the standardised readings.
    trend_sd = _TREND_SD * max(noise, 0.01)
    log_evidence, shift, scale = [], [], []
    degrees = count - 1.0
    plain_sd = 0.0
    for drift in (False, True):
        for rho in _CORRELATIONS:
            covariance = rho**lag
            if drift:
                relative = trend_sd / float(np.median(deviation))
                unit_slope = slope * float(np.median(deviation))
                covariance = covariance + relative**2 * np.outer(unit_slope, unit_slope)
            factor = np.linalg.cholesky(covariance + 1e-9 * np.eye(count))
            white_unit = np.linalg.solve(factor, unit)
            white = np.linalg.solve(factor, standard)
            information = float(white_unit @ white_unit)
            middle = float(white_unit @ white) / information
            square = float(((white - middle * white_unit) ** 2).sum()) + 1e-12
            log_evidence.append(
                -np.log(np.diag(factor)).sum()
                - 0.5 * math.log(information)
                - 0.5 * degrees * math.log(square)
                + math.log(_TRENDING if drift else 1 - _TRENDING)
                + math.log(1 - _CORRELATED if rho == 0 else _CORRELATED / (_CORRELATIONS.size - 1))
            )
            shift.append(middle)
            scale.append(math.sqrt(square / degrees / information))
            if not drift and rho == 0:
                plain_sd = scale[-1]
    weight = np.exp(np.array(log_evidence) - max(log_evidence))
    weight /= weight.sum()
    table = weight.reshape(2, -1)
    # The draws hold the plain estimate already.
    return OrderEffect(
        weight,
        np.array(shift) - shift[0],
        np.array(scale),
        degrees,
        plain_sd,
        correlated=float(1 - table[:, 0].sum()),
        trending=float(table[1].sum()),
    )


def find_violations(standardised: Array, losses: Array) -> list[ViolatedAssumption]:
    """Findings about trials in their order.

    Args:
        standardised: readings over their deviations, in their order.
        losses: loss ratio of each, for the evidence.
    """
    violations: list[ViolatedAssumption] = []
    low = standardised < -_OUTLYING
    if low.sum() >= 2:
        worst = int(np.argmin(standardised))
        violations.append(
            ViolatedAssumption(
                "outliers",
                f"{int(low.sum())} of {standardised.size} trials lost more than "
                f"{_OUTLYING:.0f} deviations too much; the worst lost "
                f"{percent_text(losses[worst])}",
            )
        )
    inliers = standardised[np.abs(standardised) <= _OUTLYING]
    if inliers.size < _MIN_TRIALS:
        return violations
    trend = stats.spearmanr(np.arange(inliers.size), inliers)
    if trend.pvalue < _SIGNIFICANCE:
        direction = "fell" if trend.statistic < 0 else "rose"
        violations.append(
            ViolatedAssumption(
                "drift",
                f"capacity {direction} during the search: rank correlation of capacity with "
                f"time {trend.statistic:+.2f} over {inliers.size} trials, p = {trend.pvalue:.1g}",
            )
        )
    centred = inliers - inliers.mean()
    power = float((centred**2).sum())
    if power > 0:
        lag1 = float((centred[1:] * centred[:-1]).sum()) / power
        if lag1 * math.sqrt(inliers.size) > stats.norm.ppf(1 - _SIGNIFICANCE):
            violations.append(
                ViolatedAssumption(
                    "autocorrelation",
                    f"successive trials resemble each other: lag-1 correlation {lag1:.2f} "
                    f"over {inliers.size} trials; intervals are widened for it",
                )
            )
    return violations
