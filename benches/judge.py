"""How good are the searches? All algorithms on synthetic systems whose truth is known.

    python benches/judge.py [--systems N] [--kinds ideal,…,queue,…] [--noise 0.01,…]
                            [--algorithms planewise,mlrsearch] [--keep FILE] [--processes P]
                            [--no-verdicts] [--markdown]

A case is a class of systems of judge/synthetic.py with a level of capacity noise, or a family of
tests/adversaries.py or tests/strangers.py (its noise is its own: `-`). Each case has N independent
systems, every parameter drawn at random, and each is searched once by every algorithm. The truth is
that of trials of 1 s. These systems were not used when the search was tuned. Figures only: nothing
passes or fails. With --keep, finished systems are kept in FILE and not searched again: a run that
was stopped goes on, and more systems can be added. With --no-verdicts the ladders of verdicts,
which take most of the time, are left out.

Columns (the traffic and the figures of the verdict's own ladder are apart):
    traffic, +0.5 s   mean seconds of traffic; the same with 0.5 s a trial
    CPU s             mean CPU time of a search, the simulated system's included
    cover             share of searches whose interval (for mlrsearch: bracket) holds the truth
    low, high         share with the truth below, above the interval (calibrated: 2.5 % each)
    error             median of |estimate/truth − 1|
    bias              median of (estimate/truth − 1), in half intervals of the median width
    width             median half interval over the truth
    GOOD/BAD          of the planewise verdict; `false`: GOOD, but headroom is over its limit
    warned            share of searches with a finding about a violated assumption
A search that gives no estimate where there is one, or one where there is none, does not cover.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from planewise.judge import synthetic
from planewise.judge.headroom import LIMIT
from planewise.measure.search.planewise import PlanewiseSearch
from planewise.measure.search.run import run_search

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import adversaries, shapes, strangers

GOALS = ("pdr:0.005", "ndr")
FIRST_SYSTEM = 5000
"""The systems below were used for tuning."""

Task = tuple[str, str, int, str]
"""Kind, noise (`-`: the family's own), number of the system, algorithm."""
System = synthetic.SyntheticSut | adversaries.Adversary | strangers.Stranger
OWN_NOISE = (*adversaries.FAMILIES, *strangers.KINDS)


def make(kind: str, noise: str, index: int) -> System:
    """The system of a task."""
    if kind in adversaries.FAMILIES:
        return adversaries.draw(kind, index)
    if kind in strangers.KINDS:
        return strangers.draw(kind, index)
    draw = np.random.default_rng([index, len(kind)])
    capacity = float(10 ** draw.uniform(5, math.log10(14e6)))
    return shapes.make(kind, capacity_pps=capacity, noise_sd=float(noise), seed=index)


def search_system(task: Task, verdicts: bool = True) -> tuple[Task, dict[str, Any]]:
    """One search, with what it found beside the truth; for each goal estimate and interval over
    the truth (None where the search gave none)."""
    kind, noise, index, algorithm = task
    system = make(kind, noise, index)
    planewise = algorithm == "planewise"
    begin = time.process_time()
    result = run_search(
        system.start(1000 * index),
        algorithm=PlanewiseSearch(seed=index) if planewise else algorithm,
        with_verdict=planewise and verdicts,
    )
    cpu_s = time.process_time() - begin
    searched = result.trials[: len(result.trials) - result.verdict_trials]
    traffic_s = math.fsum(trial.duration_s for trial in searched)
    truth = system.truth(elapsed_s=traffic_s / 2)
    found: dict[str, Any] = {
        "trials": len(searched),
        "traffic": traffic_s,
        "cpu": cpu_s,
        "warned": bool(result.findings),
    }
    for name, true in zip(GOALS, (truth.pdr_pps, truth.ndr_pps), strict=True):
        goal = result.goal(name)
        within = true is not None and true > synthetic.MIN_LOAD_PPS
        if within and goal.status == "found":
            found[name] = [value / true for value in (goal.pps, goal.low_pps, goal.high_pps)]
        else:
            found[name] = None if within or goal.status == "found" else "outside"
    if result.verdict is not None:
        pdr = result.goal("pdr:0.005").pps
        found["verdict"] = result.verdict.label
        good = result.verdict.label == "GOOD" and pdr
        headroom = system.headroom()
        found["false"] = bool(good and (headroom is None or headroom >= LIMIT))
    return task, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--systems", type=int, default=20, help="independent systems a case")
    parser.add_argument("--first", type=int, default=FIRST_SYSTEM, help="number of the first")
    parser.add_argument("--keep", type=Path, help="file of finished searches: goes on from there")
    parser.add_argument(
        "--kinds", default=",".join([*synthetic.KINDS, *OWN_NOISE]), help="of systems"
    )
    parser.add_argument("--noise", default="0.01,0,0.03")
    parser.add_argument("--algorithms", default="planewise,mlrsearch")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--no-verdicts", action="store_true", help="judge no system")
    parser.add_argument("--markdown", action="store_true", help="the table of the documentation")
    options = parser.parse_args()
    tasks: list[Task] = [
        (kind, noise, index, algorithm)
        for index in range(options.first, options.first + options.systems)
        for kind in options.kinds.split(",")
        for noise in (["-"] if kind in OWN_NOISE else options.noise.split(","))
        for algorithm in options.algorithms.split(",")
    ]
    kept: dict[Task, dict[str, Any]] = {}
    if options.keep is not None and options.keep.exists():
        for line in options.keep.read_text().splitlines():
            task, found = json.loads(line)
            kept[tuple(task)] = found
    left = [task for task in tasks if task not in kept]
    started = last = time.monotonic()
    work = functools.partial(search_system, verdicts=not options.no_verdicts)
    # Spawned, not forked: numpy's threads do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for done, (task, found) in enumerate(pool.imap_unordered(work, left), start=1):
            kept[task] = found
            if options.keep is not None:
                with options.keep.open("a") as file:
                    file.write(json.dumps([task, found]) + "\n")
            if time.monotonic() - last > 10 or done == len(left):
                last = time.monotonic()
                seconds = (last - started) / done * (len(left) - done)
                print(
                    f"bench judge: {done / len(left):4.0%}, about {seconds:.0f} s left",
                    file=sys.stderr,
                )
    cases: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for task in tasks:
        cases[task[0], task[1], task[3]].append(kept[task])
    print_table(cases, "| " if options.markdown else "")


COLUMNS = "system,noise,algorithm,n,traffic,+0.5 s,CPU s" + 2 * ",cover,low,high,error,bias,width"
VERDICTS = ",GOOD,BAD,false,warned"


def print_table(cases: dict[tuple[str, str, str], list[dict[str, Any]]], bar: str) -> None:
    """A line a case and algorithm; PDR's columns come before NDR's, all but seconds in per cent."""
    rows = [(COLUMNS + VERDICTS).split(",")]
    if bar:
        rows.append(["---", "---:", "---"] + ["---:"] * (len(rows[0]) - 3))
    for case, searches in cases.items():
        traffic_s = float(np.mean([search["traffic"] for search in searches]))
        pauses_s = 0.5 * float(np.mean([search["trials"] for search in searches]))
        row = [*case, str(len(searches)), f"{traffic_s:.1f}", f"{traffic_s + pauses_s:.1f}"]
        row.append(f"{np.mean([search['cpu'] for search in searches]):.2f}")
        for goal in GOALS:
            row += scores([search[goal] for search in searches])
        if "verdict" in searches[0]:
            verdicts = [search["verdict"] for search in searches]
            row += [
                f"{100 * verdicts.count(label) / len(verdicts):.0f}" for label in ("GOOD", "BAD")
            ]
            row.append(f"{100 * np.mean([search['false'] for search in searches]):.1f}")
        else:
            row += ["", "", ""]
        row.append(f"{100 * np.mean([search['warned'] for search in searches]):.0f}")
        rows.append(row)
    for row in rows:
        if bar:
            print(bar + " | ".join(row) + " |")
        else:
            print(f"{row[0]:15}{row[1]:>6} {row[2]:10}" + "".join(f"{cell:>8}" for cell in row[3:]))


def scores(found: list[Any]) -> list[str]:
    """The columns of one goal, in per cent."""
    if all(values == "outside" for values in found):
        return ["100.0", "", "", "", "", ""]
    known = np.array([values for values in found if isinstance(values, list)])
    right = sum(values == "outside" for values in found)
    if not known.size:
        return ["0.0", "", "", "", "", ""]
    pps, low, high = known.T
    half = float(np.median((high - low) / 2))
    values = [
        (right + float(((low <= 1) & (high >= 1)).sum())) / len(found),
        float((low > 1).sum()) / len(found),
        float((high < 1).sum()) / len(found),
        float(np.median(np.abs(pps - 1))),
        float(np.median(pps - 1)) / half if half else math.nan,
        half,
    ]
    digits = (1, 1, 1, 3, 0, 3)
    return [f"{100 * value:.{digit}f}" for value, digit in zip(values, digits, strict=True)]


if __name__ == "__main__":
    main()
