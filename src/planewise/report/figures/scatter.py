"""Single packets' round-trip times as dots, thinned evenly. Knows cells' distributions only."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.report import theme
from planewise.report.facets import FacetPage
from planewise.report.figures import grid, vega
from planewise.report.figures.base import Figure, PrintedNumber, Table
from planewise.report.figures.grid import Plot, Slot
from planewise.report.figures.vega import Row, Span, Spec
from planewise.report.rtt_cell import RttCell
from planewise.report.summaries import MOST_POINTS, Distribution
from planewise.store.cells import common_factors, words
from planewise.units import time_text

MOST = 2400
"""Most dots of a figure; more of them only overlap."""


def figure(
    page: FacetPage[RttCell], planes: Sequence[str], *, name: str, title: str
) -> Figure | None:
    """Dots by series and band in the order of sending; None where no packets were kept."""
    cells = [item.content for item in page.items]
    drawn = [(cell, rtts) for cell in cells if (rtts := cell.distribution) is not None]
    if not drawn:
        return None
    per_cell = max(10, min(MOST_POINTS, MOST // len(drawn)))
    span = Span.of([ns for _, rtts in drawn for ns in (min(rtts.points_ns), rtts.max_ns)])
    packets = sum(rtts.packets for _, rtts in drawn)
    dots = sum(min(per_cell, len(rtts.points_ns)) for _, rtts in drawn)
    slowest, extreme = max(drawn, key=lambda pair: pair[1].max_ns)
    common = common_factors(cell.factors for cell in cells)
    lead = (
        f"The slowest of all packets took {time_text(extreme.max_ns)}: {slowest.plane}, "
        f"{words(slowest.factors, common)}."
    )

    def marks(slots: Sequence[Slot[RttCell]], plot: Plot) -> list[Spec]:
        return _marks(slots, plot, per_cell)

    def draw(width: int) -> Spec:
        return grid.draw(page, planes, span, "duration", marks, width)

    thinned = (
        f"Drawn are {theme.count(dots)} of {theme.count(packets)} packets: of each cell up to "
        f"{per_cell} at even distances in the order of sending, whatever they took"
        if dots < packets
        else f"All {theme.count(packets)} packets are drawn"
    )
    return Figure(
        name=name,
        title=title,
        lead=lead,
        caption=(
            f"Round-trip times of single packets. {thinned}; a ring marks the slowest packet of "
            "each cell. Within a column packets lie from left to right in the order of sending, "
            f"replicate after replicate. The axis is {span.word}."
        ),
        alt=f"Scatter of round-trip times. {lead} {thinned}.",
        draw=draw,
        table=_table(drawn, per_cell),
    )


def _marks(slots: Sequence[Slot[RttCell]], plot: Plot, per_cell: int) -> list[Spec]:
    dots: list[Row] = []
    rings: list[Row] = []
    for slot in slots:
        rtts = slot.item.content.distribution
        if rtts is None:
            continue
        left, right = slot.inner(0.86)
        points = rtts.points_ns
        indices = range(0, len(points), max(1, -(-len(points) // per_cell)))
        for number, place in enumerate(indices):
            x = left + (right - left) * (number + 0.5) / len(indices)
            dots.append({"series": slot.series, "x": round(x, 4), "rtt": points[place]})
        rings.append(
            {
                "series": slot.series,
                "x": slot.centre,
                "rtt": rtts.max_ns,
                "hover": f"{slot.series}, {words(slot.item.factors)}: slowest of "
                f"{theme.count(rtts.packets)} packets {time_text(rtts.max_ns)}",
            }
        )
    place_of = {"x": plot.x("x"), "y": plot.y("rtt"), "color": plot.colour()}
    ring = {"size": 28, "strokeWidth": 1.2, "opacity": 1}
    return [
        vega.mark("circle", dots, place_of, size=5, opacity=0.55),
        vega.mark("point", rings, place_of, hover=True, **ring),
    ]


def _table(drawn: Sequence[tuple[RttCell, Distribution]], per_cell: int) -> Table:
    common = common_factors(cell.factors for cell, _ in drawn)
    return Table.of(
        drawn,
        {
            "Load": lambda row: words(row[0].factors, common),
            "Plane": lambda row: row[0].plane,
            "Packets": lambda row: PrintedNumber.count(row[1].packets),
            "Drawn": lambda row: PrintedNumber.count(min(per_cell, len(row[1].points_ns))),
            "Median": lambda row: PrintedNumber.time(row[0].median_ns),
            "Slowest": lambda row: PrintedNumber.time(row[1].max_ns),
        },
    )
