"""RTT as a cumulative curve and as a tail, a line a plane. Knows cells' distributions only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planewise.report import sentences, theme
from planewise.report.facets import FacetPage
from planewise.report.figures import vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.vega import Row, Span, Spec
from planewise.report.rtt_cell import RttCell
from planewise.report.summaries import meaningful
from planewise.store.cells import common_factors, words
from planewise.units import time_text

MOST_CONTEXTS = 4
"""Most conditions that are drawn; the table of the tail has all."""
_HEIGHT = 150
_AXIS_ROOM = 58
_HALF = math.log10(2)
"""Begin of the tail: one packet in two takes longer."""
_SHOWN = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999)


@dataclass(frozen=True)
class Condition:
    """A pair of plots: the cells that are compared, by series."""

    label: str
    cells: dict[str, RttCell]


def choose(pages: Sequence[FacetPage[RttCell]]) -> tuple[list[Condition], int]:
    """The conditions to draw, and the number of all conditions.

    All when they are few. Else the first column of the first figure: without background guests, and
    under each load with the most of them.
    """
    panel_bands = [
        (panel, band)
        for page in pages
        for row in page.panels
        for panel in row
        for band in panel.bands
    ]
    if len(panel_bands) > MOST_CONTEXTS:
        rows = pages[0].panels
        chosen = [band for _, band in panel_bands[:1]] + [row[0].bands[-1] for row in rows]
        chosen = chosen[:MOST_CONTEXTS]
    else:
        chosen = [band for _, band in panel_bands]
    bands = [{series: item.content for series, item in band.items.items()} for band in chosen]
    shown = [cells for cells in bands if any(cell.distribution for cell in cells.values())]
    common = common_factors(cell.factors for cells in shown for cell in cells.values())
    conditions = [
        Condition(words(next(iter(cells.values())).factors, common), cells) for cells in shown
    ]
    total = len({cell.factors for page in pages for item in page.items if (cell := item.content)})
    return conditions, total


def figure(conditions: Sequence[Condition], total: int, planes: Sequence[str]) -> Figure:
    """Cumulative curve, then tail, a row a condition (on a phone one below the other)."""
    cells = [cell for condition in conditions for cell in condition.cells.values()]
    distributions = [cell.distribution for cell in cells if cell.distribution is not None]
    span = Span.of([rtts.quantiles_ns[end] for rtts in distributions for end in (0, -1)])
    furthest = max(_far(rtts.packets) for rtts in distributions)
    colours = theme.colours_of(planes)

    def draw(width: int) -> Spec:
        names = [series for condition in conditions for series in condition.cells]
        label_room = vega.label_room(names)
        wide = width >= 600
        plot = (
            (width - 2 * _AXIS_ROOM - label_room - 40) / 2
            if wide
            else width - _AXIS_ROOM - label_room - 24
        )
        rows: list[Spec] = []
        for place, condition in enumerate(conditions):
            last = place == len(conditions) - 1
            pair = [
                _cumulative(condition, colours, span, plot, title=last or not wide),
                _tail(condition, colours, span, furthest, plot, label_room, title=last or not wide),
            ]
            rows += [vega.beside(pair, spacing=20)] if wide else pair
        return vega.finish(vega.below(rows, spacing=14))

    lead = sentences.of_tail(cells)
    return Figure(
        name="tail",
        title="Distribution and tail of the round-trip time",
        lead=lead,
        caption=(
            "First: the share of packets that took no longer than the time below it; a curve "
            "further left is faster, a steep one steady. Then: the time beyond which one packet "
            "of 10, of 100, of 1000 lies, as far as at least one packet lies beyond it. A tail is "
            "known less surely the further it goes: packets of one replicate are not independent."
            + (
                f" {len(conditions)} of {total} conditions are drawn; the tail's table has all."
                if total > len(conditions)
                else ""
            )
        ),
        alt=f"Cumulative curves and tails of the round-trip time. {lead}",
        draw=draw,
        table=_table(cells),
    )


def _far(packets: int) -> float:
    return -math.log10(1 - meaningful(packets)[-1])


def _cumulative(
    condition: Condition, colours: dict[str, str], span: Span, width: float, *, title: bool
) -> Spec:
    rows: list[Row] = []
    for series, cell in condition.cells.items():
        if cell.distribution is None:
            continue
        shares = meaningful(cell.distribution.packets)
        for share, value in zip(shares, cell.distribution.quantiles_ns, strict=True):
            rows.append({"series": series, "share": share, "rtt": value})
    x = {**vega.x_axis("RTT", span, "duration", width), "domain": False, "ticks": False}
    shares_span = Span(0.0, 1.0, log=False)
    y = vega.y_axis(shares_span, "share", _AXIS_ROOM, values=[0, 0.25, 0.5, 0.75, 1])
    place = {
        "x": vega.quantitative("rtt", span, x if title else {**x, "title": None}),
        "y": vega.quantitative("share", shares_span, y),
        "color": vega.coloured("series", colours),
        "order": {"field": "share", "type": "quantitative"},
    }
    return vega.layers(
        [vega.mark("line", rows, place, strokeWidth=1.8, clip=True)],
        width=round(width),
        height=_HEIGHT,
        title=vega.heading(condition.label, width + _AXIS_ROOM),
    )


def _tail(
    condition: Condition,
    colours: dict[str, str],
    span: Span,
    furthest: float,
    width: float,
    room: int,
    *,
    title: bool,
) -> Spec:
    rows: list[Row] = []
    ends: list[Row] = []
    for series, cell in condition.cells.items():
        if cell.distribution is None:
            continue
        shares = meaningful(cell.distribution.packets)
        line = [
            {"series": series, "beyond": -math.log10(1 - share), "rtt": value}
            for share, value in zip(shares, cell.distribution.quantiles_ns, strict=True)
            if share >= 0.5
        ]
        rows += line
        ends.append({**line[-1], "hover": f"{series}, {condition.label}: {_quantiles(cell)}"})
    axis = _beyond_axis(furthest, width)
    beyond = Span(_HALF, max(furthest, 0.5), log=False)
    place = {
        "x": vega.quantitative("beyond", beyond, axis if title else {**axis, "title": None}),
        "y": vega.quantitative("rtt", span, vega.y_axis(span, "duration", _AXIS_ROOM, most=6)),
        "color": vega.coloured("series", colours),
    }
    order = {"order": {"field": "beyond", "type": "quantitative"}}
    heights = [(end["series"], vega.height_of(end["rtt"], span, _HEIGHT)) for end in ends]
    return vega.layers(
        [
            vega.mark("line", rows, {**place, **order}, strokeWidth=1.8, clip=True),
            vega.mark("circle", ends, place, hover=True, size=26, opacity=1),
            vega.end_labels(heights, colours, x=width + 6, height=_HEIGHT, room=room - 8),
        ],
        width=round(width),
        height=_HEIGHT,
        resolve={"scale": {"y": "shared"}},
    )


def _beyond_axis(furthest: float, width: float) -> Spec:
    """The axis of the tail: 1 packet in 2, in 10, in 100, up to `furthest`."""
    marks = [(_HALF, "1 in 2"), *((float(n), f"1 in {10**n}") for n in range(1, 7))]
    shown = [(place, text) for place, text in marks if place <= furthest + 0.01]
    step = max(1, math.ceil(len(shown) * 62 / width))
    shown = shown[::-1][::step][::-1]
    names = "{" + ",".join(f"'{place:.2f}': '{text}'" for place, text in shown) + "}"
    return {
        "title": "packets that take longer",
        "titleAnchor": "start",
        "values": [place for place, _ in shown],
        "labelExpr": f"{names}[format(datum.value, '.2f')]",
        "labelFlush": True,
    }


def _quantiles(cell: RttCell) -> str:
    reached = [(name, value) for name, value in cell.tail_ns.items() if value is not None]
    return ", ".join(f"{name} {time_text(value)}" for name, value in reached)


def _table(cells: Sequence[RttCell]) -> Table:
    common = common_factors(cell.factors for cell in cells)
    rows: list[tuple[Entry, ...]] = []
    for cell in cells:
        rtts = cell.distribution
        if rtts is None:
            continue
        shares = [round(share, 9) for share in meaningful(rtts.packets)]
        entries: list[Entry] = []
        for share in _SHOWN:
            if share in shares:
                entries.append(PrintedNumber.time(rtts.quantiles_ns[shares.index(share)]))
            else:
                entries.append(Missing("too few packets"))
        rows.append(
            (
                words(cell.factors, common),
                cell.plane,
                *entries,
                PrintedNumber.time(rtts.max_ns),
                PrintedNumber.count(rtts.packets),
            )
        )
    names = [f"p{share * 100:g}" for share in _SHOWN]
    return Table(("Load", "Plane", *names, "Slowest", "Packets"), tuple(rows))
