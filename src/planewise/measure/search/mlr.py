"""FD.io's MLRsearch behind our interface: the PyPI library, with the goals that CSIT uses.

CSIT's goals (FD.io CSIT documentation, "MLR Search"): initial and final trial duration 1 s,
duration sum 21 s, exceed ratio 0.5, relative width 0.005, two preceding targets; these are also
the library's defaults. CSIT's measurer counts the pause of about 0.5 s in a trial's effective
duration, which lets the duration sum fill sooner; here it does not count.
"""

from __future__ import annotations

from typing import Any

from MLRsearch import (
    AbstractMeasurer,
    Config,
    MeasurementResult,
    MultipleLossRatioSearch,
    SearchGoal,
)

from planewise.measure.search.goals import Goal, GoalResult, StopReason
from planewise.measure.search.session import BudgetSpentError, SearchSession


class _Adapter(AbstractMeasurer):  # type: ignore[misc]
    """Gives the library trials of the session."""

    def __init__(self, session: SearchSession) -> None:
        self._session = session

    def measure(self, intended_duration: float, intended_load: float) -> Any:
        """One trial, in the library's words."""
        trial = self._session.measure(float(intended_load), float(intended_duration))
        sent, received = trial.run.sent, min(trial.run.received, trial.run.sent)
        return MeasurementResult(
            intended_duration=intended_duration,
            intended_load=intended_load,
            offered_count=sent,
            forwarding_count=received,
            duration_with_overheads=intended_duration,
        )


class MlrSearch:
    """The library's search for all goals at once.

    The estimate is the middle (geometric) of the relevant lower and upper bound, which is kinder
    to the library than either bound; the bounds are the bracket.
    """

    name = "mlrsearch"
    final_duration_s = 1.0

    def search(
        self, session: SearchSession, goals: tuple[Goal, ...]
    ) -> tuple[tuple[GoalResult, ...], StopReason]:
        library_goals = {
            goal: SearchGoal(
                loss_ratio=goal.loss_ratio,
                exceed_ratio=0.5,
                relative_width=0.005,
                initial_trial_duration=self.final_duration_s,
                final_trial_duration=self.final_duration_s,
                duration_sum=21.0,
                preceding_targets=2,
                fail_fast=False,
            )
            for goal in goals
        }
        config = Config()
        config.goals = list(library_goals.values())
        config.min_load, config.max_load = 1e-9, session.max_load_pps
        config.min_load = session.min_load_pps
        config.warmup_duration = 0.0  # a trial at full load more, which says nothing
        search = MultipleLossRatioSearch(config=config)
        try:
            outcome = search.search(_Adapter(session), debug=lambda *_words: None)
        except BudgetSpentError:
            return tuple(_unfinished(goal, "the budget was spent") for goal in goals), "budget"
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            # The library gives up by RuntimeError, and trips over measurements that contradict
            # its assumptions.
            reason = f"MLRsearch gave up: {error}"
            return tuple(_unfinished(goal, reason) for goal in goals), "range"
        return tuple(_result(goal, outcome[library_goals[goal]], session) for goal in goals), (
            "precise"
        )


def _unfinished(goal: Goal, reason: str) -> GoalResult:
    return GoalResult(goal, "undecided", None, interval="bracket", note=reason)


def _result(goal: Goal, outcome: Any, session: SearchSession) -> GoalResult:
    lower, upper = outcome.relevant_lower_bound, outcome.relevant_upper_bound
    low = float(lower) if lower is not None else None
    high = float(upper) if upper is not None else None
    if low is None:
        return GoalResult(goal, "below-range", None, None, session.min_load_pps, interval="bracket")
    if high is None:
        return GoalResult(goal, "above-range", low, low, None, interval="bracket")
    return GoalResult(goal, "found", (low * high) ** 0.5, low, high, interval="bracket")
