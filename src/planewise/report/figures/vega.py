"""Parts of Vega-Lite specifications that the figures share: marks, axes, keys, small multiples.

Plain dictionaries. Altair's objects were tried: Altair copies and checks everything below a join at
every join, and importing it takes longer than drawing a small report. The tests check every figure
against Vega-Lite's schema instead. Knows no measurement.
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

Spec = dict[str, Any]
"""A Vega-Lite specification or a part of one."""
Channel = dict[str, Any]
"""Encoding of one property of a mark by a field of its row."""
Look = dict[str, Any]
"""Properties that all marks of a kind share: size, colour, dash."""
Row = Mapping[str, Any]
"""Data of one mark."""

_TITLE_PX, _HEADING_PX = 15, 13
PLANE_ROOM = 130
"""Most room for the names of planes beside a plot [px]."""

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
    log: bool

    @classmethod
    def of(cls, values: Iterable[float], *, log_from: float = 8) -> Span:
        """Logarithmic where the largest is more than `log_from` times the smallest positive one.

        Else linear from 0.
        """
        values = list(values)
        high = max(values, default=1.0)
        low = min((value for value in values if value > 0), default=0.0)
        if low > 0 and high / low > log_from:
            return cls(low / 1.15, high * 1.15, log=True)
        return cls(0.0, high * 1.05 or 1.0, log=False)

    @property
    def scale(self) -> Spec:
        """The span as a scale of Vega."""
        kind = "log" if self.log else "linear"
        return {"type": kind, "domain": [self.low, self.high], "nice": False, "zero": False}

    @property
    def word(self) -> str:
        """`logarithmic` or `linear`."""
        return "logarithmic" if self.log else "linear"

    def ticks(self, most: int) -> list[float]:
        """Round values in the span, at most about `most`."""
        return theme.ticks(self.low, self.high, log=self.log, most=most)

    def inside(self, value: float) -> float:
        """`value`, moved to the nearest end where it lies beyond."""
        return min(max(value, self.low), self.high)


def quantitative(field: str, span: Span, axis: Spec | None = None) -> Channel:
    """A number along an axis; None as `axis` leaves the plot's axis out."""
    return {"field": field, "type": "quantitative", "scale": span.scale, "axis": axis}


def nominal(field: str) -> Channel:
    """A text as it stands: for labels."""
    return {"field": field, "type": "nominal"}


def literal(field: str) -> Channel:
    """A colour, opacity or place [px] that the row holds itself."""
    kind = "nominal" if field == "colour" else "quantitative"
    return {"field": field, "type": kind, "scale": None, **({"axis": None} if "y" in field else {})}


def coloured(field: str, colours: Mapping[str, str]) -> Channel:
    """The colour by the name in `field`."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None}


def px(place: float) -> Channel:
    """A fixed place in the plot [px from its left or upper edge]."""
    return {"value": place}


def mark(
    kind: str,
    rows: Sequence[Row],
    encoding: Mapping[str, Channel],
    *,
    hover: bool = False,
    **look: Any,
) -> Spec:
    """One kind of mark, drawn for every row; with `hover`, each shows its row's `hover` text."""
    if hover:
        encoding = {**encoding, "description": nominal("hover")}
    else:
        look["aria"] = False
    return {
        "data": {"values": [dict(row) for row in rows]},
        "mark": {"type": kind, **look},
        "encoding": dict(encoding),
    }


def x_axis(
    title: str | None, span: Span, quantity: Quantity, width: float, *, labels: bool = True
) -> Spec:
    """A horizontal axis with a grid; without `labels` only the grid."""
    return {
        "title": title if labels else None,
        "values": span.ticks(max(3, int(width) // 70)),
        "labels": labels,
        "ticks": labels,
        "domain": labels,
        "labelExpr": with_unit(quantity),
        "labelFlush": False,
        "labelOverlap": "greedy",
        "titleAnchor": "start",
    }


def y_axis(
    span: Span, quantity: Quantity, room: float, *, title: str = "", most: int = 5, **more: Any
) -> Spec:
    """A vertical axis in `room` [px] left of the plot, with its title above it."""
    named = {
        "title": title,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleAnchor": "start",
        "titleX": -room + 8,
        "titleY": -8,
        "titleBaseline": "bottom",
    }
    return {
        **(named if title else {"title": None}),
        "values": span.ticks(most),
        "labelExpr": with_unit(quantity),
        "ticks": False,
        "domain": False,
        "minExtent": room,
        "maxExtent": room,
        **more,
    }


def plane_axis(planes: Sequence[str], room: float) -> Channel:
    """Planes by name at the left, the direct label of everything in their row."""
    return {
        "field": "plane",
        "type": "nominal",
        "sort": list(planes),
        "scale": {"domain": list(planes), "paddingInner": 0.3, "paddingOuter": 0.25},
        "axis": {
            "title": None,
            "domain": False,
            "ticks": False,
            "grid": False,
            "labels": room > 0,
            "labelLimit": max(1, room - 6),
            "labelPadding": 6,
            "minExtent": room,
            "maxExtent": room,
        },
    }


def layers(parts: Sequence[Spec], **properties: Any) -> Spec:
    """Marks on one plot, later ones above; `properties` are the plot's (width, height, title)."""
    return {"layer": list(parts), **properties}


def below(charts: Sequence[Spec], spacing: int = 10) -> Spec:
    """Small multiples below each other [px apart]."""
    return {"vconcat": list(charts), "spacing": spacing, "bounds": "full"}


def beside(charts: Sequence[Spec], spacing: int = 24) -> Spec:
    """Small multiples beside each other [px apart]."""
    return {"hconcat": list(charts), "spacing": spacing, "bounds": "full"}


def heading(text: str, width: float) -> Spec:
    """Title of a small multiple above its left edge, in lines that fit `width` [px]."""
    return {
        "text": wrapped(text[:1].upper() + text[1:], width, _HEADING_PX, bold=True),
        "anchor": "start",
        "frame": "bounds",
        "offset": 2,
    }


def with_title(figure: Spec, title: str, subtitle: str, width: int) -> Spec:
    """A whole figure with its title and a sentence below it."""
    return {
        **figure,
        "title": {
            "text": wrapped(title, width - 10, _TITLE_PX, bold=True),
            "subtitle": wrapped(subtitle.replace("`", ""), width - 10) if subtitle else [],
            "anchor": "start",
            "frame": "bounds",
            "offset": 12,
            "fontSize": _TITLE_PX,
        },
    }


def finish(figure: Spec) -> Spec:
    """A whole figure: with the look that all have."""
    text = {"font": theme.FONT, "fontSize": theme.FONT_SIZE, "color": theme.INK.light}
    return {
        "$schema": SCHEMA,
        **figure,
        "background": "transparent",
        "padding": 4,
        "config": {
            "font": theme.FONT,
            "view": {"stroke": None},
            "axis": {
                **{f"label{name[:1].upper()}{name[1:]}": value for name, value in text.items()},
                "labelLimit": 400,
                "titleFont": theme.FONT,
                "titleFontSize": theme.FONT_SIZE,
                "titleColor": theme.MUTED.light,
                "titleFontWeight": "normal",
                "gridColor": theme.GRID.light,
                "domainColor": theme.MUTED.light,
                "tickColor": theme.MUTED.light,
            },
            "title": {
                **text,
                "fontSize": _HEADING_PX,
                "fontWeight": 600,
                "subtitleFont": theme.FONT,
                "subtitleFontSize": theme.FONT_SIZE,
                "subtitleColor": theme.MUTED.light,
            },
            "text": text,
        },
    }


def key(names: Mapping[str, str], width: float, shades: Mapping[str, float] | None = None) -> Spec:
    """A key of colours by name, in their order.

    `shades` gives opacities by name, for names that share a colour.
    """
    rows: list[Row] = []
    x, y = 0.0, 0
    for name, colour in names.items():
        room = 32 + text_width(name)
        if x and x + room > width:
            x, y = 0.0, y + 18
        shade = (shades or {}).get(name, 1.0)
        rows.append({"name": name, "colour": colour, "shade": shade, "x": x, "y": y})
        x += room
    height = y + 10
    place = {
        "x": quantitative("x", Span(0, width, log=False)),
        "y": quantitative("y", Span(height, 0, log=False)),
    }
    squares = mark(
        "square",
        rows,
        {**place, "color": literal("colour"), "opacity": literal("shade")},
        size=130,
        xOffset=6,
        yOffset=6,
    )
    labels = mark(
        "text",
        rows,
        {**place, "text": nominal("name")},
        align="left",
        dx=18,
        dy=6,
        limit=max(20, width - 24),
    )
    return layers([squares, labels], width=width, height=height)


def note(text: str, width: float) -> Spec:
    """A sentence above the plots, in lines that fit `width` [px]."""
    lines = wrapped(text, width)
    look: Look = {"align": "left", "baseline": "top", "fontStyle": "italic", "lineHeight": 15}
    line = mark("text", [{}], {"x": px(0), "y": px(0)}, text=lines, color=theme.MUTED.light, **look)
    return {"width": width, "height": 15 * len(lines), **line}


def end_labels(
    ends: Sequence[tuple[str, float]],
    colours: Mapping[str, str],
    *,
    x: float,
    height: float,
    room: float,
) -> Spec:
    """Names beside the ends of lines, moved apart where they would touch.

    `ends` are names with the height of their line's end [px from the plot's upper edge], `x` where
    the names begin [px], `height` that of the plot and `room` that of a name's text [px].
    """
    least = 14
    rows: list[Row] = []
    limit = height + least / 2
    for name, place in sorted(ends, key=lambda end: end[1], reverse=True):
        limit = min(place, limit - least)
        rows.append({"name": name, "y": limit, "colour": colours[name]})
    over = max(0.0, -limit)
    rows = [{**row, "y": row["y"] + over} for row in rows]
    channels = {
        "x": px(x),
        "y": literal("y"),
        "text": nominal("name"),
        "color": literal("colour"),
    }
    return mark("text", rows, channels, align="left", baseline="middle", limit=room)


def height_of(value: float, span: Span, height: float) -> float:
    """Height of `value` in a plot [px from its upper edge]."""
    return height * (1 - place_of(value, span))


def place_of(value: float, span: Span) -> float:
    """Position of `value` between the ends of `span`, from 0 to 1."""
    if span.log:
        return math.log(value / span.low) / math.log(span.high / span.low)
    return (value - span.low) / (span.high - span.low)


def text_width(text: str) -> float:
    """Estimated width of `text` in a figure [px]."""
    return 7.2 * len(text)


def label_room(labels: Iterable[str], most: int = PLANE_ROOM) -> int:
    """Room for the longest of `labels` beside a plot [px], at most `most`."""
    return min(most, 12 + round(max((text_width(label) for label in labels), default=0)))


def wrapped(
    text: str, width: float, size: float = theme.FONT_SIZE, *, bold: bool = False
) -> list[str]:
    """`text` of `size` [px] in lines that fit `width` [px].

    A page may show a figure in another font than it was drawn with. DejaVu Sans, the widest that
    is common, has letters of 0.51 em on average in our sentences, bold ones of 0.57 (its advance
    widths); lines differ, so an eighth more is reckoned with.
    """
    letter = size * (0.65 if bold else 0.57)
    return textwrap.wrap(text, max(12, int(width / letter))) or [""]
