"""What a run says of the allocator's policies: latency by group, who held VFs. Draws nothing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planewise.report.data import RunData
from planewise.report.packets import Unread
from planewise.report.rtt_cell import RttCell, summarise
from planewise.store.allocations import by_groups, members
from planewise.store.levels import keeps_levels
from planewise.store.models import AllocResult, GuestMove, TrialRecord

POLICIES = ("none", "static", "fair", "activity", "benefit")
"""In the order of a reader."""


def _rank(policy: str) -> tuple[int, str]:
    return (POLICIES.index(policy) if policy in POLICIES else len(POLICIES), policy)


def results(data: RunData) -> Mapping[str, tuple[AllocResult, ...]]:
    """By policy, what the allocator's trials came to, but for those of a switch."""
    found: dict[str, list[AllocResult]] = {}
    for trial in data.done:
        if trial.alloc is not None and not trial.alloc.switch:
            found.setdefault(str(trial.cell["policy"]), []).append(trial.alloc)
    return {policy: tuple(found[policy]) for policy in sorted(found, key=_rank)}


def cells(data: RunData) -> list[RttCell]:
    """Latency by policy and group, of the trials that kept the group's rate."""
    together: dict[tuple[str, float], list[TrialRecord]] = {}
    allocations = [trial for trial in data.done if trial.alloc is not None]
    for trial in by_groups(allocations):
        if trial.kind == "rtt" and keeps_levels(trial):
            key = str(trial.cell["policy"]), float(trial.cell["frequency_pps"])
            together.setdefault(key, []).append(trial)
    found = []
    for (policy, pps), trials in together.items():
        factors = (("frequency_pps", pps),)
        cell, _ = summarise(policy, factors, "rtt_user", trials, Unread("", ""))
        if cell is not None:
            found.append(cell)
    return sorted(found, key=lambda cell: (cell.factors[0][1], _rank(cell.plane)))


def missed_groups(data: RunData) -> int:
    """Groups of trials whose rate was not kept: no figure of latency has them."""
    allocations = [trial for trial in data.done if trial.alloc is not None]
    return sum(not keeps_levels(trial) for trial in by_groups(allocations))


@dataclass(frozen=True)
class GroupShare:
    """How much of the time the guests of a group held a VF under a policy."""

    policy: str
    group: str
    shares: tuple[float, ...]
    """Of each trial, the mean over the group's guests."""


def group_shares(data: RunData) -> list[GroupShare]:
    """By policy and group."""
    found: dict[tuple[str, str], list[float]] = {}
    for trial in data.done:
        if trial.alloc is not None:
            for group in groups(trial.alloc):
                own = members(trial, group).values()
                share = statistics.fmean(one.held_s for one in own) / trial.alloc.window_s
                key = str(trial.cell["policy"]), group
                found.setdefault(key, []).append(min(1.0, share))
    ordered = sorted(found, key=lambda key: (_rank(key[0]), float(key[1])))
    return [GroupShare(*key, tuple(found[key])) for key in ordered]


def groups(result: AllocResult) -> tuple[str, ...]:
    """The groups of its guests, by rising rate."""
    return tuple(f"{pps:g}" for pps in sorted({g.request_pps for g in result.guests.values()}))


@dataclass(frozen=True)
class HoldInterval:
    """A guest held a VF from one moment to another, in seconds after the warm-up."""

    guest: str
    begin_s: float
    end_s: float


def hold_intervals(result: AllocResult, end_s: float) -> list[HoldInterval]:
    """Who held a VF when, until the end of a trial."""
    since: dict[str, float] = {}
    found = []
    for move in sorted(result.moves, key=lambda move: move.at_s):
        if move.direction == "give" and move.ending == "completed":
            since.setdefault(move.guest, _done_s(move))
        elif move.direction == "take" and move.guest in since:
            found.append(HoldInterval(move.guest, since.pop(move.guest), min(move.at_s, end_s)))
    found += [HoldInterval(guest, begin_s, end_s) for guest, begin_s in since.items()]
    return [one for one in found if one.end_s > one.begin_s]


def _done_s(move: GuestMove) -> float:
    return move.at_s + (move.duration_s or 0.0)


def first_of_each(data: RunData) -> list[tuple[str, AllocResult]]:
    """By policy, the first trial."""
    return [(policy, own[0]) for policy, own in results(data).items()]


def by_group(result: AllocResult) -> Sequence[tuple[str, float]]:
    """Its guests with their rates, the busiest first."""
    named = [(name, guest.request_pps) for name, guest in result.guests.items()]
    return sorted(named, key=lambda one: (-one[1], len(one[0]), one[0]))
