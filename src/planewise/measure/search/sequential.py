"""The sequential sweep: trials at the loads that decide the verdict, until it is decided.

A run of a design goes on by the same `Placement` in the time that its schedule leaves. It stops by
the counts of `counts`. At each load that decides, runs that agree with the verdict must lead those
that do not, as passes lead fails in a search; so looking after every batch makes no wrong verdict
more likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planewise.errors import BadInputError, PlanewiseError
from planewise.judge.curve import Curve, LoadPoint, Run
from planewise.judge.headroom import LIMIT as HEADROOM_LIMIT
from planewise.judge.verdict import Verdict, judge
from planewise.measure.search.counts import PRICE, lead_for
from planewise.measure.search.measurer import ExhaustedError, Loads, Measurer

Stopped = Literal[
    "decided",
    "ladder too short",
    "budget spent",
    "no more runs",
    "every load measured as often as requested",
]

_MOST_LIMITED = 2
"""Runs that the generator limited, and more than were not, after which a load is given up."""
_BATCH = 3
"""Trials between two looks where more runs are needed, at least."""
_MOST_EXTENSIONS = 12
"""Loads that may be added where the ladder begins or ends too early, or has gaps."""
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


@dataclass(frozen=True)
class SweepResult:
    """Result of a sequential sweep."""

    curve: Curve
    verdict: Verdict
    stopped: Stopped
    trials: int
    traffic_s: float
    """Sum of the trials' durations."""

    def to_json(self) -> dict[str, object]:
        """Verdict, rates and costs as a JSON object."""
        verdict, pdr = self.verdict, self.verdict.pdr
        return {
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "open": verdict.open,
            "headroom_low": verdict.headroom and verdict.headroom.low,
            "disturbed_at_most": verdict.stability.disturbed_at_most,
            "pdr_pps": pdr and pdr.pps,
            "pdr_low_pps": pdr and pdr.low_pps,
            "pdr_high_pps": pdr and pdr.high_pps,
            "ndr_pps": verdict.ndr and verdict.ndr.pps,
            "saturation_pps": verdict.saturation and verdict.saturation.offered_pps,
            "trials": self.trials,
            "traffic_s": self.traffic_s,
            "stopped": self.stopped,
            "warnings": [warning.text for warning in verdict.warnings],
        }


class NothingMeasuredError(PlanewiseError):
    """No trial of a sweep was limited by the system under test."""


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
    loads = np.asarray(loads_pps, dtype=np.float64)
    for load in loads:
        if not measurer.min_load_pps <= load <= measurer.max_load_pps:
            raise BadInputError(
                f"an offered load of {load:.0f} pps cannot be measured",
                remedy=f"the generator offers {measurer.min_load_pps:.0f} to "
                f"{measurer.max_load_pps:.0f} pps: choose the ladder within",
            )
    if loads.size < 2:
        raise BadInputError(
            f"a sweep needs at least two offered loads, not {loads.size}",
            remedy="give a ladder that begins below and ends above the expected saturation",
        )
    if not (np.diff(loads) > 0).all():
        raise BadInputError("the offered loads of a sweep must be positive and rise")
    sweep = Placement(measurer, loads.tolist(), plan or SequentialPlan(), extend, seed)
    while chosen := sweep.next_loads():
        for load in chosen:
            try:
                run = measurer.trial(load, duration_s)
            except ExhaustedError:
                sweep.exhausted.add(load)
                continue
            sweep.add(load, run)
            if on_trial is not None:
                on_trial(load, run)
    runs = [run for at_load in sweep.runs.values() for run in at_load]
    if all(run.limited for run in runs):
        raise NothingMeasuredError(
            f"none of {len(runs)} trials says anything about the system under test: "
            + (
                "the generator, the sink or the clock limited them all"
                if runs
                else "none could be run"
            ),
            remedy="offer lower loads, or measure the generator's own maximum first",
        )
    curve = sweep.curve(name)
    traffic_s = math.fsum(run.duration_s or duration_s for run in runs)
    return SweepResult(curve, judge(curve, plr=sweep.plan.plr), sweep.stopped, len(runs), traffic_s)


class Placement:
    """Chooses the loads to measure next, from the runs so far."""

    def __init__(
        self,
        within: Loads,
        loads: Sequence[float],
        plan: SequentialPlan,
        extend: bool,
        seed: int,
    ) -> None:
        self.plan = plan
        self.stopped: Stopped = "no more runs"
        """Why `next_loads` gave no more."""
        self.runs: dict[float, list[Run]] = {load: [] for load in loads}
        self.exhausted: set[float] = set()
        """Loads where further trials are pointless: the SUT was not what limited them."""
        self._within, self._extensions = within, _MOST_EXTENSIONS if extend else 0
        self._rng = np.random.default_rng(seed)

    def add(self, load: float, run: Run) -> None:
        """Takes a trial in. One that the SUT did not limit does not count."""
        self.runs[load].append(run)
        limited = sum(run.limited for run in self.runs[load])
        if limited >= max(_MOST_LIMITED, self._counted(load) + 1):
            self.exhausted.add(load)

    def curve(self, name: str) -> Curve:
        """All trials so far; there must be at least one."""
        return Curve(name, tuple(LoadPoint(load, runs) for load, runs in self.runs.items() if runs))

    def next_loads(self) -> list[float]:
        """Offered loads of the next trials, in the order to run them; empty: stop.

        Afterwards `stopped` says why.
        """
        plan, free = self.plan, [load for load in sorted(self.runs) if self._is_free(load)]
        done = sum(map(len, self.runs.values()))
        remaining = int(plan.max_mean_runs * len(self.runs)) - done
        first = {load: plan.first_runs - self._counted(load) for load in free}
        if remaining > 0 and max(first.values(), default=0) > 0:
            return self._in_rounds({load: n for load, n in first.items() if n > 0}, remaining)
        if not done or (curve := self.curve("sweep")).untested:
            return self._stop("no more runs")
        verdict = judge(curve, plr=plan.plr)
        if added := self._extended(verdict):
            return added
        if verdict.open == "ladder too short":
            return self._stop("ladder too short")
        undecided = verdict.verdict == "UNDECIDED"
        helpful = [load for load in verdict.next_loads if load in free] or free
        lacking = dict.fromkeys(helpful, 1) if undecided else self._lacking(curve.tested, verdict)
        if not lacking and not undecided:
            return self._stop("decided")
        if remaining <= 0:
            return self._stop("budget spent")
        wanted = {load: count for load, count in lacking.items() if load in free}
        if not wanted:
            return self._stop("no more runs")
        return self._in_rounds(wanted, min(remaining, max(_BATCH, len(wanted))))

    def _lacking(self, curve: Curve, verdict: Verdict) -> dict[float, int]:
        """How many more runs must agree with GOOD or BAD, by load that decides."""
        plr, over = self.plan.plr, curve.first_over(self.plan.plr)
        if over is None:
            return {}
        first, beyond = curve.points[over], curve.points[over:]
        passed = {point: point.offered_pps * (1 - point.plr_per_run) for point in beyond}
        if verdict.verdict == "GOOD" and verdict.pdr is not None:
            # PDR, and that no load beyond passes much more.
            most = (1 + HEADROOM_LIMIT) * verdict.pdr.pps * (1 - plr)
            agreeing = {point: rates < most for point, rates in passed.items()}
            before = curve.points[over - 1]
            agreeing[before] = before.plr_per_run <= plr
        else:
            # That PDR is passed, and that one load passes much more.
            least = (1 + HEADROOM_LIMIT) * first.forwarded_pps
            best = max(beyond, key=lambda point: point.forwarded_pps)
            agreeing = {first: first.plr_per_run > plr}
            if best.forwarded_pps > least:
                agreeing[best] = passed[best] > least
        lacking = {
            point.offered_pps: _LEAD - int(right.sum()) + PRICE * int((~right).sum())
            for point, right in agreeing.items()
        }
        return {load: lack for load, lack in lacking.items() if lack > 0}

    def _counted(self, load: float) -> int:
        return sum(not run.limited for run in self.runs[load])

    def _is_free(self, load: float) -> bool:
        return load not in self.exhausted and self._counted(load) < self.plan.max_runs_per_load

    def _stop(self, reason: Stopped) -> list[float]:
        self.stopped = reason
        return []

    def _extended(self, verdict: Verdict) -> list[float]:
        """Adds a load that the ladder lacks; none where it may not be extended there."""
        low, high = self._within.min_load_pps, self._within.max_load_pps
        for load in verdict.next_loads if self._extensions else ():
            if low <= load <= high and load not in self.runs:
                self.runs[load] = []
                self._extensions -= 1
                return [load] * self.plan.first_runs
        return []

    def _in_rounds(self, wanted: dict[float, int], most: int) -> list[float]:
        """The loads in rounds of random order, so that few follow themselves."""
        ordered: list[float] = []
        left = dict(wanted)
        while left and len(ordered) < most:
            ordered += self._rng.permutation(list(left)).tolist()
            left = {load: count - 1 for load, count in left.items() if count > 1}
        return ordered[:most]
