"""One recommendation from one run: the plane, the reasons, the reservations, the rankings.

Rests on replicates (one value a cell and block), compared in pairs within blocks by the statistics
that `planewise compare` uses (judge/statistics). What the data do not tell apart is called so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from planewise.advise.chains import recommend_chains
from planewise.judge.bounded import opposite
from planewise.judge.from_store import curves_from_trials
from planewise.judge.policies import policy_families, switch_losses, switch_sentence
from planewise.judge.statistics.comparison import Comparison, Family, LevelValue, compare_levels
from planewise.judge.statistics.flips import least_blocks
from planewise.judge.statistics.metrics import RunSample, observe
from planewise.judge.statistics.pairing import IDLE, OVERALL
from planewise.judge.statistics.ranking import best_first, first_two
from planewise.judge.statistics.sentences import bound_text, sentence
from planewise.judge.verdict import judge
from planewise.store.allocations import by_groups
from planewise.store.cells import Sending, sending_of
from planewise.store.levels import keeps_levels, missed_levels
from planewise.store.loads import mixed_backends
from planewise.store.models import RunInfo, TrialRecord
from planewise.store.recommendation import RankedPlane, Recommendation
from planewise.units import count_text, list_text, percent_text, rate_text, time_text

ALL_LOADS = "all"
"""The ranking over every load."""

LOAD_WORDS = {"none": "idle", "cpu": "under CPU load", "network": "under network load"}
"""In the order in which loads are listed."""

_METRICS = {
    "rtt_p50": "rtt",
    "rtt_p99": "rtt_p99",
    "forwarded": "throughput",
    "cpu": "cpu_per_packet",
}
"""Names of rankings, and of the metrics (judge/statistics) that they rest on."""
_GUESTS = {
    "namespace": "namespaces and containers",
    "container": "containers",
    "vm": "virtual machines",
    "process": "functions in processes",
}
_NO_ADVICE = ("No plane", "There is no", "Only ")
_FUNCTIONS: Mapping[str, str] = {
    "host": "programs on the host's own network share its addresses and ports, with no isolation",
    "macvlan": "the host cannot reach its own guests over macvlan",
    "ipvlan": "guests share the host's MAC address, and the host cannot reach its own guests",
    "routed": "guests on routed share no Ethernet segment: no broadcasts, ARP or DHCP among them",
    "vf": "the number of VFs is limited, and the host's filters do not see a VF's packets",
    "vf-passthrough": "a guest with a VF passed through cannot migrate live, and the host's "
    "filters do not see its packets",
    "macvtap-bridge": "the host cannot reach its own guests over macvtap",
    "macvtap-vf": "the number of VFs is limited, and the host cannot reach its own guests over "
    "macvtap",
    "ovs-dpdk": "the switch polls a core of its own, also when idle",
    "vhost-user": "the switch polls a core of its own, also when idle, and guests need huge pages",
}
"""What an operator must know of a plane that no measurement shows."""


def recommend(trials: Iterable[TrialRecord], info: RunInfo) -> Recommendation:
    """The recommendation of a run. Needs RTT trials for a plane; says so when there are none."""
    trials = list(trials)
    missed = sum(bool(missed_levels(trial)) for trial in trials)
    done = [trial for trial in trials if keeps_levels(trial) and "plane" in trial.cell]
    groups = at_each_sending(done)
    advice = (
        _joined({sending: _recommend(group, info) for sending, group in groups.items()})
        if len(groups) > 1
        else _recommend(done, info)
    )
    kinds = {str(trial.cell.get("guest", "namespace")) for trial in done}
    if advice.ranking and len(kinds) == 1 and not advice.headline.startswith(_NO_ADVICE):
        guests = _GUESTS.get(kind := kinds.pop(), kind)
        text = advice.headline.replace("Use ", "use ", 1)
        headline = (
            f"For {guests}: {text if advice.headline.startswith('Use ') else advice.headline}"
        )
        advice = advice.model_copy(update={"headline": headline})
    if not missed:
        return advice
    whose = "its" if missed == 1 else "their"
    reservation = (
        f"{count_text(missed, 'trial')} missed {whose} target by more than 1 %, not counted here"
    )
    return advice.model_copy(update={"reservations": (*advice.reservations, reservation)})


def at_each_sending(trials: Sequence[TrialRecord]) -> dict[Sending, list[TrialRecord]]:
    """By rate and pattern of the probes, rising: the RTT trials sent so, and all other trials.

    Empty where there are no RTT trials that say it.
    """
    of_trials = {sending_of(trial.cell) for trial in trials if trial.kind == "rtt"}
    return {
        sending: [
            trial
            for trial in trials
            if trial.kind != "rtt" or sending_of(trial.cell) in (None, sending)
        ]
        for sending in sorted(sending for sending in of_trials if sending is not None)
    }


def _joined(by_sending: Mapping[Sending, Recommendation]) -> Recommendation:
    """What holds for several ways of sending; a plane where it is the same for all of them."""
    planes = {advice.plane for advice in by_sending.values()}
    ranking: list[RankedPlane] = []
    reasons: dict[str, None] = {}
    reservations: dict[str, None] = {}
    for sending, advice in by_sending.items():
        reservations |= dict.fromkeys(advice.reservations)
        times = [place for place in advice.ranking if place.metric.startswith("rtt")]
        ranking += [time.model_copy(update=sending._asdict()) for time in times]
        for reason in advice.reasons:
            of_time = "round-trip time" in reason
            reasons[f"{sending.words}, {reason}" if of_time else reason] = None
    first = next(iter(by_sending.values()))
    ranking += [place for place in first.ranking if not place.metric.startswith("rtt")]
    sentences = [
        f"{'A' if index == 0 else 'a'}{sending.words[1:]}: {advice.headline.rstrip('.')}"
        for index, (sending, advice) in enumerate(by_sending.items())
    ]
    return Recommendation(
        plane=planes.pop() if len(planes) == 1 else None,
        headline=f"{'; '.join(sentences)}.",
        reasons=tuple(reasons),
        reservations=tuple(reservations),
        ranking=tuple(ranking),
    )


def _recommend(done: Sequence[TrialRecord], info: RunInfo) -> Recommendation:
    """The recommendation of trials that count, whose RTT trials were sent in one way."""
    families = _families(done, info)
    rankings = _rankings(families)
    ranking = tuple(place for places in rankings.values() for place in places)
    eligible, lossy = rankings, lossy_planes(done, info)
    if lossy:
        kept = [trial for trial in done if str(trial.cell["plane"]) not in lossy]
        families = _families(kept, info)
        eligible = _rankings(families)
    overall = [place for place in eligible["rtt_p50"] if place.load_type == ALL_LOADS]
    measured = {str(trial.cell["plane"]) for trial in done}
    reservations = (*_limits_of_the_data(done, info), *_not_tried(info, measured))
    if any(trial.kind in ("chain", "tcp") for trial in done):
        return recommend_chains(done, info, _limits_of_the_data(done, info))
    if any(trial.kind == "alloc" for trial in done):
        return recommend_policies(done, info, reservations)
    if not rankings["rtt_p50"]:
        return Recommendation(
            plane=None,
            headline="There is no recommendation: no round-trip time was measured.",
            reservations=reservations,
            ranking=ranking,
        )
    plane, headline = _choose(overall, eligible["forwarded"], lossy, families)
    shown_plane = plane or (overall or rankings["rtt_p50"])[0].plane
    reasons = _reasons(shown_plane, rankings)
    functions = [_FUNCTIONS[plane]] if plane is not None and plane in _FUNCTIONS else []
    return Recommendation(
        plane=plane,
        headline=headline,
        reasons=reasons,
        reservations=(*functions, *_verdicts(done, shown_plane), *reservations),
        ranking=ranking,
    )


LOSS_VETO = 0.01
"""A plane that surely loses more than this share of its probes is not recommended."""


def lossy_planes(trials: Sequence[TrialRecord], info: RunInfo) -> dict[str, float]:
    """Shares of lost probes of the planes that surely lose more than `LOSS_VETO`."""
    observed = observe([RunSample("run", info, trials)], "loss")
    if not observed.observations:
        return {}
    return {
        str(value.level): value.value
        for value in compare_levels(observed, "plane", by="").values
        if value.low is not None and value.low > LOSS_VETO
    }


# --- rankings -----------------------------------------------------------------------------------


def rankings_of(trials: Iterable[TrialRecord], info: RunInfo) -> dict[str, list[RankedPlane]]:
    """The places of a run's planes by `RankedPlane.metric`, best first for each load.

    `trials` that count and have a plane, their RTT trials at one rate of the probes; a metric that
    none of them has is an empty list.
    """
    return _rankings(_families(list(trials), info))


_Families = Mapping[str, tuple[Family, str]]
"""The planes compared by the metric of each ranking, and a load type under which it was measured;
without metrics that the trials lack."""


def _families(trials: Sequence[TrialRecord], info: RunInfo) -> _Families:
    sample = RunSample("run", info, trials)
    families = {}
    for name, metric in _METRICS.items():
        observed = observe([sample], metric)
        if observed.observations:
            load = str(observed.observations[0].cell.get("load_type", "none"))
            families[name] = compare_levels(observed, "plane", by="load_type"), load
    return families


def _rankings(families: _Families) -> dict[str, list[RankedPlane]]:
    return {name: _rank(name, *families[name]) if name in families else [] for name in _METRICS}


def _rank(name: str, family: Family, load_type: str) -> list[RankedPlane]:
    """The places of every plane, best first, for each load type and for all loads together."""
    loads = {
        "none" if stratum == IDLE else stratum: stratum
        for stratum in family.strata
        if stratum != OVERALL
    } or {load_type: OVERALL}  # a single load: it is all loads, too
    named = [load for load in LOAD_WORDS if load in loads]
    order = dict.fromkeys((*named, *loads))
    return [
        place
        for load, stratum in [*((load, loads[load]) for load in order), (ALL_LOADS, OVERALL)]
        for place in _places(name, load, stratum, family)
    ]


def _places(name: str, load: str, stratum: str, family: Family) -> list[RankedPlane]:
    values = best_first(family, stratum)
    best = values[0]
    places = []
    for value in values:
        comparison = None if value is best else family.find(value.level, best.level, stratum)
        effect = {} if comparison is None else _effect(family, comparison, best.value)
        places.append(
            RankedPlane.model_validate(
                {
                    "plane": str(value.level),
                    "load_type": load,
                    "metric": name,
                    "value": value.value,
                    "low": value.low,
                    "high": value.high,
                    "note": "" if value is best else _note(comparison, str(best.level), value),
                    "bound": value.bound,
                    **effect,
                }
            )
        )
    return places


def _effect(family: Family, comparison: Comparison, best: float) -> dict[str, object]:
    """The `effect` fields of a place: how much worse than the best, as a share of it."""
    effect, low, high, bound = comparison.change, comparison.low, comparison.high, comparison.bound
    if comparison.scale == "difference" and best:
        effect, low, high = effect / best, low / best, high / best
    elif comparison.scale == "difference":  # of nothing no share can be told
        effect, low, high, bound = 0.0, -math.inf, math.inf, "unbounded"
    if not family.metric.lower_is_better:
        effect, low, high = -effect, -high, -low
        bound = opposite(bound)
    if not math.isfinite(effect):
        effect, bound = 0.0, "unbounded"
    return {
        "effect": effect,
        "effect_low": low if math.isfinite(low) else None,
        "effect_high": high if math.isfinite(high) else None,
        "effect_bound": bound,
    }


def _note(comparison: Comparison | None, best: str, value: LevelValue) -> str:
    if comparison is None:
        return f"never measured side by side with {best}"
    if comparison.outcome == "worse":
        return ""
    if comparison.outcome == "practically the same":
        return f"practically the same as {best}"
    if value.bound != "exact":
        return f"not distinguishable from {best}: only a bound is known"
    if comparison.outcome == "too few blocks":
        return f"behind {best} in every block, but in too few to conclude"
    return f"not distinguishable from {best}"


# --- words --------------------------------------------------------------------------------------


def _choose(
    overall: Sequence[RankedPlane],
    forwarded: Sequence[RankedPlane],
    lossy: Mapping[str, float],
    families: _Families,
) -> tuple[str | None, str]:
    """The plane (None when nothing decides) and the answer in one sentence or two.

    Rankings and families are those of the planes that are not `lossy`.
    """
    lost = list_text([f"{plane} {percent_text(share)}" for plane, share in lossy.items()])
    if not overall:
        return None, f"No plane is recommended: of their probes were lost {lost}."
    best = overall[0]
    left_out = f" (not considered, for lost probes: {lost})" if lossy else ""
    if len(overall) == 1:
        if lossy:
            return (
                best.plane,
                f"Use {best.plane}: the others lost too many of their probes, {lost}.",
            )
        return best.plane, f"Only {best.plane} was measured: there is nothing to choose from."
    rivals = [place for place in overall[1:] if place.note]
    if not rivals:
        second = overall[1]
        return best.plane, (
            f"Use {best.plane}. Over all loads its median round-trip time is "
            f"{value_of(best, time_text)}, {_shortfall(second)} that of "
            f"{second.plane}, the next best{left_out}."
        )
    tied = [best.plane, *(place.plane for place in rivals)]
    rates = [place for place in forwarded if place.load_type == ALL_LOADS and place.plane in tied]
    if len(rates) > 1 and not any(place.note for place in rates[1:]) and rates[0].effect is None:
        return rates[0].plane, (
            f"Use {rates[0].plane}. {list_text(tied)} are not distinguishable in round-trip time, "
            f"and {rates[0].plane} forwards most, {value_of(rates[0], rate_text)}{left_out}."
        )
    if all(place.note.startswith("practically") for place in rivals):
        return None, (
            f"{list_text(tied)} are practically the same here: keep the one that you run, or "
            f"choose by features{left_out}."
        )
    family, _ = families["rtt_p50"]
    _, comparison = first_two(family)
    if comparison and comparison.outcome == "too few blocks":
        return None, sentence(comparison, family)
    return None, (
        f"{list_text(tied)} are not distinguishable by this run{left_out}; more blocks may decide: "
        "`planewise run --resume RUN --blocks 4`."
    )


def _shortfall(second: RankedPlane) -> str:
    """By how much the best is below the second, with the interval of their comparison."""

    def share(effect: float) -> str:
        return percent_text(round(effect / (1 + effect), 2))

    if second.effect_bound == "unbounded":
        return "below"
    text = f"{bound_text(second.effect_bound, share(second.effect or 0.0))} below"
    if second.effect_high is None and second.effect_low is not None:
        return f"{text} (95 %: at least {share(second.effect_low)})"
    if second.effect_low is None or second.effect_high is None:
        return text
    return f"{text} (95 %: {share(second.effect_low)} to {share(second.effect_high)})"


def _reasons(plane: str, rankings: Mapping[str, Sequence[RankedPlane]]) -> tuple[str, ...]:
    reasons = []
    for metric, label, show in (
        ("rtt_p50", "median round-trip time", time_text),
        ("rtt_p99", "99th percentile of round-trip time", time_text),
        ("forwarded", "forwarding rate at the best load", rate_text),
        ("cpu", "kernel CPU time per packet", time_text),
    ):
        loads = dict.fromkeys(place.load_type for place in rankings[metric])
        for load in loads:
            if load == ALL_LOADS:
                continue
            places = [place for place in rankings[metric] if place.load_type == load]
            ranked = next((place for place in places if place.plane == plane), None)
            if ranked is None:
                continue
            rivals = [
                f"{place.plane} {value_of(place, show)}" for place in places if place.plane != plane
            ]
            versus = f" ({', '.join(rivals)})" if rivals else ""
            words = LOAD_WORDS.get(load, load)
            reasons.append(
                f"{label} {words}: {plane} {value_of(ranked, show)}{_range(ranked, show)}{versus}"
            )
    return tuple(reasons)


def value_of(place: RankedPlane, show: Callable[[float], str]) -> str:
    """A place's value as people read it; a bound says so."""
    return bound_text(place.bound, show(place.value))


def _range(place: RankedPlane, show: Callable[[float], str]) -> str:
    if place.low is None or place.high is None:
        return ""
    return f", 95 % interval {show(place.low)} to {show(place.high)}"


def _verdicts(trials: Sequence[TrialRecord], first: str) -> list[str]:
    """The curves that no single figure represents, those of the plane `first` before the others."""
    curves: dict[str, list[tuple[str, str]]] = {"BAD": [], "UNDECIDED": []}
    for cell, curve in sorted(
        curves_from_trials(trials), key=lambda found: found[0].get("plane") != first
    ):
        verdict, load = judge(curve), str(cell.get("load_type", "none"))
        name = f"{cell.get('plane')} {LOAD_WORDS.get(load, load)}"
        curves.setdefault(verdict.verdict, []).append((name, verdict.reason))
    sentences = [
        f"a single throughput figure misrepresents {name}: {reason.partition(': one number')[0]}"
        for name, reason in curves["BAD"]
    ]
    if unclear := curves["UNDECIDED"]:
        why = f": {unclear[0][1]}" if len(unclear) == 1 else ""
        names = list_text([name for name, _ in unclear])
        sentences.append(f"it is UNDECIDED whether one throughput figure represents {names}{why}")
    return sentences


def _limits_of_the_data(trials: Sequence[TrialRecord], info: RunInfo) -> list[str]:
    words = []
    blocks = len({trial.block for trial in trials})
    if blocks < least_blocks():
        words.append(
            f"it rests on {count_text(blocks, 'block')}, and {least_blocks()} are needed to "
            "conclude: raise --minutes, or the number of blocks"
        )
    if info.emulated:
        words.append(f"times are not those of hardware: {info.emulated}")
    words += [
        f"{plane} differs in more than the path: {'; '.join(differences)}"
        for plane, differences in sorted(info.differences.items())
        if differences
    ]
    probes: dict[str, tuple[int, int]] = {}
    for trial in trials:
        if trial.kind == "rtt" and trial.counts is not None:
            lost, sent = probes.get(plane := str(trial.cell["plane"]), (0, 0))
            probes[plane] = (lost + trial.counts.lost, sent + trial.counts.sent)
    lossy = [
        f"{plane} ({percent_text(lost / sent)})"
        for plane, (lost, sent) in sorted(probes.items())
        if lost
    ]
    if lossy:
        words.append(
            f"probe packets were lost on {list_text(lossy)}; a lost one counts as infinitely late"
        )
    generator = sum("generator" in trial.limits for trial in trials if trial.kind == "load")
    if generator:
        words.append(
            f"in {count_text(generator, 'load trial')} the generator, not the plane, was the "
            "limit: those planes forward at least what is shown"
        )
    if mixed := mixed_backends((str(trial.cell.get("plane", "")), trial) for trial in trials):
        words.append(mixed)
    for host in info.hosts.values():
        words += host.warnings
    return list(dict.fromkeys(words))


def _not_tried(info: RunInfo, measured: Collection[str]) -> list[str]:
    """Planes that could have been measured, and planes that this host lacks."""
    planes = next(iter(info.hosts.values())).planes
    present = [plane.plane for plane in planes if plane.available and plane.plane not in measured]
    missing = [plane.plane for plane in planes if not plane.available]
    words = []
    if present:
        words.append(
            f"available here but not measured: {', '.join(present)} (name them under `plane` in a "
            "design for `planewise run`)"
        )
    if missing:
        words.append(
            f"not measured, because not supported on this host: {', '.join(missing)} "
            "(`planewise doctor` says why)"
        )
    return words


# --- policies of the allocator ------------------------------------------------------------------


def recommend_policies(
    trials: Sequence[TrialRecord], info: RunInfo, reservations: Sequence[str]
) -> Recommendation:
    """The recommendation of a run of the allocator, of trials that are done.

    It names no plane: under a policy guests have different planes.
    """
    families = policy_families(trials, info)
    missed = sum(not keeps_levels(trial) for trial in by_groups(trials))
    reservation = f"{missed} times the rate of a group was not kept: those trials are ignored here"
    all_reservations = (*reservations, *((reservation,) if missed else ()))
    if any(trial.alloc is not None and trial.alloc.switch for trial in trials):
        lost, sent = switch_losses(trials)
        return Recommendation(
            plane=None,
            headline=f"One guest was given a VF and lost it again: of {sent} requests {lost} were "
            "lost.",
            reasons=(switch_sentence(trials),),
            reservations=all_reservations,
        )
    if not families:
        headline = "There is nothing to compare: one policy was measured, or no rate was kept."
        return Recommendation(plane=None, headline=headline, reservations=all_reservations)
    sentences = [_best_policy(family) for family in families]
    return Recommendation(
        plane=None,
        headline=sentences[0],
        reasons=tuple(sentences[1:]),
        reservations=all_reservations,
    )


def _best_policy(family: Family) -> str:
    """The best policy of a group against the next one, in a sentence."""
    order, comparison = first_two(family)
    if len(order) < 2:
        return "One policy alone was measured."
    furthest = family.find(order[0].level, order[-1].level)
    if furthest and (comparison is None or comparison.outcome not in ("better", "worse")):
        comparison = furthest
    if comparison is None:
        return "The policies were never measured together."
    return sentence(comparison, family)
