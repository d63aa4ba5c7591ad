"""One goal in the `planewise` search: its trials, its bounds, and where its next trial goes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planewise.measure.search.belief import Belief
from planewise.measure.search.counts import (
    PRICE,
    Floats,
    Outcome,
    Side,
    between,
    bound,
    lacking,
    lead_for,
)
from planewise.measure.search.goals import Goal, SearchTrial

_WORTH = 5.0
"""Trials that halving an interval is worth."""
_MOST_TRIALS = 80
"""Trials of a goal, to narrow its interval …"""
_MOST_OPEN = 150
"""… and to get a bound at all."""
_PATIENT = 30
"""From so many trials on an open side goes where it probably gets its bound, near or not."""
_EXPLORED = 16
"""Trials that serve no side, at most."""
_VAGUE = 0.015
"""Deviation of the belief, beyond the noise, from which trials serve no side yet."""
_SURE = 0.85
"""A trial made for another goal serves a side that it probably confirms."""
_LEAPS = 2
"""After so many wrong trials in a row a side goes twice as far as it did during them."""
_LEAST_DRIFT = 0.1
_MOST_HALVED = 20
"""Trials for the estimate alone, at most, …"""
_UNSURE = 0.2
"""… where the interval is wider."""
_DOUBT = 1.0
"""They go to loads whose log-likelihood is at most so much below the highest."""
_TOUCH = 1e-6


@dataclass(frozen=True)
class Wish:
    """A trial that a goal would like to have."""

    at: float
    side: Side
    trials: float
    """How many like it its bound needs."""


class Edge:
    """The search for one goal's load; loads are ln(load / reference)."""

    def __init__(
        self,
        goal: Goal,
        guess: float,
        low: float,
        high: float,
        *,
        packets: float,
        half_width: float,
        confidence: float,
    ) -> None:
        self.goal = goal
        self.low, self.high = low, high
        self.outcomes: list[Outcome] = []
        self.bounds: tuple[float | None, float | None] = (None, None)
        """Lower and upper bound; None where there is none yet."""
        self.spent = 0
        self.explored = 0
        self.halved = 0
        self.is_settled = False
        """Whether the bounds stay as they are."""
        self.belief = Belief(goal.loss_exponent, guess + goal.loss_exponent, low, high, packets)
        self._half, self._lead = half_width, lead_for(confidence)

    def add(self, trial: SearchTrial, at: float, side: Side, meant: float = -math.inf) -> None:
        """Takes a trial in, at the load that was really sent. A short one must have failed."""
        excess = -math.log1p(-min(trial.loss_ratio, 0.999)) * min(trial.duration_s, 1.0)
        if abs(at - meant) < 2e-6:  # the generator sends whole packets
            at = meant
        passed = trial.loss_ratio <= self.goal.loss_ratio
        self.outcomes.append(Outcome(at, passed, side, excess, meant))
        if side:
            self.bounds = (
                bound(self.outcomes, 1, self._lead),
                bound(self.outcomes, -1, self._lead),
            )

    def below_range(self) -> bool:
        """Whether the lowest load is shown to miss the goal."""
        high = self.bounds[1]
        return high is not None and high <= self.low + _TOUCH

    def above_range(self) -> bool:
        """Whether the highest load is shown to meet the goal."""
        low = self.bounds[0]
        return low is not None and low >= self.high - _TOUCH

    def side_at(self, at: float) -> Side:
        """The side that a trial at this load serves when another goal asked for it."""
        fails = float(self.belief.fails(np.array([at]), self.outcomes)[0])
        return -1 if fails >= _SURE else 1 if fails <= 1 - _SURE else 0

    def wishes(self) -> list[Wish]:
        """The next trial of each side that wants one, or one that serves none; none: done."""
        low, high = self.bounds
        width = high - low if low is not None and high is not None else math.inf
        if self.below_range() or self.above_range() or width <= 2 * self._half + 1e-9:
            self.is_settled = True
            return []
        if not self.is_settled:
            self.belief.update(self.outcomes)
            if wanted := self._for_bounds(low, high):
                return wanted
            self.is_settled = True
        least, most = self._middle(_DOUBT)
        is_wide = _UNSURE < width < math.inf
        if not is_wide or self.halved >= _MOST_HALVED or most - least <= 2 * self._half:
            return []
        return [Wish((least + most) / 2, 0, 1.0)]

    def estimate(self) -> float:
        """The middle of where half of all trials pass, or the belief's median if it lies there."""
        least, most = self._middle(0.5)
        if self.halved:
            return (least + most) / 2
        self.belief.update(self.outcomes)  # it knows how much was lost
        return min(max(self.belief.median, least), most)

    def _middle(self, doubt: float) -> tuple[float, float]:
        """Loads of the range between which half of all trials pass, by their outcomes alone."""
        least, most = between(self.outcomes, doubt)
        return max(least, self.low), min(most, self.high)

    def _for_bounds(self, low: float | None, high: float | None) -> list[Wish]:
        is_open = low is None or high is None
        if self.spent >= (_MOST_OPEN if is_open else _MOST_TRIALS):
            return []
        if end := self._at_end(low, high):
            return [end]
        if self._vague():
            return [Wish(float(np.clip(self.belief.median, self.low, self.high)), 0, 1.0)]
        wanted: list[Wish] = []
        sides: tuple[Side, Side] = (1, -1)
        for side in sides:
            wish = self._place(side, low, high)
            is_open = (low if side > 0 else high) is None
            if is_open or (self.spent < _MOST_TRIALS and self._worthwhile(wish, low, high)):
                wanted.append(wish)
        return wanted

    def _vague(self) -> bool:
        return self.explored < _EXPLORED and self.belief.deviation > _VAGUE + self.belief.noise

    def _at_end(self, low: float | None, high: float | None) -> Wish | None:
        """A trial at an end of the range, if the load may lie beyond it."""
        ends: tuple[tuple[float, Side, float | None], ...]
        ends = ((self.low, -1, low), (self.high, 1, high))
        for end, side, have in ends:
            there = [o.passed == (side > 0) for o in self.outcomes if abs(o.at - end) < _TOUCH]
            right = sum(there)
            seen = right >= 2 and right > 2 * (len(there) - right)
            beyond = side * (self.belief.median - end) >= -self._half and have is None
            if seen or beyond:
                return Wish(end, side, 1.0)
        return None

    def _worthwhile(self, wish: Wish, low: float | None, high: float | None) -> bool:
        """Whether a nearer bound is worth its trials."""
        if low is None or high is None:
            return False
        was = high - low
        now = high - wish.at if wish.side > 0 else wish.at - low
        if now >= was:
            return False
        return wish.trials <= _WORTH * math.log2(was / max(now, 2 * self._half))

    def _place(self, side: Side, low: float | None, high: float | None) -> Wish:
        """The load whose bound costs least, in trials and in distance from the probable edge."""
        middle, half = self.belief.median, self._half
        steps = np.concatenate([np.linspace(0.1, 1, 6), 1.3 ** np.arange(1, 27)]) * half
        old = [o.at for o in self.outcomes if 0 < side * (middle - o.at) < 0.3]
        at = np.clip(np.concatenate([middle - side * steps, old]), self.low, self.high)
        for outcome in self.outcomes:  # loads that the generator does not have
            at = np.where((at > outcome.at) & (at <= outcome.meant), outcome.at, at)
        at = np.unique(at)
        trials = self._trials_needed(at, side)
        distance = np.maximum(side * (middle - at), 0)
        other = high if side > 0 else low
        allowed = half
        if other is not None:
            allowed = max(side * (middle - other) + 2 * half, 0.2 * half)
        patient = (low if side > 0 else high) is None and self.spent >= _PATIENT
        worth = _WORTH / 4 if patient else _WORTH
        cost = (
            trials + worth * np.log2(np.maximum(distance / allowed, 1)) + 0.02 * distance / allowed
        )
        best = int(np.argmin(cost))
        return Wish(float(at[best]), side, float(trials[best]))

    def _trials_needed(self, at: Floats, side: Side) -> Floats:
        """Trials until each load is a bound, as far as the belief knows."""
        fails = self.belief.fails(at, self.outcomes)
        right = 1 - fails if side > 0 else fails
        drift = right - PRICE * (1 - right)
        lack = np.maximum(lacking(self.outcomes, at, side, self._lead), 0)
        trials = np.where(drift > _LEAST_DRIFT, lack / np.maximum(drift, _LEAST_DRIFT), 1e6)
        beyond = self._leap(side)
        return trials if beyond is None else np.where(side * (beyond - at) >= -1e-9, trials, 1e6)

    def _leap(self, side: Side) -> float | None:
        """The nearest load allowed to a side whose last trials were all wrong."""
        wrong: list[float] = []
        for outcome in reversed([o for o in self.outcomes if o.side == side]):
            if outcome.right:
                break
            wrong.append(outcome.at)
        if len(wrong) < _LEAPS:
            return None
        far, near = (min(wrong), max(wrong)) if side > 0 else (max(wrong), min(wrong))
        leap = far - 2 * side * max(abs(far - near), 2 * self._half)
        return float(np.clip(leap, self.low, self.high))
