"""A median and its interval without a law of the noise, from readings that may be bounds.

Pure statistics. Of n independent readings as many as a Binomial(n, 1/2) law says lie below the
median, whatever their law: drawing that number and taking a value between those two readings in
order gives the median's confidence distribution, whose quantiles are the order-statistic intervals
of Thompson (1936). Readings that resemble their predecessors lie below in runs: the
number is then that of a Markov chain with the readings' own rate of crossings of their median, or
of one between two states where the readings show such.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from planewise.measure.search.particles import Array

Scalar = TypeVar("Scalar", bound=np.generic)

LEAST = 6
"""Least number of readings: the range of five holds the median in 94 % only."""
_STICKY = 0.3
"""Prior probability that readings resemble their predecessors, as in `residuals`."""
_APART = {4: 26.6, 5: 13.8, 6: 9.1, 7: 7.0, 8: 5.7, 10: 4.5, 12: 3.75, 16: 3.1, 20: 2.7}
"""Two states are told apart by a gap of so many deviations within, by the number of readings: the
widest gap of normal readings is as wide in 1 % of cases (20 000 draws each)."""
_LOST_MORE = 0.5
"""… and trials of the lower state lost more than those of the upper one in so many of their pairs:
in none if what differs is the load, and throughput rises with it, as loss then does, too;"""
_OFFERED_MORE = 0.05
"""… and were offered more in so many: in none if throughput rises at some load by steps."""
_LEVELS = (np.arange(64) + 0.5) / 64
"""Where the chance that a trial keeps its state, and a state's share, are integrated over."""
_SETS = 32
"""Versions of the readings, which differ in what is unknown of each (curve's shape, a bound)."""


@dataclass(frozen=True)
class SearchReadings:
    """Each trial's reading of the edge, in the order of the trials."""

    value: Array
    """Shape (sets, n): versions of each reading."""
    bound: NDArray[np.bool_]
    """Shape (n,): whether the reading is a lower bound."""
    time_s: Array
    """Shape (n,): when each was measured."""
    highest: float
    """No trial found more, at any load."""
    states: bool = False
    """Whether the capacity has two states (`have_states`)."""


def sets_of(value: NDArray[Scalar]) -> NDArray[Scalar]:
    """At most `_SETS` of the rows."""
    return np.array(value[:: max(value.shape[0] // _SETS, 1)][:_SETS])


def bounds_above(readings: SearchReadings) -> int | None:
    """How many bounds lie above all readings that are none; None where all are bounds."""
    value = np.median(readings.value, axis=0)
    if readings.bound.all():
        return None
    return int((readings.bound & (value >= value[~readings.bound].max())).sum())


def open_above(readings: SearchReadings, alpha: float = 0.05) -> bool:
    """Whether the median may lie above all readings that are not bounds: the upper end of its
    interval is then unknown (Thompson, 1936, with the bounds on the upper side)."""
    above = bounds_above(readings)
    if above is None:
        return False
    exact = int((~readings.bound).sum())
    return bool(special.bdtrc(exact - 1, exact + above, 0.5) > alpha / 2)


def have_states(value: Array, x: Array, bound: NDArray[np.bool_]) -> bool:
    """Whether the capacity has two states: readings fall into two, and not because of their loads.

    Args:
        value: readings for throughput that is constant beyond saturation, shape (n,).
        x: the load of each trial.
        bound: whether the reading is a lower bound. One above all others tells of a higher state.

    Where throughput rises with load, readings do, too; states come whatever the load.
    """
    if bound.all():
        return False
    highest = value[~bound].max()
    for telling in (~bound, ~bound | (value > highest)):
        lower = _lower_state(value[telling])
        if lower is not None:
            upper = value > value[telling][lower].max()
            more = x[telling][lower][:, None] >= x[upper]
            loss = x - value
            lost = loss[telling][lower][:, None] >= loss[upper]
            return bool(more.mean() >= _OFFERED_MORE and lost.mean() >= _LOST_MORE)
    return False


def rarer_state_share(readings: SearchReadings) -> float:
    """The share of informative readings in the rarer of two states; 0 where they are of one."""
    value, _, _ = _informative(readings)
    lower = _lower_state(np.median(value, axis=0))
    return 0.0 if lower is None else float(min(lower.mean(), 1.0 - lower.mean()))


def at_time(readings: SearchReadings, trending: float, at_s: float) -> Array:
    """Each trial's reading, in the median of its versions, shape (n,): as it would have been at
    `at_s`, where the edge drifts with a probability of more than a half."""
    value = np.asarray(np.median(readings.value, axis=0))
    if trending > 0.5 and (~readings.bound).sum() >= LEAST:
        slope, _ = _slope(value[~readings.bound], readings.time_s[~readings.bound])
        value = value - slope * (readings.time_s - at_s)
    return value


def draw_median(
    readings: SearchReadings, random: np.random.Generator, count: int, trending: float, at_s: float
) -> tuple[Array, Array] | None:
    """Draws of the median, and how plausible a normal law is for the readings of each.

    Args:
        readings: of all usable trials.
        random: source of randomness.
        count: how many draws.
        trending: probability that the edge drifts; the draws are then of its value at `at_s`.
        at_s: a time, on the clock of the readings.

    None where there are too few readings.
    """
    value, bound, time_s = _informative(readings)
    if value.shape[1] < LEAST:
        return None
    sets = value.shape[0]
    drifting = np.arange(sets) < round(trending * sets)
    slope, error = _slope(np.median(value, axis=0), time_s)
    slopes = np.where(drifting, random.normal(slope, error, sets), 0.0)
    value = value - slopes[:, None] * (time_s - at_s)

    normal = np.zeros(sets)
    for part in (drifting, ~drifting):
        if part.any():
            normal[part] = _plausibility_of_normal(np.median(value[part], axis=0))
    middle = np.median(value, axis=0)
    lower = _lower_state(middle) if readings.states else None
    chosen = np.arange(count) % sets
    if lower is None:
        number = _numbers_below(middle < np.median(value), random, count)
    else:
        # A bound may be of either state: each version of it has its own.
        number = np.empty(count)
        for row, of_lower in enumerate(value <= middle[lower].max()):
            drawn = chosen == row
            number[drawn] = _numbers_of_states(of_lower, random, int(drawn.sum()))
        value = value + _within_states(middle, lower, bound, random, sets)
    return _between_readings(np.sort(value, axis=1)[chosen], number, random), normal[chosen]


def _within_states(
    value: Array,
    lower: NDArray[np.bool_],
    bound: NDArray[np.bool_],
    random: np.random.Generator,
    sets: int,
) -> Array:
    """What is unknown of readings of two states beside the state, shape (sets, n): where a state
    lies that showed in few readings, and where in it a bound belongs."""
    deviation = _deviation_within(value, lower)
    unknown = np.where(bound, random.normal(0.0, deviation, (sets, value.size)), 0.0)
    for state in (lower, ~lower):
        count = max(int((state & ~bound).sum()), 1)
        unknown[:, state] += random.normal(0.0, deviation / math.sqrt(count), (sets, 1))
    return unknown


def _informative(readings: SearchReadings) -> tuple[Array, NDArray[np.bool_], Array]:
    """Readings, with bounds replaced by draws from the readings above them (Efron's redistribution
    to the right, 1967), the highest by anything up to `highest`; bounds below all readings are left
    out, as they tell nothing."""
    middle = np.median(readings.value, axis=0)
    exact = ~readings.bound
    if not exact.any():
        return readings.value[:, :0], exact[:0], readings.time_s[:0]
    used = exact | (middle >= middle[exact].min())
    value, time_s = readings.value[:, used].copy(), readings.time_s[used]
    bounds = np.flatnonzero(~exact[used])
    middle = np.median(value, axis=0)
    random = np.random.default_rng(0)
    # From the highest bound on: a lower one may be replaced by it.
    for index in bounds[np.argsort(-middle[bounds])]:
        above = np.flatnonzero(middle > middle[index])
        rows = np.arange(value.shape[0])
        if above.size:
            value[:, index] = value[rows, random.choice(above, rows.size)]
        else:
            value[:, index] += random.random(rows.size) * np.maximum(
                readings.highest - value[:, index], 0.0
            )
    return value, readings.bound[used], time_s


def _slope(value: Array, time_s: Array) -> tuple[float, float]:
    """Theil and Sen's slope, and about its deviation."""
    if np.ptp(time_s) <= 0:
        return 0.0, 0.0
    fit = stats.theilslopes(value, time_s)
    return float(fit.slope), float(fit.high_slope - fit.low_slope) / 3.92


def _plausibility_of_normal(value: Array) -> float:
    """Probability of a normal law at prior odds of one, by Shapiro and Wilk's test: at most this
    by the bound of Sellke, Bayarri and Berger (2001), B = −e·p·ln p."""
    if np.ptp(value) <= 1e-9:
        return 0.5
    p = max(float(stats.shapiro(value).pvalue), 1e-12)
    bayes = -math.e * p * math.log(p) if p < 1 / math.e else 1.0
    return bayes / (1.0 + bayes)


def _numbers_below(below: NDArray[np.bool_], random: np.random.Generator, count: int) -> Array:
    """Draws of the number of readings below the true median."""
    size = below.size
    crossings = int((below[1:] != below[:-1]).sum())
    steps = size - 1
    # Evidence of a rate of crossings below 1/2, uniform, against 1/2.
    a, b = crossings + 1.0, steps - crossings + 1.0
    half = float(special.betainc(a, b, 0.5))
    log_sticky = special.betaln(a, b) + math.log(max(2.0 * half, 1e-300)) + steps * math.log(2.0)
    odds = _STICKY / (1.0 - _STICKY) * math.exp(min(log_sticky, 50.0))
    sticky = random.random(count) < odds / (1.0 + odds)
    rate = special.betaincinv(a, b, random.random(count) * half)
    rate = np.where(sticky, rate, 0.5)
    crossed = random.random((count, size)) < rate[:, None]
    crossed[:, 0] = random.random(count) < 0.5
    return np.asarray((np.cumsum(crossed, axis=1) % 2).sum(axis=1))


def _lower_state(value: Array) -> NDArray[np.bool_] | None:
    """Which readings are of the lower of two states; None where they are of one.

    Two states are told apart by the widest gap where that is `_APART` of the deviations within.
    """
    if value.size < min(_APART):
        return None
    ordered = np.sort(value)
    gaps = np.diff(ordered)
    cut = int(np.argmax(gaps)) + 1
    lower = value < ordered[cut]
    apart = np.interp(value.size, list(_APART), list(_APART.values()))
    return lower if gaps[cut - 1] > apart * _deviation_within(value, lower) else None


def _deviation_within(value: Array, lower: NDArray[np.bool_]) -> float:
    """Deviation of readings about the mean of their state."""
    squares = sum(
        float(((part - part.mean()) ** 2).sum()) for part in (value[lower], value[~lower])
    )
    return math.sqrt(squares / max(value.size - 2, 1))


def _numbers_of_states(lower: NDArray[np.bool_], random: np.random.Generator, count: int) -> Array:
    """The same where the capacity has two states.

    The states follow each other as a Markov chain does: a trial keeps its predecessor's state with
    some probability, and is else in the lower one with another, its share. Both are uniform before
    the readings are seen. The share says in which state the median lies, and at which quantile.
    """
    share = np.repeat(_LEVELS, _LEVELS.size)
    change = np.tile(1.0 - _LEVELS, _LEVELS.size)
    falls, rises = change * share, change * (1.0 - share)
    current, following = lower[:-1], lower[1:]
    log_likelihood = np.log(share if lower[0] else 1.0 - share)
    for number, probability in (
        ((~current & following).sum(), falls),
        ((~current & ~following).sum(), 1.0 - falls),
        ((current & ~following).sum(), rises),
        ((current & following).sum(), 1.0 - rises),
    ):
        log_likelihood = log_likelihood + number * np.log(probability)
    weight = np.exp(log_likelihood - log_likelihood.max())
    share = share[random.choice(share.size, count, p=weight / weight.sum())]
    low = int(lower.sum())
    inside = np.where(share > 0.5, 0.5 / share, (0.5 - share) / (1.0 - share))
    number = random.binomial(np.where(share > 0.5, low, lower.size - low), inside.clip(0.0, 1.0))
    return np.asarray(np.where(share > 0.5, number, low + number), dtype=np.float64)


def _between_readings(ordered: Array, number: Array, random: np.random.Generator) -> Array:
    """Reading `number` of each sorted row or the next, at random, as the value lies between them;
    beyond the first and the last by about the distance of their neighbours."""
    size = ordered.shape[1]
    ends = ordered[:, [2, size - 1]] - ordered[:, [0, size - 3]]
    beyond = ends / 2 * random.exponential(1.0, ends.shape)
    padded = np.column_stack([ordered[:, 0] - beyond[:, 0], ordered, ordered[:, -1] + beyond[:, 1]])
    index = number.astype(int) + (random.random(number.size) < 0.5)
    return np.asarray(padded[np.arange(number.size), index])
