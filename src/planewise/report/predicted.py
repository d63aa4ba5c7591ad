"""Latency under a policy as it follows from who held a VF, against what was measured.

A VF is taken to save a guest a share of its mean round-trip time. That share is learned from the
trials in which guests drawn at random keep one (`static`), each against itself without one
(`none`) in the same block. Of a group, a policy then saves that share as far as its guests held
VFs:

    predicted = mean of `none` · (1 − share of time held · share saved)

Trials of the policy itself tell only who held a VF, never a time, so that nothing is fitted to what
is predicted. Means, because they alone follow from shares of time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planewise.judge.bounded import exact
from planewise.judge.statistics.paired import median_interval
from planewise.store.allocations import by_groups, members
from planewise.store.levels import keeps_levels
from planewise.store.models import TrialRecord

_LEARNED_FROM = ("none", "static")
_HELD = 0.95
"""Share of a trial from which on a guest had its VF throughout."""


@dataclass(frozen=True)
class GroupPrediction:
    """A policy's latency in one group of guests."""

    policy: str
    group: str
    held: float
    """Share of the time, mean over blocks."""
    predicted_ns: float
    measured_ns: float
    """Medians over blocks of the group's mean."""
    error: float
    """Median over blocks of predicted over measured, less 1."""
    low: float | None
    high: float | None
    """Its 95 % interval by order statistics; None with fewer than six blocks."""
    blocks: int


@dataclass(frozen=True)
class GroupPredictions:
    """What a VF saved, and what follows of it."""

    saved: float
    """Share of the mean that a VF saves a guest; negative where it costs."""
    guests: int
    """Guests and trials that this rests on."""
    found: tuple[GroupPrediction, ...]


def predictions(trials: Sequence[TrialRecord]) -> GroupPredictions | None:
    """Of every policy that decides; None where no guest kept a VF throughout beside `none`."""
    done = [trial for trial in trials if trial.alloc is not None and not trial.alloc.switch]
    by_policy: dict[str, dict[int, TrialRecord]] = {}
    for trial in done:
        by_policy.setdefault(str(trial.cell["policy"]), {})[trial.block] = trial
    without = by_policy.get("none", {})
    saved = _saved(by_policy.get("static", {}), without)
    if not saved:
        return None
    share = statistics.median(saved)
    means = {block: _means(trial) for block, trial in without.items()}
    found = []
    for policy, own in by_policy.items():
        if policy in _LEARNED_FROM:
            continue
        rows: dict[str, list[tuple[float, float, float]]] = {}
        for block, trial in own.items():
            for group, measured_ns in _means(trial).items():
                if block in means and group in means[block]:
                    held = _held(trial, group)
                    predicted_ns = means[block][group] * (1 - held * share)
                    rows.setdefault(group, []).append((held, predicted_ns, measured_ns))
        found += [_prediction(policy, group, of) for group, of in rows.items()]
    ordered = sorted(found, key=lambda one: (one.policy, float(one.group)))
    return GroupPredictions(share, len(saved), tuple(ordered))


def _saved(static: Mapping[int, TrialRecord], without: Mapping[int, TrialRecord]) -> list[float]:
    """What each guest with a VF saved against itself, as shares."""
    found = []
    for block, trial in static.items():
        if trial.alloc is None or block not in without or without[block].alloc is None:
            continue
        others = without[block].alloc.guests  # type: ignore[union-attr]
        for name, guest in trial.alloc.guests.items():
            other = others.get(name)
            if other is None or other.rtt is None or guest.rtt is None:
                continue
            if guest.held_s >= _HELD * trial.alloc.window_s and other.rtt.mean_ns > 0:
                found.append(1 - guest.rtt.mean_ns / other.rtt.mean_ns)
    return found


def _means(trial: TrialRecord) -> dict[str, float]:
    """Mean round-trip time of each group that kept its rate [ns]."""
    return {
        f"{one.cell['frequency_pps']:g}": one.latency["rtt_user"].mean_ns
        for one in by_groups([trial])
        if one.kind == "rtt" and keeps_levels(one)
    }


def _held(trial: TrialRecord, group: str) -> float:
    assert trial.alloc is not None
    own = members(trial, group).values()
    return min(1.0, statistics.fmean(one.held_s for one in own) / trial.alloc.window_s)


def _prediction(
    policy: str, group: str, rows: Sequence[tuple[float, float, float]]
) -> GroupPrediction:
    held, predicted, measured = (list(column) for column in zip(*rows, strict=True))
    errors = [p / m - 1 for p, m in zip(predicted, measured, strict=True)]
    low, high = median_interval([exact(error) for error in errors])
    return GroupPrediction(
        policy,
        group,
        statistics.fmean(held),
        statistics.median(predicted),
        statistics.median(measured),
        statistics.median(errors),
        low if math.isfinite(low) else None,
        high if math.isfinite(high) else None,
        len(rows),
    )
