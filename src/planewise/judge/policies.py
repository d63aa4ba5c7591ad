"""The allocator's policies compared by what each group of guests feels."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from planewise.judge.statistics import Family, RunSample, by_sending, compare_levels, observe
from planewise.store.allocations import by_groups
from planewise.store.models import RunInfo, SwitchPhase, TrialRecord
from planewise.units import time_text

FACTOR = "policy"
SWITCH_QUANTILES = ("p50_ns", "p99_ns")
"""What is told of requests around a switch."""


def policy_families(
    trials: Sequence[TrialRecord], info: RunInfo, metric: str = "rtt"
) -> list[Family]:
    """One family of comparisons for each group of guests, the busiest first; groups whose rate
    was kept under one policy alone are left out."""
    observed = observe([RunSample("run", info, by_groups(trials))], metric)
    groups = by_sending(observed, FACTOR) if observed.observations else ()
    families = (compare_levels(one, FACTOR) for one in reversed(groups) if one.observations)
    return [family for family in families if family.comparisons]


def by_phase(trials: Sequence[TrialRecord]) -> Iterator[tuple[str, list[SwitchPhase]]]:
    """The phases of all switches, by name, in the order of time."""
    found: dict[str, list[SwitchPhase]] = {}
    for trial in trials:
        for one in trial.alloc.switch if trial.alloc is not None else ():
            found.setdefault(one.name, []).append(one)
    yield from found.items()


def switch_losses(trials: Sequence[TrialRecord]) -> tuple[int, int]:
    """Requests to the moved guests that were lost, and all of them."""
    phases = [one for _, own in by_phase(trials) for one in own]
    return sum(one.counts.lost for one in phases), sum(one.counts.sent for one in phases)


def switch_sentence(trials: Sequence[TrialRecord]) -> str:
    """Median and tail of the moved guest in each phase, and what it lost."""
    told = []
    for name, own in by_phase(trials):
        known = [one.rtt for one in own if one.rtt is not None]
        if known:
            p50, p99 = (
                statistics.median(getattr(one, quantile) for one in known)
                for quantile in SWITCH_QUANTILES
            )
            told.append(f"{name} {time_text(p50)} ({time_text(p99)})")
    lost, sent = switch_losses(trials)
    return f"Median (99th percentile): {', '.join(told)}; {lost} of {sent} requests lost."
