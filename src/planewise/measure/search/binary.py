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
            low, high = session.min_load_pps, session.max_load_pps
            low_known = high_known = False
            try:
                while stopped == "precise":
                    if not high_known:
                        load = high = session.max_load_pps
                    elif math.log(high / low) <= _WIDTH:
                        if low_known or low > session.min_load_pps:
                            break
                        load = low
                    else:
                        load = math.sqrt(low * high)
                    good = (
                        session.measure(load, self.final_duration_s).loss_ratio <= goal.loss_ratio
                    )
                    if load == high and not high_known:
                        high_known = True
                        if good:
                            low, low_known = high, True
                            break
                    elif load == low:
                        low_known = good
                        break
                    elif good:
                        low, low_known = load, True
                    else:
                        high = load
            except BudgetSpentError:
                stopped = "budget"
            results.append(_result(goal, low, high, low_known, stopped))
        return tuple(results), stopped


def _result(
    goal: Goal, low: float, high: float, low_known: bool, stopped: StopReason
) -> GoalResult:
    if stopped == "budget":
        return GoalResult(
            goal, "undecided", None, low, high, interval="bracket", note="the budget was spent"
        )
    if not low_known:
        return GoalResult(goal, "below-range", None, None, high, interval="bracket")
    if low >= high:
        return GoalResult(goal, "above-range", low, low, None, interval="bracket")
    return GoalResult(goal, "found", math.sqrt(low * high), low, high, interval="bracket")
