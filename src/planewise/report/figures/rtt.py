"""RTT of each plane under each load, as boxes. Knows cells' summaries only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import altair as alt

from planewise.report import theme
from planewise.report.cells import Factors, common_factors, words
from planewise.report.data import RttCell
from planewise.report.figures import base
from planewise.report.figures.base import Figure, Missing, Row, Span, Spec, Table, Value
from planewise.units import time_text

_ROW = 34
_MEDIAN_ROOM = 66


def figure(
    cells: Sequence[RttCell], planes: Sequence[str], *, name: str, title: str, where: str
) -> Figure:
    """Boxes of the RTT by plane, one row of small multiples a load.

    `where` says between which stamps; `planes` are all planes of the run, for their colours.
    """
    common = common_factors(cell.factors for cell in cells)
    groups = base.by_context(cells)
    span = Span.of_times(min(cell.low_ns for cell in cells), max(cell.high_ns for cell in cells))
    scale = "logarithmic" if span.log else "linear"
    best = min(cells, key=lambda cell: cell.median_ns)
    worst = max(cells, key=lambda cell: cell.median_ns)

    def draw(width: int) -> Spec:
        room = base.label_room((cell.plane for cell in cells), most=130)
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
        return base.finish(base.below(charts, spacing=10))

    return Figure(
        name=name,
        title=title,
        caption=(
            f"Round-trip time {where}. Box: the middle half of all packets; thick line: median, "
            "also printed at the right; whiskers: 5th to 95th percentile; small rings: the median "
            f"of each replicate, whose mean the ranking takes. The axis is {scale}."
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
    here = [cell.plane for cell in cells]
    rows: list[Row] = [
        {
            "plane": cell.plane,
            "low": cell.low_ns,
            "q25": cell.q25_ns,
            "median": cell.median_ns,
            "q75": cell.q75_ns,
            "high": cell.high_ns,
            "text": time_text(cell.median_ns),
            "said": f"{cell.plane}, {label}: median {time_text(cell.median_ns)}, "
            f"middle half {time_text(cell.q25_ns)} to {time_text(cell.q75_ns)}, "
            f"5th to 95th percentile {time_text(cell.low_ns)} to "
            f"{time_text(cell.high_ns)}",
        }
        for cell in cells
    ]
    rings: list[Row] = [
        {
            "plane": cell.plane,
            "median": median,
            "said": f"{cell.plane}: median of one replicate {time_text(median)}",
        }
        for cell in cells
        for median in cell.medians_ns
    ]
    axis = base.x_axis("RTT", span, "duration", plot, labels=last)
    y = base.plane_axis(here, room)
    colour = alt.Color("plane:N", scale=base.plane_colour(planes), legend=None)
    said = alt.Description("said:N")
    chart = alt.Chart(base.data(rows))

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=span.scale(), axis=axis)

    whiskers = chart.mark_rule(strokeWidth=1.5).encode(
        x=x("low"), x2=alt.X2("high"), y=y, color=colour
    )
    boxes = chart.mark_bar(height=15, opacity=0.35).encode(
        x=x("q25"), x2=alt.X2("q75"), y=y, color=colour, description=said
    )
    medians = chart.mark_tick(thickness=3, height=19).encode(
        x=x("median"), y=y, color=colour, description=said
    )
    replicates = (
        alt.Chart(base.data(rings))
        .mark_point(size=16, yOffset=14, strokeWidth=1, opacity=0.9, fill="transparent")
        .encode(x=x("median"), y=y, color=colour, description=said)
    )
    numbers = chart.mark_text(align="right").encode(
        x=base.x_px(plot + _MEDIAN_ROOM), y=y, text=alt.Text("text:N")
    )
    return base.layers(
        [whiskers, boxes, medians, replicates, numbers],
        width=plot,
        height=_ROW * len(here),
        title=base.heading(label, plot + room),
    )


def table(cells: Sequence[RttCell], common: Factors) -> Table:
    """The numbers of `cells`; `common` is said elsewhere."""
    return Table(
        columns=(
            "Load",
            "Plane",
            "5 %",
            "25 %",
            "Median",
            "75 %",
            "95 %",
            "Replicates' medians",
            "Median between kernel stamps",
            "Packets",
            "Lost",
        ),
        rows=tuple(
            (
                words(cell.factors, common),
                cell.plane,
                *(
                    Value(time_text(value), value)
                    for value in (
                        cell.low_ns,
                        cell.q25_ns,
                        cell.median_ns,
                        cell.q75_ns,
                        cell.high_ns,
                    )
                ),
                f"{time_text(min(cell.medians_ns))} – {time_text(max(cell.medians_ns))}",
                Value(time_text(kernel := statistics.median(cell.kernel_medians_ns)), kernel)
                if cell.kernel_medians_ns
                else Missing("no kernel stamps"),
                Value(theme.count(cell.packets), cell.packets),
                Value(theme.count(cell.lost), cell.lost),
            )
            for cell in cells
        ),
    )
