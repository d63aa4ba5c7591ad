"""The kinds of charts, each a panel over rows: boxes, shares, dots, lines, intervals, lanes.

A row is a mark's data: `label` names its line in the panel, `series` its colour, and `hover` is the
text that it shows on hover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planewise.report import theme, vega
from planewise.report.vega import AXIS_ROOM, WIDTH, Quantity, Row, Span, Spec, mark

_HEIGHT = 170
_VALUE_ROOM = 62
"""Room right of the plot for the values of its rows [px]."""
_LEFT: dict[str, Any] = {"align": "left", "baseline": "middle"}


def _lines_of(rows: Sequence[Row]) -> tuple[list[str], float, float]:
    """Names of a panel's lines, the room for them, and the width of the plot beside them."""
    labels = list(dict.fromkeys(str(row["label"]) for row in rows))
    room = vega.label_room(labels)
    return labels, room, WIDTH - room - _VALUE_ROOM - 12


def _texts(rows: Sequence[Row], y: Spec, plot: float) -> list[Spec]:
    """The `text` of each row right of the plot, or within it why it is `missing`."""
    value = {"x": vega.px(plot + _VALUE_ROOM), "y": y, "text": vega.text("text")}
    reason = {"x": vega.px(4), "y": y, "text": vega.text("missing")}
    known = [row for row in rows if not row.get("missing")]
    missing = [row for row in rows if row.get("missing")]
    look: dict[str, Any] = {**_LEFT, "limit": 0.85 * (plot + _VALUE_ROOM), "fontStyle": "italic"}
    return [mark("text", known, value, align="right"), mark("text", missing, reason, **look)]


def boxes(
    heading: str, rows: Sequence[Row], colours: Mapping[str, str], span: Span, quantity: Quantity
) -> Spec:
    """A box a row with its median at the right, and a ring below for each replicate.

    Rows have `low`, `q25`, `median`, `q75`, `high`, `text`, and `medians` of replicates; a row with
    `missing` instead says why there is no box.
    """
    labels, room, plot = _lines_of(rows)
    high = 34 if len(labels) <= 12 else 22
    drawn = [row for row in rows if not row.get("missing")]
    rings = [
        {**row, "median": median, "hover": f"{row['label']}: a replicate"}
        for row in drawn
        for median in row["medians"]
    ]
    y = vega.names("label", labels, room)

    def across(field: str, end: str = "") -> dict[str, Spec]:
        x = vega.along(field, span, quantity, plot, None)
        end_channel = {"x2": {"field": end}} if end else {}
        return {"x": x, **end_channel, "y": y, "color": vega.coloured("series", colours)}

    ring = {"size": 14, "yOffset": high * 0.4, "strokeWidth": 1, "fill": "transparent"}
    marks = [
        mark("rule", drawn, across("low", "high"), strokeWidth=1.5),
        mark("bar", drawn, across("q25", "q75"), hover=True, height=high * 0.44, opacity=0.4),
        mark("tick", drawn, across("median"), hover=True, thickness=3, height=high * 0.56),
        mark("point", rings, across("median"), hover=True, **ring),
        *_texts(rows, y, plot),
    ]
    return vega.panel(marks, heading, width=plot, height=high * len(labels))


def shares(
    heading: str,
    parts: Sequence[Row],
    totals: Sequence[Row],
    colours: Mapping[str, str],
    span: Span,
    quantity: Quantity,
    axis: str | None = None,
) -> Spec:
    """A bar a row, of parts from `from` to `to`; `totals` have its `text`, or why it is `missing`.

    On a logarithmic axis, where a bar's length means nothing, a dot at `to`.
    """
    labels, room, plot = _lines_of(totals)
    high = 29 if len(labels) <= 12 else 20
    y = vega.names("label", labels, room)
    x = vega.along("to" if span.log else "from", span, quantity, plot, axis)
    place = {"x": x, "y": y, "color": vega.coloured("series", colours)}
    bars = mark("bar", parts, {**place, "x2": {"field": "to"}}, hover=True, height=high * 0.6)
    if span.log:
        bars = mark("circle", [row for row in parts if row["to"] > 0], place, hover=True, size=42)
    return vega.panel(
        [bars, *_texts(totals, y, plot)], heading, width=plot, height=high * len(labels)
    )


def dots(
    heading: str, rows: Sequence[Row], rings: Sequence[Row], colours: Mapping[str, str], span: Span
) -> Spec:
    """A dot a packet at `value`, at the height `at` (0 to 1) in its line; rings around some."""
    labels, room, plot = _lines_of(rings)
    place = {
        "x": vega.along("value", span, "duration", plot, None),
        "y": vega.names("label", labels, room),
        "yOffset": {"field": "at", "type": "quantitative", "scale": {"domain": [0, 1]}},
        "color": vega.coloured("series", colours),
    }
    marks = [
        mark("circle", rows, place, size=5, opacity=0.55),
        mark("point", rings, place, hover=True, size=28),
    ]
    high = 40 if len(labels) <= 12 else 22
    return vega.panel(marks, heading, width=plot, height=high * len(labels))


def levels(names: Sequence[str] | Sequence[int], title: str) -> Spec:
    """Levels of a factor along the axis of `lines`, as an encoding."""
    axis = {"title": title or None, "labelAngle": 0, "grid": False, "labelOverlap": True}
    scale = {"domain": list(names), "paddingOuter": 0.3}
    return {"field": "x", "type": "ordinal", "scale": scale, "axis": axis}


def numbers(span: Span, title: str, quantity: Quantity = "number") -> Spec:
    """Numbers along the axis of `lines`, as an encoding."""
    return vega.along("x", span, quantity, WIDTH - AXIS_ROOM, title)


def lines(
    heading: str,
    rows: Sequence[Row],
    colours: Mapping[str, str],
    span: Span,
    quantity: Quantity,
    x: Spec,
    *,
    points: Sequence[Row] | None = None,
    hollow: Sequence[Row] = (),
    shaded: Sequence[Row] = (),
    level: tuple[float, str] | None = None,
    marked: Mapping[str, float] | None = None,
    more: Mapping[str, Spec] | None = None,
    axis: Mapping[str, Any] | None = None,
    labels: bool = True,
) -> Spec:
    """A line a series through `value` over `x`, named at its end, with `low` to `high` where given.

    `points` default to the rows, `hollow` are further ones; `shaded` are stretches of the axis,
    `from` to `to`; `level` is a dashed line across and its name, `marked` are places of the axis by
    name; `more` encodes a dash or a detail of the lines, `axis` is the vertical one; without
    `labels` the figure needs a key.
    """
    plot = WIDTH - AXIS_ROOM - (vega.label_room(colours) if labels else 8) - 4
    up = {"y": vega.upwards("value", span, quantity, **(axis or {}))}
    place = {"x": x, **up, "color": vega.coloured("series", colours)}
    shown = rows if points is None else points
    intervals = [row for row in rows if row.get("low") is not None and row.get("high") is not None]
    between = {"y": {**up["y"], "field": "low"}, "y2": {"field": "high"}}
    order = {"order": {"field": "x", "type": "quantitative"}} if x["type"] != "ordinal" else {}
    hover = any("hover" in row for row in shown)
    marks = [
        mark("line", rows, {**place, **order, **(more or {})}, strokeWidth=1.8, clip=True),
        mark("circle", shown, place, hover=hover, size=26, opacity=0.8, clip=True),
    ]
    if hollow:
        look = {"filled": False, "fill": theme.var("paper"), "size": 26}
        marks.append(mark("point", hollow, place, hover=True, **look))
    if intervals:
        marks.append(mark("rule", intervals, {**place, **between}))
    full = {"y": vega.px(0), "y2": vega.px(_HEIGHT)}
    if shaded:
        stretch = {"x": {**x, "field": "from"}, "x2": {"field": "to"}}
        marks.insert(
            0, mark("rect", shaded, {**stretch, **full}, hover=True, color=theme.var("line"))
        )
    if level is not None:
        alert, rows_of_level = theme.var("alert"), [{"value": level[0], "text": level[1]}]
        name = {"x": vega.px(4), **up, "text": vega.text("text")}
        marks += [
            mark("rule", rows_of_level, up, strokeDash=[5, 4], color=alert),
            mark("text", rows_of_level, name, align="left", dy=9, color=alert),
        ]
    for line_of_name, (text, place_of_name) in enumerate((marked or {}).items()):
        down = {"y": vega.px(-16 * line_of_name - 4), "y2": vega.px(_HEIGHT)}
        above = {"x": x, "y": vega.px(-16 * line_of_name - 10), "text": vega.text("text")}
        at = [{"x": place_of_name, "text": text}]
        marks += [
            mark("rule", at, {"x": x, **down}, color=theme.var("ink")),
            mark("text", at, above, align="right", dx=-4),
        ]
    if labels:
        ends = {
            row["series"]: _HEIGHT * (1 - span.place(span.inside(row["value"]))) for row in rows
        }
        marks.append(vega.end_labels(ends.items(), colours, x=plot + 6, height=_HEIGHT))
    return vega.panel(marks, heading, width=plot, height=_HEIGHT)


def intervals(
    heading: str,
    rows: Sequence[Row],
    span: Span,
    *,
    zero: float,
    axis: Mapping[str, object],
    margin: tuple[float, float] | None = None,
) -> Spec:
    """Estimates (`value`) with their interval and `colour`, each below its `label` and its `text`.

    A grey band marks the `margin` around `zero`; both end below the words.
    """
    line = 15
    plot = WIDTH - 24
    two = any(7.2 * (len(row["label"]) + len(row["text"])) > plot - 12 for row in rows)
    high = line * (3 if two else 2)
    placed = [
        {
            **row,
            "zero": zero,
            "label_y": top + 9,
            "text_y": top + 9 + line * two,
            "y": top + high - 6,
        }
        for top, row in zip(range(0, high * len(rows), high), rows, strict=True)
    ]
    height = high * len(rows)
    colour, unlined = {"color": vega.literal("colour")}, {"grid": False, **axis}

    def across(field: str, end: str = "") -> dict[str, Spec]:
        x = {"field": field, "type": "quantitative", "scale": span.scale, "axis": unlined}
        return {"x": x, **({"x2": {"field": end}} if end else {})}

    place = {"y": vega.literal("y")}
    at = {**place, **colour}
    label = {"x": vega.px(2), "y": vega.literal("label_y"), "text": vega.text("label")}
    text = {"x": vega.px(2 if two else plot - 2), "y": vega.literal("text_y"), **colour}
    side = _LEFT if two else {**_LEFT, "align": "right"}
    marks = [
        mark("tick", placed, {**across("zero"), **place}, color=theme.var("muted"), size=line - 2),
        mark("rule", placed, {**across("low", "high"), **at}, strokeWidth=2),
        mark(
            "point", placed, {**across("value"), **at}, hover=True, filled=True, size=52, opacity=1
        ),
        mark("text", placed, label, **_LEFT, limit=plot),
        mark("text", placed, {**text, "text": vega.text("text")}, **side, fontWeight=600),
    ]
    if margin is not None:
        ends = {"low": span.inside(margin[0]), "high": span.inside(margin[1])}
        bands, band = [{**row, **ends} for row in placed], {**across("low", "high"), **place}
        marks.insert(0, mark("bar", bands, band, color=theme.var("line"), height=line - 2))
    return vega.panel(marks, heading, width=plot, height=height)


def lanes(
    heading: str,
    rows: Sequence[Row],
    order: Sequence[str],
    colours: Mapping[str, str],
    span: Span,
    axis: str,
    *,
    height: int,
    named: bool = True,
    crosses: Sequence[Row] = (),
    rules: Sequence[float] = (),
) -> Spec:
    """Stretches of time `from` to `to` in lanes (`label`), some `thin`; crosses at `from`."""
    room = vega.label_room(order) if named else 4
    plot = WIDTH - room - 16
    x = vega.along("from", span, "number", plot, axis)
    y = vega.names("label", order, room)
    y["axis"]["labels"] = named
    bar = {"x": x, "x2": {"field": "to"}, "y": y, "color": vega.coloured("series", colours)}
    look = {"shape": "cross", "angle": 45, "size": 60, "filled": True, "opacity": 1}
    full = {"x": x, "y": vega.px(0), "y2": vega.px(height * len(order))}
    alert, muted = theme.var("alert"), theme.var("muted")
    thick = [row for row in rows if not row.get("thin")]
    marks = [
        mark("bar", thick, bar, hover=True, height=max(4, height - 8)),
        mark("bar", [row for row in rows if row.get("thin")], bar, hover=True, height=6),
        mark("point", crosses, {"x": x, "y": y}, hover=True, color=alert, **look),
        mark("rule", [{"from": place} for place in rules], full, color=muted, strokeDash=[3, 3]),
    ]
    return vega.panel(marks, heading, width=plot, height=height * len(order))
