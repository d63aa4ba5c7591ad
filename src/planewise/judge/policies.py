"""The allocator's policies compared, for each group of guests."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from planewise.judge.statistics.comparison import Family, compare_levels
from planewise.judge.statistics.metrics import RunSample, by_sending, observe
from planewise.store.allocations import by_groups
from planewise.store.models import RunInfo, SwitchPhase, TrialRecord
from planewise.units import time_text

FACTOR = "policy"
SWITCH_QUANTILES = ("p50_ns", "p99_ns")
"""Quantiles that are reported of requests around a switch."""


def policy_families(
    trials: Sequence[TrialRecord], info: RunInfo, metric: str = "rtt"
) -> list[Family]:
    """One family of comparisons for each group of guests, the busiest first; groups whose rate
    was kept under one policy alone are left out."""
    observed = observe([RunSample("run", info, by_groups(trials))], metric)
    groups = by_sending(observed, FACTOR) if observed.observations else ()
    families = (compare_levels(group, FACTOR) for group in reversed(groups) if group.observations)
    return [family for family in families if family.comparisons]


def by_phase(trials: Sequence[TrialRecord]) -> Iterator[tuple[str, list[SwitchPhase]]]:
    """The phases of all switches, by name, in the order of time."""
    phases: dict[str, list[SwitchPhase]] = {}
    for trial in trials:
        for phase in trial.alloc.switch if trial.alloc is not None else ():
            phases.setdefault(phase.name, []).append(phase)
    yield from phases.items()


def switch_losses(trials: Sequence[TrialRecord]) -> tuple[int, int]:
    """Requests to the moved guests that were lost, and all of them."""
    phases = [phase for _, group in by_phase(trials) for phase in group]
    return sum(phase.counts.lost for phase in phases), sum(phase.counts.sent for phase in phases)


def switch_sentence(trials: Sequence[TrialRecord]) -> str:
    """Median and tail of the moved guest in each phase, and what it lost."""
    texts = []
    for name, phases in by_phase(trials):
        rtts = [phase.rtt for phase in phases if phase.rtt is not None]
        if rtts:
            p50, p99 = (
                statistics.median(getattr(rtt, quantile) for rtt in rtts)
                for quantile in SWITCH_QUANTILES
            )
            texts.append(f"{name} {time_text(p50)} ({time_text(p99)})")
    lost, sent = switch_losses(trials)
    return f"Median (99th percentile): {', '.join(texts)}; {lost} of {sent} requests lost."
