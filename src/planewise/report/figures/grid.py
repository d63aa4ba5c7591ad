"""Small multiples along a factor: panels, bands, a slot for each series. Knows no measurement.

Every panel has the same axis upwards. Bands lie along the panel's axis, one a level; in each band
every series has a slot of its own, in the order of the key above.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from planewise.report import theme
from planewise.report.facets import Band, C, FacetPage, Item, Panel
from planewise.report.figures import vega
from planewise.report.figures.vega import Channel, Quantity, Span, Spec

HEIGHT = 170
"""Of a panel [px]."""
_AXIS_ROOM = 58
_GAP = 18
_LEAST_SLOT = 7.0
"""Width of a slot [px] below which a panel's bands are put into several rows."""
_FILLED = 0.84
"""Share of a band that its slots take."""


@dataclass(frozen=True)
class Slot(Generic[C]):
    """Place of an item along the axis, from `left` to `right`, in bands."""

    series: str
    item: Item[C]
    left: float
    right: float

    @property
    def centre(self) -> float:
        """The slot's middle."""
        return (self.left + self.right) / 2

    def inner(self, share: float) -> tuple[float, float]:
        """The middle `share` of the slot."""
        half = (self.right - self.left) * share / 2
        return self.centre - half, self.centre + half


@dataclass(frozen=True)
class Plot:
    """Axes and colours of a panel, for its marks."""

    span: Span
    colours: Mapping[str, str]
    bands: int
    axis_x: Spec
    axis_y: Spec

    def x(self, field: str) -> Channel:
        """A place along the axis, as an encoding."""
        return vega.quantitative(field, Span(-0.5, self.bands - 0.5, log=False), self.axis_x)

    def y(self, field: str) -> Channel:
        """A value, as an encoding."""
        return vega.quantitative(field, self.span, self.axis_y)

    def colour(self) -> Channel:
        """A row's `series`, as an encoding."""
        return vega.coloured("series", self.colours)

    def box(self, left: str, right: str, low: str, high: str) -> dict[str, Channel]:
        """A rectangle between four fields, as encodings."""
        return {
            "x": self.x(left),
            "x2": {"field": right},
            "y": self.y(low),
            "y2": {"field": high},
        }


Marks = Callable[[Sequence[Slot[C]], Plot], list[Spec]]
"""Draws what lies in the slots of one panel."""


def draw(
    page: FacetPage[C],
    planes: Sequence[str],
    span: Span,
    quantity: Quantity,
    marks: Marks[C],
    width: int,
    *,
    more_keys: Sequence[Spec] = (),
) -> Spec:
    """The whole figure. `planes` are all series of the run, for their colours."""
    all_colours = theme.colours_of(planes)
    colours = {label: all_colours[label] for label in page.series if label in all_colours}
    across = max(len(row) for row in page.panels) if width >= 600 else 1
    panel_width = (width - 16 - _AXIS_ROOM - (across - 1) * _GAP) / across
    rows: list[Spec] = []
    panels = [list(row) for row in page.panels]
    if across == 1:
        panels = [[panel] for row in page.panels for panel in row]
    last = len(panels) - 1
    for place, row in enumerate(panels):
        parts = [_chunks(panel, page, len(colours), panel_width) for panel in row]
        for level in range(max(len(chunks) for chunks in parts)):
            charts = [
                _panel(
                    chunks[level],
                    page,
                    span,
                    quantity,
                    marks,
                    colours,
                    panel_width,
                    labels=column == 0,
                    title=page.axis if place == last and level == len(chunks) - 1 else "",
                )
                for column, chunks in enumerate(parts)
                if level < len(chunks)
            ]
            rows.append(vega.beside(charts, spacing=_GAP) if len(charts) > 1 else charts[0])
    key = vega.key(colours, room_above(width))
    return vega.finish(vega.below([key, *more_keys, *rows], spacing=12))


def room_above(width: int) -> int:
    """Most width of a key or a note above the panels [px]."""
    return width - _AXIS_ROOM - 16


def _chunks(panel: Panel[C], page: FacetPage[C], series: int, width: float) -> list[Panel[C]]:
    """The panel, split by bands into several where its slots would be too thin."""
    slots = len(panel.bands) * max(1, series)
    pieces = math.ceil(slots * _LEAST_SLOT / (width * _FILLED))
    if pieces <= 1 or len(panel.bands) <= 1:
        return [panel]
    size = math.ceil(len(panel.bands) / min(pieces, len(panel.bands)))
    return [
        Panel(
            ", ".join(
                part
                for part in (
                    panel.label,
                    f"{bands[0].label} to {bands[-1].label} {page.axis}"
                    if len(bands) > 1
                    else f"{bands[0].label} {page.axis}",
                )
                if part
            ),
            bands,
        )
        for start in range(0, len(panel.bands), size)
        if (bands := panel.bands[start : start + size])
    ]


def slots(bands: Sequence[Band[C]], series: Sequence[str]) -> list[Slot[C]]:
    """A slot for each item in the bands."""
    slot_width = _FILLED / max(1, len(series))
    return [
        Slot(
            label,
            band.items[label],
            place - _FILLED / 2 + number * slot_width,
            place - _FILLED / 2 + (number + 1) * slot_width,
        )
        for place, band in enumerate(bands)
        for number, label in enumerate(series)
        if label in band.items
    ]


def _panel(
    panel: Panel[C],
    page: FacetPage[C],
    span: Span,
    quantity: Quantity,
    marks: Marks[C],
    colours: Mapping[str, str],
    width: float,
    *,
    labels: bool,
    title: str,
) -> Spec:
    room = _AXIS_ROOM if labels else 0
    plot = Plot(
        span,
        colours,
        len(panel.bands),
        axis_x=_band_axis(panel, title),
        axis_y=vega.y_axis(span, quantity, room, most=6, labels=labels),
    )
    # An invisible point gives a panel without any mark its axes.
    frame = vega.mark(
        "point",
        [{"place": 0, "value": span.low}],
        {"x": plot.x("place"), "y": plot.y("value")},
        opacity=0,
        size=0,
        color=theme.GRID.light,
    )
    between = vega.mark(
        "rule",
        [{"place": place + 0.5} for place in range(len(panel.bands) - 1)],
        {"x": plot.x("place"), "y": vega.px(0), "y2": vega.px(HEIGHT)},
        color=theme.GRID.light,
    )
    drawn = marks(slots(panel.bands, tuple(colours)), plot)
    return vega.layers(
        [frame, *([between] if len(panel.bands) > 1 else []), *drawn],
        width=round(width),
        height=HEIGHT,
        **({"title": vega.heading(panel.label, width + room)} if panel.label else {}),
    )


def _band_axis(panel: Panel[C], title: str) -> Spec:
    """The levels along a panel; only the lowest panel has a `title`."""
    names = json.dumps([band.label for band in panel.bands])
    return {
        "values": list(range(len(panel.bands))),
        "labelExpr": f"{names}[datum.value]",
        "title": title or None,
        "titleAnchor": "start",
        "grid": False,
        "ticks": False,
        "labelFlush": False,
        "labelOverlap": True,
        "labels": any(band.label for band in panel.bands),
    }
