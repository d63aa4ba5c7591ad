"""Adversaries of comparisons and of verdicts: how often is said what is not so, and what is so.

    python benches/adversaries.py                 comparisons: 400 families a case
    python benches/adversaries.py --families 4000
    python benches/adversaries.py --verdicts 60   verdicts instead: 60 systems a case; with
                                                  --minutes 20 as many as were done by then

Each case is a world without any difference between planes (with `power`: one plane is 10 % slower)
that breaks a test which assumes too much: drift, a state of each plane in each block, planes with
two states, heavy tails, counts in clumps, ties. Three planes under three loads, as `planewise
quick` compares them: twelve comparisons a family, decided together by the functions that
`planewise compare` uses. `looks` counts a family as false if it claims a difference after any of
2, 3, 5, 8, 12 and 20 blocks.

Verdicts: the systems of judge/synthetic.py and tests/adversaries.py, every parameter random, on
ladders with random steps of 2 to 17 % and a random beginning, trials of 1 s. The truth is headroom
against its limit on the exact mean curve, whatever the ladder; where PDR does not exist, GOOD is
false. `judge` sees the first 2, 3, 5, 10, 20 and 50 rounds of the same trials; a sweep may add
loads; a search has its own ladder. Prints figures with Clopper-Pearson bounds and never fails.
"""

from __future__ import annotations

import argparse
import functools
import math
import multiprocessing
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from planewise.judge import synthetic
from planewise.judge.curve import Curve, Run
from planewise.judge.headroom import LIMIT
from planewise.judge.statistics.comparison import ALPHA, MARGIN, family_weights
from planewise.judge.statistics.paired import capital, family_evidence
from planewise.judge.statistics.pairing import OVERALL
from planewise.judge.verdict import Verdict, judge
from planewise.measure.search.run import run_search
from planewise.measure.search.sequential import sweep_until_verdict

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import adversaries, shapes

Floats = NDArray[np.float64]
World = Callable[[np.random.Generator, int, int, bool], Floats]
"""Draws values of shape (families, blocks, loads, planes): logarithms of times, or loss ratios."""

PLANES, LOADS = 3, 3
LOOKS = (2, 3, 5, 8, 12, 20)
PAIRS = tuple(combinations(range(PLANES), 2))
STRATA = [OVERALL] * len(PAIRS) + ["one"] * (LOADS * len(PAIRS))


def in_order(
    rng: np.random.Generator, families: int, blocks: int, grouped: bool, host: Floats
) -> Floats:
    """The host's states, shape (families, blocks · 9) in time, as the shuffled cells see them.

    Grouped (`randomise: testbeds`): the loads of a plane stay together.
    """
    shape = (families, blocks, LOADS, PLANES)
    if grouped:
        of_planes = np.argsort(rng.random((families, blocks, 1, PLANES)), axis=-1)
        of_loads = np.argsort(rng.random((families, blocks, LOADS, PLANES)), axis=2)
        place = of_planes * LOADS + of_loads
    else:
        place = np.argsort(rng.random((families, blocks, LOADS * PLANES)), axis=-1).reshape(shape)
    states = host.reshape(families, blocks, LOADS * PLANES)
    return np.take_along_axis(states, place.reshape(families, blocks, -1), axis=-1).reshape(shape)


def drift(rng: np.random.Generator, families: int, blocks: int, grouped: bool) -> Floats:
    """A random walk, a wave and a trend of the host, and 3 % noise of each visit."""
    visits = blocks * LOADS * PLANES
    time_s = np.arange(visits) / (9 * 8)
    host = np.cumsum(rng.normal(0, 0.01, (families, visits)), axis=1)
    wave = rng.uniform(0.5, 3, (families, 1)) * time_s + rng.random((families, 1))
    host += 0.04 * np.sin(2 * np.pi * wave) + 0.05 * rng.normal(size=(families, 1)) * time_s
    host += rng.normal(0, 0.03, host.shape)
    return in_order(rng, families, blocks, grouped, host)


def interaction(size: float) -> World:
    """Drift, and a state of each plane in each block: what a build of the testbed settles."""

    def world(rng: np.random.Generator, families: int, blocks: int, grouped: bool) -> Floats:
        states = rng.normal(0, size, (families, blocks, 1, PLANES))
        return drift(rng, families, blocks, grouped) + states

    return world


def two_states(rng: np.random.Generator, families: int, blocks: int, grouped: bool) -> Floats:
    """Every plane is 42 % slower in half of its blocks, with all loads."""
    slow = rng.random((families, blocks, 1, PLANES)) < 0.5
    return drift(rng, families, blocks, grouped) + 0.35 * slow


def stalls(rng: np.random.Generator, families: int, blocks: int, grouped: bool) -> Floats:
    """One visit in ten takes up to a thousand times as long."""
    states = drift(rng, families, blocks, grouped)
    return states + np.where(rng.random(states.shape) < 0.1, rng.exponential(3, states.shape), 0)


def cauchy(rng: np.random.Generator, families: int, blocks: int, grouped: bool) -> Floats:
    """Noise without a mean."""
    states = drift(rng, families, blocks, grouped)
    return states + 0.02 * rng.standard_cauchy(states.shape)


def poisson(mean: float, clump: int = 1) -> World:
    """Lost packets of 500, in clumps."""

    def world(rng: np.random.Generator, families: int, blocks: int, grouped: bool) -> Floats:
        shape = (families, blocks, LOADS, PLANES)
        return np.asarray(rng.poisson(mean / clump, shape) * clump / 500)

    return world


def ties(rng: np.random.Generator, families: int, blocks: int, grouped: bool) -> Floats:
    """Readings of an instrument with four steps."""
    return np.round(drift(rng, families, blocks, grouped) * 20) / 20


WORLDS: dict[str, World] = {
    "drift": drift,
    "plane x block 3 %": interaction(0.03),
    "plane x block 10 %": interaction(0.10),
    "two states": two_states,
    "stalls": stalls,
    "Cauchy": cauchy,
    "loss, mean 1": poisson(1.0),
    "loss, mean 3": poisson(3.0),
    "loss, clumps of 20": poisson(3.0, 20),
    "ties": ties,
}


def shifts_of(values: Floats) -> Floats:
    """Shifts of the twelve comparisons in each block, shape (families, blocks, 12)."""
    strata = [values.mean(axis=2), *(values[:, :, load] for load in range(LOADS))]
    return np.stack([s[..., a] - s[..., b] for s in strata for a, b in PAIRS], axis=-1)


def evidence(values: Floats) -> Floats:
    """Evidence of the twelve comparisons after each block, shape (families, 12, blocks)."""
    in_time = np.moveaxis(shifts_of(values), 1, 0)
    return np.moveaxis((capital(in_time) + capital(-in_time)) / 2, 0, -1)


def false_sameness(families: int, seed: int) -> None:
    """A table of worlds whose planes are 5.2 and 10.4 % apart: *practically the same* (margin 5 %)
    is false of all three pairs."""
    print("\n| world, planes 5.2 % apart | looks | families | with a false *the same* | at most |")
    print("| --- | --- | ---: | ---: | ---: |")
    weights = family_weights(STRATA)
    margin = math.log1p(MARGIN)
    for name in ("drift", "plane x block 3 %", "two states", "ties"):
        rng = np.random.default_rng(seed)
        values = WORLDS[name](rng, families, LOOKS[-1], False)
        values += math.log(1.052) * np.arange(PLANES)
        for blocks in (8, LOOKS[-1]):
            in_time = np.moveaxis(shifts_of(values[:, :blocks]), 1, 0)
            same = np.minimum(capital(in_time + margin), capital(margin - in_time))
            said = family_evidence(np.moveaxis(same, 0, -1), weights) >= 1 / ALPHA
            count = int(said.any(axis=1).sum())
            print(
                f"| {name} | up to {blocks} blocks | {families} | {count} "
                f"({100 * count / families:.1f} %) | {100 * upper_bound(count, families):.1f} % |",
                flush=True,
            )


def claims(values: Floats) -> NDArray[np.bool_]:
    """Whether a difference is claimed, shape (families, 12), looking after every block."""
    weights = family_weights(STRATA)
    return np.asarray(family_evidence(evidence(values), weights) >= 1 / ALPHA)


def upper_bound(count: int, of: int) -> float:
    """Clopper-Pearson, one-sided 95 %."""
    return 1.0 if count == of else float(betaincinv(count + 1, of - count, 0.95))


def false_claims(families: int, seed: int) -> None:
    """A table of worlds without a difference."""
    print("| world | order | looks | families | with a false claim | at most (95 %) |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for name, world in WORLDS.items():
        for grouped in (False, True):
            rng = np.random.default_rng(seed)
            values = world(rng, families, LOOKS[-1], grouped)
            for blocks in (*LOOKS[:4], LOOKS[-1]):
                # The first blocks of a longer run are a run of so many blocks.
                count = int(claims(values[:, :blocks]).any(axis=1).sum())
                looks = f"up to {blocks} blocks"
                print(
                    f"| {name} | {'grouped' if grouped else 'ungrouped'} | {looks} | {families} "
                    f"| {count} ({100 * count / families:.1f} %) "
                    f"| {100 * upper_bound(count, families):.1f} % |",
                    flush=True,
                )


def power(families: int, seed: int) -> None:
    """A table of worlds in which the last plane is 10 % slower."""
    print("\n| world, one plane 10 % slower | blocks | families | seen overall, of two pairs |")
    print("| --- | ---: | ---: | ---: |")
    planted = [i for i, pair in enumerate(PAIRS) if PLANES - 1 in pair]
    for name, world in (("3 % noise", None), *list(WORLDS.items())[:3]):
        for blocks in (8, 12, 20):
            rng = np.random.default_rng(seed)
            shape = (families, blocks, LOADS, PLANES)
            values = (
                rng.normal(0, 0.03, shape) if world is None else world(rng, families, blocks, False)
            )
            values[..., -1] += np.log(1.1)
            seen = int(claims(values)[:, planted].sum())
            print(
                f"| {name} | {blocks} | {families} "
                f"| {seen} of {2 * families} ({50 * seen / families:.1f} %) |",
                flush=True,
            )


RUNS = (2, 3, 5, 10, 20, 50)
CASES: tuple[tuple[str, float], ...] = (
    *((kind, noise) for kind in synthetic.KINDS for noise in synthetic.NOISE_LEVELS),
    *((family, 0.0) for family in adversaries.FAMILIES),
)


@dataclass
class Tally:
    """Words, and what they should have been."""

    good: Counter[str] = field(default_factory=Counter)
    """Words and kinds of UNDECIDED for systems whose headroom is below the limit."""
    bad: Counter[str] = field(default_factory=Counter)

    def add(self, truth: bool, word: str) -> None:
        """Counts a verdict."""
        (self.good if truth else self.bad)[word] += 1

    def row(self) -> str:
        """False GOOD with its upper bound, false BAD, and the words."""
        false, of = self.bad["GOOD"], self.bad.total()
        bound = float(betaincinv(false + 1, of - false, 0.95)) if of > false else 1.0
        rest = self.good + self.bad
        kinds = ("BORDERLINE", "LADDER TOO SHORT", "FEW RUNS", "DRIFT", "OTHER")
        return (
            f"{false} of {of} ({false / max(1, of):.1%}, at most {bound:.1%}) "
            f"| {self.good['BAD']} of {self.good.total()} | {self.good['GOOD']} "
            f"| {self.bad['BAD']} | " + " | ".join(str(rest[kind]) for kind in kinds)
        )


HEAD = (
    "false GOOD of truly BAD | false BAD of truly GOOD | right GOOD | right BAD | BORDERLINE "
    "| LADDER TOO SHORT | FEW RUNS | DRIFT | OTHER |\n|---" + "|---:" * 9 + "|"
)


def system_of(
    kind: str, noise: float, index: int
) -> tuple[synthetic.SyntheticSut | adversaries.Adversary, list[float]]:
    """A random system and a ladder whose loads know nothing of it."""
    rng = np.random.default_rng([index, sum(kind.encode()), round(noise * 100)])
    system: synthetic.SyntheticSut | adversaries.Adversary
    if kind in adversaries.FAMILIES:
        system = adversaries.draw(kind, 9000 + index)
    else:
        system = shapes.make(kind, noise_sd=noise, seed=9000 + index)
    step, low, high = rng.uniform(0.02, 0.17), rng.uniform(0.2, 0.7), rng.uniform(1.2, 2.2)
    loads = low + step * np.arange(int(np.ceil((high - low) / step)) + 1)
    around = max(system.capacity_pps, 40e3)
    return system, [float(load) for load in around * loads if 9001 <= load < 14.8e6]


def word(verdict: Verdict) -> str:
    """The verdict, or the kind of UNDECIDED."""
    return verdict.open.upper() if verdict.open else verdict.verdict


@dataclass
class Round:
    """What was said of one system of each case."""

    words: list[tuple[str, str, bool, str]] = field(default_factory=list)
    """Source, case, whether the system is truly GOOD, and the word."""
    said: list[tuple[float, bool]] = field(default_factory=list)
    """Probability of GOOD, by `judge`, and truth."""
    undecided: int = 0
    """Sweeps that stopped as decided and say UNDECIDED."""


def verdicts_of(index: int, searches: bool) -> Round:
    """Judges system number `index` of each case by runs, by a sweep and perhaps by a search."""
    done = Round()
    for kind, noise in CASES:
        system, loads = system_of(kind, noise, index)
        if len(loads) < 3:
            continue
        name = f"{kind} {noise:.0%}" if kind not in adversaries.FAMILIES else kind
        headroom = system.headroom()
        truth = headroom is not None and headroom < LIMIT
        simulation = system.start(index, max_load_pps=14.88e6)
        runs: dict[float, list[Run]] = {load: [] for load in loads}
        for count in range(1, max(RUNS) + 1):
            for load in loads:
                runs[load].append(simulation.trial(load, 1.0))
            if count not in RUNS:
                continue
            verdict = judge(Curve.from_runs(name, runs))
            done.words.append((f"judge, {count} runs", name, truth, word(verdict)))
            if verdict.probability_good is not None:
                done.said.append((verdict.probability_good, truth))
        swept = sweep_until_verdict(
            system.start(index + 10**6, max_load_pps=14.88e6),
            loads,
            duration_s=1.0,
            extend=True,
            seed=index,
        )
        done.words.append(("sweep", name, truth, word(swept.verdict)))
        done.words.append((f"sweep, stopped: {swept.stopped}", "", truth, word(swept.verdict)))
        done.undecided += swept.stopped == "decided" and swept.verdict.verdict == "UNDECIDED"
        if searches:
            found = run_search(system.start(index + 2 * 10**6), with_verdict=True).verdict
            assert found is not None
            label = found.label if found.label != "UNDECIDED" else "OTHER"
            done.words.append(("search", "", truth, label))
    return done


def verdicts(systems: int, first: int, searches: bool, minutes: float, processes: int) -> None:
    """False and right verdicts of `judge`, of sweeps and of searches, and calibration.

    A round has a system of each case; what was done within the minutes counts.
    """
    end = time.monotonic() + 60 * minutes
    rounds: list[Round] = []
    # Spawned, not forked: numpy's threads do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        work = functools.partial(verdicts_of, searches=searches)
        for done in pool.imap_unordered(work, range(first, first + systems)):
            rounds.append(done)
            if time.monotonic() > end:
                break
    tallies: dict[str, Tally] = defaultdict(Tally)
    cases: dict[str, Tally] = defaultdict(Tally)
    for source, case, truth, said in (word for one in rounds for word in one.words):
        tallies[source].add(truth, said)
        if case:
            cases[case].add(truth, said)
    print(f"systems a case: {len(rounds)}\n\n| source | {HEAD}")
    for name, tally in sorted(tallies.items()):
        print(f"| {name} | {tally.row()} |")
    print(f"\n| case, `judge` and sweep | {HEAD}")
    for name, tally in sorted(cases.items()):
        print(f"| {name} | {tally.row()} |")
    undecided = sum(one.undecided for one in rounds)
    print(f"\nsweeps that stopped as decided and say UNDECIDED: {undecided}")
    calibration([pair for one in rounds for pair in one.said])


def calibration(said: list[tuple[float, bool]]) -> None:
    """What was said against what is so, by tenths, and the Brier score."""
    probability, truth = (np.array(column, dtype=float) for column in zip(*said, strict=True))
    print("\n| said P(GOOD) | mean | truly GOOD | verdicts |\n|---|---:|---:|---:|")
    for tenth in range(10):
        inside = np.minimum((probability * 10).astype(int), 9) == tenth
        if inside.any():
            print(
                f"| {tenth * 10} to {tenth * 10 + 10} % | {probability[inside].mean():.1%} "
                f"| {truth[inside].mean():.1%} | {inside.sum()} |"
            )
    brier = float(((probability - truth) ** 2).mean())
    base = float(truth.mean() * (1 - truth.mean()))
    print(f"\nBrier score {brier:.4f} (always saying {truth.mean():.0%}: {base:.4f})")


def main() -> None:
    """Reads the flags and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=int, default=400)
    parser.add_argument("--verdicts", type=int, help="verdicts instead: systems a case")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of verdicts, at most")
    parser.add_argument("--searches", action="store_true", help="verdicts of searches, too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    given = parser.parse_args()
    begin = time.monotonic()
    if given.verdicts:
        verdicts(given.verdicts, 1000 * given.seed, given.searches, given.minutes, given.processes)
    else:
        false_claims(given.families, given.seed)
        power(given.families, given.seed)
        false_sameness(given.families, given.seed)
    print(f"\n{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
