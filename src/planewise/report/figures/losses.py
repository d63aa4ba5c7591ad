"""How many probe packets were lost, by cell. Knows summaries only."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.report import sentences, theme
from planewise.report.cells import common_factors, words
from planewise.report.data import RttCell
from planewise.report.facets import Page
from planewise.report.figures import grid
from planewise.report.figures.base import Figure, Row, Span, Spec, Table, Value
from planewise.report.figures.grid import Plot, Slot


def figure(page: Page[RttCell], planes: Sequence[str], *, name: str, title: str) -> Figure:
    """Bars of the share lost by series and band."""
    cells = [item.content for item in page.items]
    most = max((cell.lost / cell.sent for cell in cells if cell.sent), default=0.0)
    span = Span(0.0, (most or 0.01) * 1.08, log=False)

    def draw(width: int) -> Spec:
        return grid.draw(page, planes, span, "share", _marks, width)

    lead = sentences.of_losses(cells)
    return Figure(
        name=name,
        title=title,
        lead=lead,
        caption="Lost probe packets as a share of those sent, over all replicates. A trial with "
        "losses is kept and counted like any other: to repeat it until none is lost would hide "
        "what the plane does.",
        alt=f"Bars of the share of lost packets. {lead}",
        draw=draw,
        table=table(cells),
    )


def table(cells: Sequence[RttCell]) -> Table:
    """What became of the probe packets, by cell."""
    common = common_factors(cell.factors for cell in cells)
    return Table(
        columns=(
            "Load",
            "Plane",
            "Sent",
            "Came back",
            "Lost",
            "Share lost",
            "Duplicate",
            "Reordered",
            "Late",
        ),
        rows=tuple(
            (
                words(cell.factors, common),
                cell.plane,
                _count(cell.sent),
                _count(cell.counts.received),
                _count(cell.lost),
                Value(
                    theme.share(share := cell.lost / cell.sent if cell.sent else 0.0),
                    share,
                ),
                _count(cell.counts.duplicate),
                _count(cell.counts.reordered),
                _count(cell.counts.late),
            )
            for cell in cells
        ),
    )


def _count(number: int) -> Value:
    return Value(theme.count(number), number)


def _marks(slots: Sequence[Slot[RttCell]], plot: Plot) -> list[Spec]:
    bars: list[Row] = []
    for slot in slots:
        cell = slot.item.content
        if not cell.sent:
            continue
        left, right = slot.inner(0.8)
        bars.append(
            {
                "series": slot.series,
                "left": left,
                "right": right,
                "from": 0.0,
                "to": cell.lost / cell.sent,
                "said": f"{slot.series}, {words(slot.item.factors)}: {theme.count(cell.lost)} of "
                f"{theme.count(cell.sent)} lost ({theme.share(cell.lost / cell.sent)})",
            }
        )
    if not bars:
        return []
    return [
        grid.mark(
            bars,
            "rect",
            {
                "x": plot.x("left"),
                "x2": {"field": "right"},
                "y": plot.y("from"),
                "y2": {"field": "to"},
                "color": plot.colour(),
                "description": grid.said(),
            },
        )
    ]
