"""The `planewise` search: a belief places the trials, counts alone claim bounds.

locate    short trials from the highest load down, until one loses a little
approach  the same with final trials, which queues and turbos affect less
check     six short trials far below: loss that repeats there moves the search down
measure   final trials on both sides of each goal's load until its bounds are near enough, or
          nearer ones are not worth their trials
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import ClassVar

from planewise.measure.search.counts import confidence_of, lead_for
from planewise.measure.search.edge import Edge, Wish
from planewise.measure.search.goals import (
    Goal,
    GoalResult,
    SearchTrial,
    StopReason,
    ViolatedAssumption,
)
from planewise.measure.search.session import BudgetSpentError, SearchSession

_PROBE_S, _CHECK_S, _FINAL_S = 0.2, 0.1, 1.0
_LITTLE_LOSS = (0.001, 0.15)
"""A short trial with such a loss shows about where the edge is."""
_NEAR_LOSS = 0.04
_AHEAD = 1.015
"""Loads that lossy trials forwarded are raised by this, so that the next one loses a little."""
_CHECKED = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85)
"""Loads looked at far below the edge, as shares of it."""
_TOLERATED = 0.001
"""Loss of a short trial that is no sign of a lower edge."""


@dataclass(frozen=True)
class PlanewiseSearch:
    """The search."""

    name: ClassVar = "planewise"
    final_duration_s: ClassVar = _FINAL_S

    precision: float = 0.005
    """Relative half width at which an interval is narrow enough."""
    confidence: float = 0.95
    seed: int = 1

    def search(
        self, session: SearchSession, goals: tuple[Goal, ...]
    ) -> tuple[tuple[GoalResult, ...], StopReason]:
        search = _Search(session, goals, self)
        try:
            search.run()
        except BudgetSpentError:
            search.stopped = "budget"
        # A lead is a whole number: its confidence differs a little from what was asked for.
        promised = confidence_of(lead_for(self.confidence))
        near = promised >= self.confidence - 0.005
        interval = f"{self.confidence if near else promised:.0%}"
        return tuple(search.result(goal, interval) for goal in goals), search.stopped


class _Search:
    """One search as it goes on."""

    def __init__(
        self, session: SearchSession, goals: tuple[Goal, ...], wanted: PlanewiseSearch
    ) -> None:
        self.session, self.goals, self.wanted = session, goals, wanted
        self.random = random.Random(wanted.seed)
        self.reference_pps = session.max_load_pps
        self.loosest = max(goals, key=lambda goal: goal.loss_ratio)
        self.edges: dict[Goal, Edge] = {}
        self.ceiling_pps = math.inf
        """Above it the goal was seen to be met again: such trials count for nothing."""
        self.stopped: StopReason = "precise"

    def run(self) -> None:
        """All parts in order; BudgetSpentError when the budget ends first."""
        load = self._check(self._approach(self._locate()))
        self._begin(load)
        while True:
            wanted: list[tuple[Edge, Wish]] = []
            highest = math.log(self.session.max_load_pps / self.reference_pps)
            for edge in self.edges.values():
                edge.high = min(edge.high, highest)
                wanted += [(edge, wish) for wish in edge.wishes()]
            if not wanted:
                break
            # At random, so that a drifting system is not seen early by one side and late by the
            # other.
            weights = [max(wish.trials, 1.0) for _, wish in wanted]
            chosen, wish = self.random.choices(wanted, weights)[0]
            chosen.grant(wish)
            sides = [
                wish.side if edge is chosen else edge.side_at(wish.at)
                for edge in self.edges.values()
            ]
            trial = self._final(math.exp(wish.at) * self.reference_pps)
            for edge, side in zip(self.edges.values(), sides, strict=True):
                edge.add(trial, self._place_of(trial), side, wish.at)
        if not all(self._is_precise(edge) for edge in self.edges.values()):
            self.stopped = "trials"

    def result(self, goal: Goal, interval: str) -> GoalResult:
        """What is known of a goal."""
        session, edge = self.session, self.edges.get(goal)
        if edge is None:
            note = "the budget was spent before the edge was located"
            return GoalResult(goal, "undecided", None, note=note)
        low, high = (None if at is None else self._load(at) for at in edge.bounds)
        if edge.below_range():
            note = "most trials miss the goal at the lowest load"
            lowest = session.min_load_pps
            return GoalResult(goal, "below-range", None, None, lowest, interval, note)
        if edge.above_range() and math.isinf(self.ceiling_pps):
            note = "most trials meet the goal at the highest load"
            highest = session.max_load_pps
            return GoalResult(goal, "above-range", highest, highest, None, interval, note)
        if low is None or high is None:
            shown = " or ".join(
                word for word, end in (("meet", low), ("miss", high)) if end is None
            )
            note = f"no load was shown to {shown} the goal in half of all trials"
            return GoalResult(goal, "undecided", None, low, high, interval, note)
        # Where half of all trials pass at many loads, bounds may cross.
        low, high = min(low, high), max(low, high)
        pps = min(max(self._load(edge.estimate()), low), high)
        return GoalResult(goal, "found", pps, low, high, interval)

    def _is_precise(self, edge: Edge) -> bool:
        low, high = edge.bounds
        if low is None or high is None:
            return edge.below_range() or edge.above_range()
        return high - low <= 2 * self.wanted.precision + 1e-9

    def _load(self, at: float) -> float:
        return math.exp(at) * self.reference_pps

    def _place_of(self, trial: SearchTrial) -> float:
        return math.log(trial.achieved_pps / self.reference_pps)

    def _final(self, load_pps: float) -> SearchTrial:
        return self.session.measure(load_pps, _FINAL_S)

    def _misses(self, trial: SearchTrial) -> bool:
        return trial.loss_ratio > self.loosest.loss_ratio

    def _locate(self) -> float:
        """A load with a small loss, by short trials from the highest load down."""
        session, (least, most) = self.session, _LITTLE_LOSS
        low, high = session.min_load_pps, session.max_load_pps
        load = high
        for _ in range(30):
            trial = session.measure(load, _PROBE_S)
            high = min(high, session.max_load_pps)
            forwarded = trial.achieved_pps * (1 - trial.loss_ratio)
            if trial.loss_ratio <= least and load >= high:
                return high
            if least < trial.loss_ratio < most:
                return forwarded
            if trial.loss_ratio > least:
                high = min(high, load)
                ahead = _AHEAD * forwarded
                inside = low * 1.02 < ahead < high * 0.98
                load = ahead if inside else math.sqrt(low * high)
            else:
                low = max(low, load)
                load = math.sqrt(low * high)
            if high / low < 1.05:
                break
        return math.sqrt(low * high)

    def _approach(self, load_pps: float) -> float:
        """The same by final trials."""
        session, climb = self.session, 0.03
        load = session.clamp(load_pps * _AHEAD)
        for _ in range(8):
            trial = self._final(load)
            if self._misses(trial):
                load = session.clamp(trial.achieved_pps * (1 - trial.loss_ratio))
                if trial.loss_ratio < _NEAR_LOSS or load <= session.min_load_pps:
                    break
                load = session.clamp(load * _AHEAD)
            elif trial.offered_pps >= session.max_load_pps * 0.9999:
                return session.max_load_pps
            else:
                load, climb = session.clamp(trial.achieved_pps * (1 + climb)), climb * 2
        return load

    def _check(self, load_pps: float) -> float:
        """`load_pps`, or a lower edge below it where loss is not monotone."""
        session = self.session
        clean = session.min_load_pps
        if load_pps >= session.max_load_pps:
            return load_pps
        for share in _CHECKED:
            at = load_pps * share
            if at <= session.min_load_pps:
                continue
            loss = session.measure(at, _CHECK_S).loss_ratio
            if loss <= max(self.loosest.loss_ratio, _TOLERATED) or not self._mostly_miss(at):
                clean = at
            elif self._mostly_miss(session.min_load_pps):
                return session.min_load_pps
            else:
                return self._lower_edge(clean, at, load_pps)
        return load_pps

    def _lower_edge(self, clean_pps: float, lossy_pps: float, above_pps: float) -> float:
        """The edge between two loads; `above_pps` is another edge further up."""
        if not self._mostly_miss(above_pps * 0.97):
            self.ceiling_pps = lossy_pps
            self.session.add_finding(
                ViolatedAssumption(
                    "not-monotone",
                    f"most trials miss the goal at {lossy_pps:.0f} packet/s, yet meet it at "
                    f"{above_pps * 0.97:.0f}: the result is the lower edge",
                )
            )
        while lossy_pps / clean_pps > 1.06:
            middle = math.sqrt(lossy_pps * clean_pps)
            if self._misses(self._final(middle)):
                lossy_pps = middle
            else:
                clean_pps = middle
        return lossy_pps

    def _mostly_miss(self, load_pps: float) -> bool:
        """Whether final trials miss the loosest goal: three more than meet it, or 4 of 7."""
        count = missed = 0
        while abs(2 * missed - count) < 3 and count < 7:
            count += 1
            missed += self._misses(self._final(load_pps))
        return 2 * missed > count

    def _begin(self, load_pps: float) -> None:
        """An edge for each goal, with the trials so far; they serve no side."""
        low, guess = (
            math.log(load / self.reference_pps) for load in (self.session.min_load_pps, load_pps)
        )
        high = math.log(min(self.session.max_load_pps, self.ceiling_pps) / self.reference_pps)
        for goal in self.goals:
            near = guess + goal.loss_exponent
            lead = lead_for(self.wanted.confidence)
            edge = self.edges[goal] = Edge(goal, near, low, high, self.wanted.precision, lead)
            for trial in self.session.trials:
                # A short trial that lost something far below would have missed NDR, too.
                short = (
                    goal.loss_ratio == 0 < trial.loss_ratio and trial.offered_pps < 0.9 * load_pps
                )
                if trial.offered_pps <= self.ceiling_pps * 1.0001 and (
                    trial.duration_s == _FINAL_S or short
                ):
                    edge.add(trial, self._place_of(trial), 0)
