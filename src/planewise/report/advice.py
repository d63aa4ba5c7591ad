"""The page of an advice: planes for a planned workload, drawn over the number of functions.

Knows no model: its figures are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from planewise.report import html, renderer, svg, theme
from planewise.report.figures import base, vega
from planewise.report.figures.vega import Look, Row, Span, Spec

_HEIGHT = 260
_AXIS_ROOM = 72


@dataclass(frozen=True)
class CapacityPoint:
    """Predicted throughput of a plane with `vnfs` functions."""

    plane: str
    vnfs: int
    pps: float
    low_pps: float
    high_pps: float
    binds: str


@dataclass(frozen=True)
class StatementRow:
    """A statement and its basis."""

    text: str
    basis: str


@dataclass(frozen=True)
class RankedRow:
    """One plane of the ranking."""

    name: str
    possible: bool
    cells: tuple[str, ...]
    """As `columns` of the page."""
    statements: tuple[StatementRow, ...]


@dataclass(frozen=True)
class AdvicePage:
    """Content of the page."""

    title: str
    sentence: str
    host: str
    notice: str
    """Warning above the figures; empty for none."""
    columns: tuple[str, ...]
    planes: tuple[RankedRow, ...]
    changes: tuple[StatementRow, ...]
    points: tuple[CapacityPoint, ...]
    """Empty where there are no figures to draw."""
    asked_vnfs: int
    measured: bool = False
    """Whether some of the figures were measured."""
    notes: tuple[StatementRow, ...] = ()
    """Reservations."""


def render(page: AdvicePage) -> str:
    """The page as HTML that loads nothing."""
    drawings = {}
    if page.points:
        drawings = {
            name: Markup(svg.inline(renderer.svg(base.text(chart(page, width))), name))
            for name, width in (("wide", base.WIDE), ("narrow", base.NARROW))
        }
    return html.filled("advice.html.j2", page=page, drawings=drawings, alt=description(page))


def description(page: AdvicePage) -> str:
    """The chart in words, for readers who cannot see it."""
    rates = "; ".join(
        f"{point.plane} {point.pps / 1e6:.3g} Mpps, bound by the {point.binds}"
        for point in page.points
        if point.vnfs == page.asked_vnfs
    )
    return f"Lines of what each plane carries over the number of functions. Asked for: {rates}."


def chart(page: AdvicePage, width: int) -> Spec:
    """Throughput of each plane over the number of functions, with its interval."""
    colours = theme.colours_of(dict.fromkeys(point.plane for point in page.points))
    room = vega.label_room(colours)
    plot = width - _AXIS_ROOM - room - 12
    most_vnfs = max(point.vnfs for point in page.points)
    span = Span.of(
        [pps for point in page.points for pps in (point.pps, point.high_pps)], log_from=12
    )
    rows: list[Row] = [
        {
            "plane": point.plane,
            "vnfs": point.vnfs,
            "pps": span.inside(point.pps),
            "low": span.inside(point.low_pps),
            "high": span.inside(point.high_pps),
        }
        for point in page.points
    ]
    axis = {"title": "network functions", "values": _ticks(most_vnfs), "format": "d", "grid": False}
    x = vega.quantitative("vnfs", Span(1, max(most_vnfs, 2), log=False), axis)
    rate = vega.y_axis(span, "rate", _AXIS_ROOM, title="sent by all functions together", most=6)
    y = {name: vega.quantitative(name, span, rate) for name in ("pps", "low")}
    colour = {"color": vega.coloured("plane", colours)}
    asked_look: Look = {"color": theme.MUTED.light, "strokeDash": [3, 3]}
    ends = [
        (str(row["plane"]), vega.height_of(float(row["pps"]), span, _HEIGHT))
        for row in rows
        if row["vnfs"] == most_vnfs
    ]
    marks = [
        vega.mark("rule", [{"vnfs": page.asked_vnfs}], {"x": x}, **asked_look),
        vega.mark(
            "area", rows, {"x": x, "y": y["low"], "y2": {"field": "high"}, **colour}, opacity=0.15
        ),
        vega.mark("line", rows, {"x": x, "y": y["pps"], **colour}, strokeWidth=2),
        vega.mark(
            "point", rows, {"x": x, "y": y["pps"], **colour}, filled=True, size=36, opacity=1
        ),
        vega.end_labels(ends, colours, x=plot + 8, height=_HEIGHT, room=room - 8),
    ]
    return vega.finish(vega.layers(marks, width=plot, height=_HEIGHT))


def _ticks(most_vnfs: int) -> Sequence[int]:
    step = 1 if most_vnfs <= 10 else 2 if most_vnfs <= 20 else 8
    return [n for n in range(1, most_vnfs + 1) if n == 1 or n % step == 0]
