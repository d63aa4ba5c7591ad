"""Generators and sinks of load trials: each pair is an instrument of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from planewise.store.models import TrialRecord


def mixed_backends(trials: Iterable[tuple[str, TrialRecord]]) -> str:
    """A sentence where finished load trials, each with a name, have different backends; else empty.

    Trials that recorded none are left out.
    """
    mixed: dict[str, set[str]] = {}
    for name, trial in trials:
        if trial.kind == "load" and trial.status == "done" and trial.generator and trial.sink:
            mixed.setdefault(f"{trial.generator} to {trial.sink}", set()).add(name)
    if len(mixed) < 2:
        return ""
    parts = "; ".join(f"{pair} ({', '.join(sorted(mixed[pair]))})" for pair in sorted(mixed))
    return f"load trials were measured by different generators or sinks: {parts}"
