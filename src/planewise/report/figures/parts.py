"""A packet's time in guests, hosts and the wire. Knows summaries only."""

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
    "sender_stack": "sender's guest",
    "sender": "sender host",
    "wire": "wire",
    "between": "hosts and wire",
    "responder": "responder host",
    "responder_stack": "responder's guest",
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
        caption=_caption(bars, layout, shown),
        alt=_alt(cells, common),
        draw=lambda width: stacked.draw(bars, layout, width),
        table=table(cells, common),
    )


def _bar(cell: RttCell, condition: str) -> Bar:
    if cell.parts is None:
        return Bar(cell.plane, condition, {}, "", {}, missing=cell.no_parts)
    total = cell.parts.total_ns
    segments = {NAMES[part]: ns for part, ns in _values(cell.parts).items() if ns is not None}
    if cell.parts.sender_stack_ns is not None:
        segments.pop(NAMES["instrument"], None)  # a part of what the sender's guest takes
    hover = {
        part: f"{cell.plane}, {part}: {time_text(ns)} ({theme.share(ns / total)} of the RTT)"
        for part, ns in segments.items()
    }
    return Bar(cell.plane, condition, segments, time_text(total), hover)


def _caption(bars: Sequence[Bar], layout: Layout, shown: Sequence[str]) -> str:
    more = {
        "sender_stack": " The guests: from the probe, or from where a guest answers, through its "
        "network stack to its own interface, and back.",
        "between": " Hosts and wire: all between the guests' interfaces, where no host sees "
        "their packets.",
        "instrument": " The probe itself, shown apart from the sender host: what passes between "
        "its own clock readings and the kernel's time stamps.",
    }
    details = "".join(words for part, words in more.items() if part in shown)
    less = ", less what its guest takes" if "sender_stack" in shown else ""
    axes = " Bars more than ten times as long have an axis of their own."
    return (
        "How long a typical packet and its answer spend where; the number at the right is "
        "their sum. Sender host: RTT at the guest minus RTT at the sender's network card, the "
        f"RTT overhead{less}. Wire: what remains between the two cards. Responder host: from its "
        f"card to its guest and back, the response time{less}.{details} Means over "
        "the middle half of the packets, so that they add up and outliers do not weigh in."
        f"{axes if len(stacked.scales(bars, layout)) > 1 else ''}"
    )


def _alt(cells: Sequence[RttCell], common: Factors) -> str:
    hidden = sorted({cell.plane for cell in cells if cell.parts is None})
    return (
        "Stacked bars of the time in guests, hosts and the wire. "
        + " ".join(
            f"{cell.plane}, {words(cell.factors, common)}: "
            + ", ".join(
                f"{NAMES[part]} {time_text(ns)}"
                for part, ns in _values(cell.parts).items()
                if ns is not None and part != "instrument"
            )
            + "."
            for cell in cells[:12]
            if cell.parts is not None
        )
        + (f" Not measurable for {', '.join(hidden)}." if hidden else "")
    )


def _values(parts: TimeParts) -> dict[str, float | None]:
    hosts_see = parts.sender_ns is not None
    return {
        "sender_stack": parts.sender_stack_ns,
        "sender": parts.sender_ns,
        "wire": parts.wire_ns if hosts_see else None,
        "between": None if hosts_see else parts.wire_ns,
        "responder": parts.responder_ns,
        "responder_stack": parts.responder_stack_ns,
        "instrument": parts.instrument_ns,
    }


def table(cells: Sequence[RttCell], common: Factors) -> Table:
    """The numbers of `cells`; levels in `common` are left out."""
    time_parts = [cell.parts for cell in cells if cell.parts is not None]
    unused = set()
    if all(parts.sender_stack_ns is None for parts in time_parts):
        unused |= {"sender_stack", "responder_stack"}
    if all(parts.sender_ns is not None for parts in time_parts):
        unused.add("between")
    shown = [part for part in NAMES if part not in unused]
    names = [f"{NAMES[part][0].upper()}{NAMES[part][1:]}" for part in shown]
    columns = ("Load", "Plane", "Sum", "RTT overhead", *names, "Packets")
    rows: list[tuple[Entry, ...]] = []
    for cell in cells:
        head = (words(cell.factors, common), cell.plane)
        if cell.parts is None:
            rows.append((*head, *[Missing(cell.no_parts)] * (len(columns) - 3), "—"))
            continue
        values = _values(cell.parts)
        numbers = {
            "sum": cell.parts.total_ns,
            "overhead": cell.parts.overhead_ns,
            **{part: values[part] for part in shown},
        }
        rows.append(
            (
                *head,
                *(
                    Missing(_why(cell, part)) if number is None else PrintedNumber.time(number)
                    for part, number in numbers.items()
                ),
                PrintedNumber.count(cell.parts.packets),
            )
        )
    return Table(columns=columns, rows=tuple(rows))


def _why(cell: RttCell, part: str) -> str:
    """Why a cell that has other parts lacks this one."""
    if part == "instrument":
        return "no kernel stamps in every trial"
    if part in ("sender_stack", "responder_stack"):
        return cell.no_stacks
    if part == "between":
        return "given by its parts: the hosts see these packets"
    return cell.overhead if isinstance(cell.overhead, str) else cell.no_parts
