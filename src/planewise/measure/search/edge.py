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
    bound,
    lacking,
)
from planewise.measure.search.goals import Goal, SearchTrial

_WORTH = 2.5
"""Trials that halving an interval is worth."""
_EXACT = 6.0
"""Trials that the wanted precision is worth besides."""
_MOST_TRIALS = 50
"""Trials of a goal, to narrow its interval …"""
_MOST_OPEN = 80
"""… and to get a bound at all."""
_CENTRED = (16, 26)
"""Trials at the probable load, at most: before bounds are sought, and in all."""
_NEAR, _NEAR_FOR_NOISE = 0.003, 0.3
"""They end when the load is known to this deviation, or to this share of the noise."""
_SURE = 0.77
"""A trial made for another goal serves a side that it probably confirms."""
_LEAST_DRIFT = 0.1
_TOUCH = 1e-6


@dataclass(frozen=True)
class Wish:
    """A trial that a goal would like to have."""

    at: float
    side: Side
    trials: float = 1.0
    """How many like it its bound needs."""


class Edge:
    """The search for one goal's load; loads are ln(load / reference)."""

    def __init__(
        self, goal: Goal, guess: float, low: float, high: float, half_width: float, lead: int
    ) -> None:
        self.goal = goal
        self.low, self.high = low, high
        self.outcomes: list[Outcome] = []
        self.bounds: tuple[float | None, float | None] = (None, None)
        """Lower and upper bound; None where there is none yet."""
        self.is_settled = False
        """Whether the bounds stay as they are."""
        self.belief = Belief(guess, low, high)
        self._half, self._lead = half_width, lead
        self._spent = self._centred = 0

    def add(self, trial: SearchTrial, at: float, side: Side, meant: float = -math.inf) -> None:
        """Takes a trial in, at the load that was really sent. A short one must have failed."""
        if abs(at - meant) < 2e-6:  # the generator sends whole packets
            at = meant
        passed = trial.loss_ratio <= self.goal.loss_ratio
        self.outcomes.append(Outcome(at, passed, side, meant))
        if side:
            self.bounds = (
                bound(self.outcomes, 1, self._lead),
                bound(self.outcomes, -1, self._lead),
            )

    def grant(self, wish: Wish) -> None:
        """Counts a wish that is fulfilled."""
        self._spent += 1
        self._centred += wish.side == 0

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
        return 0 if self.is_settled else -1 if fails >= _SURE else 1 if fails <= 1 - _SURE else 0

    def wishes(self) -> list[Wish]:
        """The next trial of each side that wants one, or one that serves none; none: done."""
        low, high = self.bounds
        width = high - low if low is not None and high is not None else math.inf
        if self.below_range() or self.above_range() or width <= 2 * self._half + 1e-9:
            self.is_settled = True
            return []
        self.belief.update(self.outcomes)
        if not self.is_settled:
            if wanted := self._for_bounds(low, high):
                return wanted
            self.is_settled = True
        return self._centre(_CENTRED[1])

    def estimate(self) -> float:
        """The load at which half of all trials probably pass."""
        self.belief.update(self.outcomes)
        return self.belief.median

    def _centre(self, most: int) -> list[Wish]:
        """A trial at the probable load, while that is not known well."""
        belief = self.belief
        missed = [abs(o.at - o.meant) for o in self.outcomes if o.meant > -math.inf]
        near = max(_NEAR, _NEAR_FOR_NOISE * belief.noise, float(np.median(missed or [0.0])))
        if self._centred >= most or belief.deviation <= near:
            return []
        return [Wish(float(np.clip(belief.median, self.low, self.high)), 0)]

    def _for_bounds(self, low: float | None, high: float | None) -> list[Wish]:
        if self._spent >= (_MOST_OPEN if low is None or high is None else _MOST_TRIALS):
            return []
        wanted = self._at_end(low, high) or self._centre(_CENTRED[0])
        if wanted:
            return wanted
        sides: tuple[tuple[Side, float | None, float | None], ...]
        sides = ((1, low, high), (-1, high, low))
        for side, have, other in sides:
            wish = self._place(side, other)
            if have is None or (other is not None and self._worthwhile(wish, have, other)):
                wanted.append(wish)
        return wanted

    def _at_end(self, low: float | None, high: float | None) -> list[Wish]:
        """A trial at an end of the range, if the load may lie beyond it."""
        ends: tuple[tuple[float, Side, float | None], ...]
        ends = ((self.low, -1, low), (self.high, 1, high))
        for end, side, have in ends:
            there = [o.passed == (side > 0) for o in self.outcomes if abs(o.at - end) < _TOUCH]
            right = sum(there)
            seen = right >= 2 and right > 2 * (len(there) - right)
            beyond = side * (self.belief.median - end) >= -self._half and have is None
            if seen or beyond:
                return [Wish(end, side)]
        return []

    def _worthwhile(self, wish: Wish, have: float, other: float) -> bool:
        """Whether a nearer bound is worth its trials."""
        was, now = abs(other - have), wish.side * (other - wish.at)
        worth = _WORTH * math.log2(was / max(now, 2 * self._half))
        exact = abs(wish.at - self.belief.median) <= self._half + 1e-9
        return now < was and wish.trials <= worth + _EXACT * exact

    def _place(self, side: Side, other: float | None) -> Wish:
        """The load whose bound costs least, in trials and in distance from the probable edge."""
        middle, half = self.belief.median, self._half
        steps = np.concatenate([np.linspace(0.1, 1, 6), 1.3 ** np.arange(1, 27)]) * half
        old = [o.at for o in self.outcomes if 0 < side * (middle - o.at) < 0.3]
        at = np.clip(np.concatenate([middle - side * steps, old]), self.low, self.high)
        for outcome in self.outcomes:  # loads that the generator does not have
            at = np.where((at > outcome.at) & (at <= outcome.meant), outcome.at, at)
        trials = self._trials_needed(at, side)
        distance = np.maximum(side * (middle - at), 0)
        allowed = half
        if other is not None:
            allowed = max(half / 2, side * (middle - other) + 2 * half)
        cost = trials + _WORTH * np.log2(np.maximum(distance / allowed, 1))
        cost += _EXACT * (distance > allowed)
        best = int(np.argmin(cost + 0.02 * distance / allowed))
        return Wish(float(at[best]), side, float(trials[best]))

    def _trials_needed(self, at: Floats, side: Side) -> Floats:
        """Trials until each load is a bound, as far as the belief knows."""
        fails = self.belief.fails(at, self.outcomes)
        right = 1 - fails if side > 0 else fails
        drift = right - PRICE * (1 - right)
        lack = np.maximum(lacking(self.outcomes, at, side, self._lead), 0)
        return np.where(drift > _LEAST_DRIFT, lack / np.maximum(drift, _LEAST_DRIFT), 1e6)
