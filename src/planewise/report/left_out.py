"""Trials and values that a report leaves out or shows with a reservation, as one table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planewise.report.figure import PrintedNumber, Table
from planewise.store.levels import NAMES, cpu_of, missed_levels
from planewise.store.models import OUTSIDE, Limit, Metric, TrialRecord
from planewise.units import count_text, percent_text

_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class LeftOut:
    """Something that is not in the figures, or only with a reservation."""

    what: str
    why: str
    times: int = 1
    is_out: bool = True
    """Whether it is left out; else it counts, with this reservation."""


METRICS: Mapping[Metric, str] = {
    "rtt_user": "RTT between user-space stamps",
    "rtt_kernel": "RTT between kernel stamps",
    "overhead": "sender overhead",
    "response": "response time",
    "sender_stack": "time in the sender guest's network stack",
    "responder_stack": "time in the responder guest's network stack",
    "one_way": "one-way latency",
}

LIMITS: Mapping[Limit, str] = {
    "generator": "the generator sent more slowly than intended",
    "sink": "the sink received more slowly than frames arrived",
    "clock": "a clock stepped or could not be trusted",
}

KINDS = {"rtt": "RTT", "tcp": "TCP", "alloc": "allocator"}
"""Kinds of trials that are not called by their name."""

CUT = LeftOut(
    "last line of trials.jsonl", "cut short by a kill or a full disk; --resume repeats it"
)


def of_trials(trials: Iterable[tuple[str, TrialRecord]]) -> list[LeftOut]:
    """What is left out of trials (with their planes), and what is shown with a reservation."""
    trials = list(trials)
    notes: Counter[tuple[str, str, bool]] = Counter()
    missed: dict[tuple[str, str, str], list[float]] = {}
    warnings: dict[str, list[str]] = {}
    for plane, trial in trials:
        what = f"{KINDS.get(trial.kind, trial.kind)} trials, {plane}"
        if trial.status == "failed":
            notes[what, f"failed: {trial.reason}", True] += 1
        if trial.status != "done":
            continue
        for metric, reason in trial.not_measurable.items():
            notes[f"{METRICS[metric]}, {plane}", f"not measurable: {reason}", True] += 1
        for level in missed_levels(trial):
            missed.setdefault((what, trial.kind, level.factor), []).append(level.share)
        for limit in trial.limits:
            if limit in OUTSIDE:
                # Limits decide on load trials; an RTT trial counts if it kept its rate.
                why = LIMITS.get(limit, f"limited by the {limit}")
                notes[what, why, trial.kind == "load"] += 1
        if trial.kind == "rtt" and trial.cpu and not cpu_of(trial):
            why = "too short for the kernel's clock ticks; set `rtt.steady_s`"
            notes[f"CPU time during RTT trials, {plane}", why, True] += 1
        for warning in trial.warnings:
            warnings.setdefault(_NUMBER.sub("#", warning), []).append(warning)
    return [
        *(LeftOut(what, why, times, is_out) for (what, why, is_out), times in notes.items()),
        *(
            LeftOut(
                what,
                f"reached only {_between(shares)} of the {NAMES.get(factor, factor)}",
                len(shares),
            )
            for (what, _, factor), shares in missed.items()
        ),
        *(
            LeftOut(
                "warning during a trial",
                texts[0] if len(set(texts)) == 1 else f"for example: {texts[0]}",
                len(texts),
                is_out=False,
            )
            for texts in warnings.values()
        ),
    ]


def _between(shares: Iterable[float]) -> str:
    ordered = sorted(shares)
    return " to ".join(dict.fromkeys(map(percent_text, (ordered[0], ordered[-1]))))


def sentence(trials: Iterable[TrialRecord]) -> str:
    """How many trials count, and how many do not, in one sentence."""
    trials = list(trials)
    out = {
        "failed": sum(trial.status == "failed" for trial in trials),
        "missed their target": sum(bool(missed_levels(trial)) for trial in trials),
        "were limited by the generator, the sink or a clock": sum(
            trial.status == "done" and trial.kind == "load" and trial.is_bound for trial in trials
        ),
    }
    parts = ", ".join(f"{times} {why}" for why, times in out.items() if times)
    total = count_text(len(trials), "trial")
    return f"Of {total} {parts}; these are not counted." if parts else f"All {total} count."


def table(notes: Iterable[LeftOut]) -> Table:
    """The notes, those that are left out first."""
    return Table.of(
        sorted(notes, key=lambda note: not note.is_out),
        {
            "What": lambda note: f"{note.what[:1].upper()}{note.what[1:]}",
            "How many": lambda note: PrintedNumber.plain(note.times),
            "Counts": lambda note: "no" if note.is_out else "yes",
            "Why": lambda note: note.why,
        },
    )
