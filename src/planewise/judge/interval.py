"""What the runs of a curve say of its headroom: an interval of 95 %.

The mean loss at each load has Student's distribution. Its deviation is that of the runs there,
drawn towards what such loads usually show, because two runs that happen to agree prove little. The
means of all loads are drawn together many times, and each draw gives a PDR and a headroom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from planewise.judge.curve import Curve, Floats, Ints
from planewise.judge.headroom import Headrooms, headrooms

_DRAWS = 2000
_TAIL = 0.025
_LEAST_PLR = -1.0
"""Counts that cannot be (several times more received than sent) must not break numerics."""
_PRIOR_RUNS = 2.0
"""Weight of the usual deviation, in runs."""
_USUAL_FLOOR, _USUAL_RATIO, _USUAL_CAP = 1e-3, 0.8, 0.01
"""Usually runs at low loss deviate by about their loss, as if there were always a little, and
never by more than the cap."""
_SATURATED = 0.03
"""From this loss on runs vary as the capacity does: by the same share at all such loads."""
_SATURATED_RUNS = 4.0
"""Weight of that common deviation, in runs."""
_CORRELATED_RUNS = 8
"""With fewer runs at a load nothing is known of their correlation."""
_USUAL_CORRELATION = 0.2
_SUPPOSED = np.geomspace(0.1, 3, 30)
"""Headrooms that are looked for in all runs together."""
_NEAR = 0.9
"""Share of the best throughput: loads that pass so much are near PDR or beyond."""
_MOST_BATCHES = 12
"""Into which the runs near PDR and beyond are divided."""


@dataclass(frozen=True)
class Estimate:
    """The loads of a curve; arrays of shape (G,)."""

    offered_pps: Floats
    mean: Floats
    """Mean loss ratio as counted."""
    error: Floats
    """Standard error of the mean."""
    readings: Headrooms
    """Of the means themselves; arrays of shape (1,)."""
    over: Ints
    """Indices of the loads whose mean loss exceeds the limit."""
    headroom: tuple[float, float]
    """95 % interval; the upper end is infinite where the loads do not bound it."""
    pdr_pps: tuple[float, float]
    crossing: tuple[int, int]
    """95 % interval of the first index over the limit; G: none."""

    @property
    def forwarded_pps(self) -> Floats:
        """Throughput at each load."""
        return self.offered_pps * (1 - self.mean)


def estimate(curve: Curve, plr: float, seed: int = 1) -> Estimate:
    """PDR and headroom of `curve`, for the loss limit `plr`, by draws."""
    offered = curve.offered_pps
    values = [np.maximum(point.plr_per_run, _LEAST_PLR) for point in curve.points]
    runs = np.array([value.size for value in values])
    mean = np.array([value.mean() for value in values])
    error, degrees = _errors(values, mean, runs)
    noise = np.random.default_rng(seed).standard_t(degrees, size=(_DRAWS, offered.size))
    drawn = np.minimum(mean + noise * error, 1.0)
    read = headrooms(offered, drawn, plr)
    plain = headrooms(offered, mean[None, :], plr)
    # Load by load: where runs vary, each draw has some load that passes more than the others.
    low, high = (
        max(_quantile(ends, level) for ends in by_load.T)
        for by_load, level in ((read.low_by_load, _TAIL), (read.high_by_load, 1 - _TAIL))
    )
    sure, likely = _of_runs(offered, values, plr)
    pdr_low = _quantile(read.pdr_low_pps, _TAIL)
    pdr_high = _quantile(read.pdr_high_pps, 1 - _TAIL)
    over = np.flatnonzero(mean > plr)
    first = int(over[0]) if over.size else offered.size
    return Estimate(
        offered,
        mean,
        error,
        plain,
        over,
        (max(min(low, float(plain.low[0])), sure), max(high, float(plain.high[0]), sure, likely)),
        (min(pdr_low, float(plain.pdr_low_pps[0])), max(pdr_high, float(plain.pdr_low_pps[0]))),
        (
            min(int(_quantile(read.first_over, _TAIL)), first),
            max(int(_quantile(read.first_over, 1 - _TAIL)), first),
        ),
    )


def _of_runs(offered: Floats, values: list[Floats], plr: float) -> tuple[float, float]:
    """The largest headrooms that the runs near PDR and beyond show together: with 95 % certainty,
    and by their means; 0 where they show none.

    As long as throughput does not fall with load, a run in overload would not have passed more at a
    lower load: it shows what would be lost there. A trend is taken out, as drift is no headroom.
    Neighbours are alike, so the variance is that of batches of them (Schmeiser 1982).
    """
    passed = [load * (1 - value) for load, value in zip(offered, values, strict=True)]
    most = max(each.mean() for each in passed)
    near = [place for place, each in enumerate(passed) if each.mean() >= _NEAR * most]
    sizes = [passed[place].size for place in near]
    if most <= 0 or sum(sizes) < 2:
        return 0.0, 0.0
    when = np.concatenate([(np.arange(size) + 0.5) / size - 0.5 for size in sizes])
    order = np.argsort(when, kind="stable")
    when, runs = when[order], np.concatenate([passed[place] for place in near])[order]
    loads = np.repeat(offered[near], sizes)[order]
    runs -= when * (when @ runs) / max(when @ when, 1e-9)
    pdr = np.minimum(runs.mean() / ((1 - plr) * (1 + _SUPPOSED[:, None])), loads)
    losses = np.maximum(1 - runs / pdr, 0)
    over = losses.mean(axis=1) - plr
    # How `over` changes with a run: by its own loss, and as PDR moves with the throughput.
    moved = np.where(losses > 0, runs / pdr, 0).mean(axis=1, keepdims=True)
    change = losses - losses.mean(axis=1, keepdims=True) + moved * (runs / runs.mean() - 1)
    batches = min(_MOST_BATCHES, max(2, runs.size // 2))
    sums = np.add.reduceat(change, np.arange(batches) * runs.size // batches, axis=1) / runs.size
    error = np.sqrt((sums**2).sum(axis=1) * batches / (batches - 1))
    low = over - stdtrit(batches - 1, 1 - _TAIL) * error
    certain, likely = (float(_SUPPOSED[shown > 0].max(initial=0)) for shown in (low, over))
    return certain, likely


def lag1(values: Floats) -> float:
    """Lag-1 autocorrelation, without correction; 0 where there is no variation."""
    centred = values - values.mean()
    total = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / total if total > 0 else 0.0


def _quantile(values: Floats | Ints, level: float) -> float:
    """An order statistic: defined for infinite values, too."""
    ordered = np.sort(values)
    return float(ordered[min(ordered.size - 1, int(level * ordered.size))])


def _errors(values: list[Floats], mean: Floats, runs: Ints) -> tuple[Floats, Floats]:
    """Standard error of the mean at each load, and its degrees of freedom."""
    own = np.array([value.var(ddof=1) if value.size > 1 else 0.0 for value in values])
    free = runs - 1.0
    usual = np.minimum(_USUAL_RATIO * (np.maximum(mean, 0) + _USUAL_FLOOR), _USUAL_CAP)
    weight = np.full(mean.size, _PRIOR_RUNS)
    saturated = (mean > _SATURATED) & (mean < 1)
    if saturated.any():
        passed = 1 - mean[saturated]
        dof = free[saturated]
        shares = own[saturated] / passed**2
        # The median: where throughput falls it varies more than on the plateau.
        typical = float(np.median(shares[dof > 0])) if (dof > 0).any() else 0.0
        common = (_PRIOR_RUNS * _USUAL_CAP**2 + dof.sum() * typical) / (_PRIOR_RUNS + dof.sum())
        usual[saturated] = passed * np.sqrt(common)
        weight[saturated] = np.minimum(_PRIOR_RUNS + dof.sum() / 2, _SATURATED_RUNS)
    variance = (weight * usual**2 + free * own) / (weight + free)
    return np.sqrt(variance * _inflation(values) / runs), np.maximum(1.0, weight + free)


def _inflation(values: list[Floats]) -> float:
    """By how much the correlation of runs with their predecessors widens a mean's variance."""
    long = [value for value in values if value.size >= _CORRELATED_RUNS and value.std() > 0]
    if not long:
        return (1 + _USUAL_CORRELATION) / (1 - _USUAL_CORRELATION)
    # Corrected for its bias (Kendall 1954); a negative one is not believed.
    rho = float(np.mean([lag1(value) + 1 / value.size for value in long]))
    rho = min(0.9, max(0.0, rho))
    return (1 + rho) / (1 - rho)
