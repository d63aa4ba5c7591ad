"""Where the time of a packet goes: sender host, wire, responder host. Knows summaries only."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.report import theme
from planewise.report.figures import stacked
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.stacked import Bar, Layout
from planewise.report.rtt_cell import RttCell
from planewise.report.summaries import TimeParts
from planewise.store.cells import Factors, common_factors, words
from planewise.units import time_text

NAMES = {
    "sender": "sender host",
    "wire": "wire",
    "responder": "responder host",
    "instrument": "the probe itself",
}


def figure(cells: Sequence[RttCell], *, name: str, title: str) -> Figure:
    """Stacked bars by plane, one row of small multiples a load."""
    common = common_factors(cell.factors for cell in cells)
    bars = [_bar(cell, words(cell.factors, common)) for cell in cells]
    shown = [part for part in NAMES if any(NAMES[part] in bar.segments for bar in bars)]
    layout = Layout(
        {NAMES[part]: theme.PARTS[part].light for part in shown}, quantity="duration", axis="time"
    )
    return Figure(
        name=name,
        title=title,
        caption=_caption(bars, layout, with_probe="instrument" in shown),
        alt=_alt(cells, common),
        draw=lambda width: stacked.draw(bars, layout, width),
        table=table(cells, common),
    )


def _bar(cell: RttCell, condition: str) -> Bar:
    if cell.parts is None:
        return Bar(cell.plane, condition, {}, "", {}, missing=cell.no_parts)
    total = cell.parts.total_ns
    known = {NAMES[part]: ns for part, ns in _values(cell.parts).items() if ns is not None}
    hover = {
        part: f"{cell.plane}, {part}: {time_text(ns)} ({theme.share(ns / total)} of the RTT)"
        for part, ns in known.items()
    }
    return Bar(cell.plane, condition, known, time_text(total), hover)


def _caption(bars: Sequence[Bar], layout: Layout, *, with_probe: bool) -> str:
    probe = (
        " The probe itself, shown apart from the sender host: what passes between its own "
        "clock readings and the kernel's time stamps."
    )
    axes = " Bars more than ten times as long have an axis of their own."
    return (
        "How long a typical packet and its answer spend where; the number at the right is "
        "their sum. Sender host: RTT at the guest minus RTT at the sender's network card, the "
        "RTT overhead. Wire: what remains between the two cards. Responder host: from its "
        f"card to its guest and back, the response time.{probe if with_probe else ''} Means over "
        "the middle half of the packets, so that they add up and outliers do not weigh in."
        f"{axes if len(stacked.scales(bars, layout)) > 1 else ''}"
    )


def _alt(cells: Sequence[RttCell], common: Factors) -> str:
    hidden = sorted({cell.plane for cell in cells if cell.parts is None})
    return (
        "Stacked bars of the time in sender host, wire and responder host. "
        + " ".join(
            f"{cell.plane}, {words(cell.factors, common)}: "
            f"{time_text(cell.parts.sender_ns)}, {time_text(cell.parts.wire_ns)}, "
            f"{time_text(cell.parts.responder_ns)}."
            for cell in cells[:12]
            if cell.parts is not None
        )
        + (f" Not measurable for {', '.join(hidden)}." if hidden else "")
    )


def _values(parts: TimeParts) -> dict[str, float | None]:
    return {
        "sender": parts.sender_ns,
        "wire": parts.wire_ns,
        "responder": parts.responder_ns,
        "instrument": parts.instrument_ns,
    }


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
                    else PrintedNumber(time_text(number), number)
                    for number in numbers
                ),
                PrintedNumber(theme.count(cell.parts.packets), cell.parts.packets),
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
