"""The section of each metric by number of background guests: a line a plane."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planewise.judge.bounded import Bound, Bounded, exact, median_interval, median_of
from planewise.judge.statistics.metrics import cpu_metrics
from planewise.judge.statistics.sentences import bound_text
from planewise.report import charts, facets, theme
from planewise.report.data import RunData
from planewise.report.facets import Item, Panel
from planewise.report.figure import (
    Entry,
    Figure,
    Missing,
    PrintedNumber,
    Section,
    Table,
    slug,
)
from planewise.report.vega import Quantity, Row, Span, Spec
from planewise.store.cells import Factors, Naming, common_factors, words
from planewise.store.models import TrialRecord
from planewise.units import percent_text, rate_text, time_text

GUESTS = "background_guests"
_METRICS = ("rtt", "rtt_p99", "overhead", "response", "loss", "throughput")
_QUANTITIES: Mapping[str, Quantity] = {"ns": "duration", "pps": "rate", "share": "share"}


@dataclass(frozen=True)
class Point:
    """A metric of one cell: the median over its blocks."""

    value: float
    bound: Bound
    """Set where at least half of the blocks have only a bound."""
    low: float | None
    """95 % interval by order statistics; None where it is open, as with fewer than six blocks."""
    high: float | None
    blocks: int

    @classmethod
    def of(cls, values: Sequence[Bounded]) -> Point:
        """The median over blocks, which may be a bound, with its interval."""
        low, high = (end if math.isfinite(end) else None for end in median_interval(values))
        median = median_of(values)
        return cls(median.value, median.bound, low, high, len(values))


@dataclass(frozen=True)
class Curves:
    """A metric of all cells."""

    name: str
    title: str
    quantity: Quantity
    """`number`: of CPUs."""
    points: tuple[Item[Point], ...]

    def number(self, value: float) -> str:
        """A value of the metric as it is printed."""
        if self.quantity == "number":
            return f"{value:.3g}"
        show = {"duration": time_text, "rate": rate_text, "share": percent_text}
        return show[self.quantity](value)

    def shown(self, point: Point) -> str:
        """A point as it is printed; a bound is marked as one."""
        return bound_text(point.bound, self.number(point.value))


def sections(data: RunData) -> Iterator[Section]:
    """The section, where the number of guests varies: their load first, then the metrics."""
    if len({trial.cell[GUESTS] for trial in data.done if GUESTS in trial.cell}) < 2:
        return
    curves = [*_loads(data), *_metrics(data)]
    if curves:
        drawn = [figure(one, data.naming, data.colours, data.place) for one in curves]
        yield Section(
            "guests",
            "Effect of the number of background guests",
            "The first figure shows the load of all background guests, the others its effect.",
            tuple(drawn),
        )


def _metrics(data: RunData) -> Iterable[Curves]:
    for name in (*_METRICS, *cpu_metrics([data.sample], modes=False)):
        observed = data.observed(name)
        cells: dict[tuple[str, Factors], list[Bounded]] = {}
        for observation in observed.observations:
            if GUESTS in observation.cell:
                key = (data.naming.series(observation.cell), data.naming.factors(observation.cell))
                cells.setdefault(key, []).append(observation.bounded)
        if len({dict(factors)[GUESTS] for _, factors in cells}) > 1:
            points = tuple(Item(*key, Point.of(values)) for key, values in cells.items())
            yield Curves(name, observed.metric.title, _QUANTITIES[observed.metric.unit], points)


def _loads(data: RunData) -> Iterable[Curves]:
    """The load of all background guests together, whether or not they kept their level."""
    by_unit: dict[str, dict[tuple[str, Factors], list[TrialRecord]]] = {}
    for trial in data.done:
        if trial.background is not None and GUESTS in trial.cell:
            cells = by_unit.setdefault(trial.background.unit, {})
            cells.setdefault(data.key(trial), []).append(trial)
    for unit, cells in by_unit.items():
        points = [
            Item(*key, Point.of([exact(t.background.achieved) for t in trials if t.background]))
            for key, trials in cells.items()
        ]
        is_rate = unit == "pps"
        title = "CPU load of the background guests"
        title = "datagrams sent by the background guests" if is_rate else title
        yield Curves(f"load-{unit}", title, "rate" if is_rate else "number", tuple(points))


def figure(
    curves: Curves,
    naming: Naming,
    colours: Mapping[str, str],
    order: Callable[[tuple[str, Factors]], tuple[object, ...]],
) -> Figure:
    """Lines through medians over blocks, with their intervals, a panel each condition."""
    points = sorted(curves.points, key=lambda item: order((item.series, item.factors)))
    by_guests = facets.split(points, naming, GUESTS)
    span = span_of(item.content for item in points)
    least = min(points, key=lambda item: item.content.value)
    most = max(points, key=lambda item: item.content.value)
    lead = (
        f"Least {curves.shown(least.content)} ({least.series}, {words(least.factors)}), most "
        f"{curves.shown(most.content)} ({most.series}, {words(most.factors)})."
    )
    items = list({id(row.item): row.item for p in by_guests.panels for row in p.rows}.values())
    names = {row.series for panel in by_guests.panels for row in panel.rows}
    return Figure(
        slug(f"guests-{curves.name}"),
        f"{curves.title[:1].upper()}{curves.title[1:]} by number of background guests",
        "Median over blocks; thin line: its 95 % interval, from six blocks on. Trials that missed "
        f"their target are left out, except for the load itself. The axis is {span.word}.",
        tuple(
            charts.lines(
                panel.label,
                rows(panel, curves.shown),
                {series: colours[series] for series in colours if series in names},
                span,
                curves.quantity,
                levels_of(panel, by_guests.axis),
            )
            for panel in by_guests.panels
        ),
        table(curves, items),
        lead=lead,
    )


def span_of(points: Iterable[Point]) -> Span:
    """The axis of points and their intervals."""
    ends = [(point.low, point.value, point.high) for point in points]
    return Span.of(end for of_point in ends for end in of_point if end is not None)


def rows(panel: Panel[Point], show: Callable[[Point], str]) -> list[Row]:
    """The points of a panel, as `charts.lines` draws them."""
    return [
        {
            "series": row.series,
            "x": row.band,
            "value": row.item.content.value,
            "low": row.item.content.low,
            "high": row.item.content.high,
            "hover": f"{row.label}, {words(row.item.factors)}: {show(row.item.content)}",
        }
        for row in panel.rows
    ]


def levels_of(panel: Panel[Point], title: str) -> Spec:
    """The levels of a panel along its axis."""
    return charts.levels(list(dict.fromkeys(row.band for row in panel.rows)), title)


def table(curves: Curves, items: Sequence[Item[Point]]) -> Table:
    """The points in numbers."""
    common = common_factors(item.factors for item in items)
    return Table.of(
        items,
        {
            "Load": lambda item: words(item.factors, common),
            "Plane": lambda item: item.series,
            "Median over blocks": lambda item: PrintedNumber(
                curves.shown(item.content), item.content.value
            ),
            "95 % interval": lambda item: interval(item.content, curves.number),
            "Blocks": lambda item: PrintedNumber.plain(item.content.blocks),
        },
    )


def interval(point: Point, show: Callable[[float], str]) -> Entry:
    """The interval in numbers."""
    if point.low is None or point.high is None:
        return Missing("open: too few blocks, or a bound")
    return theme.interval(show(point.low), show(point.high))
