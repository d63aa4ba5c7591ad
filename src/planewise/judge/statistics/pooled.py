"""The publications' tests, on pooled readings as published.

Publications K and D pool all packets of all cells and give them to Wilcoxon's signed-rank test,
each packet of one technology paired with one of the other, as if packets were independent. They are
not: packets of one replicate share the state of the host, so that n counts the same evidence
hundreds of times. Their test of CPU usage pools all readings of a host's CPUs in the same way; here
a trial has one. The p values are reproduced for comparison with the publications alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import log_ndtr

from planewise.judge.statistics.kendall import Floats, area_and_scale, tie_counts
from planewise.judge.statistics.metrics import Observation
from planewise.judge.statistics.pairing import Pairing, Place, default_by, level_order
from planewise.store.models import Level

WARNING = (
    "As published: every packet, and every trial's CPU reading, counts as a replicate of its own. "
    "Packets of one replicate, and trials of one visit, share the host's state, so these p values "
    "are too small, of packets by far; under no difference at all the test of packets rejects most "
    "of the time (docs/concepts/statistics.md). Read the comparison by replicates."
)


Reading = tuple[Observation, Floats]
"""A trial, whose value is not used, and its single readings in the order in which they were made:
the RTTs of its packets, or its one reading of a CPU."""


@dataclass(frozen=True)
class PooledTest:
    """Wilcoxon's signed-rank test of pooled readings, and Kendall's tau-b, as published."""

    metric: str
    """`rtt`, or a CPU metric as `--metric` takes it."""
    a: Level
    b: Level
    stratum: str
    pairs: int
    """Of packets; of CPU, of trials."""
    median_shift: float
    """Median of a − b over the pairs, in the metric's unit."""
    log10_p: float
    """Of the test, two-sided, normal approximation; beyond what a float can hold as p."""
    tau: float
    """Kendall's tau-b of the indicator of a with the metric, over the packets of both."""

    @property
    def p(self) -> float:
        """May be 0 where it is too small for a float."""
        return 10.0**self.log10_p if self.log10_p > -300 else 0.0


def pooled_tests(
    readings: Sequence[Reading],
    metric: str,
    factor: str,
    by: str | None,
    run_factors: Collection[str] = (),
) -> tuple[PooledTest, ...]:
    """Tests every two levels, stratum by stratum, on all readings of the replicates that both have.

    The i-th reading of one level is paired with the i-th of the other. `metric` is what was read,
    `by` as of `compare_levels`, `run_factors` as of `Observed`.
    """
    used = [(trial, values) for trial, values in readings if values.size and factor in trial.cell]
    observations = [trial for trial, _ in used]
    by = default_by(observations, factor) if by is None else by
    pairing = Pairing(observations, factor, by, run_factors)
    parts: dict[Level, dict[Place, list[Floats]]] = defaultdict(lambda: defaultdict(list))
    for trial, values in used:
        for place in pairing.places[id(trial)]:
            parts[trial.cell[factor]][place].append(values)
    # Contexts that only some levels have would make their pooled packets another mixture.
    contexts = [{context for _, context in of_level} for of_level in parts.values()]
    shared = set.intersection(*contexts) if contexts else set()
    joined = {
        level: {place: np.concatenate(values) for place, values in parts[level].items()}
        for level in level_order(parts)
    }

    def test(job: tuple[str, Level, Level]) -> PooledTest | None:
        stratum, a, b = job
        pairs = [
            (x[:size], y[:size])
            for place, x in joined[a].items()
            if place[1] in shared and pairing.within[stratum][place[1]]
            if (y := joined[b].get(place)) is not None and (size := min(x.size, y.size))
        ]
        if not pairs:
            return None
        x, y = (np.concatenate(side) for side in zip(*pairs, strict=True))
        shifts = np.subtract(x, y, dtype=np.float64)
        middle = float(np.median(shifts))
        p, tau = log10_p(shifts), tau_b(x, y)
        return PooledTest(metric, a, b, stratum, shifts.size, middle, p, tau)

    jobs = [(stratum, a, b) for stratum in pairing.within for a, b in combinations(joined, 2)]
    with ThreadPoolExecutor(2) as pool:  # sorting and searching release the GIL
        return tuple(found for found in pool.map(test, jobs) if found is not None)


def log10_p(shifts: Floats) -> float:
    """Logarithm of the signed-rank test's two-sided p, normal approximation with ties corrected."""
    size = np.abs(shifts)
    sizes = np.sort(size[shifts != 0])
    if not sizes.size:
        return 0.0
    below = np.searchsorted(sizes, plus := np.sort(size[shifts > 0]), side="left")
    upto = np.searchsorted(sizes, plus, side="right")
    rank_sum = float((below + upto + 1).sum()) / 2
    n = float(sizes.size)
    ties = tie_counts(sizes)
    squares = n * (n + 1) * (2 * n + 1) / 6 - float((ties**3 - ties).sum()) / 12
    least = min(rank_sum, n * (n + 1) / 2 - rank_sum)
    z = min(0.0, (least + 0.5 - n * (n + 1) / 4) / (math.sqrt(squares) / 2))
    return min(0.0, (math.log(2) + float(log_ndtr(z))) / math.log(10))


def tau_b(x: Floats, y: Floats) -> float:
    """Tau-b of the indicator of x; fast for millions of packets, which scipy's is not."""
    area, scale = area_and_scale(np.sort(x), np.sort(y))
    return (2 * area - 1) * scale
