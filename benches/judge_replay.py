"""How little traffic a verdict takes: replays recorded experiments, and measures known systems.

    python benches/judge_replay.py [--data DIR] [--seeds 5]

Prints, from the published recordings (PASTRAMI's files; --data, or PLANEWISE_PASTRAMI_DATA):
the default verdict beside the paper's written rule; the sequential sweep against the verdict of
all recorded runs; what it gains over the same number of runs at every load.
Figures, no pass or fail. Systems whose truth is known: benches/adversaries.py --verdicts.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from planewise.judge.curve import Curve, LoadPoint, by_column
from planewise.judge.from_store import curve_from_trials
from planewise.judge.rules import apply_rule
from planewise.judge.verdict import Verdict, judge
from planewise.measure.search.sequential import SequentialPlan, sweep_until_verdict
from planewise.store import importers

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.replay import Replay


@dataclass(frozen=True)
class Experiment:
    """One recorded experiment and what all its runs say."""

    curve: Curve
    full: Verdict


@dataclass(frozen=True)
class Outcome:
    """One replayed sweep."""

    experiment: Experiment
    verdict: str
    runs_per_load: float
    open: str
    """Of an undecided verdict: which kind."""

    @property
    def structural(self) -> bool:
        """Undecided because of the recorded loads: no number of runs helps."""
        return self.open == "ladder too short"


def main() -> None:
    """Parses arguments and prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path(os.environ.get("PLANEWISE_SHARED", "../shared"))
    default = os.environ.get("PLANEWISE_PASTRAMI_DATA") or shared / "data" / "pastrami"
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--seeds", type=int, default=5, help="replays of each experiment")
    args = parser.parse_args()
    files = sorted(args.data.glob("*.txt"))
    if files:
        experiments = load(files)
        published(experiments)
        replayed(experiments, args.seeds)
        fixed(experiments, args.seeds)
    else:
        print(f"no recordings in {args.data}: name their folder with --data", file=sys.stderr)


def load(files: Sequence[Path]) -> list[Experiment]:
    """The experiments of `files`, judged by all their runs."""
    begin = time.process_time()
    experiments = []
    for file in files:
        for trials in importers.read(file):
            curve = curve_from_trials(trials)
            curve = Curve(file.name, curve.points, curve.source)
            experiments.append(Experiment(curve, judge(curve)))
    print(
        f"{len(experiments)} experiments read and judged with all their runs: "
        f"{time.process_time() - begin:.2f} s of CPU time"
    )
    return experiments


def published(experiments: Sequence[Experiment]) -> None:
    """The default verdict beside the paper's written rule."""
    table = Counter(
        (apply_rule("as-written", one.curve).good, one.full.verdict) for one in experiments
    )
    heading("All recorded runs: `planewise` beside the paper's written rule")
    print("as written    GOOD    BAD  UNDECIDED")
    for good, name in ((True, "GOOD"), (False, "BAD")):
        print(
            f"{name:10s} {table[good, 'GOOD']:7d} {table[good, 'BAD']:6d} "
            f"{table[good, 'UNDECIDED']:10d}"
        )
    for one in experiments:
        if one.full.verdict == "UNDECIDED":
            print(f"  UNDECIDED  {one.curve.name}\n             {one.full.reason}")


def replayed(experiments: Sequence[Experiment], seeds: int) -> None:
    """The sequential sweep against all recorded runs."""
    heading(f"Sequential sweep, default plan, {seeds} replays of each experiment")
    outcomes = replays(experiments, SequentialPlan(), seeds)
    print(HEAD)
    print(row("all", outcomes))
    print(row("all, in recorded order", replays(experiments, SequentialPlan(), seeds, False)))
    decided = [one for one in outcomes if one.experiment.full.verdict != "UNDECIDED"]
    print(row("all runs decide", decided))
    print(
        row(
            "all runs: ladder too short",
            [one for one in outcomes if one.experiment.full.open == "ladder too short"],
        )
    )
    print(
        row(
            "all runs: cannot tell",
            [one for one in outcomes if one.experiment.full.open not in ("", "ladder too short")],
        )
    )
    spent = np.array([one.runs_per_load for one in outcomes])
    print(
        f"runs a load: median {np.median(spent):.1f}, 90 % of sweeps up to "
        f"{np.quantile(spent, 0.9):.1f}, most {spent.max():.1f}; recorded: "
        f"{np.mean([one.curve.counts.mean() for one in experiments]):.0f}"
    )
    print(EXPLANATION)


def fixed(experiments: Sequence[Experiment], seeds: int) -> None:
    """The same number of runs at every load."""
    heading("The same number of runs at every load, for comparison")
    print(HEAD)
    for runs in (2, 3, 4, 5, 8, 12, 20):
        outcomes = []
        for one in experiments:
            for seed in range(seeds):
                verdict = judge(thinned(one.curve, runs, seed))
                outcomes.append(Outcome(one, verdict.verdict, runs, verdict.open))
        print(row(f"{runs} runs", outcomes))


def thinned(curve: Curve, runs: int, seed: int) -> Curve:
    """`curve` with that many of its runs at each load, drawn at random."""
    rng = np.random.default_rng(seed)
    points = []
    for point in curve.points:
        chosen = point.runs[rng.permutation(len(point.runs))[:runs]]
        points.append(LoadPoint(point.offered_pps, by_column(chosen.sent, chosen.received)))
    return Curve(curve.name, tuple(points))


def replays(
    experiments: Sequence[Experiment], plan: SequentialPlan, seeds: int, shuffled: bool = True
) -> list[Outcome]:
    """`seeds` replayed sweeps of each experiment."""
    outcomes = []
    for one in experiments:
        loads = [point.offered_pps for point in one.curve.points]
        for seed in range(seeds):
            result = sweep_until_verdict(
                Replay(one.curve, 1000 + seed, shuffled=shuffled),
                loads,
                duration_s=10,
                plan=plan,
                seed=seed,
            )
            outcomes.append(
                Outcome(
                    one, result.verdict.verdict, result.trials / len(loads), result.verdict.open
                )
            )
    return outcomes


HEAD = (
    f"{'':28s} sweeps  runs/load  undecided  (ladder)   agree  where both decide: agree  opposite"
)
EXPLANATION = """\
undecided: of all sweeps; (ladder): the part that is LADDER TOO SHORT, so that no
number of runs at these loads would decide. agree: of the decided sweeps, those whose
verdict is that of all runs, UNDECIDED of all runs counted as a disagreement; the last columns
leave those out."""


def row(name: str, outcomes: Sequence[Outcome]) -> str:
    """One line of a table."""
    if not outcomes:
        return f"{name:28s}      0"
    opposite = sum(
        {one.verdict, one.experiment.full.verdict} == {"GOOD", "BAD"} for one in outcomes
    )
    return (
        f"{name:28s} {len(outcomes):6d} {np.mean([one.runs_per_load for one in outcomes]):10.2f} "
        f"{share_undecided(outcomes):10.1%} {np.mean([one.structural for one in outcomes]):8.1%} "
        f"{percent(agree(outcomes)):>8s} {percent(agree(outcomes, strict=False)):>25s} "
        f"{opposite:9d}"
    )


def percent(share: float) -> str:
    """A share with two decimals; a dash where there is none."""
    return "–" if math.isnan(share) else f"{share:.2%}"


def agree(outcomes: Iterable[Outcome], *, strict: bool = True) -> float:
    """Share of decided sweeps with the verdict of all runs; not strict: where those decide."""
    decided = [
        one
        for one in outcomes
        if one.verdict != "UNDECIDED" and (strict or one.experiment.full.verdict != "UNDECIDED")
    ]
    if not decided:
        return math.nan
    return float(np.mean([one.verdict == one.experiment.full.verdict for one in decided]))


def share_undecided(outcomes: Iterable[Outcome], *, decidable: bool = False) -> float:
    """Share of undecided sweeps; `decidable`: of those that all runs decide."""
    counted = [
        one for one in outcomes if not decidable or one.experiment.full.verdict != "UNDECIDED"
    ]
    return float(np.mean([one.verdict == "UNDECIDED" for one in counted]))


def heading(text: str) -> None:
    """A heading with an empty line before it."""
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


if __name__ == "__main__":
    main()
