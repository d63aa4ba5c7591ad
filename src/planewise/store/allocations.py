"""Trials of the allocator, split into a trial for each group of guests. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from planewise.store.models import Counts, ManagedGuest, OfferedLoad, TrialRecord

DOWNLOAD_METRIC = "download"
"""Duration of a download beside the requests, in `planewise compare --metric`."""


def by_groups(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials, each of the allocator's replaced by an RTT trial for each group, and by one with
    its figures, where it has any.

    Such an RTT trial has the group's rate as its probe rate: times at different rates are
    different quantities, and are compared apart.
    """
    result: list[TrialRecord] = []
    for trial in trials:
        result += [trial] if trial.alloc is None else _groups(trial)
    return result


def members(trial: TrialRecord, group: str) -> dict[str, ManagedGuest]:
    """The guests of a group."""
    guests = {} if trial.alloc is None else trial.alloc.guests
    return {name: guest for name, guest in guests.items() if f"{guest.request_pps:g}" == group}


def _groups(trial: TrialRecord) -> list[TrialRecord]:
    assert trial.alloc is not None
    group_trials = []
    for group, rtt in trial.alloc.groups.items():
        guests = members(trial, group).values()
        sent = sum(guest.counts.sent for guest in guests)
        lost = sum(guest.counts.lost for guest in guests)
        load = OfferedLoad(
            intended_pps=float(group),
            achieved_pps=statistics.fmean(guest.sent_pps for guest in guests),
            size_bytes=int(trial.cell.get("size_bytes", 64)),
        )
        group_trials.append(
            trial.model_copy(
                update={
                    "trial": f"{trial.trial}@{group}",
                    "kind": "rtt",
                    "cell": {**trial.cell, "frequency_pps": float(group)},
                    "counts": Counts(sent=sent, received=sent - lost, lost=lost),
                    "load": load,
                    "latency": {"rtt_user": rtt},
                    "alloc": None,
                    "packets": None,
                    "figures": {},
                }
            )
        )
    if trial.figures:
        group_trials.append(
            trial.model_copy(update={"kind": "other", "alloc": None, "packets": None})
        )
    return group_trials
