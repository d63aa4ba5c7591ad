"""Generators and sinks of load trials: each pair is an instrument of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planewise.store.models import TrialRecord


def backends_by(trials: Iterable[tuple[str, TrialRecord]]) -> Mapping[str, tuple[str, ...]]:
    """Names of finished load trials by backends, as `live-skb to xdp-native`; trials that recorded
    none are left out."""
    by_plane: dict[str, dict[str, None]] = {}
    for name, trial in trials:
        if trial.kind == "load" and trial.status == "done" and trial.generator and trial.sink:
            by_plane.setdefault(f"{trial.generator} to {trial.sink}", {})[name] = None
    return {backend: tuple(sorted(names)) for backend, names in sorted(by_plane.items())}


def mixed_backends(trials: Iterable[tuple[str, TrialRecord]]) -> str:
    """A sentence where the load trials have different backends; else empty."""
    mixed = backends_by(trials)
    if len(mixed) < 2:
        return ""
    parts = "; ".join(f"{backend} ({', '.join(names)})" for backend, names in mixed.items())
    return f"load trials were measured by different generators or sinks: {parts}"
