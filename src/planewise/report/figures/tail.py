"""The tail of the RTT as a table. Knows summaries only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planewise.report.figures import rtt
from planewise.report.figures.base import Entry, Missing, PrintedNumber, Table
from planewise.report.rtt_cell import TAIL, RttCell
from planewise.store.cells import common_factors, words


def table(cells: Sequence[RttCell]) -> Table:
    """Quantiles by cell; a quantile of too few packets is missing."""
    common = common_factors(cell.factors for cell in cells)

    def quantile(name: str, packets: int) -> Callable[[RttCell], Entry]:
        def entry(cell: RttCell) -> Entry:
            value = cell.tail_ns[name]
            return (
                Missing(f"needs {packets} packets") if value is None else PrintedNumber.time(value)
            )

        return entry

    return Table.of(
        cells,
        {
            "Load": lambda cell: words(cell.factors, common),
            "Plane": lambda cell: cell.plane,
            "Probes a second": rtt.achieved,
            **{name: quantile(name, packets) for name, _, packets in TAIL},
            "Packets": lambda cell: PrintedNumber.count(cell.rtt.packets),
            "Lost": lambda cell: PrintedNumber.count(cell.lost),
        },
    )
