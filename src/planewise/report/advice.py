"""The page of an advice: planes for a planned workload, drawn by number of functions."""

from __future__ import annotations

from dataclasses import dataclass

from planewise.report import charts, html, theme
from planewise.report.figure import Figure, PrintedNumber, Table
from planewise.report.vega import Row, Span
from planewise.units import rate_text


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
    figures = [capacity(page)] if page.points else []
    return html.filled("advice.html.j2", page=page, figures=html.drawn(figures))


def capacity(page: AdvicePage) -> Figure:
    """Throughput of each plane by number of functions, with its interval."""
    colours = theme.colours_of(dict.fromkeys(point.plane for point in page.points))
    span = Span.of(
        [pps for point in page.points for pps in (point.pps, point.high_pps)], log_from=12
    )
    rows: list[Row] = [
        {
            "series": point.plane,
            "x": point.vnfs,
            "value": span.inside(point.pps),
            "low": span.inside(point.low_pps),
            "high": span.inside(point.high_pps),
            "hover": f"{point.plane}, {point.vnfs} functions: {rate_text(point.pps)}",
        }
        for point in page.points
    ]
    asked = [point for point in page.points if point.vnfs == page.asked_vnfs]
    rates = "; ".join(
        f"{point.plane} {rate_text(point.pps)}, limited by the {point.binds}" for point in asked
    )
    return Figure(
        "capacity",
        "Throughput by number of functions",
        "Packets per second of all functions together, by the capacity model; lines: 95 % interval "
        "of a single measurement.",
        f"Throughput of each plane by number of functions. Asked for: {rates}.",
        (
            charts.lines(
                "",
                rows,
                colours,
                span,
                "rate",
                charts.levels(sorted({point.vnfs for point in page.points}), "network functions"),
            ),
        ),
        Table.of(
            page.points,
            {
                "Plane": lambda point: point.plane,
                "Functions": lambda point: PrintedNumber.plain(point.vnfs),
                "Throughput": lambda point: PrintedNumber.rate(point.pps),
                "95 % interval": lambda point: theme.interval(
                    rate_text(point.low_pps), rate_text(point.high_pps)
                ),
                "Bottleneck": lambda point: point.binds,
            },
        ),
        lead=f"With {page.asked_vnfs} functions: {rates}." if rates else "",
    )
