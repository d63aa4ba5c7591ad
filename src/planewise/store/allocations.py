"""Trials of the allocator as what they measure of each group: times at its rate. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from planewise.store.models import Counts, ManagedGuest, OfferedLoad, TrialRecord

DOWNLOAD_METRIC = "download"
"""How long a download beside the requests took, as `planewise compare --metric` takes it."""


def by_groups(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials, each of the allocator's in the form of an RTT trial for each of its groups, and
    of one that has its figures alone, where it has any.

    Such a one has the policy as a factor, and the group's rate as that of its probes: a time at
    one rate is another quantity than one at another rate, and is compared apart.
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
    found = []
    for group, rtt in trial.alloc.groups.items():
        own = members(trial, group).values()
        sent = sum(guest.counts.sent for guest in own)
        lost = sum(guest.counts.lost for guest in own)
        load = OfferedLoad(
            intended_pps=float(group),
            achieved_pps=statistics.fmean(guest.sent_pps for guest in own),
            size_bytes=int(trial.cell.get("size_bytes", 64)),
        )
        found.append(
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
        # What is not of a group is there once.
        found.append(trial.model_copy(update={"kind": "other", "alloc": None, "packets": None}))
    return found
