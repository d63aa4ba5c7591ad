"""Change points of a metric over runs of one design, with a bounded rate of false alarms.

The statistic is that of one change at an unknown place in Gaussian noise, the largest sum of
squares between the two sides of a split (Sen and Srivastava 1975); its null distribution comes from
permuting the runs (`scipy.stats.permutation_test`), which assumes nothing of the noise but that
runs are exchangeable while nothing changes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import permutation_test

from planewise.errors import BadInputError
from planewise.judge.statistics.metrics import Metric, RunSample, figures_in, metrics_in, observe
from planewise.store.models import Level
from planewise.store.rundir import RunReader
from planewise.units import percent_text

Floats = NDArray[np.float64]

RECENT = 3
"""How many of the newest runs are checked for a change first: fewer places give more power."""
ALPHA_RECENT, ALPHA_EARLIER = 0.04, 0.01
"""Shares of unchanged series in which a change is seen among the newest runs, and before them."""
LEAST = 8
"""Runs without a change before any can be told."""
_RESAMPLES = 1999
_METRICS = ("rtt", "rtt_p99", "throughput", "goodput")


@dataclass(frozen=True)
class ChangePoint:
    """A lasting change between two runs."""

    at: int
    """Index of the first run after it."""
    change: float
    """Of the mean after it against the mean before, as a share."""
    p_value: float
    recent: bool
    """Whether it is among the newest runs."""


@dataclass(frozen=True)
class Trend:
    """A change of one metric in one cell."""

    metric: Metric
    cell: Mapping[str, Level]
    run: str
    """The first run after it."""
    point: ChangePoint

    @property
    def sentence(self) -> str:
        """What changed, where and since when."""
        where = ", ".join(str(level) for level in self.cell.values())
        change = percent_text(round(self.point.change, 3), signed=True)
        return (
            f"{self.metric.title} of {where} changed by {change} with {self.run} "
            f"(p = {self.point.p_value:.2g})"
        )

    def as_json(self) -> dict[str, object]:
        """Its fields, for programs."""
        cell = dict(self.cell)
        return {"metric": self.metric.name, "cell": cell, "run": self.run, **asdict(self.point)}


def trends(paths: Sequence[Path], metrics: Sequence[str] = ()) -> list[Trend]:
    """Lasting changes in run directories, put in order of time, the newest last.

    Raises:
        BadInputError: there are too few runs, or one is damaged.
    """
    readers = sorted((RunReader(path) for path in paths), key=lambda reader: reader.info.started)
    if len(readers) <= LEAST:
        raise BadInputError(
            f"too few runs to tell a change from noise: {len(readers)}",
            where="planewise trend",
            remedy=f"give {LEAST + 1} or more runs of one design",
        )
    samples = [RunSample(str(reader.path), reader.info, reader.trials()) for reader in readers]
    present = metrics_in(samples)
    names = metrics or [name for name in _METRICS if name in present] + sorted(figures_in(samples))
    series: dict[tuple[Metric, tuple[tuple[str, Level], ...]], dict[str, list[float]]] = {}
    for name in names:
        observed = observe(samples, name)
        for one in observed.observations:
            key = observed.metric, tuple(one.cell.items())
            series.setdefault(key, {}).setdefault(one.run, []).append(one.value)
    found = []
    for (metric, cell), by_run in series.items():
        values = [statistics.median(of_run) for of_run in by_run.values()]
        found += [
            Trend(metric, dict(cell), list(by_run)[point.at], point)
            for point in change_points(values, series=len(series))
        ]
    return found


def change_points(
    values: Sequence[float], seed: int = 1, series: int = 1
) -> tuple[ChangePoint, ...]:
    """The changes in a series of runs, oldest first. Pure.

    In `series` of them without any change, one is reported with a probability of at most 5 %
    (Bonferroni's correction).
    """
    runs: Floats = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    p_values = _earlier(runs, 0, len(runs), ALPHA_EARLIER / series, rng)
    begin = max(p_values, default=0)
    if (length := len(runs) - begin) > LEAST:
        at, p = _test(runs[begin:], max(LEAST, length - RECENT), length - 1, rng)
        if p <= ALPHA_RECENT / series:
            p_values[begin + at] = p
    ends = (0, *sorted(p_values), len(runs))
    return tuple(
        ChangePoint(
            at,
            float(runs[at:end].mean() / runs[begin:at].mean() - 1),
            p_values[at],
            at >= len(runs) - RECENT,
        )
        for begin, at, end in zip(ends, ends[1:], ends[2:], strict=False)
    )


def _earlier(
    runs: Floats, begin: int, end: int, alpha: float, rng: np.random.Generator
) -> dict[int, float]:
    """Changes with two runs or more on either side, by binary segmentation, with p-values."""
    if end - begin <= LEAST:
        return {}
    at, p = _test(runs[begin:end], 2, end - begin - 2, rng)
    if p > alpha:
        return {}
    middle = begin + at
    before = _earlier(runs, begin, middle, alpha, rng)
    return {**before, middle: p, **_earlier(runs, middle, end, alpha, rng)}


def _test(series: Floats, first: int, last: int, rng: np.random.Generator) -> tuple[int, float]:
    """The best split from `first` to `last` runs before it, and its p-value."""
    n, splits = len(series), np.arange(first, last + 1)

    def between(x: Floats, axis: int = -1) -> Floats:
        sums = np.cumsum(x - x.mean(axis=axis, keepdims=True), axis=axis)[..., splits - 1]
        squares: Floats = sums**2 * n / (splits * (n - splits))
        return squares

    result = permutation_test(
        (series,),
        lambda x, axis: between(x, axis).max(axis=axis),
        permutation_type="pairings",
        vectorized=True,
        n_resamples=_RESAMPLES,
        alternative="greater",
        rng=rng,
    )
    return int(splits[np.argmax(between(series))]), float(result.pvalue)
