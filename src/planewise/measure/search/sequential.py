"""The sequential sweep: trials where they decide the verdict, until it is decided.

Knows a measurer, no testbed. `Planner` says what to measure next and when to stop; it is the
same for a testbed, a synthetic SUT and a replayed recording. `sweep_until_verdict` drives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from planewise.errors import BadInputError, PlanewiseError
from planewise.judge import curve_draws
from planewise.judge.curve import Bools, Curve, Floats, Ints, LoadPoint, Run, RunTable
from planewise.judge.verdict import DRAWS as JUDGE_DRAWS
from planewise.judge.verdict import (
    SURE,
    Decision,
    Verdict,
    decide,
    deciding_runs,
    judge,
    missing_loads,
    runs_for_good,
)
from planewise.measure.search.measurer import ExhaustedError, Measurer

Stopped = Literal[
    "decided", "borderline", "ladder too short", "drifting", "budget spent", "no more runs"
]

_MOST_LIMITED = 2
"""Runs that the generator limited, and more than were not, after which a load is given up."""


@dataclass(frozen=True)
class SequentialPlan:
    """How a sequential sweep spends its trials; benches/judge_replay compares other values."""

    plr: float = 0.005
    first_runs: int = 2
    """Runs at each load before the first look."""
    min_runs: int = 3
    """Runs at each load (of BAD, from the last one below the loss limit on) before it may stop."""
    batch: int = 3
    """Trials between two looks, at least; a sixteenth of those done when that is more."""
    stop_at: float = 0.99
    """Share of the draws at which it stops; higher than the verdict's, as it looks many times."""
    max_runs_per_load: int = 50
    max_mean_runs: float = 30.0
    """Budget: trials a load, on average over the ladder. GOOD takes 90 at the loads that decide."""
    max_traffic_s: float = math.inf
    """Budget: traffic time."""
    max_extensions: int = 12
    """Loads that may be added where the ladder begins or ends too early, or has gaps."""
    draws: int = 1000


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
        count = np.array([len(load.runs) for load in self._ladder])
        free = np.array(
            [
                not load.exhausted and len(load.runs) < self.plan.max_runs_per_load
                for load in self._ladder
            ]
        )
        remaining = int(self.plan.max_mean_runs * len(self._ladder)) - self._trials
        first = _repeated(np.where(free, np.maximum(0, self.plan.first_runs - count), 0))
        if first.size and remaining > 0:
            return self._in_rounds(first[:remaining])
        if not count.any():
            return self._stop("no more runs")
        ladder, draws, decision = self._look(self.plan.stop_at, self.plan.draws)
        if decision.open == "drift":
            return self._stop("drifting")
        if decision.word != "UNDECIDED" or decision.open in ("few runs", "borderline"):
            good = decision.open == "few runs" or decision.word == "GOOD"
            missing = self._missing(ladder, count, free, good=good)[: max(0, remaining)]
            if missing.size:
                return self._in_rounds(missing)
            # As the verdict will be made: where it would stay open, measuring goes on.
            if self._look()[2].word == decision.word and decision.open != "few runs":
                return self._stop("borderline" if decision.open else "decided")
        if decision.open == "ladder too short":
            if added := self._extended(ladder, draws):
                return [added] * self.plan.first_runs
            shares = draws.share(curve_draws.OPEN), draws.share(curve_draws.GOOD)
            if max(shares) >= self.plan.stop_at:
                return self._stop("ladder too short")
        if remaining <= 0:
            return self._stop("budget spent")
        if not free.any():
            return self._stop("no more runs")
        # The more runs there are, the less one more changes.
        batch = min(remaining, max(self.plan.batch, int(count.sum()) // 16))
        return self._in_rounds(self._where_it_decides(ladder, draws, count, free, batch))

    def _at(self, offered_pps: float) -> _Load:
        return next(load for load in self._ladder if load.offered_pps == offered_pps)

    def _stop(self, reason: Stopped) -> list[float]:
        self.stopped = reason
        return []

    def _look(
        self, sure: float = SURE, draws: int = JUDGE_DRAWS
    ) -> tuple[curve_draws.Moments, curve_draws.Draws, Decision]:
        """The judge's decision on the runs so far; with the defaults, exactly the verdict's."""
        curve = Curve(
            "sweep", tuple(LoadPoint(at.offered_pps, at.runs) for at in self._ladder if at.runs)
        )
        ladder = curve_draws.moments(curve)
        drawn = curve_draws.draw(ladder, plr=self.plan.plr, draws=draws, seed=1)
        drift = curve_draws.curve_drift(curve)
        return ladder, drawn, decide(ladder, drawn, self.plan.plr, drift, sure)

    def _extended(self, ladder: curve_draws.Moments, draws: curve_draws.Draws) -> float | None:
        """Adds a load that the ladder lacks; None where it may not be extended there."""
        if self._extensions == self.plan.max_extensions:
            return None
        load = float(f"{missing_loads(ladder, draws, self.plan.plr)[0]:.4g}")
        loads = [at.offered_pps for at in self._ladder]
        if not self._extend[0] <= load <= self._extend[1] or load in loads:
            return None
        self._ladder.insert(int(np.searchsorted(loads, load)), _Load(load))
        self._extensions += 1
        return load

    def _missing(
        self, moments: curve_draws.Moments, count: Ints, free: Bools, *, good: bool
    ) -> Ints:
        """Loads (indices, repeated) that lack runs before it may stop, at GOOD or otherwise."""
        loads = np.array([load.offered_pps for load in self._ladder])
        over = np.flatnonzero(moments.mean > self.plan.plr)
        start = moments.offered_pps[max(0, int(over[0]) - 1)] if over.size else 0.0
        relevant = loads >= start * (1 - 1e-9)
        short = np.where(free & (relevant | good), np.maximum(0, self.plan.min_runs - count), 0)
        if good:
            planned = count + short
            can = free & relevant
            enough = runs_for_good(deciding_runs(moments, self.plan.plr)[0])
            for _ in range(enough - int(planned[relevant].sum())):
                can &= planned < self.plan.max_runs_per_load
                if not can.any():
                    break
                fewest = int(np.argmin(np.where(can, planned, np.iinfo(np.int64).max)))
                planned[fewest] += 1
                short[fewest] += 1
        return _repeated(short)

    def _where_it_decides(
        self,
        moments: curve_draws.Moments,
        draws: curve_draws.Draws,
        count: Ints,
        free: Bools,
        trials: int,
    ) -> Ints:
        """Indices of the loads of the next batch, by what a trial there tells."""
        loads = np.array([load.offered_pps for load in self._ladder])
        group = np.searchsorted(moments.offered_pps, loads * (1 + 1e-9)) - 1
        group = np.clip(group, 0, moments.offered_pps.size - 1)
        worth = (curve_draws.sensitivity(draws, moments) * (moments.count + 1))[group]
        worth = np.where(free, worth, 0.0)
        if worth.max() <= 0:
            worth = free.astype(np.float64)
        planned = count.astype(np.float64)
        chosen = []
        for _ in range(trials):
            gain: Floats = worth / (planned + 1) ** 2
            gain[planned >= self.plan.max_runs_per_load] = 0
            if gain.max() <= 0:
                break
            index = int(np.argmax(gain))
            chosen.append(index)
            planned[index] += 1
        return np.array(chosen, dtype=np.int64)

    def _in_rounds(self, indices: Ints) -> list[float]:
        """The loads in rounds of random order, so that few follow themselves."""
        values, repeats = np.unique(indices, return_counts=True)
        ordered: list[int] = []
        for round_ in range(int(repeats.max())):
            ordered.extend(self._rng.permutation(values[repeats > round_]).tolist())
        return [self._ladder[index].offered_pps for index in ordered]


def _repeated(times: Ints) -> Ints:
    return np.repeat(np.arange(times.size), times)


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
                else "none could be had"
            ),
            remedy="offer lower loads, or measure the generator's own maximum first",
        )
    curve = Curve(name, tuple(LoadPoint(load, RunTable.of(at)) for load, at in runs.items()))
    verdict = judge(curve, plr=plan.plr)
    return SweepResult(curve, verdict, planner.stopped or "budget spent", trials, traffic_s)
