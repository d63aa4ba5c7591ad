"""The `planewise` search: fits a local loss curve as trials come, measures where it says most.

Overload tells more than the edge: a trial that loses a little says how much capacity there was,
while one that loses nothing says only that there was enough. So a few trials beside the edge
replace many at it. Knows a session and the model; no testbed.

    locate    from the highest load down along the forwarding rates, until the loss is small
    check     some loads far below: is loss really monotone? If not, bisect to the lower edge
    measure   in batches, at the loads that narrow the widest goal's interval; stop when all
              intervals are narrow enough, or when trials or budget are spent
    doubt     residuals over time (drift, autocorrelation), outliers, contradicted predictions:
              each becomes a finding, and widens the intervals where they would be too narrow
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
_TOLERATED = 1e-3
"""Loss far below the edge that is taken for background, where the goals ask for less."""
_FAR = 0.3
"""Trials whose ln(load/edge) exceeds this are not part of the local model."""
_WINDOW = 0.04
"""Trials within this of a goal's interval, in ln(load), count for it; more when it is blurred."""
_LEAST_BLUR = 5e-4
_LEAST_ANCHOR = 0.005
"""NDR's curve, too, is held where the located load has told about it."""
_MOST_NEED = 3.0
"""A goal whose interval is wider than this many precisions gets no more trials than at this."""
_PLACES = ((0.8, 0.0), (0.2, -1.0), (0.5, 1.0))
"""Where around a goal's load trials are placed: in deviations of the edge (above it, where a
trial tells how much capacity there was), plus in half intervals (to enclose it where there is
little noise and the curve's slope is what is not known)."""
_NDR_PLACES = ((0.8, 0.0), (0.0, -1.0), (0.3, -0.4))
"""The same for NDR: what is not known there is how far below the edge single packets are lost."""


@dataclass(frozen=True)
class PlanewiseOptions:
    """What the search may be told; the defaults are what the benches measure."""

    precision: float = 0.005
    """A goal is done when its half interval, relative to its estimate, is within this; NDR, which
    rests on single packets, when it is within twice this."""
    trial_duration_s: float = 0.5
    """Duration of the trials that measure."""
    probe_duration_s: float = 0.2
    """Duration of the trials that locate and check."""
    goal_duration_s: float = 1.0
    """Duration of the trials that goals are about: NDR depends on it where loss is rare."""
    min_trials: int = 4
    """Trials near a goal's edge, at least."""
    max_trials: int = 26
    """Trials near a goal's edge after which it is done, unless its interval is very wide."""
    most_trials: int = 36
    """The same for a PDR whose interval is wider than twice what was asked for."""
    batch: int = 3
    particles: int = 1024
    moves: int = 2
    seed: int = 1


@dataclass(frozen=True)
class _Estimate:
    """A goal's posterior: ln(load/reference), and the scale on which its edge is blurred."""

    goal: Goal
    middle: float
    low: float
    high: float
    noise: float
    blur: float
    """Deviation of the edge that this goal is about; for NDR more than the noise."""

    trials: int
    """Trials near the edge."""
    lowest_bad: float | None
    """Where no trial near the edge met the goal: the lowest of them."""
    highest_good: float | None
    """Where all trials near the edge met the goal: the highest of them."""

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
        self.edge_pps = session.max_load_pps
        self.checks: set[int] = set()
        self.ceiling_pps = math.inf
        self.posteriors: dict[Goal, model.Posterior] = {}
        self.windows: dict[Goal, tuple[float, float]] = {}
        self.measured = dict.fromkeys(goals, 0)

    # -- the search ---------------------------------------------------------------------------

    def search(self) -> tuple[tuple[GoalResult, ...], StopReason]:
        try:
            outcome = self._locate()
            if outcome is not None:
                return outcome, "range"
            self._approach()
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
            if _TOLERATED < loss < _LOCATED_LOSS and self._confirmed(trial):
                self.reference_pps = trial.offered_pps * (1 - loss)
                return None
            if loss > _TOLERATED:
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

    def _approach(self) -> None:
        """A few trials toward the loosest goal, so that "far below the edge" means something."""
        goal = max(self.goals, key=lambda goal: goal.loss_ratio)
        for _ in range(2):
            estimate = self._estimate(goal)
            load = self.reference_pps * math.exp(estimate.middle)
            self.session.measure(load, self.options.trial_duration_s)
            self.measured[goal] += 1
        self.edge_pps = self.reference_pps * math.exp(self._estimate(goal).low)

    def _check_below(self) -> None:
        """Loads far below the edge: a loss there, if it repeats, moves the search down to it."""
        tolerated = max(max(goal.loss_ratio for goal in self.goals), _TOLERATED)
        clean = self.session.min_load_pps
        for share in _CHECKED:
            load = self.edge_pps * share
            if load <= self.session.min_load_pps:
                continue
            first = self.session.measure(load, self.options.trial_duration_s)
            if first.loss_ratio <= tolerated:
                self.checks.add(len(self.session.trials) - 1)
                clean = load
                continue
            again = [self.session.measure(load, self.options.trial_duration_s) for _ in range(2)]
            if sum(trial.loss_ratio > tolerated for trial in again) == 0:
                continue
            self.session.add_finding(
                Finding(
                    "not-monotone",
                    f"{first.loss_ratio:.2%} were lost at {load:.0f} packet/s, far below "
                    f"{self.edge_pps:.0f} where less was: loss does not simply grow with "
                    "load, and NDR and PDR are those below that load",
                )
            )
            self.ceiling_pps = load
            self.reference_pps = self._bisect(clean, load, tolerated)
            return

    def _bisect(self, low: float, high: float, tolerated: float) -> float:
        """A load near which loss first exceeds `tolerated`, between a good and a bad load."""
        while high / low > 1.08:
            middle = math.sqrt(low * high)
            bad = self.session.measure(middle, self.options.probe_duration_s).loss_ratio > tolerated
            low, high = (low, middle) if bad else (middle, high)
        return math.sqrt(low * high)

    def _measure(self) -> StopReason:
        while True:
            estimates = self._estimates()
            if not any(self._need(estimate) for estimate in estimates):
                wide = any(self._relative_width(e) > 1 for e in estimates)
                return "trials" if wide else "precise"
            for goal, offered_pps, duration_s in self._next_trials(estimates):
                self.session.measure(offered_pps, duration_s)
                self.measured[goal] += 1

    def _relative_width(self, estimate: _Estimate) -> float:
        """A goal's half interval in units of what is asked for."""
        allowed = self.options.precision * (1 if estimate.goal.loss_ratio > 0 else 2)
        return estimate.half_width / allowed

    def _need(self, estimate: _Estimate) -> float:
        """How badly a goal needs trials; 0 when it has enough."""
        options, own = self.options, self.measured[estimate.goal]
        wide = self._relative_width(estimate)
        noisy = estimate.goal.loss_ratio > 0 and wide > 2
        most = options.most_trials if noisy else options.max_trials
        if own >= most:
            return 0.0
        if own < options.min_trials // 2 or estimate.trials < options.min_trials:
            return max(wide, _MOST_NEED)
        if estimate.trials >= most:
            return 0.0
        if estimate.lowest_bad is not None or estimate.highest_good is not None:
            return _MOST_NEED
        return min(wide, _MOST_NEED) if wide > 1 else 0.0

    def _next_trials(self, estimates: list[_Estimate]) -> list[tuple[Goal, float, float]]:
        """Goal, load and duration of the trials of the next batch."""
        options = self.options
        chosen: list[tuple[Goal, float, float]] = []
        need = {estimate.goal: self._need(estimate) for estimate in estimates}
        taken = dict(self.measured)
        for _ in range(options.batch):
            estimate = max(estimates, key=lambda e: need[e.goal])
            goal = estimate.goal
            if not need[goal]:
                break
            need[goal] *= 0.6
            places = _PLACES if goal.loss_ratio > 0 else _NDR_PLACES
            offset, spread = places[taken[goal] % len(places)]
            taken[goal] += 1
            duration_s = options.trial_duration_s
            if estimate.blur > 2 * estimate.noise:
                duration_s = options.goal_duration_s
            half_width = min(estimate.half_width, _WINDOW)
            x = estimate.middle + offset * estimate.blur + spread * half_width
            if estimate.lowest_bad is not None:
                x = min(x, estimate.lowest_bad) - 1.5 * abs(estimate.lowest_bad - estimate.middle)
            elif estimate.highest_good is not None:
                ahead = abs(estimate.highest_good - estimate.middle)
                x = max(x, estimate.highest_good) + 1.5 * ahead
            chosen.append((goal, self.reference_pps * math.exp(x), duration_s))
        return chosen

    # -- inference ----------------------------------------------------------------------------

    def _observations(self, goal: Goal) -> model.Observations:
        """The trials near a goal's edge, for a curve that need not be right elsewhere."""
        return self._local_trials(*self.windows.get(goal, (-math.inf, _FAR)))

    def _local_trials(self, low: float = -math.inf, high: float = _FAR) -> model.Observations:
        x = np.array([math.log(t.achieved_pps / self.reference_pps) for t in self.session.trials])
        sent = np.array([float(t.run.sent) for t in self.session.trials])
        lost = np.array([float(max(t.run.sent - t.run.received, 0)) for t in self.session.trials])
        offered = np.array([t.offered_pps for t in self.session.trials])
        near = (x >= low) & (x <= high) & (offered <= self.ceiling_pps)
        # The checks count for every goal: they tell how much is lost at any load.
        near[list(self.checks)] = True
        return model.Observations(x[near], sent[near], lost[near])

    def _posterior(self, goal: Goal) -> model.Posterior:
        if goal not in self.posteriors:
            anchor = max(goal.loss_exponent, _LEAST_ANCHOR)
            self.posteriors[goal] = model.Posterior(
                self.options.seed,
                anchor,
                particles=self.options.particles,
                moves=self.options.moves,
            )
        self.posteriors[goal].update(self._observations(goal))
        return self.posteriors[goal]

    def _estimates(self, extra_moves: int = 0) -> list[_Estimate]:
        """Every goal's posterior after all trials so far."""
        return [self._estimate(goal, extra_moves) for goal in self.goals]

    def _estimate(self, goal: Goal, extra_moves: int = 0) -> _Estimate:
        posterior = self._posterior(goal)
        x = model.goal_loads(
            posterior.samples(extra_moves),
            posterior.anchor,
            goal.loss_exponent,
            self.reference_pps,
            self.options.goal_duration_s,
        )
        low, middle, high = (float(q) for q in np.quantile(x, (0.025, 0.5, 0.975)))
        noise = blur = max(posterior.noise(), _LEAST_BLUR)
        if goal.loss_ratio == 0:
            load = self.reference_pps * math.exp(middle)
            blur = max(posterior.blur(load * self.options.goal_duration_s), blur)
        seen = posterior.seen
        near = np.abs(seen.x - middle) < _WINDOW / 2 + 3 * blur
        bad = seen.lost[near] > goal.loss_ratio * seen.sent[near]
        one_sided = bad.size >= 2 and (bad.all() or not bad.any())
        reach = _WINDOW + 4 * blur
        self.windows[goal] = (
            low - reach if goal.loss_ratio > 0 else -math.inf,
            min(high + 2 * reach, _FAR),
        )
        return _Estimate(
            goal,
            middle,
            low,
            high,
            noise,
            blur,
            trials=int(near.sum()),
            lowest_bad=float(seen.x[near].min()) if one_sided and bad.all() else None,
            highest_good=float(seen.x[near].max()) if one_sided and not bad.any() else None,
        )

    def _results(self, stopped: StopReason) -> tuple[GoalResult, ...]:
        if not any(self.measured.values()) and stopped == "budget":
            return tuple(
                GoalResult(
                    goal,
                    "undecided",
                    None,
                    note="the budget was spent before the edge of loss was measured",
                )
                for goal in self.goals
            )
        estimates = self._estimates(extra_moves=7)
        widen = 1.0
        posterior = self.posteriors[max(self.goals, key=lambda goal: goal.loss_ratio)]
        for finding, factor in doubts(posterior.theta, posterior.anchor, posterior.seen):
            self.session.add_finding(finding)
            widen *= factor
        self._watch_outliers(max(estimates, key=lambda e: e.goal.loss_ratio))
        return tuple(self._result(estimate, widen) for estimate in estimates)

    def _watch_outliers(self, estimate: _Estimate) -> None:
        """Trials that miss the loosest goal clearly below its load."""
        below_pps = self.reference_pps * math.exp(estimate.low - _WINDOW / 2 - 3 * estimate.noise)
        tolerated = max(estimate.goal.loss_ratio, _TOLERATED)
        below = [t for t in self.session.trials if t.achieved_pps < below_pps]
        bad = [t for t in below if t.loss_ratio > tolerated]
        if bad:
            worst = max(bad, key=lambda t: t.loss_ratio)
            self.session.add_finding(
                Finding(
                    "outliers",
                    f"{len(bad)} of {len(below)} trials below the edge lost far more than the "
                    f"rest, up to {worst.loss_ratio:.2%} at {worst.offered_pps:.0f} packet/s",
                )
            )

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
