"""Trials and values that a report leaves out, with the reason. Knows trials, no figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planewise.store.levels import NAMES, cpu_of, missed_levels
from planewise.store.models import OUTSIDE, Metric, TrialRecord
from planewise.units import percent_text

_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class LeftOut:
    """A trial or value that is not in the figures, with the reason."""

    what: str
    why: str
    times: int = 1


METRICS: Mapping[Metric, str] = {
    "rtt_user": "RTT between user-space stamps",
    "rtt_kernel": "RTT between kernel stamps",
    "overhead": "RTT overhead at the sender",
    "response": "Response time at the responder",
    "sender_stack": "Time in the network stack of the sender's guest",
    "responder_stack": "Time in the network stack of the responder's guest",
    "one_way": "One-way latency",
}

LIMITS: Mapping[str, str] = {
    "generator": "the generator could not send as fast as intended, so they say nothing about "
    "the plane and do not count",
    "sink": "the sink could not receive as fast as frames arrived, so they say nothing about "
    "the plane and do not count",
    "clock": "a clock stepped or could not be trusted during them, so they do not count",
}

KINDS = {
    "rtt": "RTT trials",
    "load": "Load trials",
    "chain": "Trials of chains",
    "tcp": "TCP trials",
    "alloc": "Trials of the allocator",
    "other": "Other trials",
}

CUT = LeftOut(
    "The last line of trials.jsonl",
    "it was cut short (a kill or a full disk): that trial is not here; --resume runs it again",
)


def of_skipped(skipped: Iterable[tuple[str, str]]) -> list[LeftOut]:
    """Cells that could not run here, as (plane, reason)."""
    return [
        LeftOut(f"{times} cell{'s' if times != 1 else ''} of {plane}", f"could not run here: {why}")
        for (plane, why), times in Counter(skipped).items()
    ]


def of_trials(trials: Iterable[tuple[str, TrialRecord]]) -> list[LeftOut]:
    """Notes on trials (with their planes) that failed, lack a metric, do not count or warned."""
    trials = list(trials)
    failed = [trial for _, trial in trials if trial.status == "failed"]
    done = [(plane, trial) for plane, trial in trials if trial.status == "done"]
    missing = Counter(
        (plane, metric, reason)
        for plane, trial in done
        for metric, reason in trial.not_measurable.items()
    )
    limited = Counter(
        (plane, limit) for plane, trial in done for limit in trial.limits if limit in OUTSIDE
    )
    missed: dict[tuple[str, str, str], list[float]] = {}
    for plane, trial in done:
        for missed_level in missed_levels(trial):
            missed.setdefault((plane, trial.kind, missed_level.factor), []).append(
                missed_level.share
            )
    return [
        *(LeftOut(f"Trial {trial.trial}", f"it failed: {trial.reason}") for trial in failed),
        *(
            LeftOut(f"{METRICS[metric]} of {plane}", f"not measurable: {reason}", times)
            for (plane, metric, reason), times in missing.items()
        ),
        *(
            LeftOut(f"Load trials of {plane}", LIMITS[limit], times)
            for (plane, limit), times in limited.items()
        ),
        *(
            LeftOut(
                f"{KINDS[kind]} of {plane}",
                f"they missed a level of their cell ({NAMES.get(factor, factor)}): "
                f"{_between(shares)} of it was achieved, so they do not count at that level",
                len(shares),
            )
            for (plane, kind, factor), shares in missed.items()
        ),
        *(
            LeftOut(
                f"CPU time of RTT trials of {plane}",
                "unsupported: clock ticks tell nothing of less than a second (`rtt.steady_s`)",
                times,
            )
            for plane, times in Counter(
                plane for plane, t in done if t.kind == "rtt" and t.cpu and not cpu_of(t)
            ).items()
        ),
        *_warnings(trial for _, trial in done),
    ]


def _between(shares: Iterable[float]) -> str:
    ordered = sorted(shares)
    return " to ".join(dict.fromkeys(map(percent_text, (ordered[0], ordered[-1]))))


def _warnings(trials: Iterable[TrialRecord]) -> list[LeftOut]:
    """Warnings of trials; texts that differ only in numbers count as one."""
    groups: dict[str, list[str]] = {}
    for trial in trials:
        for warning in trial.warnings:
            groups.setdefault(_NUMBER.sub("#", warning), []).append(warning)
    return [
        LeftOut(
            "Reported during a trial" if len(set(texts)) == 1 else "Reported with varying figures",
            texts[0],
            len(texts),
        )
        for texts in groups.values()
    ]
