"""RTT as a cumulative curve and as a tail, a line a plane. Knows cells' distributions only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planewise.report import sentences, theme
from planewise.report.cells import common_factors, words
from planewise.report.data import RttCell
from planewise.report.facets import Page
from planewise.report.figures import base, grid
from planewise.report.figures.base import (
    Entry,
    Figure,
    Missing,
    Row,
    Span,
    Spec,
    Table,
    Value,
)
from planewise.report.summaries import meaningful
from planewise.units import time_text

MOST_CONTEXTS = 4
"""Conditions that are drawn; the table of the tail has all."""
_HEIGHT = 150
_AXIS_ROOM = 58
_LEAST_LINE = 13
"""Distance of two labels at the right [px]."""
_SHOWN = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999)


@dataclass(frozen=True)
class Condition:
    """One pair of plots: what is compared in it, by series."""

    label: str
    cells: dict[str, RttCell]


def choose(pages: Sequence[Page[RttCell]]) -> tuple[list[Condition], int]:
    """The conditions that are drawn, and how many there are.

    All when they are few. Else those that a reader asks for first: without background guests, and
    under each load with the most of them, in the first column of the first figure.
    """
    every = [
        (panel, band)
        for page in pages
        for row in page.panels
        for panel in row
        for band in panel.bands
    ]
    if len(every) > MOST_CONTEXTS:
        rows = pages[0].panels
        chosen = [band for _, band in every[:1]] + [row[0].bands[-1] for row in rows]
        chosen = chosen[:MOST_CONTEXTS]
    else:
        chosen = [band for _, band in every]
    bands = [{series: item.content for series, item in band.items.items()} for band in chosen]
    shown = [cells for cells in bands if any(cell.distribution for cell in cells.values())]
    common = common_factors(cell.factors for cells in shown for cell in cells.values())
    conditions = [
        Condition(words(next(iter(cells.values())).factors, common), cells) for cells in shown
    ]
    n = len({cell.factors for page in pages for item in page.items if (cell := item.content)})
    return conditions, n


def figure(
    conditions: Sequence[Condition], of: int, planes: Sequence[str], *, name: str, title: str
) -> Figure:
    """Cumulative curve, then tail, a row a condition (on a phone one below the other)."""
    cells = [cell for condition in conditions for cell in condition.cells.values()]
    spans = [cell.distribution for cell in cells if cell.distribution is not None]
    span = Span.of_times(
        min(one.quantiles_ns[0] for one in spans), max(one.quantiles_ns[-1] for one in spans)
    )
    furthest = max(_far(one.packets) for one in spans)
    colours = theme.colours_of(planes)

    def draw(width: int) -> Spec:
        names = [series for condition in conditions for series in condition.cells]
        label_room = base.label_room(names, most=130)
        both = width >= 600
        each = (
            (width - 2 * _AXIS_ROOM - label_room - 40) / 2
            if both
            else width - _AXIS_ROOM - label_room - 24
        )
        rows: list[Spec] = []
        for place, condition in enumerate(conditions):
            last = place == len(conditions) - 1
            pair = [
                _cumulative(condition, colours, span, each, title=last or not both),
                _tail(condition, colours, span, furthest, each, label_room, title=last or not both),
            ]
            rows += [base.beside(pair, spacing=20)] if both else pair
        return base.finish(base.below(rows, spacing=14))

    lead = sentences.of_tail(cells)
    return Figure(
        name=name,
        title=title,
        lead=lead,
        caption=(
            "First: the share of packets that took no longer than the time below it; a curve "
            "further left is faster, a steep one steady. Then: the time beyond which one packet "
            "of 10, of 100, of 1000 lies, as far as at least one packet lies beyond it. A tail is "
            "known less surely the further it goes: packets of one replicate are not independent."
            + (
                f" Drawn are {len(conditions)} of {of} conditions; the table of the tail has all."
                if of > len(conditions)
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
    condition: Condition,
    colours: dict[str, str],
    span: Span,
    width: float,
    *,
    title: bool,
) -> Spec:
    rows: list[Row] = []
    for series, cell in condition.cells.items():
        if cell.distribution is None:
            continue
        shares = meaningful(cell.distribution.packets)
        for share, value in zip(shares, cell.distribution.quantiles_ns, strict=True):
            rows.append({"series": series, "share": share, "rtt": value})
    x = _time(
        "rtt",
        span,
        {
            "title": "RTT" if title else None,
            "titleAnchor": "start",
            "values": span.ticks(max(3, int(width) // 70)),
            "labelFlush": False,
            "labelOverlap": "greedy",
        },
    )
    y = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "nice": False},
        "axis": {
            "title": None,
            "values": [0, 0.25, 0.5, 0.75, 1],
            "labelExpr": base.with_unit("datum.value", "share"),
            "ticks": False,
            "domain": False,
            "minExtent": _AXIS_ROOM,
            "maxExtent": _AXIS_ROOM,
        },
    }
    line = grid.mark(
        rows,
        "line",
        {"x": x, "y": y, "color": _colour(colours), "order": _order("share")},
        strokeWidth=1.8,
        clip=True,
    )
    return base.layers(
        [line],
        width=round(width),
        height=_HEIGHT,
        title=base.heading(condition.label, width + _AXIS_ROOM),
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
    ends: list[dict[str, object]] = []
    for series, cell in condition.cells.items():
        if cell.distribution is None:
            continue
        shares = meaningful(cell.distribution.packets)
        own = [
            {"series": series, "beyond": -math.log10(1 - share), "rtt": value}
            for share, value in zip(shares, cell.distribution.quantiles_ns, strict=True)
            if share >= 0.5
        ]
        rows += own
        ends.append({**own[-1], "said": f"{series}, {condition.label}: {_said(cell)}"})
    labels = _apart(ends, span)
    marks = [(0.30103, "1 in 2"), *((float(n), f"1 in {10**n}") for n in range(1, 7))]
    shown = [(place, text) for place, text in marks if place <= furthest + 0.01]
    step = max(1, math.ceil(len(shown) * 62 / width))
    shown = shown[::-1][::step][::-1]
    names = "{" + ",".join(f"'{place:.2f}': '{text}'" for place, text in shown) + "}"
    x = {
        "field": "beyond",
        "type": "quantitative",
        "scale": {"domain": [0.30103, max(furthest, 0.5)], "nice": False, "zero": False},
        "axis": {
            "title": "packets that take longer" if title else None,
            "titleAnchor": "start",
            "values": [place for place, _ in shown],
            "labelExpr": f"{names}[format(datum.value, '.2f')]",
            "labelFlush": True,
        },
    }
    y = _time(
        "rtt",
        span,
        {
            "title": None,
            "values": span.ticks(6),
            "ticks": False,
            "domain": False,
            "minExtent": _AXIS_ROOM,
            "maxExtent": _AXIS_ROOM,
        },
    )
    line = grid.mark(
        rows,
        "line",
        {"x": x, "y": y, "color": _colour(colours), "order": _order("beyond")},
        strokeWidth=1.8,
        clip=True,
    )
    dots = grid.mark(
        ends,
        "circle",
        {"x": x, "y": y, "color": _colour(colours), "description": grid.said()},
        size=26,
        opacity=1,
    )
    text = grid.mark(
        labels,
        "text",
        {
            "x": {"value": width + 6},
            "y": {"field": "px", "type": "quantitative", "scale": None, "axis": None},
            "text": {"field": "series", "type": "nominal"},
            "color": _colour(colours),
        },
        align="left",
        baseline="middle",
        limit=room - 8,
    )
    return base.layers(
        [line, dots, text], width=round(width), height=_HEIGHT, resolve={"scale": {"y": "shared"}}
    )


def _said(cell: RttCell) -> str:
    known = [(name, value) for name, value in cell.tail_ns.items() if value is not None]
    return ", ".join(f"{name} {time_text(value)}" for name, value in known)


def _apart(ends: Sequence[dict[str, object]], span: Span) -> list[Row]:
    """Labels at the height of their line's end [px], moved apart where they would touch."""

    def height(value: float) -> float:
        if span.log:
            share = math.log(value / span.low) / math.log(span.high / span.low)
        else:
            share = (value - span.low) / (span.high - span.low)
        return _HEIGHT * (1 - share)

    placed = sorted(
        ((height(float(str(end["rtt"]))), str(end["series"])) for end in ends), reverse=True
    )
    result: list[Row] = []
    below = _HEIGHT + _LEAST_LINE / 2
    for place, series in placed:
        here = min(place, below - _LEAST_LINE)
        result.append({"series": series, "px": here})
        below = here
    over = -min((float(row["px"]) for row in result), default=0.0)
    if over > 0:
        result = [{**row, "px": float(row["px"]) + over} for row in result]
    return result


def _colour(colours: dict[str, str]) -> dict[str, object]:
    return {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": list(colours), "range": list(colours.values())},
        "legend": None,
    }


def _order(field: str) -> dict[str, str]:
    return {"field": field, "type": "quantitative"}


def _time(field: str, span: Span, axis: dict[str, object]) -> dict[str, object]:
    return {
        "field": field,
        "type": "quantitative",
        "scale": {
            "type": "log" if span.log else "linear",
            "domain": [span.low, span.high],
            "nice": False,
            "zero": False,
        },
        "axis": axis | {"labelExpr": base.with_unit("datum.value", "duration")},
    }


def _table(cells: Sequence[RttCell]) -> Table:
    common = common_factors(cell.factors for cell in cells)
    rows: list[tuple[Entry, ...]] = []
    for cell in cells:
        one = cell.distribution
        if one is None:
            continue
        shares = [round(share, 9) for share in meaningful(one.packets)]
        entries: list[Entry] = []
        for share in _SHOWN:
            if share in shares:
                value = one.quantiles_ns[shares.index(share)]
                entries.append(Value(time_text(value), value))
            else:
                entries.append(Missing("too few packets"))
        rows.append(
            (
                words(cell.factors, common),
                cell.plane,
                *entries,
                Value(time_text(one.max_ns), one.max_ns),
                Value(theme.count(one.packets), one.packets),
            )
        )
    names = [f"p{share * 100:g}" for share in _SHOWN]
    return Table(("Load", "Plane", *names, "Slowest", "Packets"), tuple(rows))
