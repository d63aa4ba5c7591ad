"""The `planewise` search: fits a local loss curve as trials come, measures where it says most.

Overload tells more than the edge: a trial that loses a little says how much capacity there was,
while one that loses nothing says only that there was enough. So a few trials beside the edge
replace many at it. Knows a session and the model; no testbed.

    locate    from the highest load down along the forwarding rates, until the loss is small
    check     some loads far below: is loss really monotone? If not, bisect to the lower edge
    measure   in batches that grow, beside each goal's load; stop when all intervals are narrow
              enough, or when trials or budget are spent
    doubt     readings over time (drift, autocorrelation) move and widen the intervals by how
              likely they are; they, and outliers, become findings
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planewise.measure.search import lossless, model
from planewise.measure.search.goals import Finding, Goal, GoalResult, StopReason, Trial
from planewise.measure.search.particles import Array, Law, Observations
from planewise.measure.search.residuals import Course, course, doubts
from planewise.measure.search.session import BudgetSpentError, Session
from planewise.units import percent_text

_LOCATED_LOSS = 0.15
"""The edge is located when an overloaded trial loses less than this share."""
_STEP = 1.03
"""The next load on the way down: this times the forwarding rate just seen."""
_CHECKED = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85)
"""Loads of the check for monotone loss, relative to the located edge."""
_APPROACH = 6
"""Trials on the way from the located load to the edge, at most; two at least."""
_TOLERATED = 1e-3
"""Loss far below the edge that is taken for background, where the goals ask for less."""
_FAR = 0.1
"""Trials whose ln(load/edge) exceeds this by more than some noise are not part of the model."""
_WINDOW = 0.04
"""Trials within this of a goal's load, in ln(load), count as near it; more when it is blurred."""
_LEAST_BLUR = 5e-4
_WIDEST_STEP = 0.25
"""Trials are placed no further apart than this times their places below, in ln(load)."""
_MOST_NEED = 3.0
"""A goal whose interval is wider than this many precisions gets no more trials than at this."""
_PLACES = ((0.9, 0.0), (-0.7, -1.0), (0.3, 1.0))
"""Where around a goal's load trials are placed: in deviations of the edge, plus in half intervals
(to enclose it where there is little noise). On both sides, so that the load is read off between
trials whatever the curve's slope, and far enough apart to tell slope from noise; somewhat more
above the edge, where a trial tells how much capacity there was."""
_SOFT_PLACES = ((0.3, 0.0), (-0.3, -1.0), (0.5, 1.0))
"""The same where loss rises smoothly: the curve beside the goal's share is not known so well."""
_NDR_PLACES = ((0.0, -1.0), (0.8, 0.0), (0.0, -0.5))
"""The same for NDR where the edge is hard: are packets really not lost further down?"""
_SOFT_NDR_PLACES = ((0.6, 0.0), (-0.5, 0.0), (1.4, 0.0), (0.0, 0.0), (-1.2, 0.0))
"""The same for NDR where loss rises smoothly: a trial that loses some packets tells how many one
further down loses."""
_BRACKETED = 0.06
"""NDR is located where a trial with and one without loss are so near to each other."""
_LOW_SHARE, _HIGH_SHARE = 1 / 25, 6.0
"""The curve is fitted to losses from the goal's share times the one to it times the other…"""
_NOISES = 2.5
"""… or to so many deviations of the loss above it: noise blurs the curve on that scale, and losses
cut off nearer to it would tell neither slope nor noise."""
_WIDEST = 0.15
_NDR_REACH = 100.0
"""Trials that lose up to so many packets, or clumps of them, show that loss rises smoothly."""
_HARD = 0.03
"""For NDR at a hard edge the curve is fitted to losses up to this."""
_DRAWS = 4000
_HARD_POWERS = (math.log(60.0), math.log(3000.0))
"""Powers of the load by which packets may be lost below a hard edge."""
_STEADY = 0.003
"""A capacity that wavers less than this needs fewer trials."""
_CLUMPED = 8.0
"""Where losses come in larger clumps than this, trials are as long as the goal's."""
_COUNTED = 0.25
"""A trial is long enough when counting packets adds no more than this to its reading's variance,
in units of the noise's."""
_CAUTION_SOFT, _CAUTION_CLUMPED, _CAUTION_CORRELATED = 1.15, 1.25, 1.1
"""Factors of the intervals where loss rises smoothly, where it also comes in clumps, and where
successive trials are correlated."""


@dataclass(frozen=True)
class PlanewiseOptions:
    """What the search may be told; the defaults are what the benches measure."""

    precision: float = 0.0033
    """A goal is done when its half interval, relative to its estimate, is within this; NDR, which
    rests on single packets, when it is within twice this."""
    trial_duration_s: float = 0.25
    """Duration of the trials that measure, where the capacity's noise counts more than packets."""
    probe_duration_s: float = 0.2
    """Duration of the trials that locate and check."""
    goal_duration_s: float = 1.0
    """Duration of the trials that goals are about, and of those that measure where loss rises
    smoothly: there few packets, or few clumps of them, decide."""
    min_trials: int = 8
    """Trials near a goal's edge, at least; twice as many where the capacity wavers, as few trials
    may agree by chance."""
    max_trials: int = 34
    """Trials near a goal's edge after which it is done, where the capacity wavers by 1 %; more
    where it wavers more, fewer where trials are long."""
    particles: int = 256
    moves: int = 2
    final_moves: int = 8
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

    soft: bool
    """Whether loss rises smoothly."""
    counted: bool
    """Whether it is NDR's by `lossless`."""
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
        self.ceiling_pps = math.inf
        self.posteriors: dict[Goal, model.Posterior] = {}
        self.counts: lossless.LosslessPosterior | None = None
        self.known: dict[Goal, _Estimate] = {}
        self.measured = dict.fromkeys(goals, 0)
        self.soft = False
        self.reach = dict.fromkeys(goals, 0.0)
        self.clump = 1.0
        self.course: Course | None = None

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
            if _TOLERATED < loss < _LOCATED_LOSS:
                again = self._again(trial)
                if again is None:
                    self.reference_pps = trial.offered_pps * (1 - loss)
                    return None
                loss = again
            if loss > _TOLERATED:
                high = min(high, load)
                rate = trial.achieved_pps * (1 - loss) * _STEP
                load = rate if low * 1.02 < rate < high * 0.98 else math.sqrt(low * high)
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

    def _again(self, trial: Trial) -> float | None:
        """What another trial at that load loses; None where one of two more loses as little: it
        is the edge, then, and no bad trial."""
        loss = 0.0
        for _ in range(2):
            loss = self.session.measure(trial.offered_pps, self.options.probe_duration_s).loss_ratio
            if loss > _TOLERATED and abs(loss - trial.loss_ratio) < 0.1:
                return None
        return loss

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
        for step in range(_APPROACH):
            estimate = self._estimate(goal)
            load = self.reference_pps * math.exp(estimate.middle)
            trial = self.session.measure(load, self.options.trial_duration_s)
            self.measured[goal] += 1
            if step and trial.loss_ratio < 3 * max(goal.loss_ratio, _TOLERATED):
                break
        self.edge_pps = self.reference_pps * math.exp(self._estimate(goal).low)

    def _check_below(self) -> None:
        """Loads far below the edge: a loss there, if it repeats, moves the search down to it."""
        tolerated = max(max(goal.loss_ratio for goal in self.goals), _TOLERATED)
        clean = self.session.min_load_pps
        for share in _CHECKED:
            load = self.edge_pps * share
            if load <= self.session.min_load_pps:
                continue
            first = self.session.measure(load, self.options.probe_duration_s)
            if first.loss_ratio <= tolerated:
                clean = load
                continue
            if not self._repeats(load, tolerated):
                continue
            self.session.add_finding(
                Finding(
                    "not-monotone",
                    f"{percent_text(first.loss_ratio)} were lost at {load:.0f} packet/s, far below "
                    f"{self.edge_pps:.0f} where less was: loss does not simply grow with "
                    "load, and NDR and PDR are those below that load",
                )
            )
            self.ceiling_pps = load
            self.reference_pps = self._bisect(clean, load, tolerated)
            return

    def _repeats(self, load: float, tolerated: float) -> bool:
        """Whether a loss was no single bad trial: of two more, or else of the next two, both lose.

        One bad trial in ten is taken for the system's by 1 % of repetitions, a load at which nine
        of ten lose for a good one by 4 %.
        """
        for _ in range(2):
            again = [self.session.measure(load, self.options.probe_duration_s) for _ in range(2)]
            lossy = sum(trial.loss_ratio > tolerated for trial in again)
            if lossy != 1:
                return lossy == 2
        return False

    def _bisect(self, low: float, high: float, tolerated: float) -> float:
        """A load near which loss first exceeds `tolerated`, between a good and a bad load."""
        while high / low > 1.08:
            middle = math.sqrt(low * high)
            bad = self.session.measure(middle, self.options.probe_duration_s).loss_ratio > tolerated
            low, high = (low, middle) if bad else (middle, high)
        return math.sqrt(low * high)

    def _measure(self) -> StopReason:
        while True:
            estimates = [self._estimate(goal) for goal in self.goals]
            needs = {estimate.goal: self._need(estimate) for estimate in estimates}
            if not any(needs.values()):
                wide = any(self._relative_width(e) > 1 for e in estimates)
                return "trials" if wide else "precise"
            for estimate in estimates:
                if needs[estimate.goal]:
                    self._measure_batch(estimate)

    def _measure_batch(self, estimate: _Estimate) -> None:
        for offered_pps, duration_s in self._next_trials(estimate):
            self.session.measure(offered_pps, duration_s)
            self.measured[estimate.goal] += 1

    def _relative_width(self, estimate: _Estimate) -> float:
        """A goal's half interval in units of what is asked for."""
        allowed = self.options.precision * (1 if estimate.goal.loss_ratio > 0 else 2)
        return estimate.half_width / allowed

    def _most(self, estimate: _Estimate) -> int:
        """Trials near a goal's edge (for NDR: of its own) after which it is done."""
        most = self.options.max_trials
        if estimate.goal.loss_ratio == 0:
            if not estimate.soft:
                return most // 5
            share = 0.6 if self.clump > _CLUMPED else 0.9
            return int(most * share * (1.0 if estimate.noise > _STEADY else 0.92))
        if estimate.soft:
            return int(most * 0.65 * min(max(estimate.noise / 0.012, 1.0), 1.8))
        return int(most * min(max(estimate.noise / 0.012, 1.0), 1.4))

    def _need(self, estimate: _Estimate) -> float:
        """How badly a goal needs trials; 0 when it has enough."""
        own, most = self.measured[estimate.goal], self._most(estimate)
        wide = self._relative_width(estimate)
        if own >= most:
            return 0.0
        noisy = estimate.noise > self.options.precision / 4
        if own < 2 or estimate.trials < self.options.min_trials * (2 if noisy else 1):
            return _MOST_NEED
        if estimate.goal.loss_ratio > 0 and estimate.trials >= most:
            return 0.0
        if estimate.lowest_bad is not None or estimate.highest_good is not None:
            return _MOST_NEED
        return min(wide, _MOST_NEED) if wide > 1 else 0.0

    def _between(self) -> float | None:
        """For NDR: the middle between the highest load without loss and the lowest with, as x,
        while these are far apart."""
        seen, offered = self._all_trials()
        usable = offered <= self.ceiling_pps
        lossy = seen.x[usable & (seen.lost > 0)]
        if not lossy.size:
            return None
        # The highest clean load below which most trials are clean, too: losses may be rare.
        clean = seen.x[usable & (seen.lost <= 0)]
        low = (
            float(clean.max())
            if clean.size
            else math.log(self.session.min_load_pps / self.reference_pps)
        )
        above = lossy[lossy > low]
        if not above.size or float(above.min()) - low < _BRACKETED:
            return None
        return 0.5 * (low + float(above.min()))

    def _next_trials(self, estimate: _Estimate) -> list[tuple[float, float]]:
        """Load and duration of a goal's next batch: the more is known, the larger."""
        options, goal = self.options, estimate.goal
        known = self.measured[goal]
        places: tuple[tuple[float, float], ...]
        if goal.loss_ratio > 0:
            places = _SOFT_PLACES if estimate.soft else _PLACES
        else:
            places = _SOFT_NDR_PLACES if estimate.soft else _NDR_PLACES
        duration_s = options.trial_duration_s
        if estimate.soft:
            if goal.loss_ratio == 0 or self.clump > _CLUMPED:
                duration_s = options.goal_duration_s
            elif self.posteriors[goal].counting() * options.goal_duration_s > _COUNTED * duration_s:
                duration_s = options.goal_duration_s / 2
        if goal.loss_ratio == 0 and estimate.soft:
            between = self._between()
            if between is not None:
                return [(self.reference_pps * math.exp(between), duration_s)]
        chosen: list[tuple[float, float]] = []
        left = self._most(estimate) - known
        if goal.loss_ratio > 0:
            left = min(left, self._most(estimate) - estimate.trials)
        for step in range(min(max(2, known // 3), 8, max(left, 1))):
            offset, spread = places[(known + step) % len(places)]
            half_width = estimate.high - estimate.middle
            if spread < 0:
                half_width = estimate.middle - estimate.low
            x = estimate.middle + offset * min(estimate.blur, _WIDEST_STEP)
            x += spread * min(half_width, _WINDOW)
            # Where losses are counted, each trial tells of its surroundings.
            if not estimate.counted:
                x = _past_one_side(x, estimate)
            chosen.append((self.reference_pps * math.exp(x), duration_s))
        return chosen

    # -- inference ----------------------------------------------------------------------------

    def _observations(self, scope: model.Scope, low: float, high: float) -> Observations:
        """The trials near a goal's edge, for a curve that need not be right elsewhere."""
        seen, offered = self._all_trials()
        near = (seen.x >= low) & (seen.x <= high) & (offered <= self.ceiling_pps)
        return Observations(seen.x[near], seen.sent[near], seen.lost[near])

    def _all_trials(self) -> tuple[Observations, Array]:
        trials = self.session.trials
        x = np.array([math.log(t.achieved_pps / self.reference_pps) for t in trials])
        sent = np.array([float(t.run.sent) for t in trials])
        lost = np.array([float(max(t.run.sent - t.run.received, 0)) for t in trials])
        return Observations(x, sent, lost), np.array([t.offered_pps for t in trials])

    def _scope(self, goal: Goal) -> model.Scope:
        if goal.loss_ratio > 0:
            anchor = goal.loss_exponent
            high = self._reach(goal, anchor, anchor * _HIGH_SHARE)
            return model.Scope(anchor, anchor * _LOW_SHARE, high)
        anchor = self._one_packet()
        high = self._reach(goal, anchor, _HARD)
        return model.Scope(anchor, 0.0, high, _HARD_POWERS, few=True)

    def _reach(self, goal: Goal, anchor: float, least: float) -> float:
        """Up to which loss the curve is fitted: `least`, doubled as often as noise asks for.

        It never falls again: a scope that changes costs a fit from the beginning.
        """
        wanted = anchor
        if goal in self.posteriors:
            wanted += _NOISES * self.posteriors[goal].loss_noise()
        reach = max(least, self.reach[goal])
        while reach < min(wanted, _WIDEST):
            reach *= 2
        self.reach[goal] = reach
        return reach

    def _one_packet(self) -> float:
        """The loss ratio with which half of the goal's trials lose nothing."""
        return math.log(2) / (self.reference_pps * self.options.goal_duration_s)

    def _nearest(self) -> model.Posterior:
        """The posterior of the strictest goal that allows some loss."""
        goal = min((g for g in self.known if g.loss_ratio > 0), key=lambda g: g.loss_ratio)
        return self.posteriors[goal]

    def _few_lost(self) -> bool:
        """Whether trials have lost a few packets: where loss rises steeply, hardly any does."""
        few = min(_NDR_REACH * self._nearest().clump() * self._one_packet(), _HARD)
        return sum(0 < trial.loss_ratio < few for trial in self.session.trials) >= 2

    def _counts_losses(self, goal: Goal) -> bool:
        """Whether a goal is NDR where loss rises smoothly."""
        return goal.loss_ratio == 0 and self.soft and self._few_lost()

    def _lossless(self, goal: Goal) -> lossless.LosslessPosterior:
        """NDR's posterior where loss rises smoothly."""
        nearest = self._nearest()
        noise = max(nearest.noise(), _LEAST_BLUR)
        if self.counts is None:
            self.counts = lossless.LosslessPosterior(
                self.options.seed,
                packets=self.reference_pps * self.options.goal_duration_s,
                noise=noise,
                particles=self.options.particles,
                moves=self.options.moves,
            )
        self.counts.sigma = noise
        self.counts.log_clump = nearest.log_clump()
        around = self.known[goal].middle if goal in self.known else 0.0
        seen, offered = self._all_trials()
        near = (seen.x <= max(around, 0.0) + _FAR) & (offered <= self.ceiling_pps)
        self.counts.update(Observations(seen.x[near], seen.sent[near], seen.lost[near]))
        return self.counts

    def _posterior(self, goal: Goal) -> model.Posterior:
        scope = self._scope(goal)
        known = self.posteriors.get(goal)
        if known is None or known.scope != scope:
            known = self.posteriors[goal] = model.Posterior(
                self.options.seed,
                scope,
                particles=self.options.particles,
                moves=self.options.moves,
                spread=0.05 if goal.loss_ratio > 0 else 0.3,
                packets=self.reference_pps * self.options.goal_duration_s,
                lossless=goal.loss_ratio == 0,
            )
        around = self.known.get(goal)
        low, high = -math.inf, _FAR
        if around is not None:
            reach = _WINDOW + 6 * around.noise + 3 * around.half_width
            high = min(around.middle + reach + _FAR, 0.5)
            low = around.middle - reach - _FAR
        known.update(self._observations(scope, low, high))
        return known

    def _law(self, goal: Goal, moves: int = 0) -> tuple[Law, float, float, Observations]:
        """A goal's law, the noise, the deviation of where trials begin to miss the goal, and the
        trials that count."""
        if self._counts_losses(goal):
            counts = self._lossless(goal)
            self.clump = counts.clump()
            return counts.law(moves), counts.sigma, counts.blur(), counts.seen
        posterior = self._posterior(goal)
        noise = max(posterior.noise(), _LEAST_BLUR)
        blur = noise
        if goal.loss_ratio == 0:
            self.clump = posterior.clump()
            blur = max(posterior.blur(), noise)
        return posterior.law(moves), noise, blur, posterior.seen

    def _estimate(self, goal: Goal) -> _Estimate:
        law, noise, blur, seen = self._law(goal)
        low, middle, high = (law.quantile(share) for share in (0.025, 0.5, 0.975))
        near = np.abs(seen.x - middle) < _WINDOW / 2 + 3 * blur
        bad = seen.lost[near] > goal.loss_ratio * seen.sent[near]
        one_sided = bad.size >= 2 and (bad.all() or not bad.any())
        if goal.loss_ratio > 0:
            self.soft = self.posteriors[goal].soft() > 0.5
        self.known[goal] = estimate = _Estimate(
            goal,
            middle,
            low,
            high,
            noise,
            blur,
            soft=self.soft,
            counted=self._counts_losses(goal),
            trials=int(near.sum()),
            lowest_bad=float(seen.x[near].min()) if one_sided and bad.all() else None,
            highest_good=float(seen.x[near].max()) if one_sided and not bad.any() else None,
        )
        return estimate

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
        loosest = max(self.goals, key=lambda goal: goal.loss_ratio)
        # The goal whose trials tell most of the order comes first.
        results = {
            goal: self._result(self._final(goal, doubted=goal == loosest))
            for goal in sorted(self.goals, key=lambda goal: goal != loosest)
        }
        self._watch_outliers(self.known[loosest])
        return tuple(results[goal] for goal in self.goals)

    def _final(self, goal: Goal, *, doubted: bool) -> _Estimate:
        """The last estimate of a goal, for what the order of its trials and bad trials say."""
        estimate = self._estimate(goal)
        random = np.random.default_rng(self.options.seed)
        law, _, _, _ = self._law(goal, self.options.final_moves)
        draws = law.x[
            np.searchsorted(np.cumsum(law.weight), random.random(_DRAWS)).clip(0, law.x.size - 1)
        ]

        if doubted:
            self._doubt(estimate)
        if self.course is not None:
            draws = draws + self.course.draw(random, _DRAWS, float(draws.std()))
        low, middle, high = (float(q) for q in np.quantile(draws, (0.025, 0.5, 0.975)))
        factor = self._caution(estimate)
        return replace(
            estimate,
            low=middle - factor * (middle - low),
            middle=middle,
            high=middle + factor * (high - middle),
        )

    def _doubt(self, estimate: _Estimate) -> None:
        """What the order of a goal's trials says, and trials that are far off, as findings."""
        seen, offered = self._all_trials()
        readings = model.readings(self.posteriors[estimate.goal], seen)
        standard = readings.y / readings.deviation
        near = readings.informative & (offered <= self.ceiling_pps)
        near &= seen.x < estimate.middle + _FAR + 6 * estimate.noise
        # A bad trial: it found far less capacity than the others.
        bad = near & (standard < -5.0) & (readings.y < -0.03)
        good = near & ~bad & (np.abs(readings.y) < 0.03 + 6 * estimate.noise)
        ends_s = np.cumsum([trial.duration_s for trial in self.session.trials])
        middle_s = ends_s - 0.5 * np.array([t.duration_s for t in self.session.trials])
        self.course = course(
            readings.y[good],
            readings.deviation[good],
            middle_s[good],
            ends_s[-1] / 2,
            np.flatnonzero(good).astype(np.float64),
        )
        if bad.any():
            worst = int(np.flatnonzero(bad)[np.argmin(readings.y[bad])])
            trial = self.session.trials[worst]
            self.session.add_finding(
                Finding(
                    "outliers",
                    f"{int(bad.sum())} of {int(near.sum())} trials near the edge found far less "
                    f"capacity than the rest; one lost {percent_text(trial.loss_ratio)} at "
                    f"{trial.offered_pps:.0f} packet/s",
                )
            )
        losses = np.array([trial.loss_ratio for trial in self.session.trials])
        for finding in doubts(standard[near], losses[near]):
            self.session.add_finding(finding)

    def _caution(self, estimate: _Estimate) -> float:
        """What intervals lack, by simulation, where the search sees that the model is only near.

        Fitted to simulated systems other than those that the benches use; everything it looks at
        is what the search itself has found.
        """
        factor = 1.0
        if estimate.soft:
            factor = _CAUTION_CLUMPED if self.clump > _CLUMPED else _CAUTION_SOFT
        if self.course is not None and self.course.correlated > 0.5:
            factor = max(factor, _CAUTION_CORRELATED)
        return factor

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
                    f"rest, up to {percent_text(worst.loss_ratio)} at "
                    f"{worst.offered_pps:.0f} packet/s",
                )
            )

    def _result(self, estimate: _Estimate) -> GoalResult:
        def load(x: float) -> float:
            return self.reference_pps * math.exp(x)

        low, pps, high = load(estimate.low), load(estimate.middle), load(estimate.high)
        lowest, highest = self.session.min_load_pps, self.session.max_load_pps
        if pps > highest:
            return GoalResult(estimate.goal, "above-range", highest, min(low, highest), None)
        if pps < lowest:
            return _below_range(estimate.goal, lowest)
        return GoalResult(estimate.goal, "found", pps, max(low, lowest), min(high, highest))


def _past_one_side(x: float, estimate: _Estimate) -> float:
    """A place further out where all trials near the edge met the goal, or none did."""
    if estimate.lowest_bad is not None:
        return min(x, estimate.lowest_bad) - 1.5 * abs(estimate.lowest_bad - estimate.middle)
    if estimate.highest_good is not None:
        ahead = abs(estimate.highest_good - estimate.middle)
        return max(x, estimate.highest_good) + 1.5 * ahead
    return x


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
