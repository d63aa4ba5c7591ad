"""The daemon's words as text for people: tables, and a sentence an event. Knows no connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from planewise.testbed.alloc_client import (
    GuestStatus,
    MoveStatus,
    Planned,
    PoolStatus,
    Status,
    printable,
)
from planewise.units import duration_text, rate_text, time_text

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 240
"""Characters in a line where no terminal sets them: `grep` finds a guest and its VF in one."""

LATEST = 5
"""Moves and errors that `status` shows."""


def status(now: Status, to: Console) -> None:
    """Everything, the most important last: it stands above the prompt."""
    if not to.is_terminal:
        to.width = PIPE_WIDTH
    up_s = (now.at_unix_ms - now.started_unix_ms) / 1e3
    to.print(
        f"planewised {now.version}, up {duration_text(up_s)}; policy {now.policy}, decides every "
        f"{now.interval_s:g} s" + ("; draining: no VF is given" if now.draining else "")
    )
    if now.pools:
        to.print(_pools(now.pools))
    else:
        to.print("No PF with VFs is managed.")
    if now.guests:
        to.print(_guests(now.guests, now.at_unix_ms))
    else:
        to.print("No guest is managed yet.")
    if now.moves:
        to.print(_moves(now.moves[-LATEST:]))
    for error in now.errors[-LATEST:]:
        to.print(_text(f"{_clock(error.at_unix_ms)} error: {error.what}", style="red"))
        if error.remedy:
            to.print(_text(f"         hint: {error.remedy}"))
    held = sum(vf.place == "held" for vf in now.vfs)
    marked = [guest.id for guest in now.guests if guest.marked]
    quarantined = [
        f"{vf.id} ({vf.why or 'no reason given'})" for vf in now.vfs if vf.place == "quarantined"
    ]
    to.print(f"{held} of {len(now.vfs)} VFs held by {len(now.guests)} guests")
    if marked:
        to.print(_text(f"did not answer and are left alone: {', '.join(marked)}", style="red"))
    if quarantined:
        to.print(_text(f"quarantined: {', '.join(quarantined)}", style="red"))


def plan(planned: Planned, to: Console) -> None:
    """The moves, in order."""
    if not planned.moves:
        to.print("Nothing is to be moved.")
    for number, move in enumerate(planned.moves, 1):
        verb = f"give {move.vf} to" if move.direction == "give" else f"take {move.vf} from"
        to.print(_text(f"{number:>3}. {verb} {move.guest}: {move.why}"))
    if planned.deferred:
        to.print(f"{planned.deferred} more would follow in later intervals.")
    if planned.moves and planned.performed:
        to.print("This is being performed: `planewise alloc watch` shows how it goes.")


def event(kind: str, event: Any) -> str | None:
    """One line for what happened, or nothing where it is not worth one."""
    if kind == "missed":
        return f"{event.get('missed')} events came too fast and were left out"
    if kind != "event":
        return None
    worded = _SENTENCES.get(str(event.get("event")))
    sentence = worded(event) if worded else None
    return printable(f"{time.strftime('%H:%M:%S')} {sentence}") if sentence else None


def _ended(event: dict[str, Any]) -> str:
    verb = "got" if event["direction"] == "give" else "gave up"
    ending = event.get("ending") or {}
    took = time_text((event.get("duration_ms") or 0) * 1e6)
    how = "" if ending.get("how") == "completed" else f"{ending.get('how')}: {ending.get('why')}; "
    return f"{event['guest']} {verb} {event['vf']} in {took} ({how}{event['why']})"


def _decided(event: dict[str, Any]) -> str | None:
    return f"decided: {event['moves']} moves" if event["moves"] else None


_SENTENCES: dict[str, Callable[[dict[str, Any]], str | None]] = {
    "move-began": lambda event: f"moving {event['guest']}: {event['direction']} {event['vf']}",
    "move-ended": _ended,
    "decided": _decided,
    "guest-appeared": lambda event: f"{event['guest']} is managed from now on ({event['kind']})",
    "guest-gone": lambda event: f"{event['guest']} is gone",
    "guest-marked": lambda event: f"{event['guest']} is marked: {event['why']}",
    "guest-unmarked": lambda event: f"{event['guest']} is well again",
    "vf-quarantined": lambda event: f"{event['vf']} is quarantined: {event['why']}",
    "link": lambda event: f"{event['pf']} {'has a link again' if event['up'] else 'lost its link'}",
    "error": lambda event: f"error: {event['what']}",
    "requested": lambda event: f"{event['what']} ({event['caller']})",
    "stopping": lambda event: f"the daemon stops: {event['what']}",
}


def _pools(pools: Iterable[PoolStatus]) -> Table:
    table = _table("PF", "link", "VFs", "free", "quarantined", "NUMA node")
    for pool in pools:
        table.add_row(
            _text(pool.pf),
            "up" if pool.link_up else Text("down", style="red"),
            str(pool.vfs),
            str(pool.free),
            str(pool.quarantined),
            "" if pool.numa is None else str(pool.numa),
        )
    return table


def _guests(guests: Iterable[GuestStatus], now_ms: int) -> Table:
    table = _table("guest", "sends by", "for", "packet rate", "bit rate", "why", "")
    for guest in guests:
        notes = [
            *(["moving"] if guest.moving else []),
            *([guest.stance] if guest.stance != "free" else []),
            *([f"class {guest.priority}"] if guest.priority else []),
            *(["marked"] if guest.marked else []),
            *([] if guest.paravirtual_up else ["paravirtual path down"]),
            *(["rate guest-reported"] if guest.rate.source == "guest-reported" else []),
        ]
        bits = guest.rate.bytes_per_s
        table.add_row(
            _text(guest.id),
            _text(guest.vf or "paravirtual"),
            duration_text((now_ms - guest.since_unix_ms) / 1e3),
            "unknown" if guest.rate.pps is None else rate_text(guest.rate.pps),
            "unknown" if bits is None else rate_text(bits * 8).replace("pps", "bit/s"),
            _text(guest.why),
            _text(", ".join(notes)),
        )
    return table


def _moves(moves: Iterable[MoveStatus]) -> Table:
    table = _table("latest moves", "guest", "VF", "took", "ended", "why")
    for move in moves:
        ending = move.ending.how if move.ending else "under way"
        why = move.ending.why if move.ending and move.ending.why else move.why
        table.add_row(
            _clock(move.started_unix_ms),
            _text(move.guest),
            _text(f"{'gets' if move.direction == 'give' else 'gives up'} {move.vf}"),
            "" if move.duration_ms is None else time_text(move.duration_ms * 1e6),
            ending,
            _text(why),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _clock(unix_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_ms / 1e3))
