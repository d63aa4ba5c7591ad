"""RTT of each plane under each load, as boxes. Knows cells' summaries only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from planewise.report import theme
from planewise.report.figures import base, vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.vega import Channel, Row, Span, Spec
from planewise.report.rtt_cell import RttCell
from planewise.store.cells import Factors, common_factors, words
from planewise.units import rate_text, time_text

_ROW = 34
_MEDIAN_ROOM = 66


def figure(
    cells: Sequence[RttCell], planes: Sequence[str], *, name: str, title: str, where: str
) -> Figure:
    """Boxes of the RTT by plane, one row of small multiples a load.

    `where` names the stamps; `planes` are all planes of the run, for their colours.
    """
    common = common_factors(cell.factors for cell in cells)
    groups = base.by_context(cells)
    span = Span.of([ns for cell in cells for ns in (cell.rtt.low_ns, cell.rtt.high_ns)])
    best = min(cells, key=lambda cell: cell.median_ns)
    worst = max(cells, key=lambda cell: cell.median_ns)

    def draw(width: int) -> Spec:
        room = vega.label_room(cell.plane for cell in cells)
        plot = width - room - _MEDIAN_ROOM - 12
        charts = [
            _context(
                group,
                planes,
                words(factors, common),
                span,
                plot,
                room,
                last=place == len(groups) - 1,
            )
            for place, (factors, group) in enumerate(groups)
        ]
        return vega.finish(vega.below(charts))

    return Figure(
        name=name,
        title=title,
        caption=(
            f"Round-trip time {where}. Box: the middle half of all packets; thick line: median, "
            "also printed at the right; whiskers: 5th to 95th percentile; small rings: the median "
            f"of each replicate, whose mean the ranking takes. The axis is {span.word}."
        ),
        alt=(
            f"Boxplots of round-trip time. Lowest median {time_text(best.median_ns)} with "
            f"{best.plane}, {words(best.factors, common)}; highest "
            f"{time_text(worst.median_ns)} with {worst.plane}, "
            f"{words(worst.factors, common)}."
        ),
        draw=draw,
        table=table(cells, common),
    )


def _context(
    cells: Sequence[RttCell],
    planes: Sequence[str],
    label: str,
    span: Span,
    plot: int,
    room: int,
    *,
    last: bool,
) -> Spec:
    axis = vega.x_axis("RTT", span, "duration", plot, labels=last)
    y = vega.plane_axis([cell.plane for cell in cells], room)
    colour = vega.coloured("plane", theme.colours_of(planes))
    boxes = [_box(cell, label) for cell in cells]
    replicates: list[Row] = [
        {
            "plane": cell.plane,
            "median": median,
            "hover": f"{cell.plane}: median of one replicate {time_text(median)}",
        }
        for cell in cells
        for median in cell.rtt.medians_ns
    ]

    def along(field: str, end: str = "") -> dict[str, Channel]:
        to = {"x2": {"field": end}} if end else {}
        return {"x": vega.quantitative(field, span, axis), **to, "y": y, "color": colour}

    ring = {"size": 16, "yOffset": 14, "strokeWidth": 1, "opacity": 0.9, "fill": "transparent"}
    median_text = {"x": vega.px(plot + _MEDIAN_ROOM), "y": y, "text": vega.nominal("text")}
    return vega.layers(
        [
            vega.mark("rule", boxes, along("low", "high"), strokeWidth=1.5),
            vega.mark("bar", boxes, along("q25", "q75"), hover=True, height=15, opacity=0.35),
            vega.mark("tick", boxes, along("median"), hover=True, thickness=3, height=19),
            vega.mark("point", replicates, along("median"), hover=True, **ring),
            vega.mark("text", boxes, median_text, align="right"),
        ],
        width=plot,
        height=_ROW * len(cells),
        title=vega.heading(label, plot + room),
    )


def _box(cell: RttCell, label: str) -> Row:
    return {
        "plane": cell.plane,
        **cell.rtt.row,
        "text": time_text(cell.median_ns),
        "hover": f"{cell.plane}, {label}: {cell.rtt.words}",
    }


def achieved(cell: RttCell) -> Entry:
    """The probe rate of a cell's trials, marked where they missed their level."""
    if not cell.achieved_pps:
        return Missing("not recorded")
    low, high = min(cell.achieved_pps), max(cell.achieved_pps)
    texts = dict.fromkeys((rate_text(low), rate_text(high)))
    mark = "missed its level: " if cell.missed else ""
    return PrintedNumber(mark + " – ".join(texts), statistics.fmean(cell.achieved_pps))


def table(cells: Sequence[RttCell], common: Factors) -> Table:
    """The numbers of `cells`; levels in `common` are left out."""
    return Table.of(
        cells,
        {
            "Load": lambda cell: words(cell.factors, common),
            "Plane": lambda cell: cell.plane,
            "5 %": lambda cell: PrintedNumber.time(cell.rtt.low_ns),
            "25 %": lambda cell: PrintedNumber.time(cell.rtt.q25_ns),
            "Median": lambda cell: PrintedNumber.time(cell.rtt.median_ns),
            "75 %": lambda cell: PrintedNumber.time(cell.rtt.q75_ns),
            "95 %": lambda cell: PrintedNumber.time(cell.rtt.high_ns),
            "Probes a second": achieved,
            "Replicates' medians": lambda cell: cell.rtt.replicates,
            "Median between kernel stamps": lambda cell: (
                PrintedNumber.time(statistics.median(cell.kernel_medians_ns))
                if cell.kernel_medians_ns
                else Missing("no kernel stamps")
            ),
            "Packets": lambda cell: PrintedNumber.count(cell.rtt.packets),
            "Lost": lambda cell: PrintedNumber.count(cell.lost),
        },
    )
