"""Do the trials behave as the model says? Drift, autocorrelation and outliers, with evidence.

Pure statistics on trials in their order. A trial's residual is how far, in deviations, its
capacity lay below what the model expects (positive: it lost more).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from planewise.measure.search import model
from planewise.measure.search.goals import Finding

_MIN_TRIALS = 9
_SIGNIFICANCE = 0.01
_OUTLYING = 5.0
"""Deviations."""


def doubts(
    theta: model.Array, anchor: float, seen: model.Observations
) -> list[tuple[Finding, float]]:
    """Findings, each with the factor by which it widens the intervals (1: not at all)."""
    found: list[tuple[Finding, float]] = []
    residual, informative = model.residuals(theta, anchor, seen)
    values = residual[informative]
    outlying = np.abs(values) > _OUTLYING
    if (values > _OUTLYING).sum() >= 2:
        worst = int(np.flatnonzero(informative)[np.argmax(values)])
        found.append(
            (
                Finding(
                    "outliers",
                    f"{int((values > _OUTLYING).sum())} of {values.size} trials lost more than "
                    f"{_OUTLYING:.0f} deviations too much; the worst lost "
                    f"{seen.lost[worst] / seen.sent[worst]:.2%}",
                ),
                1.0,
            )
        )
    kept = values[~outlying]
    if kept.size < _MIN_TRIALS:
        return found
    order = np.arange(kept.size)
    trend = stats.spearmanr(order, kept)
    if trend.pvalue < _SIGNIFICANCE:
        direction = "fell" if trend.statistic > 0 else "rose"
        found.append(
            (
                Finding(
                    "drift",
                    f"capacity {direction} during the search: rank correlation of loss with "
                    f"time {trend.statistic:+.2f} over {kept.size} trials, p = {trend.pvalue:.1g}",
                ),
                1.5,
            )
        )
    centred = kept - kept.mean()
    power = float((centred**2).sum())
    if power > 0:
        lag1 = float((centred[1:] * centred[:-1]).sum()) / power
        if lag1 * math.sqrt(kept.size) > stats.norm.ppf(1 - _SIGNIFICANCE):
            lag1 = min(lag1, 0.9)
            found.append(
                (
                    Finding(
                        "autocorrelation",
                        f"successive trials resemble each other: lag-1 correlation {lag1:.2f} "
                        f"over {kept.size} trials; intervals are widened for it",
                    ),
                    math.sqrt((1 + lag1) / (1 - lag1)),
                )
            )
    return found
