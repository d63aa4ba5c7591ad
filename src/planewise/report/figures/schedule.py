"""The order of the trials and the drift of RTT over it. Knows the run's order, no testbed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby

from planewise.report import theme
from planewise.report.data import OrderedTrial
from planewise.report.figures import vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.vega import Row, Span, Spec
from planewise.store.cells import words
from planewise.units import percent_text, rate_text

_MOST_POINTS = 400
"""Most RTT trials drawn one by one; of more, groups are drawn as their median."""
_MOST_BARS = 400
_MOST_ROWS = 1000
"""Most rows of the table."""
_DRIFT_HEIGHT = 150
_ROW = 24


def figures(visits: Sequence[OrderedTrial], planes: Sequence[str]) -> list[Figure]:
    """One figure: drift above, the order of trials below, on one axis."""
    with_rtt = [visit for visit in visits if visit.relative is not None]
    failed = [visit for visit in visits if visit.failed]
    last = max(visit.order for visit in visits)
    span = Span(-0.5, last + 0.5, log=False)
    drift = _drift(with_rtt)
    colours = theme.colours_of(planes)

    def draw(width: int) -> Spec:
        room = vega.label_room([*(visit.plane for visit in visits), "+100 %"])
        plot = width - room - 16
        charts: list[Spec] = []
        if with_rtt:
            charts.append(_drift_panel(with_rtt, colours, span, plot, room))
        charts.append(_strip(visits, colours, span, plot, room))
        return vega.finish(vega.below(charts, spacing=16))

    change = (
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
                    f"the run.{change} "
                    if with_rtt
                    else "No cell has two RTT trials, so drift is unknown. "
                    if any(visit.median_ns is not None for visit in visits)
                    else ""
                )
                + "Below: which plane was measured when (tall: RTT trials, low: load trials"
                + (", crosses: failed ones)." if failed else ").")
            ),
            alt=f"{len(visits)} trials in their order, {len(failed)} failed.{change}",
            draw=draw,
            table=_table(visits),
        )
    ]


def _drift(visits: Sequence[OrderedTrial]) -> float | None:
    """Relative change of the median from the first to the last quarter of the RTT trials."""
    quarter = len(visits) // 4
    if quarter < 3:
        return None
    first = statistics.median(visit.relative or 0.0 for visit in visits[:quarter])
    last = statistics.median(visit.relative or 0.0 for visit in visits[-quarter:])
    return last / first - 1 if first > 0 else None


def _drift_panel(
    visits: Sequence[OrderedTrial], colours: Mapping[str, str], span: Span, plot: int, room: int
) -> Spec:
    rows = _changes(visits)
    most = max(0.02, *(abs(float(row["change"])) for row in rows)) * 1.1
    changes = Span(max(-1.0, -most), most, log=False)
    axis = vega.y_axis(
        changes,
        "share",
        room,
        title="median RTT against its cell's",
        labelExpr="datum.value === 0 ? '0 %' : format(datum.value * 100, '+.3~r') + ' %'",
    )
    hidden = {"labels": False, "ticks": False, "title": None, "grid": False, "domain": False}
    place = {
        "x": vega.quantitative("order", span, hidden),
        "y": vega.quantitative("change", changes, axis),
    }
    coloured = {**place, "color": vega.coloured("plane", colours)}
    return vega.layers(
        [
            vega.mark("point", rows, coloured, hover=True, filled=True, size=26, opacity=0.85),
            vega.mark("line", _running(visits), place, strokeWidth=1.5, color=theme.INK.light),
        ],
        width=plot,
        height=_DRIFT_HEIGHT,
    )


def _changes(visits: Sequence[OrderedTrial]) -> list[Row]:
    """Each trial's deviation from its cell; of a long run, medians of groups of trials."""
    rows: list[Row] = []
    stride = -(-len(visits) // _MOST_POINTS)
    by_plane: dict[str, list[OrderedTrial]] = {}
    for visit in visits:
        by_plane.setdefault(visit.plane, []).append(visit)
    for plane, plane_visits in by_plane.items():
        for start in range(0, len(plane_visits), stride):
            part = plane_visits[start : start + stride]
            change = statistics.median(visit.relative or 0.0 for visit in part) - 1
            label = (
                f"trial {part[0].order}: {plane}, {words(part[0].factors)}"
                if stride == 1
                else f"{plane}, trials {part[0].order} to {part[-1].order}"
            )
            separator = ", " if stride == 1 else ": "
            hover = f"{label}{separator}{percent_text(change, signed=True)}"
            rows.append({"plane": plane, "order": part[0].order, "change": change, "hover": hover})
    return rows


def _running(visits: Sequence[OrderedTrial]) -> list[Row]:
    """The running median over all planes."""
    half = max(5, len(visits) // 12) // 2
    places = range(0, len(visits), max(1, len(visits) // 150))
    windows = {place: visits[max(0, place - half) : place + half + 1] for place in places}
    return [
        {
            "order": visits[place].order,
            "change": statistics.median(visit.relative or 0.0 for visit in window) - 1,
        }
        for place, window in windows.items()
    ]


def _strip(
    visits: Sequence[OrderedTrial], colours: Mapping[str, str], span: Span, plot: int, room: int
) -> Spec:
    bars: list[Row] = []
    for (plane, kind), group in groupby(visits, key=lambda visit: (visit.plane, visit.kind)):
        stretch = list(group)
        bars.append(
            {
                "plane": plane,
                "from": stretch[0].order - 0.5,
                "to": stretch[-1].order + 0.5,
                "kind": kind,
                "hover": f"trials {stretch[0].order} to {stretch[-1].order}: {plane}, "
                f"{kind.upper() if kind == 'rtt' else kind} trials",
            }
        )
    if len(bars) > _MOST_BARS:
        bars = _coarse(visits, span)
    failed: Sequence[Row] = [
        {
            "plane": visit.plane,
            "order": visit.order,
            "hover": f"trial {visit.order} failed: {visit.trial.reason}",
        }
        for visit in visits
        if visit.failed
    ][:_MOST_BARS]
    planes = [plane for plane in colours if any(visit.plane == plane for visit in visits)]
    y = vega.plane_axis(planes, room)
    axis = {
        "title": "trials in the order in which they were run",
        "titleAnchor": "start",
        "values": theme.ticks(0, span.high, log=False, most=max(4, plot // 70)),
        "format": "d",
    }
    bar = {
        "x": vega.quantitative("from", span, axis),
        "x2": {"field": "to"},
        "y": y,
        "color": vega.coloured("plane", colours),
    }
    cross = {"x": vega.quantitative("order", span, axis), "y": y}
    look = {"shape": "cross", "angle": 45, "size": 60, "filled": True, "opacity": 1}
    rtt_bars = [row for row in bars if row["kind"] == "rtt"]
    other_bars = [row for row in bars if row["kind"] != "rtt"]
    return vega.layers(
        [
            vega.mark("bar", rtt_bars, bar, hover=True, height=16),
            vega.mark("bar", other_bars, bar, hover=True, height=6),
            vega.mark("point", failed, cross, hover=True, color=theme.ALERT.light, **look),
        ],
        width=plot,
        height=_ROW * len(planes),
    )


def _coarse(visits: Sequence[OrderedTrial], span: Span) -> list[Row]:
    """Bars for a long run: the hundredths of it in which a plane was measured."""
    step = (span.high - span.low) / 100
    stretches = dict.fromkeys(
        (visit.plane, visit.kind, int((visit.order - span.low) // step)) for visit in visits
    )
    rows: list[Row] = [
        {
            "plane": plane,
            "kind": kind,
            "from": span.low + place * step,
            "to": span.low + (place + 1) * step,
            "hover": f"{plane}: {kind} trials",
        }
        for plane, kind, place in stretches
    ]
    return rows


_KINDS = {"rtt": "RTT", "tcp": "TCP"}


def _table(visits: Sequence[OrderedTrial]) -> Table:
    rows: list[tuple[Entry, ...]] = []
    for visit in visits[:_MOST_ROWS]:
        kind = _KINDS.get(visit.kind, visit.kind)
        if visit.kind == "load" and visit.trial.load is not None:
            kind = f"load, {rate_text(visit.trial.load.intended_pps)}"
        median: Entry
        if visit.median_ns is not None:
            median = PrintedNumber.time(visit.median_ns)
        elif visit.failed:
            median = Missing(f"failed: {visit.trial.reason}")
        else:
            median = Missing("no round-trip time was measured")
        rows.append(
            (
                PrintedNumber.plain(visit.order),
                visit.trial.started.strftime("%H:%M:%S"),
                visit.plane,
                words(visit.factors),
                kind,
                median,
            )
        )
    if len(visits) > _MOST_ROWS:
        more = f"{len(visits) - _MOST_ROWS} more are in trials.jsonl"
        rows.append(("…", "", "", more, "", ""))
    return Table(
        columns=("Order", "Started (UTC)", "Plane", "Load", "Trial", "Median RTT"),
        rows=tuple(rows),
    )
