"""Comparisons in plain words."""

from __future__ import annotations

import math

from planewise.judge.bounded import Bound
from planewise.judge.statistics.comparison import Comparison, Family, LevelValue, turned
from planewise.judge.statistics.flips import least_blocks
from planewise.judge.statistics.metrics import Metric, Unit
from planewise.judge.statistics.pairing import IDLE, OVERALL
from planewise.store.recommendation import RankedPlane
from planewise.units import bits_text, duration_text, percent_text, rate_text, time_text


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


def sentence(comparison: Comparison, family: Family, *, hint: bool = True) -> str:
    """The comparison as a sentence; with `hint` also how to get the blocks that are missing."""
    a, b, metric, where = comparison.a, comparison.b, family.metric, where_text(comparison.stratum)
    if comparison.outcome == "too few blocks":
        return _of_few_blocks(comparison, family, hint=hint)

    def shown(change: float) -> str:
        return change_text(change, comparison, metric)

    interval = ""
    if math.isfinite(comparison.low) and math.isfinite(comparison.high):
        interval = f"{shown(comparison.low)} to {shown(comparison.high)}"
    evidence = _blocks_text(comparison.blocks)
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
    if comparison.outcome == "practically the same":
        margin = shown(comparison.margin).removeprefix("+")
        return (
            f"{a} and {b} are practically the same{where} in {metric.title}: they differ by less "
            f"than {margin}{basis}."
        )
    if comparison.outcome == "not distinguishable":
        return (
            f"{a} and {b} are not distinguishable{where} in {metric.title}: "
            f"{comparison.why}{basis}."
        )
    return (
        f"Whether {a} or {b} is better{where} in {metric.title} is not known: {comparison.why}"
        f"{basis}."
    )


def _blocks_text(blocks: int) -> str:
    return f"{blocks} block{'s' if blocks != 1 else ''}"


def _of_few_blocks(comparison: Comparison, family: Family, *, hint: bool) -> str:
    """What all blocks showed alike, the better level first."""
    lower_is_better = family.metric.lower_is_better
    if comparison.change != 0 and (comparison.change < 0) != lower_is_better:
        comparison = turned(comparison)
    a, b, metric = comparison.a, comparison.b, family.metric
    blocks, ratio = comparison.blocks, comparison.scale == "ratio"
    missing = least_blocks() - blocks
    often = "its one block" if blocks == 1 else "both blocks" if blocks == 2 else f"all {blocks}"
    often += " blocks" if blocks > 2 else ""
    least, most = sorted((abs(comparison.least), abs(comparison.most)))
    lower = comparison.most <= 0
    if ratio and not lower and least >= 0.5:
        size = _range(f"{1 + least:.3g}", f"{1 + most:.3g}", "times")
        as_much = f"{size} as much as {b}"
        as_high = f"{size} as high as {b}'s"
    else:
        ends = (
            change_text(end, comparison, metric).removeprefix("+").rpartition(" ")
            for end in (least, most)
        )
        (low, _, unit), (high, _, other) = ends
        size = _range(low, high, unit) if unit == other else f"{low} {unit} to {high} {other}"
        as_much = f"{size} {'less' if lower else 'more'} than {b}"
        as_high = f"{size} {'lower' if lower else 'higher'} than {b}'s"
    if comparison.change == 0 == most:
        text = f"{a} and {b} have the same {metric.title}"
    elif metric.unit in ("pps", "bps"):
        text = f"{a} carried {as_much}"
    else:
        text = f"{a}'s {metric.title} was {as_high}"
    more = f"; {least_blocks()} blocks are needed to put a confidence on it"
    if hint:
        about = f"about {duration_text(missing * family.block_s)} more: " if family.block_s else ""
        more += f" ({about}`planewise run --resume RUN --blocks {missing}`)"
    return f"{text}{where_text(comparison.stratum)} in {often}{more}."


def _range(low: str, high: str, unit: str) -> str:
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def summary(family: Family) -> list[str]:
    """The overall comparisons, one sentence each; then what differs between strata."""
    words = []
    hint = True
    for comparison in family.comparisons:
        if comparison.stratum != OVERALL:
            continue
        shown = turned(comparison) if comparison.outcome == "worse" else comparison
        words.append(sentence(shown, family, hint=hint))
        hint = hint and comparison.outcome != "too few blocks"
    for comparison in family.comparisons:
        overall = family.find(comparison.a, comparison.b)
        if comparison.stratum != OVERALL and overall and comparison.outcome in ("better", "worse"):
            opposite = {"better": "worse", "worse": "better"}[comparison.outcome]
            if overall.outcome == opposite:
                words.append(f"But {sentence(comparison, family)}")
    return words
