"""The planes of a run compared by every metric, by the judge's statistics. Draws nothing."""

from __future__ import annotations

from dataclasses import dataclass

from planewise.judge.policies import policy_families
from planewise.judge.statistics import (
    Comparison,
    Family,
    Observed,
    RunSample,
    by_sending,
    check_ranking,
    compare_levels,
    observe,
)
from planewise.judge.statistics.comparison import UNDECIDED
from planewise.judge.statistics.metrics import Unit, figures_in
from planewise.judge.statistics.pairing import OVERALL
from planewise.judge.statistics.sentences import bound_text
from planewise.judge.statistics.sentences import value_text as judge_text
from planewise.report import theme
from planewise.report.data import RunData
from planewise.store.cells import by_series
from planewise.units import bits_text, rate_text, time_text

FACTOR = "plane"

CHAIN_METRICS = ("transmitted", "transmitted_bits", "goodput")
"""Metrics of chains and of TCP."""
_METRICS = ("rtt", "rtt_p99", "overhead", "response", "throughput", "pdr", "loss", *CHAIN_METRICS)
"""Metrics of a report's comparisons, in order; then CPU."""


@dataclass(frozen=True)
class Compared:
    """The planes of a run compared by one metric."""

    family: Family
    ranking: str
    """A sentence on whether the ranking changes with load; empty with one load."""


def compare(data: RunData) -> list[Compared]:
    """Comparisons by every metric that at least two planes have."""
    sample = RunSample(data.info.run, data.info, by_series(data.trials, data.naming))
    hosts = sorted({host for trial in data.done for host in trial.cpu})
    result = []
    figures = sorted(figures_in([sample]))
    for name in (*_METRICS, *figures, *(f"cpu:{host}" for host in hosts)):
        for observed in by_sending(observe([sample], name), FACTOR):
            if len(_levels(observed)) < 2:
                continue
            family = compare_levels(observed, FACTOR)
            if family.comparisons:
                check = check_ranking(observed, FACTOR) if name == "rtt" else None
                result.append(Compared(family, check.sentence if check is not None else ""))
    return result


def compare_policies(data: RunData) -> list[Compared]:
    """The allocator's policies by the latency of each group of guests, the busiest first."""
    return [
        Compared(family, "")
        for metric in ("rtt", "rtt_p99")
        for family in policy_families(data.trials, data.info, metric)
    ]


def _levels(observed: Observed) -> set[str]:
    return {
        str(observation.cell[FACTOR])
        for observation in observed.observations
        if FACTOR in observation.cell
    }


def change_text(pair: Comparison, value: float, unit: Unit) -> str:
    """A change of a comparison as people read it: `−21 %`, of shares in percentage points."""
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    sign = "−" if value < 0 else "+"
    size = abs(value)
    if pair.scale == "ratio":
        if value > 1.5:
            return f"{1 + value:.3g} times"
        return f"{sign}{theme.share(_rounded(size))}"
    if unit == "share":
        return f"{sign}{theme.share(_rounded(size)).removesuffix(' %')} points"
    return f"{sign}{judge_text(size, unit)}"


def _rounded(share: float) -> float:
    return float(f"{share:.2g}") if share < 0.1 else round(share, 2)


def value_text(family: Family, value: float) -> str:
    """A metric's value with its unit."""
    unit = family.metric.unit
    return (
        time_text(value)
        if unit == "ns"
        else rate_text(value)
        if unit == "pps"
        else bits_text(value)
        if unit == "bps"
        else theme.share(_rounded(value))
    )


def bounded_change(pair: Comparison, unit: Unit) -> str:
    """The change of a metric of this unit; a bound is marked as one."""
    return bound_text(pair.bound, change_text(pair, pair.change, unit))


def interval_text(pair: Comparison, unit: Unit) -> str:
    """The change's 95 % interval."""
    return theme.interval(
        change_text(pair, pair.low, unit),
        change_text(pair, pair.high, unit),
    )


def sentence(compared: Compared) -> str:
    """The outcomes over all conditions, pair by pair, in one sentence."""
    family = compared.family
    overall = [pair for pair in family.comparisons if pair.stratum == OVERALL]
    better_than: dict[str, list[str]] = {}
    for pair in overall:
        if pair.outcome in ("better", "worse"):
            better, worse = (pair.a, pair.b) if pair.outcome == "better" else (pair.b, pair.a)
            turned = family.find(better, worse) or pair
            better_than.setdefault(str(better), []).append(
                f"{worse} ({bounded_change(turned, family.metric.unit)})"
            )
    parts = [
        f"{better} is better than {_shortened_list(texts)}" for better, texts in better_than.items()
    ]
    for outcome in ("practically the same", *UNDECIDED):
        if pairs := [f"{pair.a} and {pair.b}" for pair in overall if pair.outcome == outcome]:
            parts.append(f"{outcome}: {_shortened_list(pairs)}")
    text = "; ".join(parts) or "nothing could be compared"
    return f"By {family.metric.title}, over all conditions: {text}."


def _shortened_list(texts: list[str]) -> str:
    if len(texts) <= 4:
        return ", ".join(texts)
    return f"{', '.join(texts[:3])} and {len(texts) - 3} more"
