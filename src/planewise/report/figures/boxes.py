"""A time of every cell as boxes along a factor. Knows cells' summaries only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planewise.report import theme
from planewise.report.facets import FacetPage
from planewise.report.figures import grid, vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.grid import Plot, Slot
from planewise.report.figures.rtt import achieved
from planewise.report.figures.vega import Row, Span, Spec
from planewise.report.rtt_cell import RttCell
from planewise.report.summaries import Spread
from planewise.store.cells import Factors, common_factors, words

Time = Callable[[RttCell], Spread | str]
"""The time of a cell to draw, or the reason why it is missing."""


def overhead(cell: RttCell) -> Spread | str:
    """RTT at the guest minus RTT at the sender's NIC."""
    return cell.overhead


def response(cell: RttCell) -> Spread | str:
    """NIC to NIC inside the responder."""
    return cell.response


def figure(
    page: FacetPage[RttCell],
    planes: Sequence[str],
    time: Time,
    *,
    name: str,
    title: str,
    what: str,
    lead: str,
    share_of_rtt: bool = False,
    columns: tuple[str, str] = ("Load", "Plane"),
) -> Figure:
    """Boxes by series and band, a panel each combination of the other factors.

    `what` begins the caption and says what is measured; `columns` are the table's titles of the
    factors and the series.
    """
    cells = [item.content for item in page.items]
    spreads = [spread for cell in cells if isinstance(spread := time(cell), Spread)]
    span = _span(spreads)
    common = common_factors(cell.factors for cell in cells)
    missing = _missing(cells, time)

    def marks(slots: Sequence[Slot[RttCell]], plot: Plot) -> list[Spec]:
        return _marks(slots, plot, time)

    def draw(width: int) -> Spec:
        notes = [vega.note(f"× {text}", grid.room_above(width)) for text in missing]
        return grid.draw(page, planes, span, "duration", marks, width, more_keys=notes)

    return Figure(
        name=name,
        title=title,
        lead=lead,
        caption=(
            f"{what} Box: the middle half of all packets; thick line: median; whiskers: "
            "5th to 95th percentile; dark line along the middle: from the lowest to the highest "
            "median of a replicate, the unit of inference. "
            f"The axis is {span.word}."
            + (
                " Without background guests there is no load: that one measurement is shown "
                "beside every load."
                if page.shared_idle
                else ""
            )
        ),
        alt=(
            f"Boxplots in {sum(len(row) for row in page.panels)} panels. {lead} "
            + " ".join(f"{text}." for text in missing)
        ).strip(),
        draw=draw,
        table=table(cells, time, common, share_of_rtt=share_of_rtt, columns=columns),
    )


def _span(spreads: Sequence[Spread]) -> Span:
    low = min((spread.low_ns for spread in spreads), default=0.0)
    high = max((spread.high_ns for spread in spreads), default=1000.0)
    return Span.of([low, high]) if low >= 0 else Span(low * 1.1, high * 1.05, log=False)


def _missing(cells: Sequence[RttCell], time: Time) -> list[str]:
    """Each reason of a missing time, with its planes."""
    reasons: dict[str, dict[str, None]] = {}
    for cell in cells:
        if isinstance(why := time(cell), str):
            reasons.setdefault(why, {})[cell.plane] = None
    return [f"{', '.join(planes)}: {why}" for why, planes in reasons.items()]


def _marks(slots: Sequence[Slot[RttCell]], plot: Plot, time: Time) -> list[Spec]:
    boxes: list[Row] = []
    crosses: list[Row] = []
    for slot in slots:
        spread = time(slot.item.content)
        if isinstance(spread, Spread):
            boxes.append(_box(slot, spread, plot))
        else:
            hover = f"{slot.series}: {spread}"
            crosses.append({"series": slot.series, "centre": slot.centre, "hover": hover})
    colour = {"color": plot.colour()}
    centre, across = plot.x("centre"), {"x": plot.x("left"), "x2": {"field": "right"}}
    return [
        vega.mark(
            "rule",
            boxes,
            {"x": centre, "y": plot.y("low"), "y2": {"field": "high"}, **colour},
            strokeWidth=1.2,
        ),
        vega.mark(
            "rect",
            boxes,
            {**plot.box("left", "right", "q25", "q75"), **colour},
            hover=True,
            opacity=0.4,
        ),
        vega.mark("rule", boxes, {**across, "y": plot.y("median"), **colour}, strokeWidth=2.5),
        vega.mark(
            "rule",
            boxes,
            {"x": centre, "y": plot.y("least"), "y2": {"field": "most"}},
            strokeWidth=1.5,
            color=theme.INK.light,
        ),
        vega.mark(
            "point",
            crosses,
            {"x": centre, "y": vega.px(grid.HEIGHT - 8), **colour},
            hover=True,
            shape="cross",
            angle=45,
            size=36,
            filled=True,
            opacity=1,
        ),
    ]


def _box(slot: Slot[RttCell], spread: Spread, plot: Plot) -> Row:
    left, right = slot.inner(0.78)
    return {
        "series": slot.series,
        "left": left,
        "right": right,
        "centre": slot.centre,
        **spread.row,
        "least": plot.span.inside(min(spread.medians_ns, default=spread.median_ns)),
        "most": plot.span.inside(max(spread.medians_ns, default=spread.median_ns)),
        "hover": f"{slot.series}, {words(slot.item.factors)}: {spread.words}",
    }


def table(
    cells: Sequence[RttCell],
    time: Time,
    common: Factors,
    *,
    share_of_rtt: bool,
    columns: tuple[str, str] = ("Load", "Plane"),
) -> Table:
    """The time of each of `cells` in numbers."""
    rows: list[tuple[Entry, ...]] = []
    for cell in cells:
        head: tuple[Entry, ...] = (words(cell.factors, common), cell.plane)
        head = head if share_of_rtt else (*head, achieved(cell))
        spread = time(cell)
        if isinstance(spread, str):
            rows.append((*head, *[Missing(spread)] * (7 if share_of_rtt else 6), "—"))
            continue
        share = spread.median_ns / cell.median_ns if cell.median_ns else 0.0
        rows.append(
            (
                *head,
                *(PrintedNumber.time(value) for value in spread.row.values()),
                *((PrintedNumber.share(share),) if share_of_rtt else ()),
                spread.replicates,
                PrintedNumber.count(spread.packets),
            )
        )
    return Table(
        columns=(
            *columns,
            *(() if share_of_rtt else ("Probes a second",)),
            "5 %",
            "25 %",
            "Median",
            "75 %",
            "95 %",
            *(("Share of the median RTT",) if share_of_rtt else ()),
            "Replicates' medians",
            "Packets",
        ),
        rows=tuple(rows),
    )
