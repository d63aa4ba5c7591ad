"""How often statistics cry wolf, and how often they see the wolf: simulated experiments.

    python benches/compare.py                    10 000 experiments without any difference
    python benches/compare.py --power            the same with one level 10 % slower
    python benches/compare.py --figure FILE.svg  false claims against packets a replicate

Every experiment has three planes under three loads, in blocks of random order, on a host that
drifts: a random walk, a daily wave and a trend over the run, and a state of its own in every visit.
Packets within a replicate resemble their predecessors (autoregressive, 0.7). Prints figures and
never fails; docs/SPECIFICATION.md has the promises.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from planewise.judge.statistics.comparison import compare_levels
from planewise.judge.statistics.metrics import Metric, Observation, Observed
from planewise.judge.statistics.pairing import OVERALL
from planewise.judge.statistics.pooled import log10_p

Floats = NDArray[np.float64]

PLANES = ("bridge", "macvlan", "veth")
LOADS = (("none", 0.0), ("cpu", 0.7), ("network", 1.4))
"""Type, and by how much it slows (logarithm)."""
RTT = Metric("rtt", "median round-trip time", "ns", True)


@dataclass(frozen=True)
class World:
    """What the experiments are like; deviations are of the logarithm of times."""

    blocks: int = 8
    packets: int = 200
    shift: float = 0.0
    """By how much the last plane is slower than the others (0.1 is 10 %)."""
    packet: float = 0.35
    correlation: float = 0.7
    visit: float = 0.03
    walk: float = 0.01
    wave: float = 0.04
    trend: float = 0.05


def experiments(world: World, count: int, seed: int) -> Iterator[Floats]:
    """Packets of each experiment: shape (blocks, loads, planes, packets), in nanoseconds."""
    rng = np.random.default_rng(seed)
    cells = len(LOADS) * len(PLANES)
    visits = world.blocks * cells
    time_s = np.arange(visits) / visits
    slower = np.array([0.0] * (len(PLANES) - 1) + [math.log1p(world.shift)])
    for _ in range(count):
        host = np.cumsum(rng.normal(0, world.walk, visits))
        host += world.wave * np.sin(2 * math.pi * (time_s * rng.uniform(0.5, 3) + rng.random()))
        host += world.trend * rng.normal() * time_s + rng.normal(0, world.visit, visits)
        order = np.concatenate([rng.permutation(cells) for _ in range(world.blocks)])
        place = np.empty((world.blocks, cells), dtype=np.int64)
        for block in range(world.blocks):
            place[block, order[block * cells : (block + 1) * cells]] = (
                np.arange(cells) + block * cells
            )
        states = host[place].reshape(world.blocks, len(LOADS), len(PLANES))
        states = states + np.array([slow for _, slow in LOADS])[None, :, None] + slower
        noise = rng.normal(0, 1, (world.blocks, len(LOADS), len(PLANES), world.packets))
        keep = world.correlation
        noise[..., 1:] *= math.sqrt(1 - keep**2)
        noise = lfilter([1.0], [1.0, -keep], noise, axis=-1)
        yield 2e4 * np.exp(states[..., None] + world.packet * noise)


def observed(packets: Floats) -> Observed:
    """Medians of the replicates, as a run has them."""
    medians = np.median(packets, axis=-1)
    return Observed(
        RTT,
        tuple(
            Observation(
                float(medians[block, i, j]),
                1.0,
                run="run",
                block=block,
                cell={"plane": plane, "load_type": load},
            )
            for block in range(medians.shape[0])
            for i, (load, _) in enumerate(LOADS)
            for j, plane in enumerate(PLANES)
        ),
    )


@dataclass
class Tally:
    """Counts over experiments."""

    count: int = 0
    families: int = 0
    """Families with at least one better or worse."""
    comparisons: int = 0
    claims: int = 0
    same: int = 0
    planted_overall: int = 0
    """Overall comparisons with the slower plane that see it as such."""
    planted_apart: int = 0
    wrong_way: int = 0
    pooled: int = 0
    """Pooled overall tests that reject at 5 %."""
    pooled_families: int = 0


def run(world: World, count: int, seed: int, *, pooled: bool = True) -> Tally:
    """Compares every experiment as `planewise compare` does, and as the publications do."""
    tally = Tally()
    slow = PLANES[-1]
    for packets in experiments(world, count, seed):
        family = compare_levels(observed(packets), "plane")
        words = [one.outcome for one in family.comparisons]
        tally.count += 1
        tally.comparisons += len(words)
        tally.same += words.count("practically the same")
        untrue = [
            one
            for one in family.comparisons
            if one.outcome in ("better", "worse")
            and (not world.shift or slow not in (one.a, one.b))
        ]
        tally.claims += len(untrue)
        tally.families += bool(untrue)
        if world.shift:
            for one in family.comparisons:
                if slow in (one.a, one.b) and one.outcome in ("better", "worse"):
                    right = (one.outcome == "worse") == (one.a == slow)
                    tally.wrong_way += not right
                    tally.planted_overall += right and one.stratum == OVERALL
                    tally.planted_apart += right and one.stratum != OVERALL
        if pooled:
            rejected = [
                log10_p((packets[..., i, :] - packets[..., j, :]).ravel()) < math.log10(0.05)
                for i in range(len(PLANES))
                for j in range(i)
            ]
            tally.pooled += sum(rejected)
            tally.pooled_families += any(rejected)
    return tally


def report(world: World, count: int, seed: int) -> None:
    """One table row."""
    begin = time.monotonic()
    tally = run(world, count, seed)
    n, overall = tally.count, 2 * tally.count
    print(
        f"| {world.blocks} | {world.packets} | {100 * world.shift:g} % | {n} "
        f"| {100 * tally.families / n:.2f} % | {100 * tally.same / tally.comparisons:.1f} % "
        + (
            f"| {100 * tally.planted_overall / overall:.1f} % "
            f"| {100 * tally.planted_apart / overall / len(LOADS):.1f} % | {tally.wrong_way} "
            if world.shift
            else "| | | "
        )
        + f"| {100 * tally.pooled / (3 * n):.1f} % | {100 * tally.pooled_families / n:.1f} % "
        f"| {time.monotonic() - begin:.0f} s |",
        flush=True,
    )


HEADER = (
    "| blocks | packets | planted | experiments | families with a false claim "
    "| practically the same | planted, seen overall | planted, seen at one load | wrong way "
    "| pooled test rejects | … in some pair | time |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def figure(file: Path, count: int, seed: int) -> None:
    """False claims against packets a replicate, ours and the pooled test's, as SVG."""
    import altair as alt

    rows = []
    for packets in (10, 30, 100, 300, 1000):
        tally = run(World(packets=packets), count, seed)
        # A pair's rate for both: what a reader of one comparison is exposed to.
        pooled = 100 * tally.pooled / (3 * tally.count)
        ours = 100 * tally.claims / tally.comparisons
        rows.append({"packets": packets, "rejected": pooled, "test": "packets pooled"})
        rows.append({"packets": packets, "rejected": ours, "test": "replicates in blocks"})
        print(f"{packets} packets: pooled {pooled:.1f} %, replicates {ours:.2f} %", flush=True)
    axis = alt.X("packets:Q", scale=alt.Scale(type="log"), title="packets in a replicate")
    axis = axis.axis(values=[10, 30, 100, 300, 1000], format="d", grid=False)
    height = alt.Y("rejected:Q", scale=alt.Scale(domain=[0, 100]), title="false claims, %")
    lines = (
        alt.Chart(alt.Data(values=rows))
        .mark_line(point=True)
        .encode(
            axis,
            height,
            alt.Color(
                "test:N",
                scale=alt.Scale(
                    domain=["packets pooled", "replicates in blocks"], range=["#c2410c", "#1d4ed8"]
                ),
                legend=alt.Legend(title=None, orient="top", labelLimit=300),
            ),
        )
    )
    limit = (
        alt.Chart(alt.Data(values=[{"limit": 5}]))
        .mark_rule(strokeDash=[4, 3], color="#5c5c66")
        .encode(alt.Y("limit:Q"))
    )
    chart = (lines + limit).properties(width=460, height=260, background="white")
    chart.save(str(file))


def main() -> None:
    """Reads the flags and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, nargs="+", default=[8])
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.figure:
        figure(given.figure, min(given.experiments, 400), given.seed)
        return
    print(HEADER)
    for blocks in given.blocks:
        report(World(blocks=blocks, shift=0.1 * given.power), given.experiments, given.seed)


if __name__ == "__main__":
    main()
