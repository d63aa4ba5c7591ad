"""Binary search as RFC 2544 has it (sections 24 and 26.1): one trial decides a load.

The RFC asks for trials of at least 60 s; like the field we let the duration be chosen (1 s to
compare with others), and bisect in the load's logarithm. One unlucky trial misleads it.
"""

from __future__ import annotations

import math

from planewise.measure.search.goals import Goal, GoalResult, StopReason
from planewise.measure.search.session import BudgetSpentError, SearchSession

_WIDTH = 0.005
"""Relative width of the bracket at which it ends."""


class BinarySearch:
    """Bisects each goal by itself, from the whole range, to a relative width."""

    name = "binary"
    final_duration_s = 1.0

    def search(
        self, session: SearchSession, goals: tuple[Goal, ...]
    ) -> tuple[tuple[GoalResult, ...], StopReason]:
        results: list[GoalResult] = []
        stopped: StopReason = "precise"
        for goal in goals:
            try:
                results.append(self._result(session, goal))
            except BudgetSpentError:
                stopped, note = "budget", "the budget was spent"
                results.append(GoalResult(goal, "undecided", None, interval="bracket", note=note))
        return tuple(results), stopped

    def _result(self, session: SearchSession, goal: Goal) -> GoalResult:
        def meets(load: float) -> bool:
            return session.measure(load, self.final_duration_s).loss_ratio <= goal.loss_ratio

        low, high = session.min_load_pps, session.max_load_pps
        if meets(high):
            return GoalResult(goal, "above-range", high, high, None, interval="bracket")
        while math.log(high / low) > _WIDTH:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if meets(middle) else (low, middle)
        if low == session.min_load_pps and not meets(low):
            return GoalResult(goal, "below-range", None, None, high, interval="bracket")
        return GoalResult(goal, "found", math.sqrt(low * high), low, high, interval="bracket")
