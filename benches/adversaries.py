"""Adversaries of comparisons and of verdicts: how often is said what is not so, and what is so.

    python benches/adversaries.py                 comparisons: 400 families a world
    python benches/adversaries.py --families 3000
    python benches/adversaries.py --verdicts 60   verdicts instead: 60 systems a case; with
                                                  --minutes 20 as many as were done by then

Each of 36 worlds has no difference between planes (or, with `far`, one plane far out: claims among
the others are false) and breaks a test that assumes too much. Four planes under three loads, as
`planewise quick` compares them: 24 comparisons a family, decided together by the function that
`planewise compare` uses, at the planned end of 3 to 20 blocks, and over two extensions. Coverage is
of the intervals of true null comparisons.

Verdicts: the systems of judge/synthetic.py, tests/adversaries.py and tests/strangers.py, every
parameter random, on ladders with random steps of 2 to 17 % and a random beginning, trials of 1 s.
The truth is headroom against its limit on the exact mean curve, whatever the ladder; where PDR does
not exist, GOOD is false. `judge` sees the first 2, 3, 5, 10, 20 and 50 rounds of the same trials; a
sweep may add loads; a search has its own ladder. Prints figures with Clopper-Pearson bounds and
never fails.
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

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from planewise.judge import synthetic
from planewise.judge.curve import Curve, Run
from planewise.judge.headroom import LIMIT
from planewise.judge.statistics import flips
from planewise.judge.statistics.comparison import MARGIN
from planewise.judge.statistics.flips import least_blocks, spent
from planewise.judge.statistics.pairing import OVERALL
from planewise.judge.verdict import Verdict, judge
from planewise.measure.search.run import run_search
from planewise.measure.search.sequential import sweep_until_verdict

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests import adversaries, shapes, strangers

Floats = NDArray[np.float64]
Rng = np.random.Generator
System = synthetic.SyntheticSut | adversaries.Adversary | strangers.Stranger
World = Callable[[Rng, int], Floats]
"""Draws values of one family, shape (blocks, loads, planes): logarithms of times, or losses."""

PLANES, LOADS = 4, 3
CELLS = PLANES * LOADS
ENDS = (3, 6, 8, 12, 20)
RUNS_OF_ENDS = (*((end,) for end in ENDS), (6, 12, 20), (8, 12, 16), (3, 6, 20))
"""Planned ends, and runs that were extended twice."""
LOOKS = sorted({end for ends in RUNS_OF_ENDS for end in ends})
PAIRS = tuple(combinations(range(PLANES), 2))
STRATA = [name for name in (OVERALL, *"abc") for _ in PAIRS]
MARGINS = np.full(len(STRATA), math.log1p(MARGIN))


def visits(rng: Rng, host: Floats, *, grouped: bool = False) -> Floats:
    """The host's states, shape (blocks · cells,) in time, as the shuffled cells see them.

    Grouped (`randomise: testbeds`): the loads of a plane stay together.
    """
    blocks = len(host) // CELLS
    if grouped:
        of_planes = np.argsort(rng.random((blocks, 1, PLANES)), axis=-1)
        place = of_planes * LOADS + np.argsort(rng.random((blocks, LOADS, PLANES)), axis=1)
    else:
        place = np.argsort(rng.random((blocks, CELLS)), axis=-1).reshape(blocks, LOADS, PLANES)
    of_block = host.reshape(blocks, CELLS)
    return np.take_along_axis(of_block, place.reshape(blocks, -1), 1).reshape(place.shape)


def drift(rng: Rng, blocks: int, *, grouped: bool = False, period: float = 0.0) -> Floats:
    """A random walk, a wave and a trend of the host, and 3 % noise of each visit.

    `period`: of the wave, in blocks; 0 for a random one.
    """
    count = blocks * CELLS
    time_blocks = np.arange(count) / CELLS
    host = np.cumsum(rng.normal(0, 0.01, count)) + 0.05 * rng.normal() * time_blocks / 8
    turns = time_blocks / period if period else rng.uniform(0.06, 0.4) * time_blocks
    host += (0.1 if period else 0.04) * np.sin(2 * np.pi * (turns + rng.random()))
    return visits(rng, host + rng.normal(0, 0.03, count), grouped=grouped)


def built(states: Callable[[Rng, tuple[int, ...]], Floats]) -> World:
    """Drift, and a state of each plane in each block: what a build of the testbed settles."""
    return lambda rng, blocks: drift(rng, blocks) + states(rng, (blocks, 1, PLANES))


def noisy(noise: Callable[[Rng, tuple[int, ...]], Floats]) -> World:
    """Drift, and noise of each visit."""
    return lambda rng, blocks: drift(rng, blocks) + noise(rng, (blocks, LOADS, PLANES))


def lost(mean: float, clump: int = 1) -> World:
    """Lost packets of 500, in clumps."""
    return lambda rng, blocks: rng.poisson(mean / clump, (blocks, LOADS, PLANES)) * clump / 500


def rounded(steps: float) -> World:
    """Readings of an instrument with so many steps in a factor of e."""
    return lambda rng, blocks: np.round(drift(rng, blocks) * steps) / steps


def far(world: World, factor: float) -> World:
    """The last plane far from the others, which do not differ."""
    shift = np.array([0.0] * (PLANES - 1) + [math.log(factor)])
    return lambda rng, blocks: world(rng, blocks) + shift


def two_states(rng: Rng, shape: tuple[int, ...], share: float = 0.5, size: float = 0.35) -> Floats:
    """A build is slower by `size` in this share of blocks."""
    return size * (rng.random(shape) < share)


def stalls(rng: Rng, shape: tuple[int, ...]) -> Floats:
    """One visit in ten takes up to a thousand times as long."""
    return np.where(rng.random(shape) < 0.1, rng.exponential(3, shape), 0)


def host_bursts(rng: Rng, blocks: int) -> Floats:
    """Other work slows ten visits in a row, now and then."""
    busy = np.convolve(rng.random(blocks * CELLS) < 0.02, np.ones(10))[: blocks * CELLS]
    return visits(rng, 0.5 * np.minimum(busy, 1)) + noise3(rng, blocks)


def noise3(rng: Rng, blocks: int) -> Floats:
    """3 % noise and nothing else."""
    return rng.normal(0, 0.03, (blocks, LOADS, PLANES))


def of_planes(*sizes: float) -> World:
    """Noise of another size for each plane, medians alike."""
    return noisy(lambda rng, shape: rng.normal(0, 1, shape) * np.array(sizes))


def grouped(world: World | None = None) -> World:
    """The same, the loads of a plane together."""

    def both(rng: Rng, blocks: int) -> Floats:
        extra = 0.0 if world is None else world(rng, blocks) - drift(rng, blocks)
        return drift(rng, blocks, grouped=True) + extra

    return both


_LOAD_SIZES = np.array([0.01, 0.05, 0.25])[:, None]
_OLD: dict[str, World] = {
    "drift": drift,
    "plane x block 3 %": built(lambda rng, shape: rng.normal(0, 0.03, shape)),
    "plane x block 10 %": built(lambda rng, shape: rng.normal(0, 0.10, shape)),
    "two states": built(two_states),
    "stalls": noisy(stalls),
    "Cauchy": noisy(lambda rng, shape: 0.02 * rng.standard_cauchy(shape)),
    "ties": rounded(20),
}
WORLDS: dict[str, World] = {
    **_OLD,
    **{f"{name}, grouped": grouped(world) for name, world in _OLD.items()},
    "loss, mean 1": lost(1.0),
    "loss, mean 3": lost(3.0),
    "loss, clumps of 20": lost(3.0, 20),
    "skewed builds": built(lambda rng, shape: rng.exponential(0.1, shape)),
    "lognormal builds": built(lambda rng, shape: 0.05 * rng.lognormal(0, 1.5, shape)),
    "outlier blocks": built(lambda rng, shape: two_states(rng, (shape[0], 1, 1), 0.1, 1.1)),
    "outlier builds": built(lambda rng, shape: two_states(rng, shape, 0.1, 1.1)),
    "wave of about a block": functools.partial(drift, period=1.07),
    "wave of a block, grouped": functools.partial(drift, period=0.97, grouped=True),
    "wave of two blocks": functools.partial(drift, period=2.03),
    "three-way interaction": noisy(lambda rng, shape: rng.normal(0, 0.1, shape)),
    "builds that differ by load": noisy(
        lambda rng, shape: rng.normal(0, 0.1, (shape[0], 1, PLANES)) * _LOAD_SIZES * 10
    ),
    "rare states 5 %": built(lambda rng, shape: two_states(rng, shape, 0.05, 0.7)),
    "rare states 2 %": noisy(lambda rng, shape: two_states(rng, shape, 0.02, 0.7)),
    "noise by plane": of_planes(0.01, 0.03, 0.1, 0.3),
    "one noisy plane": of_planes(0.0, 0.0, 0.0, 0.3),
    "noise by load": noisy(lambda rng, shape: rng.normal(0, 1, shape) * _LOAD_SIZES),
    "tails by load": noisy(lambda rng, shape: rng.standard_t(1.5, shape) * _LOAD_SIZES),
    "coarse ties": rounded(8),
    "one plane far out": far(drift, 3.0),
    "one plane far out, builds 10 %": far(_OLD["plane x block 10 %"], 3.0),
    "host bursts": host_bursts,
}


def shifts_of(values: Floats) -> Floats:
    """Shifts of all comparisons in each block, shape (blocks, comparisons)."""
    strata = [values.mean(axis=1), *(values[:, load] for load in range(LOADS))]
    return np.stack([s[:, a] - s[:, b] for s in strata for a, b in PAIRS], axis=1)


def p_of(values: Floats, blocks: int, seed: int) -> Floats:
    """Family-wise p of all comparisons of a run of so many blocks."""
    shifts = shifts_of(values[:blocks])
    if blocks < least_blocks():
        shifts = np.full_like(shifts, -np.inf)
    return np.abs(flips.p_of_difference(shifts, shifts, STRATA, seed))


def interval_of(values: Floats, blocks: int, seed: int) -> tuple[Floats, Floats]:
    """Ends of the intervals of all comparisons."""
    shifts = shifts_of(values[:blocks])
    return flips.intervals(shifts, shifts, MARGINS, spent(0), seed)


def upper_bound(count: int, of: int) -> float:
    """Clopper-Pearson, one-sided 95 %."""
    return 1.0 if count == of else float(betaincinv(count + 1, of - count, 0.95))


def of_world(name: str, families: int, seed: int) -> tuple[str, dict[str, float]]:
    """Shares of families with a false claim, by their ends; of every fifth family coverage."""
    world, rng = WORLDS[name], np.random.default_rng([seed, sum(name.encode())])
    null = np.array([PLANES - 1 not in pair or "far" not in name for pair in PAIRS] * (LOADS + 1))
    result: dict[str, float] = defaultdict(float)
    some = range(0, families, 5)
    for family in range(families):
        values = world(rng, max(ENDS))
        least = {end: p_of(values, end, family)[null].min() for end in LOOKS}
        for ends in RUNS_OF_ENDS:
            looks = [end for end in ends if end >= least_blocks()]
            claims = [least[end] <= spent(look) for look, end in enumerate(looks)]
            result["+".join(map(str, ends))] += any(claims) / families
        if family in some:
            for end in ENDS[1:]:
                low, high = interval_of(values, end, family)
                covered = ((low <= 1e-12) & (high >= -1e-12))[null].mean()
                result[f"covered {end}"] += float(covered) / len(some)
                result[f"width {end}"] += float(np.median((high - low)[null])) / len(some)
    return name, dict(result)


def false_claims(families: int, seed: int, processes: int) -> None:
    """A table of worlds without a difference."""
    looks = ["+".join(map(str, ends)) for ends in RUNS_OF_ENDS]
    print(f"{families} families a world; shares of families with a false claim, by blocks\n")
    print(f"| world | {' | '.join(looks)} | covered 6 | 8 | 12 | 20 | width 8 |")
    print(f"| --- |{' ---: |' * (len(looks) + 5)}")
    worst: dict[str, float] = defaultdict(float)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        work = functools.partial(of_world, families=families, seed=seed)
        for name, result in pool.imap(work, WORLDS):
            shares = [result[look] for look in looks]
            worst = {look: max(worst[look], result[look]) for look in looks}
            covered = [result[f"covered {end}"] for end in ENDS[1:]]
            print(
                f"| {name} | {' | '.join(f'{share:.1%}' for share in shares)} "
                f"| {' | '.join(f'{share:.1%}' for share in covered)} "
                f"| {result['width 8']:.3f} |",
                flush=True,
            )
    texts = (
        f"{worst[look]:.1%} ({upper_bound(round(worst[look] * families), families):.1%})"
        for look in looks
    )
    print(f"| worst, at most | {' | '.join(texts)} | | | | | |", flush=True)


def power(families: int, seed: int) -> None:
    """How often a difference of the last plane is claimed for a single load, at 3 % noise."""
    print("\n| one plane slower by | blocks | claimed for a single load | overall | covered |")
    print("| --- | ---: | ---: | ---: | ---: |")
    planted = np.array([PLANES - 1 in pair for pair in PAIRS] * (LOADS + 1))
    single = np.arange(len(STRATA)) >= len(PAIRS)
    for size, blocks in (
        *((0.10, blocks) for blocks in (6, 8)),
        (0.30, 6),
        *((0.05, blocks) for blocks in (8, 12, 16)),
    ):
        rng = np.random.default_rng(seed)
        claims, covered = [], []
        for family in range(families):
            values = far(noise3, 1 + size)(rng, blocks)
            claims.append(p_of(values, blocks, family) <= spent(0))
            low, high = interval_of(values, blocks, family)
            covered.append((low <= -math.log1p(size)) & (high >= -math.log1p(size)))
        share = np.mean(claims, axis=0)
        print(
            f"| {size:.0%} | {blocks} | {share[planted & single].mean():.1%} "
            f"| {share[planted & ~single].mean():.1%} "
            f"| {np.mean(covered, axis=0)[planted].mean():.1%} |",
            flush=True,
        )


def false_sameness(families: int, seed: int) -> None:
    """A table of worlds whose planes are 5.2 % apart and more: *the same* (margin 5 %) is false."""
    print("\n| world, planes 5.2 % apart | blocks | with a false *the same* | at most |")
    print("| --- | ---: | ---: | ---: |")
    for name in ("drift", "plane x block 3 %", "two states", "ties"):
        for blocks in (6, 8, 20):
            rng = np.random.default_rng(seed)
            count = 0
            for family in range(families):
                values = WORLDS[name](rng, blocks) + math.log(1.052) * np.arange(PLANES)
                shifts = shifts_of(values)
                same = flips.p_of_equivalence(shifts, shifts, MARGINS, STRATA, family)
                count += bool((same <= spent(0)).any())
            print(
                f"| {name} | {blocks} | {count / families:.1%} "
                f"| {upper_bound(count, families):.1%} |",
                flush=True,
            )


RUNS = (2, 3, 5, 10, 20, 50)
CASES: tuple[tuple[str, float], ...] = (
    *((kind, noise) for kind in synthetic.KINDS for noise in synthetic.NOISE_LEVELS),
    *((family, 0.0) for family in (*adversaries.FAMILIES, *strangers.KINDS)),
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
        kinds = ("LADDER TOO SHORT", "FEW RUNS", "OTHER")
        return (
            f"{false} of {of} ({false / max(1, of):.1%}, at most {bound:.1%}) "
            f"| {self.good['BAD']} of {self.good.total()} | {self.good['GOOD']} "
            f"| {self.bad['BAD']} | " + " | ".join(str(rest[kind]) for kind in kinds)
        )


HEAD = (
    "false GOOD of truly BAD | false BAD of truly GOOD | right GOOD | right BAD "
    "| LADDER TOO SHORT | FEW RUNS | OTHER |\n|---" + "|---:" * 7 + "|"
)


def system_of(kind: str, noise: float, index: int) -> tuple[System, list[float]]:
    """A random system and a ladder whose loads know nothing of it."""
    rng = np.random.default_rng([index, sum(kind.encode()), round(noise * 100)])
    system: System
    if kind in strangers.KINDS:
        system = strangers.draw(kind, 9000 + index)
    elif kind in adversaries.FAMILIES:
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
    undecided: int = 0
    """Sweeps that stopped as decided and say UNDECIDED."""


def verdicts_of(index: int, searches: bool) -> Round:
    """Judges system number `index` of each case by runs, by a sweep and perhaps by a search."""
    done = Round()
    for kind, noise in CASES:
        system, loads = system_of(kind, noise, index)
        if len(loads) < 3:
            continue
        name = f"{kind} {noise:.0%}" if kind in synthetic.KINDS else kind
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
    """False and right verdicts of `judge`, of sweeps and of searches.

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
        false_claims(given.families, given.seed, given.processes)
        power(given.families, given.seed)
        false_sameness(given.families, given.seed)
    print(f"\n{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
