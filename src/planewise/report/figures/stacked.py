"""Stacked bars by plane, a small multiple a condition. Knows no cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from planewise.report import theme
from planewise.report.figures import vega
from planewise.report.figures.vega import Quantity, Row, Span, Spec

_ROW = 29
_TOTAL_ROOM = 66
_ONE_SCALE = 10
"""Totals further apart than this factor get axes of their own: else the short bars vanish."""


@dataclass(frozen=True)
class Bar:
    """One plane under one condition."""

    plane: str
    condition: str
    """Heading of its small multiple."""
    segments: Mapping[str, float]
    """By name of the key, from the axis outwards; empty where nothing is known."""
    total_text: str
    hover: Mapping[str, str]
    """By name of the segment."""
    missing: str = ""
    """Why there are no segments."""

    @property
    def total(self) -> float:
        """The length of the bar."""
        return sum(self.segments.values())


@dataclass(frozen=True)
class Layout:
    """Common to all bars of a figure."""

    colours: Mapping[str, str]
    """By name of a segment, in the order in which they lie."""
    quantity: Quantity
    axis: str
    """Title of the axis."""
    axis_end: float | None = None
    """End of the axis; None: that of the longest bar."""


def scales(bars: Sequence[Bar], layout: Layout) -> list[tuple[float, Span]]:
    """The axes that the bars need, each with its largest total, shortest first."""
    if layout.axis_end is not None:
        return [(layout.axis_end, Span(0.0, layout.axis_end, log=False))]
    ends: list[float] = []
    least = 0.0
    for total in sorted(bar.total for bar in bars if bar.total > 0):
        if ends and total <= _ONE_SCALE * least:
            ends[-1] = total
        else:
            ends.append(total)
            least = total
    return [(end, Span(0.0, end * 1.02, log=False)) for end in ends or [1000.0]]


def draw(bars: Sequence[Bar], layout: Layout, width: int) -> Spec:
    """The whole figure: the key, then a panel a condition and axis."""
    room = vega.label_room(bar.plane for bar in bars)
    plot = width - room - _TOTAL_ROOM - 12
    axes = scales(bars, layout)
    panels: list[tuple[int, str, list[Bar]]] = []
    for condition, group in groupby(bars, key=lambda bar: bar.condition):
        condition_bars = list(group)
        for number, (end, _) in enumerate(axes):
            least = axes[number - 1][0] if number else -1.0
            axis_bars = [bar for bar in condition_bars if least < bar.total <= end]
            if axis_bars:
                title = f"{condition} (an axis of its own)" if number else condition
                panels.append((number, title, axis_bars))
    charts = [
        _panel(
            axis_bars,
            heading,
            layout,
            axes[number][1],
            plot,
            room,
            labels=place == len(panels) - 1 or panels[place + 1][0] != number,
        )
        for place, (number, heading, axis_bars) in enumerate(panels)
    ]
    return vega.finish(vega.below([vega.key(layout.colours, plot + _TOTAL_ROOM), *charts]))


def _panel(
    bars: Sequence[Bar],
    heading: str,
    layout: Layout,
    span: Span,
    plot: int,
    room: int,
    *,
    labels: bool,
) -> Spec:
    rows: list[Row] = []
    for bar in bars:
        start = 0.0
        for name, value in bar.segments.items():
            row = {"plane": bar.plane, "name": name, "from": start, "to": start + value}
            rows.append({**row, "hover": bar.hover[name]})
            start += value
    y = vega.plane_axis([bar.plane for bar in bars], room)
    x = vega.quantitative(
        "from", span, vega.x_axis(layout.axis, span, layout.quantity, plot, labels=labels)
    )
    colour = vega.coloured("name", layout.colours)
    at_right = {"x": vega.px(plot + _TOTAL_ROOM), "y": y, "text": vega.nominal("text")}
    marks = [
        vega.mark(
            "bar",
            rows,
            {"x": x, "x2": {"field": "to"}, "y": y, "color": colour},
            hover=True,
            height=17,
        ),
        vega.mark(
            "text",
            [{"plane": bar.plane, "text": bar.total_text} for bar in bars if not bar.missing],
            at_right,
            align="right",
        ),
        vega.mark(
            "text",
            [
                {"plane": bar.plane, "text": _shortened(bar.missing, plot + _TOTAL_ROOM)}
                for bar in bars
                if bar.missing
            ],
            {**at_right, "x": vega.px(4)},
            align="left",
            baseline="middle",
            fontStyle="italic",
            color=theme.MUTED.light,
        ),
    ]
    return vega.layers(
        marks, width=plot, height=_ROW * len(bars), title=vega.heading(heading, plot + room)
    )


def _shortened(reason: str, width: float) -> str:
    if len(vega.wrapped(reason, width)) == 1:
        return reason
    return f"{reason.partition(':')[0]} (see the numbers)"
