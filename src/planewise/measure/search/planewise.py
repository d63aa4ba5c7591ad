"""The `planewise` search: fits a local loss curve to its trials, and measures where they tell most.

A trial in slight overload shows the capacity; one without loss shows only that the capacity was
sufficient. A few trials beside the edge therefore replace many at it. Knows a session and the
model; no testbed.

    locate      from the highest load down to the edge, and loads far below it
    place       in batches that grow, beside each goal's load; stop when all intervals are narrow
                enough, or when trials or budget are spent
    conclude    drift and autocorrelation, weighed by their probability, move and widen the
                intervals; they, and outliers, become findings
"""

from __future__ import annotations

from planewise.measure.search import conclude, locate, place
from planewise.measure.search.fits import Fits, PlanewiseOptions
from planewise.measure.search.goals import Goal, GoalResult, StopReason
from planewise.measure.search.session import BudgetSpentError, SearchSession

__all__ = ["PlanewiseOptions", "PlanewiseSearch"]


class PlanewiseSearch:
    """The search; its three parts are modules of their own."""

    name = "planewise"

    def __init__(self, options: PlanewiseOptions | None = None) -> None:
        self._options = options or PlanewiseOptions()
        self.final_duration_s = self._options.goal_duration_s

    def search(
        self, session: SearchSession, goals: tuple[Goal, ...]
    ) -> tuple[tuple[GoalResult, ...], StopReason]:
        """See `Algorithm`."""
        fits = Fits(session, self._options)
        measured = dict.fromkeys(goals, 0)
        stopped: StopReason
        try:
            outside = locate.locate(fits, goals)
            if outside is not None:
                return outside, "range"
            loosest = max(goals, key=lambda goal: goal.loss_ratio)
            measured[loosest] = locate.approach(fits, loosest)
            locate.check_below(fits, goals, fits.load_pps(fits.estimate(loosest).low))
            stopped = place.measure(fits, goals, measured)
        except BudgetSpentError:
            stopped = "budget"
            if not any(measured.values()):
                return conclude.unmeasured(goals), stopped
        return conclude.results(fits, goals), stopped
