"""How little traffic a verdict takes: replays recorded experiments, and measures known systems.

    python benches/judge_replay.py [--data DIR] [--seeds 5] [--synthetic 20]

Prints, from the published recordings (PASTRAMI's files; --data, or PLANEWISE_PASTRAMI_DATA):
the default verdict beside the paper's written rule; the sequential sweep against the verdict of
all recorded runs; what it gains over the same number of runs at every load; the trade-off between
runs and certainty; whether a plan chosen on one half of the configurations holds on the other.
And on synthetic systems with known truth: how often a verdict is false. Figures, no pass or fail.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from planewise.judge import synthetic
from planewise.judge.curve import Curve, LoadPoint, RunTable
from planewise.judge.from_store import curve_from_trials
from planewise.judge.rules import apply_rule
from planewise.judge.verdict import Verdict, judge
from planewise.measure.search.replay import Replay
from planewise.measure.search.sequential import SequentialPlan, sweep_until_verdict
from planewise.store import importers

STOPS = (0.95, 0.975, 0.99, 0.995, 0.999)
BUDGETS = (4.0, 6.0, 8.0, 12.0, 20.0, 30.0)


@dataclass(frozen=True)
class Experiment:
    """One recorded experiment and what all its runs say."""

    curve: Curve
    full: Verdict

    @property
    def family(self) -> str:
        """The configuration without its repetition: halves must not share one."""
        return re.sub(r"(_\d(nd|rd|th)_exec.*|_date_.*|\.txt$)", "", self.curve.name)


@dataclass(frozen=True)
class Outcome:
    """One replayed sweep."""

    experiment: Experiment
    verdict: str
    runs_per_load: float
    stopped: str

    @property
    def structural(self) -> bool:
        """Undecided because the recorded ladder ends too early: no number of runs helps."""
        return self.stopped == "ladder too short"


def main() -> None:
    """Parses arguments and prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shared = Path(os.environ.get("PLANEWISE_SHARED", "../shared"))
    default = os.environ.get("PLANEWISE_PASTRAMI_DATA") or shared / "data" / "pastrami"
    parser.add_argument("--data", type=Path, default=Path(default))
    parser.add_argument("--seeds", type=int, default=5, help="replays of each experiment")
    parser.add_argument("--synthetic", type=int, default=20, help="systems a kind and noise level")
    args = parser.parse_args()
    files = sorted(args.data.glob("*.txt"))
    if files:
        experiments = load(files)
        published(experiments)
        replayed(experiments, args.seeds)
        fixed(experiments, args.seeds)
        trade_off(experiments, max(1, args.seeds // 3))
        halves(experiments, max(1, args.seeds // 3))
    else:
        print(f"no recordings in {args.data}: name their folder with --data", file=sys.stderr)
    if args.synthetic:
        known_truth(args.synthetic)


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
            [one for one in outcomes if one.experiment.full.probability_open > 0.5],
        )
    )
    print(
        row(
            "all runs: cannot tell",
            [
                one
                for one in outcomes
                if one.experiment.full.verdict == "UNDECIDED"
                and one.experiment.full.probability_open <= 0.5
            ],
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
                short = verdict.verdict == "UNDECIDED" and verdict.probability_open > 0.5
                outcomes.append(
                    Outcome(one, verdict.verdict, runs, "ladder too short" if short else "")
                )
        print(row(f"{runs} runs", outcomes))


def thinned(curve: Curve, runs: int, seed: int) -> Curve:
    """`curve` with that many of its runs at each load, drawn at random."""
    rng = np.random.default_rng(seed)
    points = []
    for point in curve.points:
        table = RunTable.of(point.runs)
        chosen = rng.permutation(len(table))[:runs]
        points.append(
            LoadPoint(point.offered_pps, RunTable(table.sent[chosen], table.received[chosen]))
        )
    return Curve(curve.name, tuple(points))


def trade_off(experiments: Sequence[Experiment], seeds: int) -> None:
    """Certainty against traffic."""
    heading(f"Trade-off: certainty at which it stops, and budget ({seeds} replays each)")
    print(HEAD)
    for stop in STOPS:
        plan = replace(SequentialPlan(), stop_at=stop)
        print(row(f"stop at {stop:.1%}, budget 20", replays(experiments, plan, seeds)))
    for budget in BUDGETS:
        plan = replace(SequentialPlan(), max_mean_runs=budget)
        print(row(f"stop at 99.0%, budget {budget:.0f}", replays(experiments, plan, seeds)))


def halves(experiments: Sequence[Experiment], seeds: int) -> None:
    """Chooses the plan on half of the configurations, and looks at the other half."""
    heading("A plan chosen on half of the configurations, applied to the other half")
    by_stop = {
        stop: replays(experiments, replace(SequentialPlan(), stop_at=stop), seeds) for stop in STOPS
    }
    families = sorted({one.family for one in experiments})
    agreement, undecided, spent, chosen = [], [], [], Counter[float]()
    for split in range(20):
        rng = np.random.default_rng(split)
        train = set(rng.permutation(families)[: len(families) // 2].tolist())

        def side(stop: float, inside: bool, train: set[str] = train) -> list[Outcome]:
            return [one for one in by_stop[stop] if (one.experiment.family in train) == inside]

        # The cheapest that meets the aims on the half that may be looked at.
        good = [
            stop
            for stop in STOPS
            if agree(side(stop, True), strict=False) >= 0.98
            and share_undecided(side(stop, True), decidable=True) <= 0.05
        ]
        stop = min(good) if good else max(STOPS)
        chosen[stop] += 1
        held_out = side(stop, False)
        agreement.append(agree(held_out, strict=False))
        undecided.append(share_undecided(held_out, decidable=True))
        spent.append(float(np.mean([one.runs_per_load for one in held_out])))
    picks = ", ".join(f"{stop:.1%} {count}x" for stop, count in sorted(chosen.items()))
    print(f"20 splits by configuration; stop chosen: {picks}")
    print(
        f"held-out half, where all runs decide: agreement {np.mean(agreement):.2%} (worst split "
        f"{min(agreement):.2%}), undecided {np.mean(undecided):.1%} (worst {max(undecided):.1%}); "
        f"runs a load {np.mean(spent):.1f}"
    )


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
                Outcome(one, result.verdict.verdict, result.trials / len(loads), result.stopped)
            )
    return outcomes


HEAD = (
    f"{'':28s} sweeps  runs/load  undecided  (ladder)   agree  where both decide: agree  opposite"
)
EXPLANATION = """\
undecided: of all sweeps; (ladder): the part where the recorded ladder ends before saturation
could be seen, so that no number of runs would decide. agree: of the decided sweeps, those whose
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


def known_truth(systems: int) -> None:
    """False verdicts on systems whose truth is known: sequential, and 10 runs a load."""
    heading(f"Synthetic systems with known truth, {systems} a line: verdict by truth")
    print(
        "truth: the written rule on the exact mean losses at the ladder's loads. Ladders of 5 to "
        "17 % of\nsaturation a step, begun at random; shapes at random; trials of 10 s."
    )
    print(
        f"{'':22s} {'sequential':^42s}   {'10 runs at every load':^34s}\n"
        f"{'system':15s} noise  true GOOD: G   B   U  true BAD: G   B   U  runs"
        f"  true GOOD: G   B   U  true BAD: G   B   U"
    )
    totals: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    said: list[tuple[float, bool]] = []
    covered: list[bool] = []
    for kind in synthetic.kinds():
        for noise in synthetic.NOISE_LEVELS:
            tables = {"sequential": Counter[tuple[str, str]](), "fixed": Counter()}
            spent = []
            for index in range(systems):
                sut, loads = system(kind, noise, index)
                simulation = sut.start(index, max_load_pps=1e7)
                result = sweep_until_verdict(simulation, loads, duration_s=10, seed=index)
                spent.append(result.trials / len(loads))
                truth = sut.verdict(loads, elapsed_s=simulation.elapsed_s / 2)
                tables["sequential"][truth, result.verdict.verdict] += 1
                simulation = sut.start(index + 10**6, max_load_pps=1e7)
                curve = simulation.sweep(loads, runs=10, duration_s=10)
                truth = sut.verdict(loads, elapsed_s=simulation.elapsed_s / 2)
                verdict = judge(curve)
                tables["fixed"][truth, verdict.verdict] += 1
                if kind != "drifting" and verdict.probability_open < 0.05:
                    said.append((verdict.probability_good, truth == "GOOD"))
                crossing = sut.truth(max_load_pps=loads[-1]).expected_pdr_pps
                if kind != "drifting" and verdict.pdr is not None and crossing is not None:
                    covered.append(verdict.pdr.low_pps <= crossing <= verdict.pdr.high_pps)
            for name, table in tables.items():
                totals[name] += table
            print(
                f"{kind:15s} {noise:5.0%}  {cells(tables['sequential'])} {np.mean(spent):5.1f}  "
                f"{cells(tables['fixed'])}",
                flush=True,
            )
    for name, table in totals.items():
        bad = sum(count for (truth, _), count in table.items() if truth == "BAD")
        good = sum(count for (truth, _), count in table.items() if truth == "GOOD")
        print(
            f"{name}: false GOOD {table['BAD', 'GOOD']} of {bad} truly BAD "
            f"({table['BAD', 'GOOD'] / max(1, bad):.2%}), false BAD {table['GOOD', 'BAD']} of "
            f"{good} truly GOOD ({table['GOOD', 'BAD'] / max(1, good):.2%})"
        )
    print(
        f"10 runs at every load, without drifting systems: the interval of PDR holds the load at "
        f"which the\nmean loss exceeds 0.5 % in {np.mean(covered):.1%} of {len(covered)} sweeps"
    )
    print("and of the sweeps whose probability of GOOD was said to be so, so many truly are GOOD:")
    edges = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
    for low, high in itertools.pairwise(edges):
        inside = [
            (probability, good)
            for probability, good in said
            if low <= probability < high or (high == 1.0 and probability == 1.0)
        ]
        if inside:
            print(
                f"  said {low:4.0%} to {high:4.0%} (mean {np.mean([p for p, _ in inside]):6.1%}): "
                f"{np.mean([good for _, good in inside]):6.1%} of {len(inside)}"
            )


def system(kind: str, noise: float, index: int) -> tuple[synthetic.SyntheticSut, list[float]]:
    """A system of random shape and a ladder with a random step and beginning."""
    rng = np.random.default_rng([index, sum(kind.encode()), round(noise * 100)])
    sut = synthetic.make(kind, noise_sd=noise, seed=index)
    step, low, high = rng.uniform(0.05, 0.17), rng.uniform(0.3, 0.7), rng.uniform(1.25, 2.2)
    loads = low + step * np.arange(int(np.ceil((high - low) / step)) + 1)
    return sut, (sut.capacity_pps * loads).tolist()


def cells(table: Counter[tuple[str, str]]) -> str:
    """Counts by truth and verdict."""
    number: Callable[[str, str], str] = lambda truth, verdict: f"{table[truth, verdict]:3d}"  # noqa: E731
    good = " ".join(number("GOOD", verdict) for verdict in ("GOOD", "BAD", "UNDECIDED"))
    bad = " ".join(number("BAD", verdict) for verdict in ("GOOD", "BAD", "UNDECIDED"))
    return f"{'':11s}{good} {'':9s}{bad}"


def heading(text: str) -> None:
    """A heading with an empty line before it."""
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


if __name__ == "__main__":
    main()
