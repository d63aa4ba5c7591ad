"""Lost probe packets by cell. Knows summaries only."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.report import sentences, theme
from planewise.report.facets import FacetPage
from planewise.report.figures import grid, vega
from planewise.report.figures.base import Figure, PrintedNumber, Table
from planewise.report.figures.grid import Plot, Slot
from planewise.report.figures.vega import Row, Span, Spec
from planewise.report.rtt_cell import RttCell
from planewise.store.cells import common_factors, words


def figure(page: FacetPage[RttCell], planes: Sequence[str], *, name: str, title: str) -> Figure:
    """The share lost by series and band: bars, or dots where shares lie far apart."""
    cells = [item.content for item in page.items]
    shares = [cell.lost / cell.sent for cell in cells if cell.sent]
    span = Span.of([share for share in shares if share > 0] or [0.01], log_from=20)

    def draw(width: int) -> Spec:
        return grid.draw(page, planes, span, "share", _marks, width)

    lead = sentences.of_losses(cells)
    far_apart = (
        " The axis is logarithmic; where nothing was lost there is no dot." if span.log else ""
    )
    return Figure(
        name=name,
        title=title,
        lead=lead,
        caption="Lost probe packets as a share of those sent, over all replicates. A trial with "
        "losses is kept and counted like any other: to repeat it until none is lost would hide "
        f"what the plane does.{far_apart}",
        alt=f"The share of lost packets. {lead}",
        draw=draw,
        table=table(cells),
    )


def table(cells: Sequence[RttCell]) -> Table:
    """Probe packets sent, received, lost, duplicate, reordered and late, by cell."""
    common = common_factors(cell.factors for cell in cells)
    return Table.of(
        cells,
        {
            "Load": lambda cell: words(cell.factors, common),
            "Plane": lambda cell: cell.plane,
            "Sent": lambda cell: PrintedNumber.count(cell.sent),
            "Came back": lambda cell: PrintedNumber.count(cell.counts.received),
            "Lost": lambda cell: PrintedNumber.count(cell.lost),
            "Share lost": lambda cell: PrintedNumber.share(
                cell.lost / cell.sent if cell.sent else 0.0
            ),
            "Duplicate": lambda cell: PrintedNumber.count(cell.counts.duplicate),
            "Reordered": lambda cell: PrintedNumber.count(cell.counts.reordered),
            "Late": lambda cell: PrintedNumber.count(cell.counts.late),
        },
    )


def _marks(slots: Sequence[Slot[RttCell]], plot: Plot) -> list[Spec]:
    rows: list[Row] = []
    for slot in slots:
        cell = slot.item.content
        if not cell.sent or (plot.span.log and not cell.lost):
            continue
        left, right = slot.inner(0.8)
        share = cell.lost / cell.sent
        rows.append(
            {
                "series": slot.series,
                "left": left,
                "right": right,
                "centre": slot.centre,
                "from": 0.0,
                "to": share,
                "hover": f"{slot.series}, {words(slot.item.factors)}: {theme.count(cell.lost)} of "
                f"{theme.count(cell.sent)} lost ({theme.share(share)})",
            }
        )
    colour = {"color": plot.colour()}
    if plot.span.log:  # the length of a bar would mean nothing
        place = {"x": plot.x("centre"), "y": plot.y("to"), **colour}
        return [vega.mark("circle", rows, place, hover=True, size=42, opacity=1)]
    return [
        vega.mark("rect", rows, {**plot.box("left", "right", "from", "to"), **colour}, hover=True)
    ]
