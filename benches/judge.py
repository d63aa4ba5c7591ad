"""How good are the searches? All algorithms on the same synthetic systems, whose truth is known.

    python benches/judge.py [--runs N] [--repeats R] [--kinds ideal,…] [--noise 0.01,…]
                            [--keep FILE] [--processes P] [--markdown]

A case is a class of systems with a level of capacity noise. Each case has N/R systems, their
capacity drawn from 0.1 to 14 Mpps and their shape from the ranges in judge/synthetic.py; each is
searched R times (10) by every algorithm, with the same seeds. These systems were not used when the
search was tuned. Figures only: nothing passes or fails. With --keep, finished systems are kept in
FILE and not searched again: a run that was stopped goes on, and more runs can be added.

Columns (the traffic and the figures of the verdict's own ladder are apart):
    trials, traffic, +0.5 s   mean trials; mean seconds of traffic; the same with 0.5 s a trial
    cover      share of searches whose interval (for mlrsearch and binary: bracket) holds the truth
    error      median of |estimate/truth − 1|
    spread     median over systems of the deviation between the R searches of a system
    GOOD/BAD   of the planewise verdict; `false` is GOOD where the exact curve is BAD
    warned     share of searches with a finding about a violated assumption
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from planewise.judge import synthetic
from planewise.measure.search.planewise import PlanewiseOptions, PlanewiseSearch
from planewise.measure.search.run import run_search
from planewise.measure.search.verdict import ladder_loads

GOALS = ("ndr", "pdr:0.005")
ALGORITHMS = ("planewise", "mlrsearch")
FIRST_SYSTEM = 5000
"""The systems below were used for tuning."""


@dataclass
class Scores:
    """What was seen of one algorithm in one case."""

    trials: list[int] = field(default_factory=list)
    traffic_s: list[float] = field(default_factory=list)
    covered: dict[str, list[bool]] = field(default_factory=lambda: {g: [] for g in GOALS})
    errors: dict[str, list[float]] = field(default_factory=lambda: {g: [] for g in GOALS})
    spreads: dict[str, list[float]] = field(default_factory=lambda: {g: [] for g in GOALS})
    verdicts: list[str] = field(default_factory=list)
    false_good: list[bool] = field(default_factory=list)
    warned: list[bool] = field(default_factory=list)

    def add(self, other: Scores) -> None:
        for name in ("trials", "traffic_s", "verdicts", "false_good", "warned"):
            getattr(self, name).extend(getattr(other, name))
        for name in ("covered", "errors", "spreads"):
            for goal in GOALS:
                getattr(self, name)[goal].extend(getattr(other, name)[goal])


Task = tuple[str, float, int, int, tuple[str, ...]]


def search_one_system(task: Task) -> tuple[Task, dict[str, Scores]]:
    """All algorithms on one system, as often as the task says."""
    kind, noise_sd, index, repeats, algorithms = task
    draw = np.random.default_rng([index, len(kind)])
    capacity = float(10 ** draw.uniform(5, math.log10(14e6)))
    system = synthetic.make(kind, capacity_pps=capacity, noise_sd=noise_sd, seed=index)
    still = system.truth()
    found = {}
    for algorithm in algorithms:
        scores = found[algorithm] = Scores()
        estimates: dict[str, list[float]] = {goal: [] for goal in GOALS}
        for repeat in range(repeats):
            chosen = (
                PlanewiseSearch(PlanewiseOptions(seed=repeat))
                if algorithm == "planewise"
                else algorithm
            )
            result = run_search(
                system.start(1000 * index + repeat),
                algorithm=chosen,
                with_verdict=algorithm == "planewise",
            )
            searched = result.trials[: len(result.trials) - result.verdict_trials]
            traffic_s = math.fsum(trial.duration_s for trial in searched)
            scores.trials.append(len(searched))
            scores.traffic_s.append(traffic_s)
            scores.warned.append(bool(result.findings))
            truth = still
            if system.wavering.drift_per_s:
                truth = system.truth(elapsed_s=traffic_s / 2)
            true_pps = {"ndr": truth.ndr_pps, "pdr:0.005": truth.pdr_pps}
            for name in GOALS:
                goal, true = result.goal(name), true_pps[name]
                if true is None:
                    continue
                if goal.pps is None:
                    scores.covered[name].append(False)
                    scores.errors[name].append(1.0)
                    continue
                low, high = goal.low_pps or 0.0, goal.high_pps or math.inf
                scores.covered[name].append(low <= true <= high)
                scores.errors[name].append(abs(goal.pps / true - 1))
                estimates[name].append(goal.pps / true)
            if result.verdict is not None:
                scores.verdicts.append(result.verdict.label)
                pdr_pps = result.goal("pdr:0.005").pps
                if pdr_pps:
                    exact = system.verdict(ladder_loads(pdr_pps, synthetic.MAX_LOAD_PPS))
                    scores.false_good.append(result.verdict.label == "GOOD" and exact == "BAD")
        for name in GOALS:
            if len(estimates[name]) > 1:
                scores.spreads[name].append(float(np.std(estimates[name], ddof=1)))
    return task, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="searches a case and algorithm")
    parser.add_argument("--repeats", type=int, default=10, help="searches a system")
    parser.add_argument("--keep", type=Path, help="file of finished systems: goes on from there")
    parser.add_argument("--kinds", default=",".join(synthetic.kinds()))
    parser.add_argument("--noise", default="0.01,0,0.03")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--markdown", action="store_true", help="the table of the documentation")
    options = parser.parse_args()
    algorithms = tuple(options.algorithms.split(","))
    cases = [
        (kind, float(noise))
        for kind in options.kinds.split(",")
        for noise in options.noise.split(",")
    ]
    repeats = max(1, min(options.repeats, options.runs))
    systems = max(1, math.ceil(options.runs / repeats))
    tasks: list[Task] = [
        (kind, noise, index, repeats, algorithms)
        for index in range(FIRST_SYSTEM, FIRST_SYSTEM + systems)
        for kind, noise in cases
    ]
    table = {case: {name: Scores() for name in algorithms} for case in cases}
    kept = _read(options.keep)
    for task in tasks:
        for name, scores in kept.get(_key(task), {}).items():
            table[task[:2]][name].add(scores)
    left = [task for task in tasks if _key(task) not in kept]
    # Spawned, not forked: numpy's threads do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for task, found in _progress(pool.imap_unordered(search_one_system, left), len(left)):
            for name, scores in found.items():
                table[task[:2]][name].add(scores)
            if options.keep is not None:
                line = {"task": _key(task), "found": {n: asdict(s) for n, s in found.items()}}
                with options.keep.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    (_print_markdown if options.markdown else _print)(table)


def _key(task: Task) -> str:
    return json.dumps(task)


def _read(path: Path | None) -> dict[str, dict[str, Scores]]:
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        line["task"]: {name: Scores(**scores) for name, scores in line["found"].items()}
        for line in lines
    }


def _progress(
    results: Iterable[tuple[Task, dict[str, Scores]]], total: int
) -> Iterable[tuple[Task, dict[str, Scores]]]:
    started = last = time.monotonic()
    for done, result in enumerate(results, start=1):
        now = time.monotonic()
        if now - last > 10 or done == total:
            last = now
            left = (now - started) / done * (total - done)
            print(f"bench judge: {done / total:4.0%}, about {left:.0f} s left", file=sys.stderr)
        yield result


def _print(table: dict[tuple[str, float], dict[str, Scores]]) -> None:
    print("cover, error and spread in per cent of the truth")
    print(
        f"{'system':15}{'noise':>6} {'algorithm':10}{'runs':>6}"
        f"{'trials':>7}{'traffic':>8}{'+0.5 s':>7} |"
        f"{'PDR cover':>10}{'error':>7}{'spread':>7} |{'NDR cover':>10}{'error':>7}{'spread':>7} |"
        f"{'GOOD':>6}{'BAD':>6}{'false':>6}{'warned':>8}"
    )
    for (kind, noise), row in table.items():
        for name, scores in row.items():
            if not scores.trials:
                continue
            trials, traffic_s = np.mean(scores.trials), np.mean(scores.traffic_s)
            line = (
                f"{kind:15}{noise:6.0%} {name:10}{len(scores.trials):6d}"
                f"{trials:7.1f}{traffic_s:7.1f}s"
                f"{traffic_s + 0.5 * trials:6.1f}s |"
            )
            for goal in reversed(GOALS):
                line += f"{_mean(scores.covered[goal]):9.1f}%"
                line += f"{_median(scores.errors[goal]):7.3f}{_median(scores.spreads[goal]):7.3f} |"
            if scores.verdicts:
                good, bad = (
                    _mean([verdict == word for verdict in scores.verdicts])
                    for word in ("GOOD", "BAD")
                )
                line += f"{good:5.0f}%{bad:5.0f}%{_mean(scores.false_good):5.1f}%"
            else:
                line += " " * 18
            print(line + f"{_mean(scores.warned):7.0f}%")


def _print_markdown(table: dict[tuple[str, float], dict[str, Scores]]) -> None:
    for (kind, noise), row in table.items():
        for name, scores in row.items():
            if not scores.trials:
                continue
            traffic_s = float(np.mean(scores.traffic_s))
            total_s = traffic_s + 0.5 * float(np.mean(scores.trials))
            cells = [f"{kind} {noise:.0%}", name, str(len(scores.trials))]
            cells += [f"{traffic_s:.1f}", f"{total_s:.1f}"]
            for goal in reversed(GOALS):
                cells.append(f"{_mean(scores.covered[goal]):.1f}")
                cells.append(f"{_median(scores.errors[goal]):.3f}")
                cells.append(f"{_median(scores.spreads[goal]):.3f}")
            if scores.verdicts:
                for word in ("GOOD", "BAD"):
                    cells.append(f"{_mean([verdict == word for verdict in scores.verdicts]):.0f}")
                cells.append(f"{_mean(scores.false_good):.1f}")
            else:
                cells += [""] * 3
            print("| " + " | ".join(cells) + " |")


def _mean(values: list[bool]) -> float:
    return 100 * float(np.mean(values)) if values else math.nan


def _median(values: list[float]) -> float:
    return 100 * float(np.median(values)) if values else math.nan


if __name__ == "__main__":
    main()
