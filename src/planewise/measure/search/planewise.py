"""The `planewise` search: fits a local loss curve as trials come, measures where it says most.

Overload tells more than the edge: a trial that loses a little says how much capacity there was,
while one that loses nothing says only that there was enough. So a few trials beside the edge
replace many at it. Knows a session and the model; no testbed.

    locate    from the highest load down along the forwarding rates, until the loss is small
    check     some loads far below: is loss really monotone?
    measure   in batches, at the loads that narrow the widest goal's interval; stop when all
              intervals are narrow enough, or when trials or budget are spent
    doubt     residuals over time (drift, autocorrelation), outliers, contradicted predictions:
              each becomes a finding, and widens the interval or falls back to bisection
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planewise.measure.search import model
from planewise.measure.search.goals import Finding, Goal, GoalResult, StopReason, Trial
from planewise.measure.search.residuals import doubts
from planewise.measure.search.session import BudgetSpentError, Session

_LOCATED_LOSS = 0.15
"""The edge is located when an overloaded trial loses less than this share."""
_STEP = 1.03
"""The next load on the way down: this times the forwarding rate just seen."""
_CHECKED = (0.3, 0.55, 0.8)
"""Loads of the check for monotone loss, relative to the located edge."""
_FAR = 0.3
"""Trials whose ln(load/edge) exceeds this are not part of the local model."""
_OFFSETS = (0.8, 0.2, 0.5)
"""Where around a goal's load trials are placed, in deviations of the edge."""


@dataclass(frozen=True)
class PlanewiseOptions:
    """What the search may be told; the defaults are what the benches measure."""

    precision: float = 0.005
    """Stop when every goal's half interval, relative to its estimate, is within this."""
    trial_duration_s: float = 0.5
    """Duration of the trials that measure."""
    probe_duration_s: float = 0.2
    """Duration of the trials that locate and check."""
    goal_duration_s: float = 1.0
    """Duration of the trials that goals are about: NDR depends on it where loss is rare."""
    min_trials: int = 6
    """Trials that measure, at least."""
    max_trials: int = 24
    """Trials that measure, at most."""
    batch: int = 3
    particles: int = 256
    moves: int = 2
    seed: int = 1


@dataclass(frozen=True)
class _Estimate:
    """A goal's posterior: ln(load/reference)."""

    goal: Goal
    middle: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


class PlanewiseSearch:
    """See the module."""

    name = "planewise"

    def __init__(self, options: PlanewiseOptions | None = None) -> None:
        self._options = options or PlanewiseOptions()

    def search(
        self, session: Session, goals: tuple[Goal, ...]
    ) -> tuple[tuple[GoalResult, ...], StopReason]:
        """See `Algorithm`."""
        return _Run(session, goals, self._options).search()


class _Run:
    """One search; its state."""

    def __init__(
        self, session: Session, goals: tuple[Goal, ...], options: PlanewiseOptions
    ) -> None:
        self.session = session
        self.goals = goals
        self.options = options
        self.reference_pps = session.max_load_pps
        self.posterior: model.Posterior | None = None
        self.ceiling_pps = math.inf
        self.measured = 0

    # -- the search ---------------------------------------------------------------------------

    def search(self) -> tuple[tuple[GoalResult, ...], StopReason]:
        try:
            outcome = self._locate()
            if outcome is not None:
                return outcome, "range"
            self._check_below()
            stopped: StopReason = self._measure()
        except BudgetSpentError:
            stopped = "budget"
        return self._results(stopped), stopped

    def _locate(self) -> tuple[GoalResult, ...] | None:
        """Finds a load that loses a little; results where the whole range is good or bad."""
        session, probe_s = self.session, self.options.probe_duration_s
        low, high = session.min_load_pps, session.max_load_pps
        low_tried = False
        load = high
        for _ in range(40):
            trial = session.measure(load, probe_s)
            high = min(high, session.max_load_pps)
            loss = trial.loss_ratio
            if loss <= min(goal.loss_ratio for goal in self.goals) and load >= high:
                return self._whole_range_good()
            if 0 < loss < _LOCATED_LOSS and self._confirmed(trial):
                self.reference_pps = trial.offered_pps * (1 - loss)
                return None
            if loss > 0:
                high = min(high, load)
                rate = trial.achieved_pps * (1 - loss) * _STEP
                load = rate if low * 1.02 < rate < high * 0.98 else math.sqrt(low * high)
                if loss < _LOCATED_LOSS:
                    load = high
            else:
                low, low_tried = max(low, load), True
                load = math.sqrt(low * high)
            if high / low < 1.05:
                if not low_tried and low <= session.min_load_pps:
                    return self._near_lowest()
                break
            load = session.clamp(load)
        self.reference_pps = math.sqrt(low * high)
        return None

    def _confirmed(self, trial: Trial) -> bool:
        """A second trial of the same load, to tell the edge from one unlucky trial."""
        again = self.session.measure(trial.offered_pps, self.options.probe_duration_s)
        return abs(again.loss_ratio - trial.loss_ratio) < 0.1

    def _whole_range_good(self) -> tuple[GoalResult, ...] | None:
        """Repeats the highest load: do half of the trials meet every goal?"""
        load = self.session.max_load_pps
        again = [self.session.measure(load, self.options.goal_duration_s) for _ in range(3)]
        good = {
            goal: sum(trial.loss_ratio <= goal.loss_ratio for trial in again) for goal in self.goals
        }
        if min(good.values()) >= 2:
            return tuple(
                GoalResult(
                    goal,
                    "above-range",
                    load,
                    load,
                    None,
                    interval="bracket",
                    note="the highest load meets the goal: the generator or the line is the limit",
                )
                for goal in self.goals
            )
        self.reference_pps = load
        return None

    def _near_lowest(self) -> tuple[GoalResult, ...] | None:
        """Repeats the lowest load: do half of the trials miss a goal even there?"""
        load = self.session.min_load_pps
        again = [self.session.measure(load, self.options.goal_duration_s) for _ in range(3)]
        bad = [
            goal
            for goal in self.goals
            if sum(trial.loss_ratio > goal.loss_ratio for trial in again) >= 2
        ]
        if len(bad) == len(self.goals):
            return tuple(_below_range(goal, load) for goal in self.goals)
        self.reference_pps = load
        return None

    def _check_below(self) -> None:
        """Loads far below the edge: a loss there that the edge does not explain is a finding."""
        for share in _CHECKED:
            load = self.reference_pps * share
            if load <= self.session.min_load_pps:
                continue
            self.session.measure(load, self.options.trial_duration_s)

    def _measure(self) -> StopReason:
        options = self.options
        while True:
            estimates = self._estimates()
            precise = all(e.half_width <= options.precision for e in estimates)
            if precise and self.measured >= options.min_trials:
                return "precise"
            if self.measured >= options.max_trials:
                return "trials"
            for offered_pps, duration_s in self._next_trials(estimates):
                self.session.measure(offered_pps, duration_s)
                self.measured += 1

    def _next_trials(self, estimates: list[_Estimate]) -> list[tuple[float, float]]:
        """Loads and durations of the next batch."""
        assert self.posterior is not None
        options = self.options
        noise, width = self.posterior.noise(), self.posterior.corner_width()
        chosen: list[tuple[float, float]] = []
        need = {e.goal: max(e.half_width / options.precision, 0.2) for e in estimates}
        for slot in range(options.batch):
            estimate = max(estimates, key=lambda e: need[e.goal])
            need[estimate.goal] *= 0.6
            offset = _OFFSETS[(self.measured + slot) % len(_OFFSETS)]
            if estimate.goal.loss_ratio > 0:
                deviation = max(noise, 5e-4)
                duration_s = options.trial_duration_s
            else:
                deviation = math.hypot(noise, 1.28 * width)
                duration_s = options.goal_duration_s if width > noise else options.trial_duration_s
            x = estimate.middle + offset * deviation
            chosen.append((self.reference_pps * math.exp(x), duration_s))
        return chosen

    # -- inference ----------------------------------------------------------------------------

    def _observations(self) -> model.Observations:
        local = [
            trial
            for trial in self.session.trials
            if trial.run.sent > 0 and math.log(trial.achieved_pps / self.reference_pps) <= _FAR
        ]
        return model.Observations(
            np.array([math.log(t.achieved_pps / self.reference_pps) for t in local]),
            np.array([float(t.run.sent) for t in local]),
            np.array([float(max(t.run.sent - t.run.received, 0)) for t in local]),
        )

    def _update(self) -> model.Posterior:
        if self.posterior is None:
            self.posterior = model.Posterior(
                self.options.seed, particles=self.options.particles, moves=self.options.moves
            )
        self.posterior.update(self._observations())
        return self.posterior

    def _estimates(self, theta: model.Array | None = None) -> list[_Estimate]:
        if theta is None:
            theta = self._update().theta
        estimates = []
        for goal in self.goals:
            x = model.goal_loads(
                theta, goal.loss_exponent, self.reference_pps, self.options.goal_duration_s
            )
            low, middle, high = (float(q) for q in np.quantile(x, (0.025, 0.5, 0.975)))
            estimates.append(_Estimate(goal, middle, low, high))
        return estimates

    def _results(self, stopped: StopReason) -> tuple[GoalResult, ...]:
        if self.measured == 0 and stopped == "budget":
            return tuple(
                GoalResult(
                    goal,
                    "undecided",
                    None,
                    note="the budget was spent before the edge of loss was measured",
                )
                for goal in self.goals
            )
        posterior = self._update()
        theta = posterior.samples(7)
        widen = 1.0
        for finding, factor in doubts(theta, posterior.seen, self.session.trials):
            self.session.add_finding(finding)
            widen *= factor
        self._watch_trashing()
        return tuple(self._result(estimate, widen) for estimate in self._estimates(theta))

    def _result(self, estimate: _Estimate, widen: float) -> GoalResult:
        def load(x: float) -> float:
            return self.reference_pps * math.exp(x)

        low = load(estimate.middle - widen * (estimate.middle - estimate.low))
        high = load(estimate.middle + widen * (estimate.high - estimate.middle))
        pps = load(estimate.middle)
        lowest, highest = self.session.min_load_pps, self.session.max_load_pps
        if pps > highest:
            return GoalResult(estimate.goal, "above-range", highest, min(low, highest), None)
        if pps < lowest:
            return _below_range(estimate.goal, lowest)
        return GoalResult(estimate.goal, "found", pps, max(low, lowest), min(high, highest))

    def _watch_trashing(self) -> None:
        near = [
            t.achieved_pps * (1 - t.loss_ratio)
            for t in self.session.trials
            if 0.005 < t.loss_ratio < _LOCATED_LOSS
        ]
        if not near:
            return
        for trial in self.session.trials:
            rate = trial.achieved_pps * (1 - trial.loss_ratio)
            if trial.offered_pps > 1.3 * self.reference_pps and rate < 0.9 * float(np.median(near)):
                self.session.add_finding(
                    Finding(
                        "trashing",
                        f"throughput falls with load: {rate:.0f} packet/s got through at "
                        f"{trial.offered_pps:.0f} offered, {np.median(near):.0f} near the edge",
                    )
                )


def _below_range(goal: Goal, load: float) -> GoalResult:
    return GoalResult(
        goal,
        "below-range",
        None,
        None,
        load,
        interval="bracket",
        note="even the lowest load misses the goal",
    )
