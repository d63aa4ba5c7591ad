"""What all figures share: size, axes, the rows of small multiples, files. Knows no measurement."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import altair as alt
import vl_convert

from planewise.errors import BadInputError
from planewise.report import renderer, theme
from planewise.report.cells import Factors
from planewise.store.files import write_file

Format = Literal["svg", "pdf", "png", "html"]
FORMATS: tuple[Format, ...] = ("svg", "pdf", "png", "html")

Spec = dict[str, Any]
"""A Vega-Lite specification or a part of one.

Marks and encodings are written in Altair; layers and small multiples are joined as plain
specifications, because Altair copies and checks everything below a join at every join (a report
took 15 s, now 3).
"""
Row = Mapping[str, Any]

WIDE, NARROW = 760, 336
"""Width of a figure on a desk and on a phone of 360 px, in CSS pixels."""


@dataclass(frozen=True)
class Value:
    """A number as it is printed, with the number itself."""

    text: str
    raw: float
    small: str = ""
    """Said below the number: its interval, what to think of it."""


@dataclass(frozen=True)
class Missing:
    """No number, and why: never a zero instead."""

    why: str


Entry = str | Value | Missing


@dataclass(frozen=True)
class Table:
    """A figure's numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A figure of the report, ready to be drawn at any width."""

    name: str
    """For the file and the page's anchor: letters, digits and dashes."""
    title: str
    caption: str
    """Says in plain words what is drawn and how to read it."""
    alt: str
    """What a person who cannot see it must know."""
    draw: Callable[[int], Spec]
    """For a width in px."""
    table: Table
    verdict: str = ""
    """GOOD, BAD or UNDECIDED, where the figure is of one judged curve."""
    lead: str = ""
    """What the figure shows, in one sentence, where there is one to say."""

    notes: tuple[str, ...] = ()
    """What a reader should know of it, a sentence each."""
    virtual: str = ""
    """Why what it shows is not that of hardware, in one sentence; empty when it is."""

    def titled(self, width: int) -> Spec:
        """As `draw`, with its title: for a file that stands alone."""
        title = f"{self.title}: {self.verdict}" if self.verdict else self.title
        said = " ".join(text for text in (self.lead, self.virtual) if text)
        return with_title(self.draw(width), title, said, width)


def data(rows: Iterable[Row]) -> alt.InlineData:
    """Rows as a chart's data.

    As JSON text: Altair copies a chart with its data at every step of its making, and a text is
    copied for nothing.
    """
    text = json.dumps([dict(row) for row in rows], allow_nan=False)
    return alt.InlineData(values=text, format=alt.JsonDataFormat(type="json"))


def spec(chart: alt.Chart) -> Spec:
    """One mark with its encodings, as part of a figure."""
    context: dict[str, Any] = {"top_level": False, "datasets": {}}
    part: Spec = chart.to_dict(validate=False, context=context)
    # Altair has moved the data to the context, for a whole figure to gather. Here it stays.
    part["data"]["values"] = context["datasets"][part["data"].pop("name")]
    return part


def layers(charts: Sequence[alt.Chart | Spec], **properties: Any) -> Spec:
    """Marks on one plot, later ones above; `properties` are the plot's (width, height, title)."""
    parts = [chart if isinstance(chart, dict) else spec(chart) for chart in charts]
    return {"layer": parts, **properties}


def x_px(place: float) -> alt.XValue:
    """A fixed place in the plot [px from its left edge], whatever the scale."""
    return alt.XValue(place)  # type: ignore[no-untyped-call]


def y_px(place: float) -> alt.YValue:
    """A fixed place in the plot [px from its upper edge]."""
    return alt.YValue(place)  # type: ignore[no-untyped-call]


def y2_px(place: float) -> alt.Y2Value:
    """The same for the other end of a line."""
    return alt.Y2Value(place)  # type: ignore[no-untyped-call]


def below(charts: Sequence[Spec], spacing: int = 10) -> Spec:
    """Small multiples below each other [px apart]."""
    return {"vconcat": list(charts), "spacing": spacing, "bounds": "full"}


def beside(charts: Sequence[Spec], spacing: int = 24) -> Spec:
    """Small multiples beside each other [px apart]."""
    return {"hconcat": list(charts), "spacing": spacing, "bounds": "full"}


def heading(text: str, width: float) -> Spec:
    """What a small multiple shows, above its left edge, in lines that fit `width` [px]."""
    return {
        "text": wrapped(text[:1].upper() + text[1:], width),
        "anchor": "start",
        "frame": "bounds",
        "offset": 2,
    }


def with_title(figure: Spec, title: str, subtitle: str, width: int) -> Spec:
    """A whole figure with its title and a sentence below it."""
    return {
        **figure,
        "title": {
            "text": wrapped(title, width - 10),
            "subtitle": wrapped(subtitle, width - 10) if subtitle else [],
            "anchor": "start",
            "frame": "bounds",
            "offset": 12,
            "fontSize": 15,
        },
    }


def finish(figure: Spec) -> Spec:
    """A whole figure: with the look that all have."""
    label = {
        "labelFont": theme.FONT,
        "labelFontSize": theme.FONT_SIZE,
        "labelColor": theme.INK.light,
        "labelLimit": 400,
        "titleFont": theme.FONT,
        "titleFontSize": theme.FONT_SIZE,
        "titleColor": theme.MUTED.light,
        "titleFontWeight": "normal",
    }
    return {
        "$schema": alt.SCHEMA_URL,
        **figure,
        "background": "transparent",
        "padding": 4,
        "config": {
            "font": theme.FONT,
            "view": {"stroke": None},
            "axis": {
                **label,
                "gridColor": theme.GRID.light,
                "domainColor": theme.MUTED.light,
                "tickColor": theme.MUTED.light,
            },
            "title": {
                "font": theme.FONT,
                "fontSize": 13,
                "fontWeight": 600,
                "color": theme.INK.light,
                "subtitleFont": theme.FONT,
                "subtitleFontSize": theme.FONT_SIZE,
                "subtitleColor": theme.MUTED.light,
            },
            "text": {
                "font": theme.FONT,
                "fontSize": theme.FONT_SIZE,
                "color": theme.INK.light,
            },
        },
    }


def chart_of(figure: Spec) -> alt.TopLevelMixin:
    """A whole figure as an Altair chart, checked against Vega-Lite's schema."""
    chart: alt.TopLevelMixin = alt.Chart.from_dict(figure)
    return chart


def slug(text: str) -> str:
    """`text` as a file name and an anchor: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "figure"


def text_width(text: str) -> float:
    """About how wide `text` is in a figure [px]."""
    return 6.3 * len(text)


def label_room(labels: Iterable[str], most: int) -> int:
    """Room for the longest of `labels` left of a plot [px], at most `most`."""
    return min(most, 12 + round(max((text_width(label) for label in labels), default=0)))


def wrapped(text: str, width: float) -> list[str]:
    """`text` in lines that fit `width` [px]."""
    return textwrap.wrap(text, max(12, int(width / 6.0))) or [""]


_DURATION = (
    "datum.value === 0 ? '0' : abs(datum.value) < 1e3 ? format(datum.value, '~r') + ' ns'"
    " : abs(datum.value) < 1e6 ? format(datum.value / 1e3, '~r') + ' µs'"
    " : abs(datum.value) < 1e9 ? format(datum.value / 1e6, '~r') + ' ms'"
    " : format(datum.value / 1e9, '~r') + ' s'"
)
_RATE = (
    "datum.value === 0 ? '0' : datum.value < 1e3 ? format(datum.value, '~r') + ' pps'"
    " : datum.value < 1e6 ? format(datum.value / 1e3, '~r') + ' kpps'"
    " : format(datum.value / 1e6, '~r') + ' Mpps'"
)
_BITS = (
    "datum.value === 0 ? '0' : datum.value < 1e6 ? format(datum.value / 1e3, '~r') + ' kbit/s'"
    " : datum.value < 1e9 ? format(datum.value / 1e6, '~r') + ' Mbit/s'"
    " : format(datum.value / 1e9, '~r') + ' Gbit/s'"
)
_SHARE = "format(datum.value * 100, '~r') + ' %'"


class InContext(Protocol):
    """A summary of one cell."""

    @property
    def factors(self) -> Factors:
        """The cell's levels but its plane."""
        ...


C = TypeVar("C", bound=InContext)

Quantity = Literal["duration", "rate", "bits", "share"]
_EXPRESSIONS: Mapping[Quantity, str] = {
    "duration": _DURATION,
    "rate": _RATE,
    "bits": _BITS,
    "share": _SHARE,
}


def with_unit(values: str, quantity: Quantity) -> str:
    """A Vega expression for axis labels with units, so that no axis counts in 1e-05."""
    return _EXPRESSIONS[quantity].replace("datum.value", values)


@dataclass(frozen=True)
class Span:
    """What an axis spans, and how."""

    low: float
    high: float
    log: bool

    @classmethod
    def of_times(cls, low: float, high: float) -> Span:
        """Log where the largest is more than 8 times the smallest, else linear from 0."""
        if low > 0 and high / low > 8:
            return cls(low / 1.15, high * 1.15, log=True)
        return cls(0.0, high * 1.03 or 1.0, log=False)

    def scale(self) -> alt.Scale:
        """As a scale of Vega."""
        return alt.Scale(
            type="log" if self.log else "linear",
            domain=[self.low, self.high],
            nice=False,
            zero=False,
        )

    def ticks(self, most: int) -> list[float]:
        """Round values on it."""
        return theme.ticks(self.low, self.high, log=self.log, most=most)


def x_axis(
    title: str, span: Span, quantity: Quantity, width: int, *, labels: bool = True
) -> alt.Axis:
    """A horizontal axis with a grid; without `labels` only the grid."""
    return alt.Axis(
        title=title if labels else None,
        values=span.ticks(max(4, width // 70)),
        labels=labels,
        ticks=labels,
        domain=labels,
        labelExpr=with_unit("datum.value", quantity),
        labelFlush=False,
        labelOverlap="greedy",
        titleAnchor="start",
    )


def plane_axis(planes: Sequence[str], room: int) -> alt.Y:
    """Planes by name at the left, the direct label of everything in their row."""
    return alt.Y(
        "plane:N",
        sort=list(planes),
        scale=alt.Scale(domain=list(planes), paddingInner=0.3, paddingOuter=0.25),
        axis=alt.Axis(
            title=None,
            domain=False,
            ticks=False,
            grid=False,
            labelLimit=room - 6,
            labelPadding=6,
            minExtent=room,
            maxExtent=room,
        ),
    )


def plane_colour(planes: Sequence[str]) -> alt.Scale:
    """The colour of each plane, the same in every figure."""
    colours = theme.colours_of(planes)
    return alt.Scale(domain=list(planes), range=[colours[plane] for plane in planes])


def by_context(cells: Iterable[C]) -> list[tuple[Factors, list[C]]]:
    """Cells by their factors without the plane: one small multiple each."""
    groups: dict[Factors, list[C]] = {}
    for cell in cells:
        groups.setdefault(cell.factors, []).append(cell)
    return list(groups.items())


def key(names: Mapping[str, str], width: int) -> Spec:
    """What the colours of a stacked bar mean, in the order in which they lie; by name, colour."""
    rows: list[Row] = []
    x, y = 0.0, 0
    for name, colour in names.items():
        room = 32 + text_width(name)
        if x and x + room > width:
            x, y = 0.0, y + 18
        rows.append({"name": name, "colour": colour, "x": x, "y": y})
        x += room
    height = y + 10
    chart = alt.Chart(data(rows))
    place = {
        "x": alt.X("x:Q", scale=alt.Scale(domain=[0, width]), axis=None),
        "y": alt.Y("y:Q", scale=alt.Scale(domain=[height, 0]), axis=None),
    }
    squares = chart.mark_square(size=130, opacity=1, xOffset=6, yOffset=6, aria=False).encode(
        **place, color=alt.Color("colour:N", scale=None)
    )
    labels = chart.mark_text(align="left", dx=18, dy=6, limit=max(20, width - 24)).encode(
        **place, text=alt.Text("name:N")
    )
    return layers([squares, labels], width=width, height=height)


def note(text: str, width: int) -> Spec:
    """A sentence above the plots, in lines that fit `width` [px]."""
    lines = wrapped(text, width)
    height = 15 * len(lines)
    return {
        "width": width,
        "height": height,
        "data": {"values": [{}]},
        "mark": {
            "type": "text",
            "align": "left",
            "baseline": "top",
            "fontStyle": "italic",
            "color": theme.MUTED.light,
            "text": lines,
            "lineHeight": 15,
        },
        "encoding": {"x": {"value": 0}, "y": {"value": 0}},
    }


def text(figure: Spec) -> str:
    """The figure's specification as one line of JSON."""
    return json.dumps(figure)


def svg(figure: Spec) -> str:
    """The figure as SVG text; no file and no network."""
    return renderer.svg(text(figure))


def save(
    chart: alt.TopLevelMixin | Spec,
    path_without_suffix: Path,
    formats: Sequence[Format] = ("svg", "pdf", "png"),
) -> list[Path]:
    """Writes `chart` once a format and returns the files.

    SVG, PDF and PNG (2x) are on white; HTML is interactive and holds its scripts, so that it
    needs no network. PlanewiseError when a file cannot be written.
    """
    figure = chart if isinstance(chart, dict) else chart.to_dict(validate=False)
    spec = json.dumps({**figure, "background": "white"})
    files = []
    for wanted in formats:
        file = path_without_suffix.with_name(f"{path_without_suffix.name}.{wanted}")
        content: bytes
        if wanted == "svg":
            content = str(vl_convert.vegalite_to_svg(spec)).encode()
        elif wanted == "pdf":
            content = bytes(vl_convert.vegalite_to_pdf(spec))
        elif wanted == "png":
            content = bytes(vl_convert.vegalite_to_png(spec, scale=2))
        else:
            content = str(vl_convert.vegalite_to_html(spec, bundle=True)).encode()
        write_file(file, content)
        files.append(file)
    return files


def parse_formats(text: str) -> list[Format]:
    """`svg,pdf` as formats. BadInputError for one that there is not."""
    wanted: list[Format] = []
    for name in text.replace(",", " ").split():
        if name not in FORMATS:
            raise BadInputError(
                f"{name!r} is no format of figures",
                where="--format",
                remedy=f"choose of {', '.join(FORMATS)}",
            )
        wanted.append(name)
    return wanted
