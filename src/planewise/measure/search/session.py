"""One search's session: measures, keeps every trial, and keeps to the budget.

Algorithms ask a `SearchSession`, never the measurer itself, so that costs are counted in one place.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from planewise.errors import BadInputError
from planewise.judge.curve import Run
from planewise.measure.search.goals import SearchTrial, ViolatedAssumption
from planewise.measure.search.measurer import ExhaustedError, Measurer
from planewise.store.levels import TOLERANCE

OnTrial = Callable[[SearchTrial, int, float], None]
"""Called after each trial with the trial, the number of trials and the seconds spent."""


class BudgetSpentError(ExhaustedError):
    """The next trial would exceed the budget. Never leaves `run_search`."""


OVERHEAD_S = 0.5
"""Time that a trial costs beyond its traffic (CSIT: about 0.5 s)."""
MAX_TRIALS = 2000


class SearchSession:
    """Trials so far and what is left to spend."""

    def __init__(
        self, measurer: Measurer, budget_s: float = math.inf, on_trial: OnTrial | None = None
    ) -> None:
        """`budget_s` is for traffic and overhead of all trials.

        BadInputError when the measurer's range of loads is empty or not finite.
        """
        low, high = float(measurer.min_load_pps), float(measurer.max_load_pps)
        if not (0 < low < high < math.inf):
            raise BadInputError(
                f"the range of loads from {low} to {high} packet/s is empty or not finite"
            )
        self.min_load_pps = low
        self.max_load_pps = high
        self._budget_s = budget_s
        self.trials: list[SearchTrial] = []
        self.findings: list[ViolatedAssumption] = []
        self.spent_s = 0.0
        self._measurer = measurer
        self._on_trial = on_trial

    def clamp(self, offered_pps: float) -> float:
        """The nearest load that may be offered."""
        if math.isnan(offered_pps):
            return self.min_load_pps
        return min(max(offered_pps, self.min_load_pps), self.max_load_pps)

    def measure(self, offered_pps: float, duration_s: float) -> SearchTrial:
        """Runs one trial at the nearest allowed load. BudgetSpentError beyond the budget."""
        cost_s = duration_s + OVERHEAD_S
        over_budget = self.spent_s + cost_s > self._budget_s * (1 + 1e-9)
        if over_budget or len(self.trials) >= MAX_TRIALS:
            raise BudgetSpentError("the budget of the search is spent")
        offered_pps = self.clamp(offered_pps)
        run = self._measurer.trial(offered_pps, duration_s)
        trial = SearchTrial(offered_pps, duration_s, run)
        self.trials.append(trial)
        self.spent_s += cost_s
        self._check_generator(trial)
        if self._on_trial is not None:
            self._on_trial(trial, len(self.trials), self.spent_s)
        return trial

    def trial(self, offered_pps: float, duration_s: float) -> Run:
        """The same as a measurer: `measure`, for the sweep of a verdict."""
        return self.measure(offered_pps, duration_s).run

    def add_finding(self, finding: ViolatedAssumption) -> None:
        """Keeps a finding, one of each code."""
        if all(earlier.code != finding.code for earlier in self.findings):
            self.findings.append(finding)

    def _check_generator(self, trial: SearchTrial) -> None:
        achieved = trial.achieved_pps
        short = achieved < (1 - TOLERANCE) * trial.offered_pps
        if not (short or trial.run.limited):
            return
        self.add_finding(
            ViolatedAssumption(
                "generator",
                f"the generator or sink was the limit at {trial.offered_pps:.0f} packet/s: it sent "
                f"{achieved:.0f}; loads above that say nothing about the system",
            )
        )
        if short:
            # The best rate so far: one slow trial does not lower the range.
            best = max(earlier.achieved_pps for earlier in self.trials)
            self.max_load_pps = min(self.max_load_pps, max(best, self.min_load_pps * 1.001))
