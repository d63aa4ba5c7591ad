"""Comparisons in plain words. Knows no file."""

from __future__ import annotations

import math

from planewise.judge.bounded import Bound
from planewise.judge.statistics.comparison import Comparison, Family, LevelValue, turned
from planewise.judge.statistics.metrics import Metric, Unit
from planewise.judge.statistics.pairing import IDLE, OVERALL
from planewise.store.recommendation import RankedPlane
from planewise.units import bits_text, percent_text, rate_text, time_text


def value_text(value: float, unit: Unit) -> str:
    """A value of a metric as people read it."""
    if unit == "ns":
        return time_text(value)
    if unit == "bps":
        return bits_text(value)
    return rate_text(value) if unit == "pps" else percent_text(value)


def bound_text(bound: Bound, text: str) -> str:
    """The text of a value with what it is: `at least 3 Mpps`; an exact one as it is."""
    return text if bound == "exact" else f"{bound} {text}" if bound != "unbounded" else "not known"


def worse_text(place: RankedPlane) -> str:
    """How much worse than the best a place is, in words; empty for the best."""
    if place.effect is None:
        return ""
    if place.effect_bound == "unbounded":
        return "worse than the best, by how much is not known"
    text = (
        f"{1 + place.effect:.3g} times the best"
        if place.effect >= 1
        else f"{percent_text(round(place.effect, 2))} worse than the best"
    )
    return bound_text(place.effect_bound, text)


def level_text(value: LevelValue, metric: Metric) -> str:
    """A level's typical value; a bound says so."""
    return bound_text(value.bound, value_text(value.value, metric.unit))


def change_text(change: float, comparison: Comparison, metric: Metric) -> str:
    """A change as in the table: `-12 %`, or `+0.4 points` where shares are compared."""
    if math.isinf(change) or math.isnan(change):
        return "unbounded"
    if comparison.scale == "ratio":
        return percent_text(_rounded(change), signed=True)
    if metric.unit == "share":
        return f"{percent_text(_rounded(change), signed=True).removesuffix(' %')} points"
    sign = "+" if change > 0 else ""
    return f"{sign}{value_text(change, metric.unit)}"


def _rounded(change: float) -> float:
    """Tenths of a per cent: no run of this kind knows more."""
    return round(change, 3)


def where_text(stratum: str) -> str:
    """` at the sender`, to follow a clause; empty for all together."""
    if stratum == OVERALL:
        return ""
    if stratum == IDLE:
        return " without load"
    if stratum in ("sender", "responder"):
        return f" with load at the {stratum}"
    if stratum in ("cpu", "network", "cache", "memory"):
        return f" under {stratum} load"
    return f" at {stratum}"


def sentence(comparison: Comparison, family: Family) -> str:
    """The comparison as a sentence."""
    a, b, metric, where = comparison.a, comparison.b, family.metric, where_text(comparison.stratum)

    def shown(change: float) -> str:
        return change_text(change, comparison, metric)

    interval = ""
    if math.isfinite(comparison.low) and math.isfinite(comparison.high):
        interval = f"{shown(comparison.low)} to {shown(comparison.high)}"
    evidence = f"{comparison.blocks} block{'s' if comparison.blocks != 1 else ''}"
    basis = f" (95 %: {interval}; {evidence})" if interval else f" ({evidence})"
    if comparison.outcome in ("better", "worse"):
        lower = comparison.change < 0
        # A change of -30 % at most is 30 % lower at least.
        bound = (turned(comparison) if lower else comparison).bound
        how_much = shown(abs(comparison.change)).removeprefix("+")
        return (
            f"{a} is {comparison.outcome} than {b}{where}: its {metric.title} is "
            f"{bound_text(bound, how_much)} {'lower' if lower else 'higher'}{basis}."
        )
    margin = shown(comparison.margin).removeprefix("+")
    if comparison.outcome == "practically the same":
        return (
            f"{a} and {b} are practically the same{where} in {metric.title}: the "
            f"difference is surely below {margin} (95 %: {interval}; {evidence})."
        )
    return (
        f"Whether {a} or {b} is better{where} in {metric.title} is not known: {comparison.why}"
        f"{basis}."
    )


def summary(family: Family) -> list[str]:
    """The overall comparisons, one sentence each; then what differs between strata."""
    words = [
        sentence(turned(comparison) if comparison.outcome == "worse" else comparison, family)
        for comparison in family.comparisons
        if comparison.stratum == OVERALL
    ]
    for comparison in family.comparisons:
        overall = family.find(comparison.a, comparison.b)
        if comparison.stratum != OVERALL and overall and comparison.outcome in ("better", "worse"):
            opposite = {"better": "worse", "worse": "better"}[comparison.outcome]
            if overall.outcome == opposite:
                words.append(f"But {sentence(comparison, family)}")
    return words
