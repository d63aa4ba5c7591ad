"""Draws a snapshot of a run on a terminal, by rich."""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from planewise.live.state import Snapshot
from planewise.store.models import KpiSample
from planewise.units import bits_text, duration_text, percent_text, rate_text

_BAR = 16
_FIXED_LINES = 10
"""Lines of the view without guests and CPUs."""
_FULL, _EMPTY = "█", "·"


def render(snapshot: Snapshot, width: int, height: int, page: str) -> RenderableType:
    """The whole view in `width` × `height` characters; `page` is the address of the local page."""
    parts: list[RenderableType] = [_progress(snapshot, width)]
    sample = snapshot.last
    if sample is None:
        parts.append(Text("nothing was measured yet", style="dim"))
    else:
        cpus = _cpus(sample, width)
        lines = max(3, height - _FIXED_LINES - len(sample.cpu) // max(1, width // 30))
        parts += [_guests(sample, lines), cpus]
        if snapshot.stale:
            parts.append(Text("nothing is measured just now", style="dim"))
    if page:
        parts.append(Text(f"the same on a page: {page}", style="dim"))
    return Group(*parts)


def line(snapshot: Snapshot) -> str:
    """The newest sample in one line, for a log."""
    sample = snapshot.last
    if sample is None:
        return ""
    cpus = ", ".join(f"{name} {percent_text(round(used, 2))}" for name, used in sample.cpu.items())
    total = sample.total
    return (
        f"{len(sample.vnfs)} guests send {rate_text(total.tx_pps)}, {bits_text(total.tx_bps)}; "
        f"CPU {cpus}"
    )


def _progress(snapshot: Snapshot, width: int) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, max_width=max(20, width - 40), overflow="ellipsis")
    table.add_column(width=_BAR)
    table.add_column(no_wrap=True)
    status = snapshot.ended or f"{snapshot.share:.0%}, about {duration_text(snapshot.left_s)} left"
    table.add_row(Text(snapshot.what), ProgressBar(1.0, snapshot.share, width=_BAR), Text(status))
    return table


def _guests(sample: KpiSample, lines: int) -> Table:
    """The guests in order; where there are too many, only the ones that send most."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, right in (("guest", False), ("packets", True), ("bits", True), ("", False)):
        least = 14 if title == "guest" else None
        table.add_column(title, justify="right" if right else "left", no_wrap=True, min_width=least)
    guests = list(sample.vnfs.items())
    hidden = len(guests) - lines
    if hidden > 0:
        busiest = sorted(guests, key=lambda guest: -guest[1].tx_pps)[:lines]
        guests = [guest for guest in guests if guest in busiest]
    most = max((rate.tx_pps for _, rate in guests), default=0.0)
    for name, rate in guests:
        table.add_row(
            Text(name),
            rate_text(rate.tx_pps),
            bits_text(rate.tx_bps),
            _bar(rate.tx_pps / most if most else 0.0),
        )
    if hidden > 0:
        table.add_row(Text(f"and {hidden} more", style="dim"), "", "", "")
    table.add_row(
        Text("all together", style="bold"),
        rate_text(sample.total.tx_pps),
        bits_text(sample.total.tx_bps),
        "",
    )
    return table


def _cpus(sample: KpiSample, width: int) -> RenderableType:
    cells = [Text(f"CPU {name:>2} {_bar(used)} {used:4.0%}") for name, used in sample.cpu.items()]
    return Columns(cells, width=min(width, 34), padding=(0, 1))


def _bar(share: float) -> str:
    full = round(min(1.0, max(0.0, share)) * _BAR)
    return _FULL * full + _EMPTY * (_BAR - full)
