"""The order of the trials and the drift of RTT over it. Knows the run's order, no testbed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import groupby

import altair as alt

from planewise.report import theme
from planewise.report.cells import words
from planewise.report.data import Visit
from planewise.report.figures import base
from planewise.report.figures.base import Entry, Figure, Missing, Row, Span, Spec, Table, Value
from planewise.units import percent_text, rate_text, time_text

_MOST_POINTS = 400
"""RTT trials that are drawn one by one; of more, every so many are drawn as their median."""
_MOST_BARS = 400
_MOST_ROWS = 1000
"""Trials that the table lists one by one."""
_DRIFT_HEIGHT = 150
_ROW = 24


def figures(visits: Sequence[Visit], planes: Sequence[str]) -> list[Figure]:
    """One figure: drift above, what ran when below, on one axis."""
    with_rtt = [visit for visit in visits if visit.relative is not None]
    failed = [visit for visit in visits if visit.failed]
    last = max(visit.order for visit in visits)
    span = Span(-0.5, last + 0.5, log=False)
    drift = _drift(with_rtt)

    def draw(width: int) -> Spec:
        room = base.label_room([*(visit.plane for visit in visits), "+100 %"], most=130)
        plot = width - room - 16
        charts: list[Spec] = []
        if with_rtt:
            charts.append(_drift_panel(with_rtt, planes, span, plot, room))
        charts.append(_strip(visits, planes, span, plot, room))
        return base.finish(base.below(charts, spacing=16))

    said = (
        ""
        if drift is None
        else " From the first to the last quarter of the run the median changed by "
        f"{drift * 100:+.1f} %."
    )
    return [
        Figure(
            name="schedule",
            title="Order of the trials, and drift",
            caption=(
                (
                    "Above: each RTT trial's median relative to the middle of its own cell's "
                    "medians, in the order in which they were run; the line is the running "
                    "median over all planes. If it climbs or falls, the machine changed during "
                    f"the run.{said} "
                    if with_rtt
                    else "No cell has two RTT trials, so drift cannot be told. "
                    if any(visit.median_ns is not None for visit in visits)
                    else ""
                )
                + "Below: which plane was measured when (tall: RTT trials, low: load trials"
                + (", crosses: failed ones)." if failed else ").")
            ),
            alt=f"{len(visits)} trials in their order, {len(failed)} failed.{said}",
            draw=draw,
            table=_table(visits),
        )
    ]


def _drift(visits: Sequence[Visit]) -> float | None:
    """Relative change of the median from the first to the last quarter of the RTT trials."""
    quarter = len(visits) // 4
    if quarter < 3:
        return None
    first = statistics.median(visit.relative or 0.0 for visit in visits[:quarter])
    last = statistics.median(visit.relative or 0.0 for visit in visits[-quarter:])
    return last / first - 1 if first > 0 else None


def _drift_panel(
    visits: Sequence[Visit], planes: Sequence[str], span: Span, plot: int, room: int
) -> Spec:
    rows: list[Row] = []
    stride = -(-len(visits) // _MOST_POINTS)
    by_plane: dict[str, list[Visit]] = {}
    for visit in visits:
        by_plane.setdefault(visit.plane, []).append(visit)
    for plane, own in by_plane.items():
        for start in range(0, len(own), stride):
            some = own[start : start + stride]
            value = statistics.median(visit.relative or 0.0 for visit in some)
            rows.append(
                {
                    "plane": plane,
                    "order": some[0].order,
                    "change": value - 1,
                    "said": f"trial {some[0].order}: {plane}, {words(some[0].factors)}, "
                    f"{percent_text(value - 1, signed=True)}"
                    if stride == 1
                    else f"{plane}, trials {some[0].order} to {some[-1].order}: "
                    f"{percent_text(value - 1, signed=True)}",
                }
            )
    window = max(5, len(visits) // 12)
    running: list[Row] = [
        {
            "order": visits[place].order,
            "change": statistics.median(
                visit.relative or 0.0
                for visit in visits[max(0, place - window // 2) : place + window // 2 + 1]
            )
            - 1,
        }
        for place in range(0, len(visits), max(1, len(visits) // 150))
    ]
    most = max(0.02, *(abs(float(row["change"])) for row in rows)) * 1.1
    low = max(-1.0, -most)
    y = alt.Y(
        "change:Q",
        scale=alt.Scale(domain=[low, most], nice=False),
        axis=alt.Axis(
            title="median RTT against its cell's",
            titleAngle=0,
            titleAlign="left",
            titleAnchor="start",
            titleX=-room + 8,
            titleY=-8,
            titleBaseline="bottom",
            values=theme.ticks(low, most, log=False, most=5),
            labelExpr="datum.value === 0 ? '0 %' : format(datum.value * 100, '+.3~r') + ' %'",
            minExtent=room,
            maxExtent=room,
            domain=False,
            ticks=False,
        ),
    )
    x = alt.X(
        "order:Q",
        scale=span.scale(),
        axis=alt.Axis(labels=False, ticks=False, title=None, grid=False, domain=False),
    )
    colour = alt.Color("plane:N", scale=base.plane_colour(planes), legend=None)
    return base.layers(
        [
            alt.Chart(base.data(rows))
            .mark_point(filled=True, size=26, opacity=0.85)
            .encode(x=x, y=y, color=colour, description=alt.Description("said:N")),
            alt.Chart(base.data(running))
            .mark_line(strokeWidth=1.5)
            .encode(x=x, y=y, color=alt.ColorValue(theme.INK.light)),
        ],
        width=plot,
        height=_DRIFT_HEIGHT,
    )


def _strip(
    visits: Sequence[Visit], planes: Sequence[str], span: Span, plot: int, room: int
) -> Spec:
    bars: list[dict[str, object]] = []
    for (plane, kind), group in groupby(visits, key=lambda visit: (visit.plane, visit.kind)):
        own = list(group)
        bars.append(
            {
                "plane": plane,
                "from": own[0].order - 0.5,
                "to": own[-1].order + 0.5,
                "kind": kind,
                "said": f"trials {own[0].order} to {own[-1].order}: {plane}, "
                f"{kind.upper() if kind == 'rtt' else kind} trials",
            }
        )
    if len(bars) > _MOST_BARS:
        bars = _coarse(visits, span)
    failed: Sequence[Row] = [
        {
            "plane": visit.plane,
            "order": visit.order,
            "said": f"trial {visit.order} failed: {visit.trial.reason}",
        }
        for visit in visits
        if visit.failed
    ][:_MOST_BARS]
    here = [plane for plane in planes if any(visit.plane == plane for visit in visits)]
    y = base.plane_axis(here, room)
    colour = alt.Color("plane:N", scale=base.plane_colour(planes), legend=None)
    axis = alt.Axis(
        title="trials in the order in which they were run",
        titleAnchor="start",
        values=theme.ticks(0, span.high, log=False, most=max(4, plot // 70)),
        format="d",
    )
    chart = alt.Chart(base.data(bars))
    x = alt.X("from:Q", scale=span.scale(), axis=axis)
    layers: list[alt.Chart | Spec] = [
        chart.transform_filter("datum.kind == 'rtt'")
        .mark_bar(height=16)
        .encode(x=x, x2=alt.X2("to"), y=y, color=colour, description=alt.Description("said:N")),
        chart.transform_filter("datum.kind != 'rtt'")
        .mark_bar(height=6)
        .encode(x=x, x2=alt.X2("to"), y=y, color=colour, description=alt.Description("said:N")),
    ]
    if failed:
        layers.append(
            alt.Chart(base.data(failed))
            .mark_point(shape="cross", angle=45, size=60, filled=True, opacity=1)
            .encode(
                x=alt.X("order:Q", scale=span.scale(), axis=axis),
                y=y,
                color=alt.ColorValue(theme.ALERT.light),
                description=alt.Description("said:N"),
            )
        )
    return base.layers(layers, width=plot, height=_ROW * len(here))


def _coarse(visits: Sequence[Visit], span: Span) -> list[dict[str, object]]:
    """Of a long run: in which stretches of it a plane was measured at all."""
    step = (span.high - span.low) / 100
    stretches = dict.fromkeys(
        (visit.plane, visit.kind, int((visit.order - span.low) // step)) for visit in visits
    )
    return [
        {
            "plane": plane,
            "kind": kind,
            "from": span.low + place * step,
            "to": span.low + (place + 1) * step,
            "said": f"{plane}: {kind} trials",
        }
        for plane, kind, place in stretches
    ]


def _table(visits: Sequence[Visit]) -> Table:
    rows: list[tuple[Entry, ...]] = []
    for visit in visits[:_MOST_ROWS]:
        what = "RTT" if visit.kind == "rtt" else "load"
        if visit.kind == "load" and visit.trial.load is not None:
            what = f"load, {rate_text(visit.trial.load.intended_pps)}"
        median: Entry
        if visit.median_ns is not None:
            median = Value(time_text(visit.median_ns), visit.median_ns)
        elif visit.failed:
            median = Missing(f"failed: {visit.trial.reason}")
        else:
            median = Missing("a load trial has no RTT")
        rows.append(
            (
                Value(str(visit.order), visit.order),
                visit.trial.started.strftime("%H:%M:%S"),
                visit.plane,
                words(visit.factors),
                what,
                median,
            )
        )
    if len(visits) > _MOST_ROWS:
        rows.append(
            (
                "…",
                "",
                "",
                f"{len(visits) - _MOST_ROWS} more are in trials.jsonl",
                "",
                "",
            )
        )
    return Table(
        columns=("Order", "Started (UTC)", "Plane", "Load", "Trial", "Median RTT"),
        rows=tuple(rows),
    )
