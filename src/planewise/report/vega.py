"""Parts of Vega-Lite specifications that the charts share: marks, axes, panels, whole figures.

Plain dictionaries: Altair copies and checks everything below a join at every join, and importing it
takes longer than drawing a small report. Tests check every figure against Vega-Lite's schema.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from planewise.report import theme

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""Name of the schema; nothing is loaded from this address."""

WIDTH = 384
"""Width of a panel [px]: readable when it is scaled to a phone's 330 px or a desk's 480 px."""
AXIS_ROOM = 62
"""Room for a vertical axis' labels [px]."""
LABEL_ROOM = 126
"""Most room for the names of planes beside a plot [px]."""

Spec = dict[str, Any]
"""A Vega-Lite specification or a part of one."""
Row = Mapping[str, Any]
"""Data of one mark."""

Quantity = Literal["duration", "rate", "bits", "share", "number"]
_UNITS: Mapping[Quantity, tuple[tuple[float, str], ...]] = {
    "duration": ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (0, "ns")),
    "rate": ((1e6, "Mpps"), (1e3, "kpps"), (0, "pps")),
    "bits": ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (0, "bit/s")),
    "share": ((0, "%"),),
    "number": ((0, ""),),
}


def with_unit(quantity: Quantity) -> str:
    """A Vega expression for an axis label with its unit, so that no axis counts in 1e-05."""
    factor = 100 if quantity == "share" else 1
    parts = ["datum.value === 0 ? '0'" if quantity != "share" else ""]
    for size, unit in _UNITS[quantity]:
        number = f"format(datum.value * {factor} / {size or 1:g}, '~r') + ' {unit}'"
        parts.append(f"abs(datum.value) >= {size:g} ? {number}" if size else number)
    return " : ".join(part for part in parts if part)


@dataclass(frozen=True)
class Span:
    """Range of an axis."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, values: Iterable[float], *, log_from: float = 8) -> Span:
        """Logarithmic where the largest is more than `log_from` times the smallest positive one.

        Else linear, and from 0 where nothing is negative.
        """
        values = list(values)
        high, low = max(values, default=1.0), min(values, default=0.0)
        positive = min((value for value in values if value > 0), default=0.0)
        if low >= 0 and positive > 0 and high / positive > log_from:
            return cls(positive / 1.15, high * 1.15, log=True)
        return cls(min(0.0, low * 1.1), max(high * 1.05, 0.0) or 1.0)

    @property
    def scale(self) -> Spec:
        """The span as a scale of Vega."""
        kind = "log" if self.log else "linear"
        return {"type": kind, "domain": [self.low, self.high], "nice": False, "zero": False}

    @property
    def word(self) -> str:
        """`logarithmic` or `linear`."""
        return "logarithmic" if self.log else "linear"

    def inside(self, value: float) -> float:
        """`value`, moved to the nearest end where it lies beyond."""
        return min(max(value, self.low), self.high)

    def place(self, value: float) -> float:
        """Position of `value` between the ends, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def along(
    field: str, span: Span, quantity: Quantity, width: float, title: str | None, **more: Any
) -> Spec:
    """A number along a horizontal axis, as an encoding."""
    axis = {
        "title": title,
        "values": theme.ticks(span.low, span.high, log=span.log, most=max(3, int(width) // 70)),
        "labelExpr": with_unit(quantity),
        "labelFlush": False,
        "labelOverlap": "greedy",
        "titleAnchor": "start",
        **more,
    }
    return {"field": field, "type": "quantitative", "scale": span.scale, "axis": axis}


def upwards(field: str, span: Span, quantity: Quantity, title: str = "", **more: Any) -> Spec:
    """A number along a vertical axis with its title above, as an encoding."""
    axis = {
        "title": title or None,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleAnchor": "start",
        "titleX": 8 - AXIS_ROOM,
        "titleY": -8,
        "titleBaseline": "bottom",
        "values": theme.ticks(span.low, span.high, log=span.log, most=6),
        "labelExpr": with_unit(quantity),
        "ticks": False,
        "domain": False,
        "minExtent": AXIS_ROOM,
        "maxExtent": AXIS_ROOM,
        **more,
    }
    return {"field": field, "type": "quantitative", "scale": span.scale, "axis": axis}


def names(field: str, order: Sequence[str], room: float) -> Spec:
    """Names at the left, each beside its row, as an encoding."""
    return {
        "field": field,
        "type": "nominal",
        "sort": list(order),
        "scale": {"domain": list(order), "paddingInner": 0.3, "paddingOuter": 0.25},
        "axis": {
            "title": None,
            "domain": False,
            "ticks": False,
            "grid": False,
            "labelLimit": max(1, room - 6),
            "labelPadding": 6,
            "minExtent": room,
            "maxExtent": room,
        },
    }


def literal(field: str) -> Spec:
    """A colour, opacity or place [px] that the row holds itself, as an encoding."""
    kind = "nominal" if field == "colour" else "quantitative"
    return {"field": field, "type": kind, "scale": None, **({"axis": None} if "y" in field else {})}


def text(field: str) -> Spec:
    """A text as it stands, as an encoding."""
    return {"field": field, "type": "nominal"}


def coloured(field: str, colours: Mapping[str, str]) -> Spec:
    """The colour by the name in `field`, as an encoding."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale, "title": None}


def px(place: float) -> Spec:
    """A fixed place in the plot [px from its left or upper edge]."""
    return {"value": place}


def mark(
    kind: str,
    rows: Sequence[Row],
    encoding: Mapping[str, Spec],
    *,
    hover: bool = False,
    **look: Any,
) -> Spec:
    """One kind of mark, drawn for every row; with `hover`, each shows its row's `hover` text."""
    if hover:
        encoding = {**encoding, "description": text("hover")}
    else:
        look["aria"] = False
    drawn = {channel["field"] for channel in encoding.values() if "field" in channel}
    return {
        "data": {"values": [{k: v for k, v in row.items() if k in drawn} for row in rows]},
        "mark": {"type": kind, **look},
        "encoding": dict(encoding),
    }


def panel(marks: Sequence[Spec], heading: str, *, width: float, height: float) -> Spec:
    """Marks on one plot, later ones above, below a heading."""
    title = {
        "text": wrapped(heading[:1].upper() + heading[1:], WIDTH - 20, 13, bold=True),
        "anchor": "start",
        "frame": "bounds",
        "offset": 6,
    }
    plot: Spec = {"layer": list(marks), "width": round(width), "height": round(height)}
    return {**plot, "title": title} if heading else plot


def end_labels(
    ends: Iterable[tuple[str, float]], colours: Mapping[str, str], *, x: float, height: float
) -> Spec:
    """Names beside the ends of lines, moved apart where they would touch.

    `ends` are names with the height of their line's end [px from the plot's upper edge].
    """
    least = 14
    ends = list(ends)
    room = label_room(name for name, _ in ends) - 10
    rows: list[dict[str, Any]] = []
    limit = height + least / 2
    for name, place in sorted(ends, key=lambda end: end[1], reverse=True):
        limit = min(place, limit - least)
        rows.append({"name": name, "y": limit, "colour": colours[name]})
    over = max(0.0, -limit)
    rows = [{**row, "y": row["y"] + over} for row in rows]
    channels = {"x": px(x), "y": literal("y"), "text": text("name"), "color": literal("colour")}
    return mark("text", rows, channels, align="left", baseline="middle", limit=room)


def label_room(labels: Iterable[str]) -> int:
    """Room for the longest of `labels` beside a plot [px], at most `LABEL_ROOM`."""
    return min(LABEL_ROOM, 12 + round(7.2 * max((len(label) for label in labels), default=0)))


def wrapped(
    words: str, width: float, size: float = theme.FONT_SIZE, *, bold: bool = False
) -> list[str]:
    """Text of `size` [px] in lines that fit `width` [px], in the widest of the common fonts."""
    letter = size * (0.65 if bold else 0.57)
    return textwrap.wrap(words, max(12, int(width / letter))) or [""]


def alone(panel: Spec) -> Spec:
    """A panel as a drawing of its own, for a page that shows the key."""
    return _finished(panel, legend={"disable": True})


def whole(panels: Sequence[Spec], title: str, lead: str, key: Mapping[str, str]) -> Spec:
    """A figure's panels as one drawing, with its title, a sentence and the key."""
    columns = min(2, len(panels))
    width = max(1, columns) * WIDTH
    legend = {"orient": "top", "columns": 2 * columns, "symbolType": "square"} if key else None
    heading = {
        "text": wrapped(title, width - 10, 15, bold=True),
        "subtitle": wrapped(lead.replace("`", ""), width - 10) if lead else [],
        "anchor": "start",
        "frame": "bounds",
        "offset": 12,
        "fontSize": 15,
    }
    joined = {
        "concat": list(panels),
        "columns": columns,
        "spacing": 24,
        "bounds": "full",
        "title": heading,
        "resolve": {"scale": {"color": "shared"}},
    }
    return _finished(joined, legend=legend or {"disable": True})


def _finished(drawing: Spec, *, legend: Spec) -> Spec:
    ink, muted, line = theme.var("ink"), theme.var("muted"), theme.var("line")
    label = {"labelFont": theme.FONT, "labelFontSize": theme.FONT_SIZE, "labelColor": ink}
    return {
        "$schema": SCHEMA,
        **drawing,
        "background": "transparent",
        "padding": 4,
        "config": {
            "font": theme.FONT,
            "view": {"stroke": None},
            "legend": {**label, **legend},
            "axis": {
                **label,
                "labelLimit": 400,
                "titleFont": theme.FONT,
                "titleFontSize": theme.FONT_SIZE,
                "titleColor": muted,
                "titleFontWeight": "normal",
                "gridColor": line,
                "domainColor": muted,
                "tickColor": muted,
            },
            "text": {"font": theme.FONT, "fontSize": theme.FONT_SIZE, "color": ink},
            "title": {
                "font": theme.FONT,
                "fontSize": 13,
                "color": ink,
                "subtitleFont": theme.FONT,
                "subtitleFontSize": theme.FONT_SIZE,
                "subtitleColor": muted,
            },
        },
    }
