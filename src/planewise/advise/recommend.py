"""One recommendation from one run: the plane, the reasons, the reservations, the rankings.

Rests on replicates (one value a plane, load and block), compared in pairs within blocks
(judge/statistics). What the data do not tell apart is called so.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from planewise.judge.curve import Curve, curves_from_trials
from planewise.judge.statistics import Comparison, compare, geometric_mean
from planewise.judge.verdict import Verdict, judge
from planewise.store.models import Ranked, Recommendation, RunInfo, TrialRecord
from planewise.units import rate_text, share_text, time_text

ALL_LOADS = "all"
"""The ranking over every load: per block the geometric mean over loads."""

Values = dict[int, float]
"""One replicate value a block."""

KERNEL_MODES = ("sys", "irq", "soft")
"""CPU modes that a data plane's work is booked in; the probes' own work is in `usr`."""

_LOAD_WORDS = {"none": "idle", "cpu": "under CPU load", "network": "under network load"}
"""In the order in which loads are told."""


@dataclass(frozen=True)
class _Metric:
    """What is ranked, and how a trial gives it."""

    name: str
    kind: str
    lower_is_better: bool
    of_block: Callable[[Sequence[TrialRecord], RunInfo], float | None]


def recommend(trials: Iterable[TrialRecord], info: RunInfo) -> Recommendation:
    """The recommendation of a run. Needs RTT trials for a plane; says so when there are none."""
    done = [trial for trial in trials if trial.status == "done" and "plane" in trial.cell]
    rankings = {metric.name: _rank(metric, done, info) for metric in _METRICS}
    ranking = tuple(place for places in rankings.values() for place in places)
    overall = [place for place in rankings["rtt_p50"] if place.load_type == ALL_LOADS]
    reservations = (*_limits_of_the_data(done, info), *_not_tried(info))
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


def _rank(metric: _Metric, trials: Sequence[TrialRecord], info: RunInfo) -> list[Ranked]:
    """The places of every plane, best first, for each load and for all loads together."""
    by_load = _replicates(metric, trials, info)
    if len(by_load) > 1:
        together = _over_all_loads(by_load)
        if together:
            by_load = {**by_load, ALL_LOADS: together}
    elif by_load:
        by_load = {**by_load, ALL_LOADS: next(iter(by_load.values()))}
    places = []
    for load, planes in by_load.items():
        places.extend(_places(metric, load, planes))
    return places


def _replicates(
    metric: _Metric, trials: Sequence[TrialRecord], info: RunInfo
) -> dict[str, dict[str, Values]]:
    """load type -> plane -> block -> value."""
    groups: dict[tuple[str, str, int], list[TrialRecord]] = defaultdict(list)
    for trial in trials:
        if trial.kind == metric.kind:
            load = str(trial.cell.get("load_type", "none"))
            groups[load, str(trial.cell["plane"]), trial.block].append(trial)
    by_load: dict[str, dict[str, Values]] = {}
    for (load, plane, block), members in groups.items():
        value = metric.of_block(members, info)
        if value is not None and value > 0 and math.isfinite(value):
            by_load.setdefault(load, {}).setdefault(plane, {})[block] = value
    known = [load for load in _LOAD_WORDS if load in by_load]
    return {load: by_load[load] for load in dict.fromkeys((*known, *by_load))}


def _over_all_loads(by_load: Mapping[str, Mapping[str, Values]]) -> dict[str, Values]:
    """Per plane and block the geometric mean over loads; only blocks that have every load."""
    together: dict[str, Values] = {}
    for plane in dict.fromkeys(plane for planes in by_load.values() for plane in planes):
        columns = [planes.get(plane, {}) for planes in by_load.values()]
        blocks = set.intersection(*(set(column) for column in columns))
        if blocks:
            together[plane] = {
                block: statistics.geometric_mean(column[block] for column in columns)
                for block in sorted(blocks)
            }
    return together


def _places(metric: _Metric, load: str, planes: Mapping[str, Values]) -> list[Ranked]:
    centres = {plane: geometric_mean(list(values.values())) for plane, values in planes.items()}
    order = sorted(
        centres, key=lambda plane: centres[plane].estimate, reverse=not metric.lower_is_better
    )
    best = order[0]
    places = []
    for plane in order:
        interval = centres[plane]
        known = interval.n > 1
        comparison = _paired(planes[plane], planes[best]) if plane != best else None
        places.append(
            Ranked.model_validate(
                {
                    "plane": plane,
                    "load_type": load,
                    "metric": metric.name,
                    "value": interval.estimate,
                    "low": interval.low if known else None,
                    "high": interval.high if known else None,
                    "effect": None if comparison is None else _effect(metric, comparison),
                    "note": "" if comparison is None else _note(comparison, best),
                }
            )
        )
    return places


def _paired(values: Values, best: Values) -> Comparison | None:
    blocks = sorted(set(values) & set(best))
    if not blocks:
        return None
    return compare([values[block] for block in blocks], [best[block] for block in blocks])


def _effect(metric: _Metric, comparison: Comparison) -> float:
    ratio = comparison.ratio.estimate
    return ratio - 1 if metric.lower_is_better else 1 - ratio


def _note(comparison: Comparison, best: str) -> str:
    if comparison.outcome == "practically the same":
        return f"practically the same as {best}"
    if comparison.outcome == "not known":
        return f"not told apart from {best}"
    return ""


def _latency_quantile(name: str) -> Callable[[Sequence[TrialRecord], RunInfo], float | None]:
    """Geometric mean, over a block's RTT trials, of one quantile of the RTT at the guest [ns]."""

    def of_block(trials: Sequence[TrialRecord], info: RunInfo) -> float | None:
        found = [trial.latency["rtt_user"] for trial in trials if "rtt_user" in trial.latency]
        values = [float(getattr(latency, name)) for latency in found if latency.count]
        return statistics.geometric_mean(values) if values and min(values) > 0 else None

    return of_block


def _highest_forwarded(trials: Sequence[TrialRecord], info: RunInfo) -> float | None:
    """The highest forwarding rate [packet/s] among a block's load trials."""
    rates = [
        trial.load.achieved_pps * trial.counts.received / trial.counts.sent
        for trial in trials
        if trial.load is not None and trial.counts is not None and trial.counts.sent
    ]
    return max(rates, default=None)


def _kernel_ns_per_packet(trials: Sequence[TrialRecord], info: RunInfo) -> float | None:
    """Median, over a block's load trials, of kernel CPU time per forwarded packet [ns]."""
    costs = []
    for trial in trials:
        if trial.counts is None or not trial.counts.received or not trial.cpu:
            continue
        busy_s = sum(
            sum(modes.get(mode, 0.0) for mode in KERNEL_MODES)
            * trial.duration_s
            * (info.hosts[host].cpus if host in info.hosts else 1)
            for host, modes in trial.cpu.items()
        )
        costs.append(busy_s / trial.counts.received * 1e9)
    return statistics.median(costs) if costs else None


_METRICS = (
    _Metric("rtt_p50", "rtt", True, _latency_quantile("p50_ns")),
    _Metric("rtt_p99", "rtt", True, _latency_quantile("p99_ns")),
    _Metric("forwarded", "load", False, _highest_forwarded),
    _Metric("cpu", "load", True, _kernel_ns_per_packet),
)


# --- words --------------------------------------------------------------------------------------


def _choose(overall: Sequence[Ranked], forwarded: Sequence[Ranked]) -> tuple[str | None, str]:
    """The plane (None when nothing decides) and the answer in one sentence."""
    best = overall[0]
    rivals = [place for place in overall[1:] if place.note]
    if len(overall) == 1:
        return best.plane, f"Only {best.plane} was measured: there is nothing to choose from."
    if not rivals:
        second = overall[1]
        return best.plane, (
            f"Use {best.plane}: over all loads its median round-trip time is "
            f"{time_text(best.value)}, {share_text(1 - best.value / second.value)} below that of "
            f"{second.plane}, the next best."
        )
    tied = [best.plane, *(place.plane for place in rivals)]
    rates = [place for place in forwarded if place.load_type == ALL_LOADS and place.plane in tied]
    if len(rates) > 1 and not any(place.note for place in rates[1:]) and rates[0].effect is None:
        return rates[0].plane, (
            f"Use {rates[0].plane}: {_listed(tied)} are not told apart in round-trip time, and "
            f"{rates[0].plane} forwards most, {rate_text(rates[0].value)}."
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
                f"{place.plane} {show(place.value)}" for place in places if place.plane != plane
            ]
            against = f" ({', '.join(others)})" if others else ""
            words = _LOAD_WORDS.get(load, load)
            reasons.append(f"{what} {words}: {plane} {show(own.value)}{_range(own, show)}{against}")
    return tuple(reasons)


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
