"""The first part of the `planewise` search: locates the load at which loss begins.

Goes from the highest load down along the forwarding rates until the loss is small, approaches the
edge, and checks loads far below it. Where loss is not monotone, it goes down to the lower edge.
"""

from __future__ import annotations

import math

from planewise.measure.search.fits import Fits
from planewise.measure.search.goals import Goal, GoalResult, ViolatedAssumption
from planewise.units import percent_text

_STEPS = 40
"""Trials on the way down, at most: bisection reaches any load of twelve decades by then."""


def locate(fits: Fits, goals: tuple[Goal, ...]) -> tuple[GoalResult, ...] | None:
    """Sets the fits' reference to a load with a small loss.

    Returns results where every load of the range meets all goals, or none does.
    """
    session, options, tuning = fits.session, fits.options, fits.options.tuning
    low, high = session.min_load_pps, session.max_load_pps
    low_tried = False
    load = high
    for _ in range(_STEPS):
        trial = session.measure(load, options.probe_duration_s)
        high = min(high, session.max_load_pps)
        loss = trial.loss_ratio
        if loss <= min(goal.loss_ratio for goal in goals) and load >= high:
            return _above_range(fits, goals)
        if tuning.tolerated < loss < tuning.located_loss:
            fits.reference_pps = trial.offered_pps * (1 - loss)
            return None
        if loss > tuning.tolerated:
            high = min(high, load)
            rate = trial.achieved_pps * (1 - loss) * tuning.step
            load = rate if low * 1.02 < rate < high * 0.98 else math.sqrt(low * high)
        else:
            low, low_tried = max(low, load), True
            load = math.sqrt(low * high)
        if high / low < 1.05:
            if not low_tried and low <= session.min_load_pps:
                return _below_range(fits, goals)
            break
        load = session.clamp(load)
    fits.reference_pps = math.sqrt(low * high)
    return None


def approach(fits: Fits, goal: Goal) -> int:
    """Runs trials of the goal's duration until one loses a little, and moves the reference to its
    forwarding rate. Returns the number of trials.

    An edge located by short trials may be far off: a queue passes more in them.
    """
    session, options, tuning = fits.session, fits.options, fits.options.tuning
    climb = tuning.climb
    for step in range(tuning.approach):
        trial = session.measure(fits.reference_pps, options.goal_duration_s)
        if trial.loss_ratio > goal.loss_ratio:
            fits.reference_pps = session.clamp(trial.achieved_pps * (1 - trial.loss_ratio))
            if trial.loss_ratio < tuning.near_loss:
                return step + 1
        else:
            fits.reference_pps = session.clamp(trial.achieved_pps * (1 + climb))
            climb *= 2
    return tuning.approach


def check_below(fits: Fits, goals: tuple[Goal, ...], edge_pps: float) -> None:
    """Tries loads far below the edge, and moves the reference down to a loss that repeats."""
    session, options, tuning = fits.session, fits.options, fits.options.tuning
    tolerated = max(max(goal.loss_ratio for goal in goals), tuning.tolerated)
    clean = session.min_load_pps
    for share in tuning.checked:
        load = edge_pps * share
        if load <= session.min_load_pps:
            continue
        first = session.measure(load, options.probe_duration_s)
        if first.loss_ratio <= tolerated:
            clean = load
            continue
        if not _repeats(fits, load, tolerated):
            continue
        session.add_finding(
            ViolatedAssumption(
                "not-monotone",
                f"{percent_text(first.loss_ratio)} were lost at {load:.0f} packet/s, and less at "
                f"{edge_pps:.0f}: loss does not grow steadily with load; NDR and PDR are those "
                "below that load",
            )
        )
        fits.ceiling_pps = load
        fits.reference_pps = _bisect(fits, clean, load, tolerated)
        return


def below_range(goal: Goal, load_pps: float) -> GoalResult:
    """The result of a goal that even the lowest load misses."""
    return GoalResult(
        goal,
        "below-range",
        None,
        None,
        load_pps,
        interval="bracket",
        note="even the lowest load misses the goal",
    )


def _above_range(fits: Fits, goals: tuple[Goal, ...]) -> tuple[GoalResult, ...] | None:
    """Results where half of the trials at the highest load meet every goal; else None."""
    load = fits.session.max_load_pps
    trials = [fits.session.measure(load, fits.options.goal_duration_s) for _ in range(3)]
    if all(sum(t.loss_ratio <= goal.loss_ratio for t in trials) >= 2 for goal in goals):
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
            for goal in goals
        )
    fits.reference_pps = load
    return None


def _below_range(fits: Fits, goals: tuple[Goal, ...]) -> tuple[GoalResult, ...] | None:
    """Results where half of the trials at the lowest load miss every goal; else None."""
    load = fits.session.min_load_pps
    trials = [fits.session.measure(load, fits.options.goal_duration_s) for _ in range(3)]
    if all(sum(t.loss_ratio > goal.loss_ratio for t in trials) >= 2 for goal in goals):
        return tuple(below_range(goal, load) for goal in goals)
    fits.reference_pps = load
    return None


def _repeats(fits: Fits, load: float, tolerated: float) -> bool:
    """Whether a loss repeats: both of two more trials lose, or both of the next two.

    One bad trial in ten is taken for the system's by 1 % of repetitions, a load at which nine
    of ten lose for a good one by 4 %.
    """
    for _ in range(2):
        trials = [fits.session.measure(load, fits.options.probe_duration_s) for _ in range(2)]
        lossy = sum(trial.loss_ratio > tolerated for trial in trials)
        if lossy != 1:
            return lossy == 2
    return False


def _bisect(fits: Fits, low: float, high: float, tolerated: float) -> float:
    """A load near which loss first exceeds `tolerated`, between a good and a bad load."""
    while high / low > 1.08:
        middle = math.sqrt(low * high)
        loss = fits.session.measure(middle, fits.options.probe_duration_s).loss_ratio
        low, high = (low, middle) if loss > tolerated else (middle, high)
    return math.sqrt(low * high)
