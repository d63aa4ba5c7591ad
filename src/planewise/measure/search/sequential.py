"""The sequential sweep: trials where they decide the verdict, until it is decided.

Knows a measurer, no testbed. `Planner` says what to measure next and when to stop; it is the
same for a testbed, a synthetic SUT and a replayed recording. `sweep_until_verdict` drives it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from planewise.errors import BadInputError
from planewise.judge import probability
from planewise.judge.curve import Bools, Curve, Ints, LoadPoint, Run, RunTable
from planewise.judge.probability import BAD, GOOD, OPEN
from planewise.judge.rules import ETA
from planewise.judge.verdict import Verdict, judge
from planewise.measure.search.measurer import Measurer

Stopped = Literal["decided", "ladder too short", "budget spent", "no more runs"]


@dataclass(frozen=True)
class SequentialPlan:
    """How a sequential sweep spends its trials. The defaults are chosen in benches/judge_replay."""

    plr: float = 0.005
    eta: float = ETA
    first_runs: int = 2
    """Runs at each load before the first look."""
    min_runs: int = 3
    """Runs at each load from the last one below the loss limit on, before it may stop."""
    batch: int = 3
    """Trials between two looks."""
    stop_at: float = 0.99
    """Probability at which it stops; higher than the verdict's, as it looks many times."""
    max_runs_per_load: int = 50
    max_mean_runs: float = 20.0
    """Budget: runs a load, on average over the ladder."""
    draws: int = 1000


@dataclass
class Planner:
    """What to measure next. State: the runs so far, by load."""

    loads_pps: tuple[float, ...]
    plan: SequentialPlan = field(default_factory=SequentialPlan)
    seed: int = 1

    def __post_init__(self) -> None:
        """BadInputError for a ladder of fewer than two loads or one that does not rise."""
        loads = np.asarray(self.loads_pps, dtype=np.float64)
        if loads.size < 2:
            raise BadInputError("a sweep needs at least two offered loads")
        if not (np.isfinite(loads).all() and loads[0] > 0 and (np.diff(loads) > 0).all()):
            raise BadInputError("the offered loads of a sweep must be positive and rise")
        self._rng = np.random.default_rng(self.seed)
        self._plr: list[list[float]] = [[] for _ in self.loads_pps]
        self._index = {load: index for index, load in enumerate(self.loads_pps)}
        self._full: set[int] = set()
        self._groups = probability.groups(loads)
        self._loads = loads
        self.stopped: Stopped | None = None

    def add(self, offered_pps: float, run: Run) -> None:
        """Takes the result of a trial. A run that the SUT did not limit counts for nothing."""
        if not run.limited:
            self._plr[self._index[offered_pps]].append(run.plr)

    def exhausted(self, offered_pps: float) -> None:
        """No more trials can be had at this load."""
        self._full.add(self._index[offered_pps])

    def next_loads(self) -> list[float]:
        """Offered loads of the next trials, in the order to run them; empty: stop.

        Afterwards `stopped` says why.
        """
        counts = np.array([len(runs) for runs in self._plr])
        free = np.array(
            [
                index not in self._full and counts[index] < self.plan.max_runs_per_load
                for index in range(counts.size)
            ]
        )
        first = np.repeat(
            np.arange(counts.size), np.where(free, np.maximum(0, self.plan.first_runs - counts), 0)
        )
        if first.size:
            return self._in_rounds(first)
        ladder, draws = self._look()
        shares = [draws.share(outcome) for outcome in (GOOD, BAD, OPEN)]
        if max(shares) >= self.plan.stop_at:
            missing = self._missing(ladder, counts, free)
            if missing.size == 0:
                self.stopped = "ladder too short" if shares[OPEN] == max(shares) else "decided"
                return []
            return self._in_rounds(missing)
        if not free.any():
            self.stopped = "no more runs"
            return []
        left = int(self.plan.max_mean_runs * counts.size - counts.sum())
        if left <= 0:
            self.stopped = "budget spent"
            return []
        return self._in_rounds(
            self._where_it_decides(ladder, draws, counts, free, min(left, self.plan.batch))
        )

    def _look(self) -> tuple[probability.Moments, probability.Draws]:
        offered, runs = [], []
        for group in self._groups:
            members = [np.array(values) for values in self._plr[group]]
            weights = [values.size for values in members]
            if sum(weights) == 0:
                continue
            offered.append(float(np.average(self._loads[group], weights=weights)))
            runs.append(np.concatenate(members))
        ladder = probability.moments_of(np.array(offered), runs)
        draws = probability.draw(
            ladder,
            plr=self.plan.plr,
            eta=self.plan.eta,
            draws=self.plan.draws,
            seed=int(self._rng.integers(2**63)),
        )
        return ladder, draws

    def _missing(self, ladder: probability.Moments, counts: Ints, free: Bools) -> Ints:
        """Loads (indices, repeated) that lack runs before it may stop."""
        over = np.flatnonzero(ladder.mean > self.plan.plr)
        start = ladder.offered_pps[max(0, int(over[0]) - 1)] if over.size else 0.0
        short = np.maximum(0, self.plan.min_runs - counts)
        relevant = free & (self._loads >= start * (1 - 1e-9))
        return np.repeat(np.arange(counts.size), np.where(relevant, short, 0))

    def _where_it_decides(
        self,
        ladder: probability.Moments,
        draws: probability.Draws,
        counts: Ints,
        free: Bools,
        trials: int,
    ) -> Ints:
        """Indices of the loads for the next batch: each trial goes where it tells most."""
        per_run = probability.sensitivity(draws, ladder) * (ladder.count + 1)
        at = np.clip(
            np.searchsorted(ladder.offered_pps, self._loads * (1 + 1e-9)) - 1,
            0,
            ladder.offered_pps.size - 1,
        )
        worth = np.where(free, per_run[at], 0.0)
        if worth.max() <= 0:
            worth = np.where(free, 1.0, 0.0)
        planned = counts.astype(np.float64)
        chosen = []
        for _ in range(trials):
            gain = np.where(
                planned < self.plan.max_runs_per_load, worth / ((planned + 1) * (planned + 1)), 0
            )
            if gain.max() <= 0:
                break
            index = int(np.argmax(gain))
            chosen.append(index)
            planned[index] += 1
        return np.array(chosen, dtype=np.int64)

    def _in_rounds(self, indices: Ints) -> list[float]:
        """The loads in random rounds: no load twice in a row where it can be helped."""
        values, repeats = np.unique(indices, return_counts=True)
        ordered: list[int] = []
        for round_ in range(int(repeats.max())):
            ordered.extend(self._rng.permutation(values[repeats > round_]).tolist())
        return [self.loads_pps[index] for index in ordered]


@dataclass(frozen=True)
class SweepResult:
    """What a sequential sweep found."""

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
    seed: int = 1,
    name: str = "sweep",
    on_trial: Callable[[float, Run], None] | None = None,
) -> SweepResult:
    """Measures until the verdict is decided or the budget spent; then judges what there is.

    `loads_pps` is the ladder, rising, within the measurer's limits. `on_trial` is told every
    finished trial (to store it, to show progress). Errors of the measurer pass through.
    """
    from planewise.measure.search.replay import ExhaustedError

    plan = plan or SequentialPlan()
    for load in (loads_pps[0], loads_pps[-1]) if loads_pps else ():
        if not measurer.min_load_pps <= load <= measurer.max_load_pps:
            raise BadInputError(
                f"an offered load of {load:.0f} pps cannot be measured: the generator offers "
                f"{measurer.min_load_pps:.0f} to {measurer.max_load_pps:.0f} pps"
            )
    planner = Planner(tuple(loads_pps), plan, seed)
    runs: dict[float, list[Run]] = {}
    trials, traffic_s = 0, 0.0
    while loads := planner.next_loads():
        for load in loads:
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
    curve = Curve(name, tuple(LoadPoint(load, RunTable.of(at)) for load, at in runs.items()))
    verdict = judge(
        curve,
        plr=plan.plr,
        eta=plan.eta,
    )
    return SweepResult(curve, verdict, planner.stopped or "budget spent", trials, traffic_s)
