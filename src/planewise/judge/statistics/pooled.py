"""The publications' tests, on pooled readings as published. Knows no file.

Publications K and D pool all packets of all cells and give them to Wilcoxon's signed-rank test,
each packet of one technology paired with one of the other, as if packets were independent. They are
not: packets of one replicate share the state of the host, so that n counts the same evidence
hundreds of times. Their test of CPU usage pools all readings of a host's CPUs in the same way; here
a trial has one. The p values are reproduced for comparison with the publications alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from planewise.judge.statistics.paired import mid_ranks
from planewise.judge.statistics.pairing import Key, level_order
from planewise.store.models import Level

Floats = NDArray[np.floating]

WARNING = (
    "As published: every packet, and every trial's CPU reading, counts as a replicate of its own. "
    "Packets of one replicate, and trials of one visit, share the host's state, so these p values "
    "are too small, of packets by far; under no difference at all the test of packets rejects most "
    "of the time (docs/concepts/statistics.md). Read the comparison by replicates."
)


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
    levels: Mapping[Level, Mapping[Key, Floats]], stratum: str, metric: str
) -> tuple[PooledTest, ...]:
    """Tests every two levels on all readings of the replicates that both have.

    `levels` has the readings of each replicate by what pairs have alike (block and other factors);
    the i-th one of one level is paired with the i-th of the other.
    """
    return tuple(
        test
        for a, b in combinations(level_order(levels), 2)
        if (test := _pooled(metric, a, b, levels[a], levels[b], stratum)) is not None
    )


def _pooled(
    metric: str,
    a: Level,
    b: Level,
    of_a: Mapping[Key, Floats],
    of_b: Mapping[Key, Floats],
    stratum: str,
) -> PooledTest | None:
    pairs = [
        (x[:size], y[:size])
        for key, x in of_a.items()
        if (y := of_b.get(key)) is not None and (size := min(x.size, y.size))
    ]
    if not pairs:
        return None
    x = np.concatenate([pair[0] for pair in pairs]).astype(np.float64)
    y = np.concatenate([pair[1] for pair in pairs]).astype(np.float64)
    shifts = x - y
    return PooledTest(
        metric, a, b, stratum, shifts.size, float(np.median(shifts)), log10_p(shifts), _tau(x, y)
    )


def log10_p(shifts: Floats) -> float:
    """Logarithm of the signed-rank test's two-sided p, normal approximation with ties corrected."""
    moved = shifts[shifts != 0]
    if not moved.size:
        return 0.0
    ranks = mid_ranks(np.abs(moved))
    total = float(ranks.sum())
    plus = float(ranks[moved > 0].sum())
    deviation = math.sqrt(float((ranks**2).sum())) / 2
    z = min(0.0, (min(plus, total - plus) + 0.5 - total / 2) / deviation)
    return min(0.0, (math.log(2) + float(log_ndtr(z))) / math.log(10))


def _tau(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> float:
    """Tau-b of the indicator of x, by ranks: n log n also for millions of packets."""
    pooled = np.concatenate([x, y])
    m, n = len(x), len(y)
    ranks = mid_ranks(pooled)
    area = (float(ranks[:m].sum()) - m * (m + 1) / 2) / (m * n)
    _, counts = np.unique(pooled, return_counts=True)
    size = float(m + n)
    untied = (size * (size - 1) - float((counts * (counts.astype(np.float64) - 1)).sum())) / 2
    return (2 * area - 1) * math.sqrt(m * n / untied) if untied else 0.0
