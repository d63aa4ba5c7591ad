"""Intervals of quantiles and their ratios from packets, by resampling blocks. Knows no file.

Two stages, because packets are not independent in two ways. Blocks of the experiment are drawn
with replacement, all replicates of a block together, as they share the state of the host. Within
each replicate, stretches of consecutive packets are drawn (circular block bootstrap, Politis and
Romano 1992), as a packet resembles the one before it. The deviation of the drawn quantiles'
logarithms makes Student's interval with one degree of freedom less than there are blocks: with few
blocks the drawn quantiles alone would be too sure of themselves.

A quantile of a mixture lies between the quantiles of its parts. So each packet is only placed
among some hundred thresholds between the blocks' own quantiles, and what is drawn are counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from planewise.judge.statistics.pairing import Key, level_order
from planewise.store.models import Level

Floats = NDArray[np.floating]

QUANTILES = (0.5, 0.99, 0.999)
DRAWS = 300
THRESHOLDS = 48
"""Between the least and the greatest of the blocks' own quantiles."""
LEAST_BEYOND = 5
"""Packets that must lie beyond a quantile for it to be told."""


@dataclass(frozen=True)
class Replicate:
    """The packets of one trial."""

    block: Key
    """Run and block."""
    values: Floats
    """In the order in which they were sent; positive, without those that were lost."""


@dataclass(frozen=True)
class QuantileEstimate:
    """A quantile over all packets of a level in a stratum."""

    level: Level
    stratum: str
    quantile: float
    value: float
    low: float | None
    high: float | None
    """95 % interval; None with a single block."""
    packets: int
    blocks: int


@dataclass(frozen=True)
class QuantileRatio:
    """A quantile of one level over that of another."""

    a: Level
    b: Level
    stratum: str
    quantile: float
    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of the levels of a factor in one stratum."""

    estimates: tuple[QuantileEstimate, ...]
    ratios: tuple[QuantileRatio, ...]


def bootstrap_quantiles(
    levels: Mapping[Level, Sequence[Replicate]],
    stratum: str,
    *,
    quantiles: Sequence[float] = QUANTILES,
    draws: int = DRAWS,
    seed: int = 1,
) -> Quantiles:
    """Quantiles of every level with 95 % intervals, and their ratios for every two levels.

    Ratios are drawn in pairs: both levels with the same blocks. Quantiles beyond which fewer than
    `LEAST_BEYOND` packets of a level lie are left out.
    """
    blocks = sorted({one.block for replicates in levels.values() for one in replicates})
    rng = np.random.default_rng(seed)
    places = rng.integers(0, len(blocks), size=(draws, len(blocks)))
    weights = np.stack([np.bincount(row, minlength=len(blocks)) for row in places])
    drawn: dict[tuple[Level, float], Floats] = {}
    values: dict[tuple[Level, float], float] = {}
    estimates, ratios = [], []
    for level in level_order(levels):
        replicates = [one for one in levels[level] if one.values.size]
        packets = sum(one.values.size for one in replicates)
        told = [q for q in quantiles if packets * (1 - q) >= LEAST_BEYOND]
        if not told:
            continue
        own = sorted({one.block for one in replicates})
        logs = [np.log(one.values) for one in replicates]
        columns = [blocks.index(one.block) for one in replicates]
        found = _drawn_quantiles(logs, columns, weights, told, rng)
        pooled = np.quantile(np.concatenate(logs), told)
        for q, centre, samples in zip(told, pooled, found, strict=True):
            drawn[level, q], values[level, q] = samples, float(centre)
            low, high = _interval(float(centre), samples, len(own))
            estimates.append(
                QuantileEstimate(level, stratum, q, math.exp(centre), low, high, packets, len(own))
            )
    for a, b in combinations(level_order(levels), 2):
        shared = {one.block for one in levels[a]} & {one.block for one in levels[b]}
        for q in quantiles:
            if (a, q) in drawn and (b, q) in drawn:
                centre = values[a, q] - values[b, q]
                low, high = _interval(centre, drawn[a, q] - drawn[b, q], len(shared))
                ratios.append(QuantileRatio(a, b, stratum, q, math.exp(centre), low, high))
    return Quantiles(tuple(estimates), tuple(ratios))


def block_length(packets: int) -> int:
    """Packets that are drawn together: √n, far longer than what packets share at usual rates."""
    return max(1, math.isqrt(packets))


def _drawn_quantiles(
    logs: Sequence[Floats],
    columns: Sequence[int],
    weights: NDArray[np.int64],
    quantiles: Sequence[float],
    rng: np.random.Generator,
) -> Floats:
    """Logarithms of drawn quantiles, shape (len(quantiles), draws); NaN where none was drawn."""
    thresholds = _thresholds(logs, columns, quantiles)
    counts = np.zeros((weights.shape[0], thresholds.size + 1), dtype=np.float32)
    for values, column in zip(logs, columns, strict=True):
        counts += weights[:, [column]] * _resampled(values, thresholds, weights.shape[0], rng)
    below = np.cumsum(counts, axis=1, dtype=np.float64)
    total = below[:, -1]
    result = np.full((len(quantiles), weights.shape[0]), np.nan)
    for row, (cumulated, size) in enumerate(zip(below, total, strict=True)):
        if size > 0:
            # cumulated[k]: packets up to thresholds[k]
            result[:, row] = np.interp(np.asarray(quantiles) * size, cumulated[:-1], thresholds)
    return result


def _thresholds(
    logs: Sequence[Floats], columns: Sequence[int], quantiles: Sequence[float]
) -> Floats:
    """Rising thresholds around each quantile: between the blocks' own, and a little beyond."""
    by_block: dict[int, list[Floats]] = {}
    for values, column in zip(logs, columns, strict=True):
        by_block.setdefault(column, []).append(values)
    own = np.array([np.quantile(np.concatenate(part), quantiles) for part in by_block.values()])
    grids = []
    for q, column in zip(quantiles, own.T, strict=True):
        # Within a block, too, a quantile varies: by about that of its neighbours at ± 3 deviations.
        size = min(sum(part.size for part in parts) for parts in by_block.values())
        deviation = 3 * math.sqrt(q * (1 - q) / size) * 2
        near = [max(0.0, q - deviation), min(1.0, q + deviation)]
        ends = np.array([np.quantile(np.concatenate(part), near) for part in by_block.values()])
        low, high = min(column.min(), ends[:, 0].min()), max(column.max(), ends[:, 1].max())
        grids.append(np.linspace(low, high, THRESHOLDS))
    return np.unique(np.concatenate(grids))


def _resampled(values: Floats, thresholds: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Counts between the thresholds of resampled packets, shape (draws, thresholds + 1).

    The packets lie on a circle; its cut into stretches of `block_length` begins at a random place.
    """
    n = values.size
    length = block_length(n)
    stretches = -(-n // length)
    bins = np.searchsorted(thresholds, values, side="left")
    bins = np.roll(bins, int(rng.integers(0, n)))
    stretch = np.arange(n) // length
    width = thresholds.size + 1
    counts = np.bincount(stretch * width + bins, minlength=stretches * width)
    table = counts.reshape(stretches, width).astype(np.float32)
    chosen = rng.integers(0, stretches, size=(draws, stretches))
    chosen += np.arange(draws)[:, None] * stretches
    times = np.bincount(chosen.ravel(), minlength=draws * stretches)
    return np.asarray(times.reshape(draws, stretches).astype(np.float32) @ table)


def _interval(centre: float, drawn: Floats, blocks: int) -> tuple[float, float] | tuple[None, None]:
    """Student's interval around `centre` (a logarithm), ends as plain values."""
    drawn = drawn[np.isfinite(drawn)]
    if blocks < 2 or drawn.size < 2:
        return None, None
    # Drawing from n blocks knows n − 1 n-ths of their variance.
    error = float(drawn.std(ddof=1)) * math.sqrt(blocks / (blocks - 1))
    half = float(stdtrit(blocks - 1, 0.975)) * error
    return math.exp(centre - half), math.exp(min(centre + half, 700.0))
