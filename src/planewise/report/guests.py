"""Each metric against the number of background guests: a point a cell. Draws nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from planewise.judge.bounded import Bound, Bounded, exact, median_of
from planewise.judge.statistics import RunSample, observe
from planewise.judge.statistics.estimates import median_interval
from planewise.judge.statistics.metrics import cpu_metrics
from planewise.report.data import RunData
from planewise.report.facets import Item
from planewise.report.figures.vega import Quantity
from planewise.store.cells import Factors, rank
from planewise.store.models import TrialRecord

GUESTS = "background_guests"
_METRICS = ("rtt", "rtt_p99", "overhead", "response", "loss", "throughput")


@dataclass(frozen=True)
class GuestsPoint:
    """A metric of one cell: the median over its blocks."""

    value: float
    bound: Bound
    """Set where at least half of the blocks have only a bound."""
    low: float | None
    """95 % interval by order statistics; None where it is open, as with fewer than six blocks."""
    high: float | None
    blocks: int


@dataclass(frozen=True)
class Curves:
    """A metric of all cells."""

    name: str
    title: str
    quantity: Quantity | None
    """None: a number of CPUs."""
    points: tuple[Item[GuestsPoint], ...]


def curves(data: RunData) -> list[Curves]:
    """The achieved load, then the metrics; empty where the number of guests does not vary."""
    if len({trial.cell[GUESTS] for trial in data.done if GUESTS in trial.cell}) < 2:
        return []

    def order(item: Item[GuestsPoint]) -> tuple[object, ...]:
        return rank(item.factors), data.plane_rank(item.series)

    return [
        replace(metric_curves, points=tuple(sorted(metric_curves.points, key=order)))
        for metric_curves in (*_loads(data), *_metrics(data))
    ]


def _metrics(data: RunData) -> Iterable[Curves]:
    sample = RunSample(data.info.run, data.info, data.trials)
    for name in (*_METRICS, *cpu_metrics([sample], modes=False)):
        observed = observe([sample], name)
        cells: dict[tuple[str, Factors], list[Bounded]] = {}
        for observation in observed.observations:
            if GUESTS in observation.cell:
                key = (data.naming.series(observation.cell), data.naming.factors(observation.cell))
                cells.setdefault(key, []).append(observation.bounded)
        if len({dict(factors)[GUESTS] for _, factors in cells}) > 1:
            quantities: dict[str, Quantity] = {"ns": "duration", "pps": "rate", "share": "share"}
            quantity = quantities[observed.metric.unit]
            points = tuple(Item(*key, point_of(values)) for key, values in cells.items())
            yield Curves(name, observed.metric.title, quantity, points)


def _loads(data: RunData) -> Iterable[Curves]:
    """The load of all background guests together, whether or not they kept their level."""
    by_unit: dict[str, dict[tuple[str, Factors], list[TrialRecord]]] = {}
    for trial in data.done:
        if trial.background is not None and GUESTS in trial.cell:
            cells = by_unit.setdefault(trial.background.unit, {})
            cells.setdefault(data.key(trial), []).append(trial)
    for unit, cells in by_unit.items():
        points = [
            Item(*key, point_of([exact(t.background.achieved) for t in trials if t.background]))
            for key, trials in cells.items()
        ]
        title = "CPUs that the background guests burn"
        if unit == "pps":
            title = "datagrams that the background guests send"
        yield Curves(f"load-{unit}", title, "rate" if unit == "pps" else None, tuple(points))


def point_of(values: Sequence[Bounded]) -> GuestsPoint:
    """The median over blocks, which may be a bound, with its interval."""
    low, high = median_interval(values)
    median = median_of(values)
    return GuestsPoint(
        median.value,
        median.bound,
        low if math.isfinite(low) else None,
        high if math.isfinite(high) else None,
        len(values),
    )
