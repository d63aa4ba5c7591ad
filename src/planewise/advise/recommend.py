"""One recommendation from one run: the plane, the reasons, the reservations, the rankings.

Rests on replicates (one value a cell and block), compared in pairs within blocks by the statistics
that `planewise compare` uses (judge/statistics). What the data do not tell apart is called so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from planewise.advise.chains import recommend_chains
from planewise.judge.curve import Curve
from planewise.judge.from_store import curves_from_trials
from planewise.judge.statistics import (
    Comparison,
    Family,
    LevelValue,
    Observed,
    RunSample,
    compare_levels,
    observe,
)
from planewise.judge.statistics.pairing import IDLE, OVERALL
from planewise.judge.verdict import Verdict, judge
from planewise.store.models import Ranked, Recommendation, RunInfo, TrialRecord
from planewise.units import percent_text, rate_text, time_text

ALL_LOADS = "all"
"""The ranking over every load."""

_LOAD_WORDS = {"none": "idle", "cpu": "under CPU load", "network": "under network load"}
"""In the order in which loads are told."""


_METRICS = {"rtt_p50": "rtt", "rtt_p99": "rtt_p99", "forwarded": "throughput"} | {
    "cpu": "cpu_per_packet"
}
"""Names of rankings, and of the metrics (judge/statistics) that they rest on."""


def recommend(trials: Iterable[TrialRecord], info: RunInfo) -> Recommendation:
    """The recommendation of a run. Needs RTT trials for a plane; says so when there are none."""
    done = [trial for trial in trials if trial.status == "done" and "plane" in trial.cell]
    rankings = rankings_of(done, info)
    ranking = tuple(place for places in rankings.values() for place in places)
    overall = [place for place in rankings["rtt_p50"] if place.load_type == ALL_LOADS]
    reservations = (*_limits_of_the_data(done, info), *_not_tried(info))
    if any(trial.kind in ("chain", "tcp") for trial in done):
        return recommend_chains(done, info, _limits_of_the_data(done, info))
    if not overall:
        return Recommendation(
            plane=None,
            headline="There is no recommendation: no round-trip time was measured.",
            reservations=reservations,
            ranking=ranking,
        )
    plane, headline = _choose(overall, rankings["forwarded"])
    reasons = _reasons(plane or overall[0].plane, rankings)
    verdicts = _verdict_reservations(done, plane or overall[0].plane)
    return Recommendation(
        plane=plane,
        headline=headline,
        reasons=reasons,
        reservations=(*verdicts, *reservations),
        ranking=ranking,
    )


def verdicts_by_cell(trials: Iterable[TrialRecord]) -> list[tuple[Curve, Verdict]]:
    """The judge's verdict of every load-loss curve in a run."""
    return [(curve, judge(curve)) for _, curve in curves_from_trials(trials)]


# --- rankings -----------------------------------------------------------------------------------


def rankings_of(trials: Iterable[TrialRecord], info: RunInfo) -> dict[str, list[Ranked]]:
    """The places of a run's planes by `Ranked.metric`, best first for each load.

    `trials` that are done and have a plane; a metric that none of them has is an empty list.
    """
    sample = RunSample("run", info, list(trials))
    return {name: _rank(name, observe([sample], metric)) for name, metric in _METRICS.items()}


def _rank(name: str, observed: Observed) -> list[Ranked]:
    """The places of every plane, best first, for each load type and for all loads together."""
    if not observed.observations:
        return []
    family = compare_levels(observed, "plane", by="load_type")
    loads = {_load_type(stratum): stratum for stratum in family.strata if stratum != OVERALL}
    if not loads:  # a single load: it is all loads, too
        only = {str(one.cell.get("load_type", "none")) for one in observed.observations}
        loads = {next(iter(only)): OVERALL}
    known = [load for load in _LOAD_WORDS if load in loads]
    order = dict.fromkeys((*known, *loads))
    return [
        place
        for load, stratum in [*((load, loads[load]) for load in order), (ALL_LOADS, OVERALL)]
        for place in _places(name, load, stratum, family)
    ]


def _load_type(stratum: str) -> str:
    return "none" if stratum == IDLE else stratum


def _places(name: str, load: str, stratum: str, family: Family) -> list[Ranked]:
    values = [value for value in family.values if value.stratum == stratum]
    values.sort(key=lambda value: value.value, reverse=not family.metric.lower_is_better)
    best = values[0]
    places = []
    for value in values:
        against = None if value is best else family.find(value.level, best.level, stratum)
        places.append(
            Ranked.model_validate(
                {
                    "plane": str(value.level),
                    "load_type": load,
                    "metric": name,
                    "value": value.value,
                    "low": value.low,
                    "high": value.high,
                    "effect": None if against is None else _effect(family, against, best.value),
                    "note": "" if value is best else _note(against, str(best.level), value),
                    "at_least": value.at_least,
                }
            )
        )
    return places


def _effect(family: Family, against: Comparison, best: float) -> float:
    """How much worse than the best, as a share of it."""
    change = against.change
    if against.scale == "difference":
        change = change / best if best else 0.0
    return change if family.metric.lower_is_better else -change


def _note(against: Comparison | None, best: str, value: LevelValue) -> str:
    if against is None:
        return f"not told apart from {best}: never measured side by side"
    if value.at_least:
        return f"not told apart from {best}: the generator was the limit"
    if against.outcome == "worse":
        return ""
    if against.outcome == "practically the same":
        return f"practically the same as {best}"
    return f"not told apart from {best}"


# --- words --------------------------------------------------------------------------------------


def _choose(overall: Sequence[Ranked], forwarded: Sequence[Ranked]) -> tuple[str | None, str]:
    """The plane (None when nothing decides) and the answer in one sentence."""
    best = overall[0]
    rivals = [place for place in overall[1:] if place.note]
    if len(overall) == 1:
        return best.plane, f"Only {best.plane} was measured: there is nothing to choose from."
    if not rivals:
        second = overall[1]
        below = percent_text(round(1 - best.value / second.value, 2))
        return best.plane, (
            f"Use {best.plane}: over all loads its median round-trip time is "
            f"{time_text(best.value)}, {below} below that of "
            f"{second.plane}, the next best."
        )
    tied = [best.plane, *(place.plane for place in rivals)]
    rates = [place for place in forwarded if place.load_type == ALL_LOADS and place.plane in tied]
    if len(rates) > 1 and not any(place.note for place in rates[1:]) and rates[0].effect is None:
        return rates[0].plane, (
            f"Use {rates[0].plane}: {_listed(tied)} are not told apart in round-trip time, and "
            f"{rates[0].plane} forwards most, {shown(rates[0], rate_text)}."
        )
    same = all(place.note.startswith("practically") for place in rivals)
    if same:
        return None, (
            f"{_listed(tied)} are practically the same here: keep the one that you run, or choose "
            "by features."
        )
    return None, (f"{_listed(tied)} cannot be told apart by this run; measure longer to decide.")


def _reasons(plane: str, rankings: Mapping[str, Sequence[Ranked]]) -> tuple[str, ...]:
    reasons = []
    for metric, what, show in (
        ("rtt_p50", "median round-trip time", time_text),
        ("rtt_p99", "99th percentile of round-trip time", time_text),
        ("forwarded", "highest forwarding rate", rate_text),
        ("cpu", "kernel CPU time per packet", time_text),
    ):
        loads = dict.fromkeys(place.load_type for place in rankings[metric])
        for load in loads:
            if load == ALL_LOADS:
                continue
            places = [place for place in rankings[metric] if place.load_type == load]
            own = next((place for place in places if place.plane == plane), None)
            if own is None:
                continue
            others = [
                f"{place.plane} {shown(place, show)}" for place in places if place.plane != plane
            ]
            against = f" ({', '.join(others)})" if others else ""
            words = _LOAD_WORDS.get(load, load)
            reasons.append(
                f"{what} {words}: {plane} {shown(own, show)}{_range(own, show)}{against}"
            )
    return tuple(reasons)


def shown(place: Ranked, show: Callable[[float], str]) -> str:
    """A place's value as people read it; a lower bound says so."""
    return f"at least {show(place.value)}" if place.at_least else show(place.value)


def _range(place: Ranked, show: Callable[[float], str]) -> str:
    if place.low is None or place.high is None or not math.isfinite(place.high):
        return ""
    return f", 95 % interval {show(place.low)} to {show(place.high)}"


def _verdict_reservations(trials: Sequence[TrialRecord], plane: str) -> list[str]:
    words = []
    for cell, curve in curves_from_trials(trials):
        if cell.get("plane") != plane:
            continue
        verdict = judge(curve)
        if verdict.verdict != "GOOD":
            load = _LOAD_WORDS.get(str(cell.get("load_type", "none")), str(cell.get("load_type")))
            words.append(
                f"one throughput number cannot stand for {plane} {load} (BAD: {verdict.reason})"
                if verdict.verdict == "BAD"
                else f"whether one throughput number may stand for {plane} {load} is open "
                f"({verdict.verdict}: {verdict.reason})"
            )
    return words


def _limits_of_the_data(trials: Sequence[TrialRecord], info: RunInfo) -> list[str]:
    words = []
    blocks = len({trial.block for trial in trials})
    if blocks < 5:
        words.append(
            f"it rests on {blocks} replicate{'s' if blocks != 1 else ''} of each cell: intervals "
            "are wide; more --minutes of quick, or blocks of a design, narrow them"
        )
    if info.emulated:
        words.append(f"times are not those of hardware: {info.emulated}")
    words += [
        f"{plane} differs in more than the path: {'; '.join(found)}"
        for plane, found in sorted(info.differences.items())
        if found
    ]
    lossy = sorted(
        {
            str(trial.cell["plane"])
            for trial in trials
            if trial.kind == "rtt" and trial.counts is not None and trial.counts.lost
        }
    )
    if lossy:
        words.append(f"probe packets were lost on {_listed(lossy)}; their times are of the others")
    generator = sum("generator" in trial.limits for trial in trials if trial.kind == "load")
    if generator:
        words.append(
            f"in {generator} load trials the generator, not the plane, was the limit: those "
            "planes forward at least what is shown"
        )
    for host in info.hosts.values():
        words.extend(
            f"{found.name} ({found.value}): {found.why}"
            for found in host.disturbances
            if found.severity == "warning"
        )
    return list(dict.fromkeys(words))


def _not_tried(info: RunInfo) -> list[str]:
    """Planes that this host cannot do; the ones with hardware might well be better."""
    missing = [
        plane.plane for plane in next(iter(info.hosts.values())).planes if not plane.available
    ]
    if not missing:
        return []
    return [
        f"not measured, because this host cannot do them: {', '.join(missing)} "
        "(`planewise doctor` says why)"
    ]


def _listed(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
