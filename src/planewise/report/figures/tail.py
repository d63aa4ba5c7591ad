"""The tail of the RTT as a table. Knows summaries only."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.report import theme
from planewise.report.figures import rtt
from planewise.report.figures.base import Entry, Missing, PrintedNumber, Table
from planewise.report.rtt_cell import TAIL, RttCell
from planewise.store.cells import common_factors, words
from planewise.units import time_text


def table(cells: Sequence[RttCell]) -> Table:
    """Quantiles by cell; one that too few packets stand behind is missing, not guessed."""
    common = common_factors(cell.factors for cell in cells)
    needed = {name: packets for name, _, packets in TAIL}
    rows = []
    for cell in cells:
        quantiles: list[Entry] = []
        for name, value in cell.tail_ns.items():
            quantiles.append(
                Missing(f"needs {needed[name]} packets")
                if value is None
                else PrintedNumber(time_text(value), value)
            )
        rows.append(
            (
                words(cell.factors, common),
                cell.plane,
                rtt.achieved(cell),
                *quantiles,
                PrintedNumber(theme.count(cell.packets), cell.packets),
                PrintedNumber(theme.count(cell.lost), cell.lost),
            )
        )
    return Table(
        columns=(
            "Load",
            "Plane",
            "Probes a second",
            *(name for name, _, _ in TAIL),
            "Packets",
            "Lost",
        ),
        rows=tuple(rows),
    )
