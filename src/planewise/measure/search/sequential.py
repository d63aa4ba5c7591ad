"""The sequential sweep: trials at the loads that decide the verdict, until it is decided.

It stops by the counts of `counts`. At each load that decides, runs that agree with the verdict must
lead those that do not, as passes lead fails in a search; so looking after every batch makes no
wrong verdict more likely. `Planner` says what to measure next and when to stop; it is the same for
a testbed, a synthetic system and a replayed recording. `sweep_until_verdict` drives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from planewise.errors import BadInputError, PlanewiseError
from planewise.judge.curve import Curve, LoadPoint, Run, RunTable
from planewise.judge.headroom import LIMIT as HEADROOM_LIMIT
from planewise.judge.verdict import Verdict, judge
from planewise.measure.search.counts import PRICE, lead_for
from planewise.measure.search.measurer import ExhaustedError, Measurer

Stopped = Literal["decided", "ladder too short", "budget spent", "no more runs"]

_MOST_LIMITED = 2
"""Runs that the generator limited, and more than were not, after which a load is given up."""
_BATCH = 3
"""Trials between two looks where more runs are needed, at least."""
_LEAD = lead_for(0.95)


@dataclass(frozen=True)
class SequentialPlan:
    """How a sequential sweep spends its trials."""

    plr: float = 0.005
    first_runs: int = 2
    """Runs at each load before the first look."""
    max_runs_per_load: int = 50
    max_mean_runs: float = 30.0
    """Budget: trials a load, on average over the ladder."""
    max_traffic_s: float = math.inf
    """Budget: traffic time."""
    max_extensions: int = 12
    """Loads that may be added where the ladder begins or ends too early, or has gaps."""


@dataclass
class _Load:
    """One load of the ladder as it fills."""

    offered_pps: float
    runs: list[Run] = field(default_factory=list)
    """Those that the SUT limited."""
    limited: int = 0
    exhausted: bool = False


class NothingMeasuredError(PlanewiseError):
    """No trial of a sweep was limited by the system under test."""


class Planner:
    """Chooses the loads to measure next, from the runs so far."""

    def __init__(
        self,
        loads_pps: Sequence[float],
        plan: SequentialPlan | None = None,
        *,
        extend_from_pps: float = math.inf,
        extend_to_pps: float = 0.0,
        seed: int = 1,
    ) -> None:
        """`loads_pps` rise; the ladder may be extended down and up to the given loads.

        BadInputError for fewer than two loads, or loads that do not rise.
        """
        loads = np.asarray(loads_pps, dtype=np.float64)
        if loads.size < 2:
            raise BadInputError(
                f"a sweep needs at least two offered loads, not {loads.size}",
                remedy="give a ladder that begins below and ends above the expected saturation",
            )
        if not (np.isfinite(loads).all() and loads[0] > 0 and (np.diff(loads) > 0).all()):
            raise BadInputError("the offered loads of a sweep must be positive and rise")
        self.plan = plan or SequentialPlan()
        self.stopped: Stopped | None = None
        """Why `next_loads` gave no more."""
        self._ladder = [_Load(float(load)) for load in loads]
        self._extend = (extend_from_pps, extend_to_pps)
        self._extensions = 0
        self._trials = 0
        self._rng = np.random.default_rng(seed)

    def add(self, offered_pps: float, run: Run) -> None:
        """Adds the result of a trial. A run that the SUT did not limit does not count."""
        load = self._at(offered_pps)
        if run.limited:
            load.limited += 1
            if load.limited >= _MOST_LIMITED and load.limited > len(load.runs):
                load.exhausted = True
        else:
            load.runs.append(run)
        self._trials += 1

    def exhausted(self, offered_pps: float) -> None:
        """Marks a load at which no more trials can be had."""
        self._at(offered_pps).exhausted = True

    def next_loads(self) -> list[float]:
        """Offered loads of the next trials, in the order to run them; empty: stop.

        Afterwards `stopped` says why.
        """
        remaining = int(self.plan.max_mean_runs * len(self._ladder)) - self._trials
        first = {
            load.offered_pps: self.plan.first_runs - len(load.runs)
            for load in self._ladder
            if self._is_free(load) and len(load.runs) < self.plan.first_runs
        }
        if first and remaining > 0:
            return self._in_rounds(first, remaining)
        measured = tuple(LoadPoint(at.offered_pps, at.runs) for at in self._ladder if at.runs)
        if not measured:
            return self._stop("no more runs")
        curve = Curve("sweep", measured)
        verdict = judge(curve, plr=self.plan.plr)
        if verdict.open == "ladder too short":
            added = self._extended(verdict)
            return [added] * self.plan.first_runs if added else self._stop("ladder too short")
        if verdict.verdict == "UNDECIDED":
            lacking = dict.fromkeys(verdict.next_loads, 1)
        else:
            lacking = self._lacking(curve, verdict)
            if not lacking:
                return self._stop("decided")
        wanted = {load: count for load, count in lacking.items() if self._is_free(self._at(load))}
        if remaining <= 0:
            return self._stop("budget spent")
        if not wanted and verdict.verdict == "UNDECIDED":
            free = [load.offered_pps for load in self._ladder if self._is_free(load)]
            wanted = dict.fromkeys(free, 1)
        if not wanted:
            return self._stop("no more runs")
        return self._in_rounds(wanted, min(remaining, max(_BATCH, len(wanted))))

    def _lacking(self, curve: Curve, verdict: Verdict) -> dict[float, int]:
        """How many more runs must agree with GOOD or BAD, by load that decides."""
        plr, over = self.plan.plr, curve.first_over(self.plan.plr)
        if over is None:
            return {}
        first, agreeing = curve.points[over], dict[LoadPoint, int]()
        if verdict.verdict == "GOOD" and verdict.pdr is not None:
            # PDR, and that no load beyond passes much more.
            most = (1 + HEADROOM_LIMIT) * verdict.pdr.pps * (1 - plr)
            for point in curve.points[over:]:
                agreeing[point] = int((point.offered_pps * (1 - point.plr_per_run) < most).sum())
            before = curve.points[over - 1]
            agreeing[before] = int((before.plr_per_run <= plr).sum())
        else:
            # That PDR is passed, and that one load passes much more.
            agreeing[first] = int((first.plr_per_run > plr).sum())
            least = (1 + HEADROOM_LIMIT) * first.forwarded_pps
            best = max(curve.points[over:], key=lambda point: point.forwarded_pps)
            if best.forwarded_pps > least:
                passed = best.offered_pps * (1 - best.plr_per_run)
                agreeing[best] = int((passed > least).sum())
        lacking = {}
        for point, right in agreeing.items():
            lack = _LEAD - (right - PRICE * (point.count - right))
            if lack > 0:
                lacking[point.offered_pps] = lack
        return lacking

    def _is_free(self, load: _Load) -> bool:
        return not load.exhausted and len(load.runs) < self.plan.max_runs_per_load

    def _at(self, offered_pps: float) -> _Load:
        return next(load for load in self._ladder if load.offered_pps == offered_pps)

    def _stop(self, reason: Stopped) -> list[float]:
        self.stopped = reason
        return []

    def _extended(self, verdict: Verdict) -> float | None:
        """Adds a load that the ladder lacks; None where it may not be extended there."""
        loads = [at.offered_pps for at in self._ladder]
        for load in verdict.next_loads:
            allowed = self._extend[0] <= load <= self._extend[1] and load not in loads
            if allowed and self._extensions < self.plan.max_extensions:
                self._ladder.insert(int(np.searchsorted(loads, load)), _Load(load))
                self._extensions += 1
                return load
        return None

    def _in_rounds(self, wanted: dict[float, int], most: int) -> list[float]:
        """The loads in rounds of random order, so that few follow themselves."""
        ordered: list[float] = []
        left = dict(wanted)
        while left and len(ordered) < most:
            ordered += self._rng.permutation(list(left)).tolist()
            left = {load: count - 1 for load, count in left.items() if count > 1}
        return ordered[:most]


@dataclass(frozen=True)
class SweepResult:
    """Result of a sequential sweep."""

    curve: Curve
    verdict: Verdict
    stopped: Stopped
    trials: int
    traffic_s: float
    """Sum of the trials' durations."""


def sweep_until_verdict(
    measurer: Measurer,
    loads_pps: Sequence[float],
    *,
    duration_s: float,
    plan: SequentialPlan | None = None,
    extend: bool = False,
    seed: int = 1,
    name: str = "sweep",
    on_trial: Callable[[float, Run], None] | None = None,
) -> SweepResult:
    """Measures until the verdict is decided or the budget spent; then judges what there is.

    `loads_pps` is the ladder, rising, within the measurer's limits; with `extend` loads are added
    where it ends too early, within the measurer's range. `on_trial` is called after each trial
    (to store it, to show progress). Errors of the measurer pass through; BadInputError for a
    ladder that cannot be measured, NothingMeasuredError where the SUT limited no trial.
    """
    plan = plan or SequentialPlan()
    for load in loads_pps:
        if not measurer.min_load_pps <= load <= measurer.max_load_pps:
            raise BadInputError(
                f"an offered load of {load:.0f} pps cannot be measured",
                remedy=f"the generator offers {measurer.min_load_pps:.0f} to "
                f"{measurer.max_load_pps:.0f} pps: choose the ladder within",
            )
    planner = Planner(
        loads_pps,
        plan,
        extend_from_pps=measurer.min_load_pps if extend else math.inf,
        extend_to_pps=measurer.max_load_pps if extend else 0.0,
        seed=seed,
    )
    runs: dict[float, list[Run]] = {}
    trials, traffic_s = 0, 0.0
    while loads := planner.next_loads():
        for load in loads:
            if traffic_s + duration_s > plan.max_traffic_s and trials:
                break
            try:
                run = measurer.trial(load, duration_s)
            except ExhaustedError:
                planner.exhausted(load)
                continue
            trials += 1
            traffic_s += run.duration_s or duration_s
            planner.add(load, run)
            runs.setdefault(load, []).append(run)
            if on_trial is not None:
                on_trial(load, run)
        else:
            continue
        break
    if not any(not run.limited for at_load in runs.values() for run in at_load):
        raise NothingMeasuredError(
            f"none of {trials} trials says anything about the system under test: "
            + (
                "the generator, the sink or the clock limited them all"
                if trials
                else "none could be run"
            ),
            remedy="offer lower loads, or measure the generator's own maximum first",
        )
    curve = Curve(name, tuple(LoadPoint(load, RunTable.of(at)) for load, at in runs.items()))
    verdict = judge(curve, plr=plan.plr)
    return SweepResult(curve, verdict, planner.stopped or "budget spent", trials, traffic_s)
