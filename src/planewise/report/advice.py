"""The page of an advice: planes for a planned workload, drawn over the number of functions.

Knows no model: what it shows was worked out before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import altair as alt
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import planewise
from planewise.report import renderer, svg, theme
from planewise.report.figures import base

_HEIGHT = 260
_LABEL_ROOM = 130


@dataclass(frozen=True)
class Point:
    """What a plane carries with so many functions."""

    plane: str
    vnfs: int
    pps: float
    low_pps: float
    high_pps: float
    binds: str


@dataclass(frozen=True)
class Said:
    """A statement and what it rests on."""

    text: str
    basis: str


@dataclass(frozen=True)
class Plane:
    """One plane of the ranking."""

    name: str
    possible: bool
    cells: tuple[str, ...]
    """As `columns` of the page."""
    statements: tuple[Said, ...]


@dataclass(frozen=True)
class Page:
    """All that the page shows."""

    title: str
    sentence: str
    host: str
    notice: str
    """What a reader must know of the figures first; empty for nothing."""
    columns: tuple[str, ...]
    planes: tuple[Plane, ...]
    changes: tuple[Said, ...]
    points: tuple[Point, ...]
    """Empty where there are no figures to draw."""
    asked_vnfs: int
    measured: bool = False
    """Whether some of the figures were measured."""
    notes: tuple[Said, ...] = ()
    """What to keep in mind."""


def render(page: Page) -> str:
    """The page as HTML that loads nothing."""
    environment = Environment(
        loader=PackageLoader("planewise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (resources.files("planewise.report") / "templates" / "report.css").read_text("utf-8")
    dark = theme.recolouring(".drawing")
    style += f"\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
    drawings = {}
    if page.points:
        drawings = {
            name: Markup(svg.inline(renderer.svg(base.text(chart(page, width))), name))
            for name, width in (("wide", base.WIDE), ("narrow", base.NARROW))
        }
    return environment.get_template("advice.html.j2").render(
        page=page,
        drawings=drawings,
        alt=description(page),
        style=Markup(style),
        version=planewise.__version__,
    )


def description(page: Page) -> str:
    """What a person who cannot see the chart must know."""
    asked = [point for point in page.points if point.vnfs == page.asked_vnfs]
    told = "; ".join(
        f"{point.plane} {point.pps / 1e6:.3g} Mpps, bound by the {point.binds}" for point in asked
    )
    return f"Lines of what each plane carries over the number of functions. Asked for: {told}."


def chart(page: Page, width: int) -> base.Spec:
    """What each plane carries over the number of functions, with its interval."""
    planes = list(dict.fromkeys(point.plane for point in page.points))
    colours = theme.colours_of(planes)
    plot = width - _LABEL_ROOM - 60
    last = max(point.vnfs for point in page.points)
    top = max(point.high_pps for point in page.points)
    span = base.Span(0.0, top * 1.05, log=False)
    rows = [
        {
            "plane": point.plane,
            "vnfs": point.vnfs,
            "pps": point.pps,
            "low": point.low_pps,
            "high": point.high_pps,
        }
        for point in page.points
    ]
    counts = _ticks(last)
    x = alt.X(
        "vnfs:Q",
        scale=alt.Scale(domain=[1, last], nice=False, zero=False),
        axis=alt.Axis(title="network functions", values=counts, format="d", grid=False),
    )

    def y(field: str) -> alt.Y:
        return alt.Y(
            f"{field}:Q",
            scale=span.scale(),
            axis=alt.Axis(
                title="sent by all functions together",
                values=span.ticks(6),
                labelExpr=base.with_unit("datum.value", "rate"),
                titleAnchor="end",
            ),
        )

    colour = alt.Color(
        "plane:N",
        scale=alt.Scale(domain=planes, range=[colours[plane] for plane in planes]),
        legend=None,
    )
    whole = base.data(rows)
    asked = base.data([{"vnfs": page.asked_vnfs}])
    ends = base.data([row for row in rows if row["vnfs"] == last])
    marks = [
        alt.Chart(asked).mark_rule(color=theme.MUTED.light, strokeDash=[3, 3]).encode(x=x),
        alt.Chart(whole).mark_area(opacity=0.15).encode(x=x, y=y("low"), y2="high:Q", color=colour),
        alt.Chart(whole).mark_line(strokeWidth=2).encode(x=x, y=y("pps"), color=colour),
        alt.Chart(whole)
        .mark_point(filled=True, size=36, opacity=1)
        .encode(x=x, y=y("pps"), color=colour),
        alt.Chart(ends)
        .mark_text(align="left", dx=8, fontSize=theme.FONT_SIZE)
        .encode(x=x, y=y("pps"), text="plane:N", color=colour),
    ]
    return base.finish(base.layers(marks, width=plot, height=_HEIGHT))


def _ticks(last: int) -> Sequence[int]:
    step = 1 if last <= 10 else 2 if last <= 20 else 8
    return [n for n in range(1, last + 1) if n == 1 or n % step == 0]
