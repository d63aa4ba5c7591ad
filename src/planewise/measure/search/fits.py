"""Fits of the `planewise` search: the posterior of each goal, from the trials near it.

Knows a session and the models; decides on no trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from planewise.measure.search import lossless, model
from planewise.measure.search.goals import Goal, SearchTrial
from planewise.measure.search.median import SearchReadings, bounds_above, have_states, sets_of
from planewise.measure.search.particles import Array, Law, Observations
from planewise.measure.search.session import SearchSession
from planewise.measure.search.tuning import Tuning


@dataclass(frozen=True)
class PlanewiseOptions:
    """Options of the search; the benches measure the defaults."""

    precision: float = 0.0033
    """A goal is done when its half interval, relative to its estimate, is within this; NDR, which
    rests on single packets, when it is within twice this."""
    probe_duration_s: float = 0.2
    """Duration of the trials that locate and check. They steer and conclude nothing: a queue's
    length, or a processor's turbo, weighs more the shorter a trial is."""
    goal_duration_s: float = 1.0
    """Duration of the trials that results are about and come from (CSIT's final trial duration)."""
    min_trials: int = 6
    """Trials near a goal's edge, at least, as the range of five holds the median in 94 % only;
    twice as many where the capacity varies."""
    max_trials: int = 14
    """Trials near a goal's edge after which it is done, where the capacity varies by 0.8 %; more
    where it varies more, fewer where less."""
    particles: int = 128
    moves: int = 2
    final_moves: int = 6
    seed: int = 1
    tuning: Tuning = field(default_factory=Tuning)


@dataclass(frozen=True)
class EdgePosterior:
    """A goal's posterior: its edge as ln(load/reference), and how far that is blurred."""

    goal: Goal
    middle: float
    low: float
    high: float
    noise: float
    blur: float
    """Deviation of the edge that this goal is about; for NDR more than the noise."""
    soft: bool
    """Whether loss rises smoothly."""
    flatter: bool
    """Whether throughput still rises beyond saturation."""
    counted: bool
    """Whether it is fitted by `lossless`."""
    trials: int
    """Trials near the edge."""
    lowest_bad: float | None
    """The lowest trial near the edge, where none met the goal."""
    highest_good: float | None
    """The highest trial near the edge, where all met the goal."""

    @property
    def half_width(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2


class Fits:
    """The posteriors of a search's goals; each call takes the trials so far into account."""

    def __init__(self, session: SearchSession, options: PlanewiseOptions) -> None:
        self.session = session
        self.options = options
        self.reference_pps = session.max_load_pps
        """x is ln(load / this)."""
        self.ceiling_pps = math.inf
        """Loads above this belong to another edge."""
        self.posteriors: dict[Goal, model.Posterior] = {}
        self.estimates: dict[Goal, EdgePosterior] = {}
        self.soft = False
        self.flatter = False
        self.clump = 1.0
        self.climbed = 0
        """Trials so far above the highest forwarding rate (`Tuning.climbs`)."""
        self._counts: lossless.LosslessPosterior | None = None
        self._reached: dict[Goal, float] = {}

    def load_pps(self, x: float) -> float:
        """The load at ln(load/reference)."""
        return self.reference_pps * math.exp(x)

    @property
    def trials(self) -> list[SearchTrial]:
        """Trials of the goals' duration, or longer."""
        least_s = self.options.goal_duration_s * (1 - 1e-9)
        return [trial for trial in self.session.trials if trial.duration_s >= least_s]

    def times_s(self) -> tuple[Array, float]:
        """The middles of these trials, and of the search, in seconds of traffic."""
        durations = np.array([trial.duration_s for trial in self.session.trials])
        middles = np.cumsum(durations) - 0.5 * durations
        least_s = self.options.goal_duration_s * (1 - 1e-9)
        return middles[durations >= least_s], float(durations.sum()) / 2

    def all_trials(self) -> tuple[Observations, Array]:
        """These trials as arrays, and the loads they were asked for [packet/s]."""
        trials = self.trials
        x = np.array([math.log(t.achieved_pps / self.reference_pps) for t in trials])
        sent = np.array([float(t.run.sent) for t in trials])
        lost = np.array([float(max(t.run.sent - t.run.received, 0)) for t in trials])
        return Observations(x, sent, lost), np.array([t.offered_pps for t in trials])

    def lowest_clean(self) -> float:
        """The lowest load at which a trial of any duration lost nothing, or that may be offered."""
        clean = [t.achieved_pps for t in self.session.trials if t.loss_ratio <= 0]
        return math.log(min(clean, default=self.session.min_load_pps) / self.reference_pps)

    def highest_forwarded(self, goal: Goal) -> float:
        """The highest forwarding rate of any trial, as the ln(load/reference) at which that rate
        leaves the goal's share of loss."""
        rate = max(t.achieved_pps * (1 - t.loss_ratio) for t in self.session.trials)
        return math.log(max(rate, 1.0) / self.reference_pps) + goal.loss_exponent

    def readings(self, goal: Goal) -> SearchReadings:
        """Each trial's reading of a goal's edge, whatever the law of the noise.

        Where the capacity has states, trials at one load lose either nothing or much, and the fit
        takes that for a steep curve: all versions then take throughput to be constant beyond
        saturation. Where the edge is hard half of them do, as states may not have shown; but none
        whose curve is flatter, as states do not look like that.
        """
        observations, offered = self.all_trials()
        usable = offered <= self.ceiling_pps
        posterior = self.posteriors[goal]
        single = model.readings(posterior, observations)
        edge, constant = sets_of(single.edge), self._forwarded(observations, goal)
        states = have_states(constant[usable], observations.x[usable], single.bound[usable])
        if states:
            edge[:] = constant
        elif not self.soft:
            replaced = ~sets_of(posterior.flatter())
            replaced[::2] = False
            edge[replaced] = constant
        time_s, _ = self.times_s()
        return SearchReadings(
            edge[:, usable],
            single.bound[usable],
            time_s[usable],
            self.highest_forwarded(goal),
            states,
        )

    def above_states_pps(self, goal: Goal) -> float | None:
        """Where the capacity has states: a load in slight overload in the highest of them, at which
        every trial tells its state and where that lies; else None."""
        readings = self.readings(goal)
        if not readings.states:
            return None
        highest = float(np.median(readings.value, axis=0).max())
        load_pps = self.load_pps(highest + self.step_above(readings))
        return load_pps if load_pps <= self.ceiling_pps else None

    def step_above(self, readings: SearchReadings) -> float:
        """How far to go above what was found: further for each trial that lost nothing up there."""
        tuning = self.options.tuning
        return tuning.climb * 2.0 ** min(bounds_above(readings) or 0, tuning.doublings)

    def _forwarded(self, observations: Observations, goal: Goal) -> Array:
        """Readings of a goal's edge for throughput that is constant beyond saturation."""
        z = model.loss_exponent(observations.lost, observations.sent)
        return observations.x - z + goal.loss_exponent

    def estimate(self, goal: Goal) -> EdgePosterior:
        """A goal's load by all trials so far."""
        window = self.options.tuning.window
        law, noise, blur, observations = self.law(goal)
        low, middle, high = (law.quantile(share) for share in (0.025, 0.5, 0.975))
        reach = window / 2 + 3 * blur
        near = (observations.x > middle - reach) & (observations.x < middle + max(reach, window))
        bad = observations.lost[near] > goal.loss_ratio * observations.sent[near]
        one_sided = bad.size >= 2 and (bad.all() or not bad.any())
        if goal.loss_ratio > 0:
            self.soft = self.posteriors[goal].soft() > 0.5
            self.flatter = bool(self.posteriors[goal].flatter().mean() > 0.5)
        self.estimates[goal] = estimate = EdgePosterior(
            goal,
            middle,
            low,
            high,
            noise,
            blur,
            soft=self.soft,
            flatter=self.flatter,
            counted=self._counts_losses(goal),
            trials=int(near.sum()),
            lowest_bad=float(observations.x[near].min()) if one_sided and bad.all() else None,
            highest_good=float(observations.x[near].max()) if one_sided and not bad.any() else None,
        )
        return estimate

    def law(self, goal: Goal, moves: int = 0) -> tuple[Law, float, float, Observations]:
        """A goal's law, the noise, the deviation of the load at which trials begin to miss the
        goal, and the trials that count."""
        least_blur = self.options.tuning.least_blur
        if self._counts_losses(goal):
            counts = self._lossless(goal)
            self.clump = counts.clump()
            return counts.law(moves), counts.sigma, counts.blur(), counts.observations
        posterior = self._posterior(goal)
        noise = max(posterior.noise(), least_blur)
        blur = noise
        if goal.loss_ratio == 0:
            self.clump = posterior.clump()
            blur = max(posterior.blur(), noise)
        return posterior.law(moves), noise, blur, posterior.observations

    def _between(self, low: float, high: float) -> Observations:
        observations, offered = self.all_trials()
        near = (observations.x >= low) & (observations.x <= high) & (offered <= self.ceiling_pps)
        return Observations(observations.x[near], observations.sent[near], observations.lost[near])

    def _scope(self, goal: Goal) -> model.Scope:
        tuning = self.options.tuning
        if goal.loss_ratio > 0:
            anchor = goal.loss_exponent
            high = self._reach(goal, anchor, anchor * tuning.high_share)
            return model.Scope(anchor, anchor * tuning.low_share, high)
        anchor = self._one_packet()
        high = self._reach(goal, anchor, tuning.hard)
        return model.Scope(anchor, 0.0, high, tuning.hard_powers, few=True)

    def _reach(self, goal: Goal, anchor: float, least: float) -> float:
        """The highest loss that the curve is fitted to: `least`, doubled until it covers the noise.

        It never falls again, as a new scope costs a new fit.
        """
        tuning = self.options.tuning
        target = anchor
        if goal in self.posteriors:
            target += tuning.noises * self.posteriors[goal].loss_noise()
        reach = max(least, self._reached.get(goal, 0.0))
        while reach < min(target, tuning.widest_reach):
            reach *= 2
        self._reached[goal] = reach
        return reach

    def _one_packet(self) -> float:
        """The loss ratio with which half of the goal's trials lose nothing."""
        return math.log(2) / (self.reference_pps * self.options.goal_duration_s)

    def _strictest(self) -> model.Posterior:
        """The posterior of the strictest goal that allows some loss."""
        goal = min((g for g in self.estimates if g.loss_ratio > 0), key=lambda g: g.loss_ratio)
        return self.posteriors[goal]

    def _few_lost(self) -> bool:
        """Whether trials have lost a few packets, as hardly any do where loss rises steeply."""
        tuning = self.options.tuning
        few = tuning.ndr_reach * self._strictest().clump() * self._one_packet()
        few = min(few, tuning.hard)
        return sum(0 < trial.loss_ratio < few for trial in self.trials) >= 2

    def _counts_losses(self, goal: Goal) -> bool:
        """Whether a goal is NDR, and loss rises smoothly."""
        return goal.loss_ratio == 0 and self.soft and self._few_lost()

    def _lossless(self, goal: Goal) -> lossless.LosslessPosterior:
        """NDR's posterior where loss rises smoothly."""
        options = self.options
        strictest = self._strictest()
        noise = max(strictest.noise(), options.tuning.least_blur)
        if self._counts is None:
            self._counts = lossless.LosslessPosterior(
                options.seed,
                packets=self.reference_pps * options.goal_duration_s,
                noise=noise,
                particles=options.particles,
                moves=options.moves,
            )
        self._counts.sigma = noise
        self._counts.log_clump = strictest.log_clump()
        around = self.estimates[goal].middle if goal in self.estimates else 0.0
        self._counts.update(self._between(-math.inf, max(around, 0.0) + options.tuning.far))
        return self._counts

    def _posterior(self, goal: Goal) -> model.Posterior:
        options, tuning = self.options, self.options.tuning
        scope = self._scope(goal)
        posterior = self.posteriors.get(goal)
        if posterior is None or posterior.scope != scope:
            posterior = self.posteriors[goal] = model.Posterior(
                options.seed,
                scope,
                particles=options.particles,
                moves=options.moves,
                spread=tuning.spread if goal.loss_ratio > 0 else tuning.ndr_spread,
                packets=self.reference_pps * options.goal_duration_s,
                lossless=goal.loss_ratio == 0,
            )
        previous = self.estimates.get(goal)
        low, high = -math.inf, tuning.far
        if previous is not None:
            reach = tuning.window + 6 * previous.noise + 3 * previous.half_width
            high = min(previous.middle + reach + tuning.far, 0.5)
            low = previous.middle - reach - tuning.far
        posterior.update(self._between(low, high))
        return posterior
