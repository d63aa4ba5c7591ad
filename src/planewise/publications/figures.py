"""Figures that publications have and reports do not: a metric over a factor, a line a series."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from planewise.judge.bounded import exact, median_interval, median_of
from planewise.judge.statistics.metrics import Observed
from planewise.judge.statistics.sentences import value_text
from planewise.publications.evidence import AskedRun, PublishedTables
from planewise.report import charts, theme
from planewise.report.figure import Figure, PrintedNumber, Table
from planewise.report.sections import guests
from planewise.report.sections.guests import Point
from planewise.report.vega import Quantity
from planewise.store.cells import NAMES
from planewise.store.models import Level

_SHORT = {"north-south": "N/S", "east-west": "E/W"}
_SHOWN = (("transmitted", 64, "Packets"), ("transmitted_bits", 1518, "Bits"))


def of_tables(tables: PublishedTables) -> Iterator[Figure]:
    """Publication N's packets of the smallest frames and bits of the largest, by functions."""
    for metric, size_bytes, what in _SHOWN:
        found = tables.observed(metric, "vnfs")
        kept = tuple(one for one in found.observations if one.cell["size_bytes"] == size_bytes)
        title = f"{what} of {size_bytes}-byte frames that all functions transmit, as published"
        name = f"published-{metric.replace('_', '-')}"
        yield over(replace(found, observations=kept), name, title, "vnfs", ("plane", "path"))


def of_boost(run: AskedRun) -> Iterator[Figure]:
    """Publication F's figure 5, by packet rate; nothing where the run lacks planes or rates."""
    planes = {trial.cell.get("plane") for trial in run.trials}
    rates = {trial.cell.get("frequency_pps") for trial in run.trials if trial.kind == "rtt"}
    fast = next((plane for plane in ("vf", "macvlan") if plane in planes), None)
    if fast is not None and "bridge" in planes and len(rates) > 1:
        title = f"Round-trip time that {fast} saves over bridge, by packet rate"
        found = run.observed(f"boost:{fast}", "frequency_pps")
        yield over(found, "boost", title, "frequency_pps", ("size_bytes",))


def over(observed: Observed, name: str, title: str, factor: str, series: tuple[str, ...]) -> Figure:
    """The median over blocks by a factor of numbers, a line a level of `series`, with its 95 %
    interval where that is known."""
    metric, title_of = observed.metric, NAMES.get(factor, factor)
    values: dict[tuple[str, float], list[float]] = defaultdict(list)
    for one in observed.observations:
        line = " ".join(_level_text(part, one.cell.get(part, "")) for part in series)
        values[line, float(one.cell[factor])].append(one.value)
    points = {key: _point(group) for key, group in sorted(values.items())}

    def shown(value: float) -> str:
        return value_text(round(value, 3), metric.unit)

    rows = [
        {"x": f"{x:g}", "series": line, "label": line, "text": shown(point.value),
         "value": point.value, "low": point.low, "high": point.high}
        for (line, x), point in points.items()
    ]  # fmt: skip
    span = guests.span_of(points.values())
    (line, x), best = max(points.items(), key=lambda item: item[1].value)
    lead = f"Most is {shown(best.value)}: {line}, {x:g} {title_of}."
    quantity: Quantity = {"pps": "rate", "bps": "bits"}.get(metric.unit, "share")  # type: ignore[assignment]
    names = [f"{x:g}" for x in sorted({x for _, x in points})]
    return Figure(
        name=name,
        title=title,
        caption=f"Medians; thin line: the 95 % interval. The axis upwards is {span.word}.",
        lead=lead,
        panels=(
            charts.lines(
                "", rows, theme.colours_of(dict.fromkeys(line for line, _ in points)), span,
                quantity, charts.levels(names, title_of),
            ),
        ),
        table=Table.of(
            points.items(),
            {
                "Series": lambda item: item[0][0],
                title_of: lambda item: PrintedNumber.plain(int(item[0][1])),
                metric.title: lambda item: PrintedNumber(shown(item[1].value), item[1].value),
                "95 % interval": lambda item: guests.interval(item[1], shown),
            },
        ),
    )  # fmt: skip


def _level_text(factor: str, level: Level) -> str:
    return f"{level} bytes" if factor == "size_bytes" else _SHORT.get(str(level), str(level))


def _point(values: list[float]) -> Point:
    bounded = [exact(value) for value in values]
    low, high = median_interval(bounded)
    known = math.isfinite(low)
    return Point(
        median_of(bounded).value,
        "exact",
        low if known else None,
        high if known else None,
        len(values),
    )
