"""Results of the allocator's policies: latency by group, which guests held VFs. Draws nothing."""

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
"""In the order in which the report shows them."""


def _rank(policy: str) -> tuple[int, str]:
    return (POLICIES.index(policy) if policy in POLICIES else len(POLICIES), policy)


def results(data: RunData) -> Mapping[str, tuple[AllocResult, ...]]:
    """Results of the allocator's trials by policy, without trials of a switch."""
    by_policy: dict[str, list[AllocResult]] = {}
    for trial in data.done:
        if trial.alloc is not None and not trial.alloc.switch:
            by_policy.setdefault(str(trial.cell["policy"]), []).append(trial.alloc)
    return {policy: tuple(by_policy[policy]) for policy in sorted(by_policy, key=_rank)}


def cells(data: RunData) -> list[RttCell]:
    """Latency by policy and group, over trials that kept the group's rate."""
    trials_by_cell: dict[tuple[str, float], list[TrialRecord]] = {}
    allocations = [trial for trial in data.done if trial.alloc is not None]
    for trial in by_groups(allocations):
        if trial.kind == "rtt" and keeps_levels(trial):
            key = str(trial.cell["policy"]), float(trial.cell["frequency_pps"])
            trials_by_cell.setdefault(key, []).append(trial)
    summaries = []
    for (policy, pps), trials in trials_by_cell.items():
        factors = (("frequency_pps", pps),)
        cell, _ = summarise(policy, factors, "rtt_user", trials, Unread("", ""))
        if cell is not None:
            summaries.append(cell)
    return sorted(summaries, key=lambda cell: (cell.factors[0][1], _rank(cell.plane)))


def missed_groups(data: RunData) -> int:
    """Number of trials' groups whose rate was not kept: no figure of latency has them."""
    allocations = [trial for trial in data.done if trial.alloc is not None]
    return sum(not keeps_levels(trial) for trial in by_groups(allocations))


@dataclass(frozen=True)
class GroupShare:
    """Shares of time in which a group's guests held a VF under a policy."""

    policy: str
    group: str
    shares: tuple[float, ...]
    """Of each trial, the mean over the group's guests."""


def group_shares(data: RunData) -> list[GroupShare]:
    """Shares of time by policy and group."""
    shares: dict[tuple[str, str], list[float]] = {}
    for trial in data.done:
        if trial.alloc is not None:
            for group in groups(trial.alloc):
                guests = members(trial, group).values()
                share = statistics.fmean(guest.held_s for guest in guests) / trial.alloc.window_s
                key = str(trial.cell["policy"]), group
                shares.setdefault(key, []).append(min(1.0, share))
    ordered = sorted(shares, key=lambda key: (_rank(key[0]), float(key[1])))
    return [GroupShare(*key, tuple(shares[key])) for key in ordered]


def groups(result: AllocResult) -> tuple[str, ...]:
    """The result's groups of guests, by rising rate."""
    return tuple(f"{pps:g}" for pps in sorted({g.request_pps for g in result.guests.values()}))


@dataclass(frozen=True)
class HoldInterval:
    """A time in which a guest held a VF, in seconds after the warm-up."""

    guest: str
    begin_s: float
    end_s: float


def hold_intervals(result: AllocResult, end_s: float) -> list[HoldInterval]:
    """The times in which guests held a VF, up to `end_s`."""
    since: dict[str, float] = {}
    intervals = []
    for move in sorted(result.moves, key=lambda move: move.at_s):
        if move.direction == "give" and move.ending == "completed":
            since.setdefault(move.guest, _done_s(move))
        elif move.direction == "take" and move.guest in since:
            intervals.append(HoldInterval(move.guest, since.pop(move.guest), min(move.at_s, end_s)))
    intervals += [HoldInterval(guest, begin_s, end_s) for guest, begin_s in since.items()]
    return [interval for interval in intervals if interval.end_s > interval.begin_s]


def _done_s(move: GuestMove) -> float:
    return move.at_s + (move.duration_s or 0.0)


def first_trials(data: RunData) -> list[tuple[str, AllocResult]]:
    """The first trial of each policy."""
    return [(policy, policy_results[0]) for policy, policy_results in results(data).items()]


def by_group(result: AllocResult) -> Sequence[tuple[str, float]]:
    """The result's guests with their rates, the busiest first."""
    named = [(name, guest.request_pps) for name, guest in result.guests.items()]
    return sorted(named, key=lambda guest: (-guest[1], len(guest[0]), guest[0]))
