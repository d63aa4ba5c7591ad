"""The daemon's answers as tables, and its events as sentences."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from planewise.testbed.vfs.alloc_client import (
    GuestStatus,
    MoveStatus,
    Planned,
    PoolStatus,
    Status,
    printable,
)
from planewise.units import bits_text, count_text, duration_text, rate_text, time_text

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 240
"""Characters in a line where no terminal sets them: `grep` finds a guest and its VF in one."""

LATEST = 5
"""Moves and errors that `status` shows."""


def status(daemon: Status, console: Console) -> None:
    """Prints all of it, the most important last: just above the prompt."""
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    up_s = (daemon.at_unix_ms - daemon.started_unix_ms) / 1e3
    console.print(
        f"planewised {daemon.version}, up {duration_text(up_s)}; policy {daemon.policy}, decides "
        f"every {daemon.interval_s:g} s" + ("; draining: no VF is given" if daemon.draining else "")
    )
    if daemon.pools:
        titles: tuple[str, ...] = ("PF", "link", "VFs", "free", "quarantined", "NUMA node")
        console.print(_table(titles, map(_pool, daemon.pools)))
    else:
        console.print("No PF with VFs is managed.")
    if daemon.guests:
        titles = ("guest", "sends by", "for", "packet rate", "bit rate", "why", "")
        rows = [_guest(guest, daemon.at_unix_ms) for guest in daemon.guests]
        console.print("", _table(titles, rows), sep="\n")
    else:
        console.print("No guest is managed yet.")
    if daemon.moves:
        titles = ("latest moves", "guest", "VF", "took", "ended", "why")
        console.print("", _table(titles, map(_move, daemon.moves[-LATEST:])), sep="\n")
    for error in daemon.errors[-LATEST:]:
        console.print(_text(f"{_clock(error.at_unix_ms)} error: {error.what}", style="red"))
        if error.remedy:
            console.print(_text(f"         hint: {error.remedy}"))
    held = sum(vf.place == "held" for vf in daemon.vfs)
    marked = [guest.id for guest in daemon.guests if guest.marked]
    quarantined = [
        f"{vf.id} ({vf.why or 'no reason given'})" for vf in daemon.vfs if vf.place == "quarantined"
    ]
    console.print(f"{held} of {len(daemon.vfs)} VFs held by {len(daemon.guests)} guests")
    if marked:
        console.print(_text(f"marked, as they did not answer: {', '.join(marked)}", style="red"))
    if quarantined:
        console.print(_text(f"quarantined: {', '.join(quarantined)}", style="red"))


def plan(planned: Planned, console: Console) -> None:
    """Prints the moves, in order."""
    if not planned.moves:
        console.print("Nothing is to be moved.")
    for number, move in enumerate(planned.moves, 1):
        verb = f"give {move.vf} to" if move.direction == "give" else f"take {move.vf} from"
        console.print(_text(f"{number:>3}. {verb} {move.guest}: {move.why}"))
    if planned.deferred:
        console.print(f"{planned.deferred} more would follow in later intervals.")
    if planned.moves and planned.performed:
        console.print("This is being performed: `planewise alloc watch` shows how it goes.")


def event(kind: str, event: Any) -> str | None:
    """A line of text for an event; None for events that are not shown."""
    if kind == "missed":
        return f"{event.get('missed')} events came too fast and were left out"
    if kind != "event":
        return None
    describe = _SENTENCES.get(str(event.get("event")))
    sentence = describe(event) if describe else None
    return printable(f"{time.strftime('%H:%M:%S')} {sentence}") if sentence else None


def _ended(event: dict[str, Any]) -> str:
    verb = "got" if event["direction"] == "give" else "gave up"
    ending = event.get("ending") or {}
    took = time_text((event.get("duration_ms") or 0) * 1e6)
    how = "" if ending.get("how") == "completed" else f"{ending.get('how')}: {ending.get('why')}; "
    return f"{event['guest']} {verb} {event['vf']} in {took} ({how}{event['why']})"


def _decided(event: dict[str, Any]) -> str | None:
    return f"decided: {count_text(event['moves'], 'move')}" if event["moves"] else None


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


def _pool(pool: PoolStatus) -> tuple[str, ...]:
    numbers = (pool.vfs, pool.free, pool.quarantined, "" if pool.numa is None else pool.numa)
    return (pool.pf, "up" if pool.link_up else "down", *map(str, numbers))


def _guest(guest: GuestStatus, now_ms: int) -> tuple[str, ...]:
    notes = {
        "moving": guest.moving,
        guest.stance: guest.stance != "free",
        f"class {guest.priority}": guest.priority,
        "marked": guest.marked,
        "paravirtual path down": not guest.paravirtual_up,
        "rate guest-reported": guest.rate.source == "guest-reported",
    }
    bits = guest.rate.bytes_per_s
    return (
        guest.id,
        guest.vf or "paravirtual",
        duration_text((now_ms - guest.since_unix_ms) / 1e3),
        "unknown" if guest.rate.pps is None else rate_text(guest.rate.pps),
        "unknown" if bits is None else bits_text(bits * 8),
        guest.why,
        ", ".join(note for note, applies in notes.items() if applies),
    )


def _move(move: MoveStatus) -> tuple[str, ...]:
    return (
        _clock(move.started_unix_ms),
        move.guest,
        f"{'gets' if move.direction == 'give' else 'gives up'} {move.vf}",
        "" if move.duration_ms is None else time_text(move.duration_ms * 1e6),
        move.ending.how if move.ending else "under way",
        move.ending.why if move.ending and move.ending.why else move.why,
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_text(cell, "red" if cell == "down" else "") for cell in row))
    return table


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _clock(unix_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_ms / 1e3))
