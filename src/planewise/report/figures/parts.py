"""Where the time of a packet goes: sender host, wire, responder host. Knows summaries only."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from planewise.report import theme
from planewise.report.cells import Factors, common_factors, words
from planewise.report.data import RttCell
from planewise.report.figures import base
from planewise.report.figures.base import Entry, Figure, Missing, Row, Span, Spec, Table, Value
from planewise.report.summaries import Parts
from planewise.units import time_text

_ROW = 30
_TOTAL_ROOM = 66

NAMES = {
    "sender": "sender host",
    "wire": "wire",
    "responder": "responder host",
    "instrument": "the probe itself",
}


def figure(cells: Sequence[RttCell], *, name: str, title: str) -> Figure:
    """Stacked bars by plane, one row of small multiples a load."""
    common = common_factors(cell.factors for cell in cells)
    groups = base.by_context(cells)
    known = [cell.parts for cell in cells if cell.parts is not None]
    largest = max((parts.total_ns for parts in known), default=1000.0)
    span = Span(0.0, largest * 1.02, log=False)
    shown = [
        part
        for part in NAMES
        if part != "instrument" or any(parts.instrument_ns is not None for parts in known)
    ]

    def draw(width: int) -> Spec:
        room = base.label_room((cell.plane for cell in cells), most=130)
        plot = width - room - _TOTAL_ROOM - 12
        charts = [
            _context(
                group,
                words(factors, common),
                span,
                shown,
                plot,
                room,
                last=place == len(groups) - 1,
            )
            for place, (factors, group) in enumerate(groups)
        ]
        key = base.key({NAMES[part]: theme.PARTS[part].light for part in shown}, plot + _TOTAL_ROOM)
        return base.finish(base.below([key, *charts], spacing=10))

    hidden = sorted({cell.plane for cell in cells if cell.parts is None})
    return Figure(
        name=name,
        title=title,
        caption=(
            "How long a typical packet and its answer spend where; the number at the right is "
            "their sum. Sender host: RTT at the guest minus RTT at the sender's network card, the "
            "RTT overhead. Wire: what remains between the two cards. Responder host: from its "
            "card to its guest and back, the response time."
            + (
                " The probe itself, shown apart from the sender host: what passes between its own "
                "clock readings and the kernel's time stamps."
                if "instrument" in shown
                else ""
            )
            + " Means over the middle half of the packets, so that they add up and outliers do "
            "not weigh in."
        ),
        alt=(
            "Stacked bars of the time in sender host, wire and responder host. "
            + " ".join(
                f"{cell.plane}, {words(cell.factors, common)}: "
                f"{time_text(cell.parts.sender_ns)}, {time_text(cell.parts.wire_ns)}, "
                f"{time_text(cell.parts.responder_ns)}."
                for cell in cells[:12]
                if cell.parts is not None
            )
            + (f" Not measurable for {', '.join(hidden)}." if hidden else "")
        ),
        draw=draw,
        table=table(cells, common),
    )


def _values(parts: Parts) -> dict[str, float | None]:
    return {
        "sender": parts.sender_ns,
        "wire": parts.wire_ns,
        "responder": parts.responder_ns,
        "instrument": parts.instrument_ns,
    }


def _colours(shown: Sequence[str]) -> alt.Scale:
    return alt.Scale(domain=list(shown), range=[theme.PARTS[part].light for part in shown])


def _context(
    cells: Sequence[RttCell],
    label: str,
    span: Span,
    shown: Sequence[str],
    plot: int,
    room: int,
    *,
    last: bool,
) -> Spec:
    bars: list[Row] = []
    sums: list[Row] = []
    reasons: list[Row] = []
    for cell in cells:
        if cell.parts is None:
            lines = base.wrapped(cell.no_parts, plot + _TOTAL_ROOM)
            short = cell.no_parts.partition(":")[0]
            reasons.append(
                {
                    "plane": cell.plane,
                    "text": lines[0] if len(lines) == 1 else f"{short} (see the numbers)",
                }
            )
            continue
        start = 0.0
        values = _values(cell.parts)
        for part in shown:
            value = values[part]
            if value is None:
                continue
            bars.append(
                {
                    "plane": cell.plane,
                    "part": part,
                    "from": start,
                    "to": start + value,
                    "said": f"{cell.plane}, {NAMES[part]}: {time_text(value)} "
                    f"({theme.share(value / cell.parts.total_ns)} of the RTT)",
                }
            )
            start += value
        sums.append({"plane": cell.plane, "text": time_text(cell.parts.total_ns)})
    y = base.plane_axis([cell.plane for cell in cells], room)
    axis = base.x_axis("time", span, "duration", plot, labels=last)
    layers: list[alt.Chart | Spec] = [
        alt.Chart(base.data(bars))
        .mark_bar(height=18)
        .encode(
            x=alt.X("from:Q", scale=span.scale(), axis=axis),
            x2=alt.X2("to"),
            y=y,
            color=alt.Color("part:N", scale=_colours(shown), legend=None),
            description=alt.Description("said:N"),
        ),
        alt.Chart(base.data(sums))
        .mark_text(align="right")
        .encode(x=base.x_px(plot + _TOTAL_ROOM), y=y, text=alt.Text("text:N")),
    ]
    if reasons:
        layers.append(
            alt.Chart(base.data(reasons))
            .mark_text(align="left", baseline="middle", fontStyle="italic")
            .encode(
                x=base.x_px(4),
                y=y,
                text=alt.Text("text:N"),
                color=alt.ColorValue(theme.MUTED.light),
            )
        )
    return base.layers(
        layers, width=plot, height=_ROW * len(cells), title=base.heading(label, plot + room)
    )


def table(cells: Sequence[RttCell], common: Factors) -> Table:
    """The numbers of `cells`; `common` is said elsewhere."""
    rows: list[tuple[Entry, ...]] = []
    for cell in cells:
        head = (words(cell.factors, common), cell.plane)
        if cell.parts is None:
            rows.append((*head, *[Missing(cell.no_parts)] * 6, "—"))
            continue
        numbers = (cell.parts.total_ns, cell.parts.overhead_ns, *_values(cell.parts).values())
        rows.append(
            (
                *head,
                *(
                    Missing("no kernel stamps in every trial")
                    if number is None
                    else Value(time_text(number), number)
                    for number in numbers
                ),
                Value(theme.count(cell.parts.packets), cell.parts.packets),
            )
        )
    return Table(
        columns=(
            "Load",
            "Plane",
            "Sum",
            "RTT overhead",
            "Sender host",
            "Wire",
            "Responder host",
            "The probe itself",
            "Packets",
        ),
        rows=tuple(rows),
    )
