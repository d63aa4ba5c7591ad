"""Latency under a policy, predicted from the time that guests held a VF, beside the measured one.

A VF is taken to save a guest a share of its mean round-trip time. That share is learned from the
trials in which guests drawn at random keep one (`static`), each against itself without one
(`none`) in the same block. Of a group, a policy then saves that share as far as its guests held
VFs:

    predicted = mean of `none` · (1 − share of time held · share saved)

Of trials of the policy itself only the times with a VF are used, no latency, so that nothing is
fitted to what is predicted. Means, because only they are linear in shares of time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planewise.judge.bounded import exact
from planewise.judge.statistics.estimates import median_interval
from planewise.store.allocations import by_groups, members
from planewise.store.levels import keeps_levels
from planewise.store.models import TrialRecord

_LEARNED_FROM = ("none", "static")
_HELD = 0.95
"""A guest that held a VF for this share of a trial counts as having had it throughout."""


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
    """The share that a VF saved, and the predictions from it."""

    saved: float
    """Share of the mean that a VF saves a guest; negative where it costs."""
    guests: int
    """Number of guests and trials that the share is learned from."""
    groups: tuple[GroupPrediction, ...]


def predictions(trials: Sequence[TrialRecord]) -> GroupPredictions | None:
    """Predictions for each policy; None where no guest kept a VF in a block that has `none`."""
    alloc_trials = [trial for trial in trials if trial.alloc is not None and not trial.alloc.switch]
    by_policy: dict[str, dict[int, TrialRecord]] = {}
    for trial in alloc_trials:
        by_policy.setdefault(str(trial.cell["policy"]), {})[trial.block] = trial
    without = by_policy.get("none", {})
    saved = _saved(by_policy.get("static", {}), without)
    if not saved:
        return None
    share = statistics.median(saved)
    means = {block: _means(trial) for block, trial in without.items()}
    group_predictions = []
    for policy, trials_by_block in by_policy.items():
        if policy in _LEARNED_FROM:
            continue
        rows: dict[str, list[tuple[float, float, float]]] = {}
        for block, trial in trials_by_block.items():
            assert trial.alloc is not None
            for group, measured_ns in _means(trial).items():
                if group in means.get(block, ()):
                    held_s = statistics.fmean(one.held_s for one in members(trial, group).values())
                    held = min(1.0, held_s / trial.alloc.window_s)
                    predicted_ns = means[block][group] * (1 - held * share)
                    rows.setdefault(group, []).append((held, predicted_ns, measured_ns))
        group_predictions += [_prediction(policy, group, values) for group, values in rows.items()]
    group_predictions.sort(key=lambda group: (group.policy, float(group.group)))
    return GroupPredictions(share, len(saved), tuple(group_predictions))


def _saved(static: Mapping[int, TrialRecord], without: Mapping[int, TrialRecord]) -> list[float]:
    """Share of the mean RTT that each guest with a VF saved against itself without one."""
    shares = []
    for block in static.keys() & without.keys():
        alloc, alloc_without = static[block].alloc, without[block].alloc
        if alloc is None or alloc_without is None:
            continue
        for name in alloc.guests.keys() & alloc_without.guests.keys():
            guest, rtt_without = alloc.guests[name], alloc_without.guests[name].rtt
            held = guest.held_s >= _HELD * alloc.window_s
            if held and guest.rtt is not None and rtt_without is not None and rtt_without.mean_ns:
                shares.append(1 - guest.rtt.mean_ns / rtt_without.mean_ns)
    return shares


def _means(trial: TrialRecord) -> dict[str, float]:
    """Mean round-trip time of each group that kept its rate [ns]."""
    return {
        f"{group_trial.cell['frequency_pps']:g}": group_trial.latency["rtt_user"].mean_ns
        for group_trial in by_groups([trial])
        if group_trial.kind == "rtt" and keeps_levels(group_trial)
    }


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
