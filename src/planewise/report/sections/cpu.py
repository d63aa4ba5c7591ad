"""The section of CPU time, by mode, of both hosts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planewise.report import charts, facets, theme
from planewise.report.data import RunData
from planewise.report.facets import Item, Panel
from planewise.report.figure import (
    Entry,
    Figure,
    Missing,
    PrintedNumber,
    Section,
    Table,
)
from planewise.report.vega import Row, Span, Spec
from planewise.store.cells import Factors, common_factors, words
from planewise.store.levels import cpu_of
from planewise.units import percent_text

_WAITING = "waiting for disks"
GROUPS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "programs": (("usr", "nice", "guest", "gnice"), "sender"),
    "kernel": (("sys",), "responder"),
    "interrupts": (("irq", "soft"), "interrupts"),
    "stolen by the hypervisor": (("steal",), "stolen"),
    _WAITING: (("iowait",), "instrument"),
}
"""mpstat's modes and colour, by group."""


@dataclass(frozen=True)
class CpuCell:
    """CPU of one host in one cell's RTT trials: the replicate whose busy share is the median."""

    plane: str
    factors: Factors
    host: str
    shares: Mapping[str, float]
    """By group, each a share of all CPUs' time; idle is what remains."""
    replicates_busy: tuple[float, ...]
    """Busy share of each replicate."""

    @property
    def busy(self) -> float:
        """Share of time in which the CPUs were not idle."""
        return _busy(self.shares)


def _busy(shares: Mapping[str, float]) -> float:
    """As comparisons have it: waiting for disks is idle."""
    return sum(share for group, share in shares.items() if group != _WAITING)


def _typical(replicates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The replicate in the middle by its busy share, or the mean of the middle two."""
    n, ordered = len(replicates), sorted(replicates, key=_busy)
    middle = ordered[(n - 1) // 2 : n // 2 + 1]
    return {group: statistics.fmean(shares[group] for shares in middle) for group in GROUPS}


def cells(data: RunData) -> list[CpuCell]:
    """CPU by cell and host during RTT trials (load trials where there are no others)."""
    sampled = [trial for trial in data.counted if cpu_of(trial)]
    kind = "rtt" if any(trial.kind == "rtt" for trial in sampled) else "load"
    samples: dict[tuple[str, Factors, str], list[dict[str, float]]] = {}
    for trial in sampled:
        if trial.kind == kind:
            for host, modes in trial.cpu.items():
                shares = {
                    group: sum(modes.get(mode, 0.0) for mode in members)
                    for group, (members, _) in GROUPS.items()
                }
                samples.setdefault((*data.key(trial), host), []).append(shares)
    result = [
        CpuCell(
            *key,
            _typical(of_cell),
            tuple(_busy(shares) for shares in of_cell),
        )
        for key, of_cell in samples.items()
    ]
    return sorted(result, key=lambda cell: (*data.place((cell.plane, cell.factors)), cell.host))


def sections(data: RunData) -> Iterator[Section]:
    """CPU time by plane and condition."""
    measured = cells(data)
    if not measured:
        return
    one_machine = {cell.host for cell in measured} == {"shared"}
    items = [
        Item(
            cell.plane, cell.factors if one_machine else (*cell.factors, ("host", cell.host)), cell
        )
        for cell in measured
    ]
    conditions = facets.split(items, data.naming)
    shown = [group for group in GROUPS if any(cell.shares[group] >= 0.0005 for cell in measured)]
    colours = {group: theme.var(GROUPS[group][1]) for group in shown}
    most = max(measured, key=lambda cell: cell.busy)
    common = common_factors(cell.factors for cell in measured)
    at = "" if one_machine else f" on the {most.host}"
    lead = f"Busiest: {most.plane}, {words(most.factors, common)}{at}, {percent_text(most.busy)}."
    both = " Sender and responder are one machine: its CPUs do both." if one_machine else ""
    yield Section(
        "cpu",
        "CPU time",
        "A plane may be fast only because it uses a whole CPU.",
        (
            Figure(
                "cpu",
                "CPU time",
                "Share of all CPUs' time that is spent while RTT is measured, with the background "
                f"load; the replicate of median busy share. The rest is idle.{both}",
                tuple(_panel(panel, colours) for panel in conditions.panels),
                table(measured),
                key=colours,
                lead=lead,
            ),
        ),
    )


def _panel(panel: Panel[CpuCell], colours: Mapping[str, str]) -> Spec:
    parts: list[Row] = []
    totals: list[Row] = []
    for row in panel.rows:
        cell = row.item.content
        busy = percent_text(cell.busy)
        totals.append({"label": row.label, "text": busy})
        start = 0.0
        for group in colours:
            share = cell.shares[group]
            hover = (
                f"{row.label}, {words(row.item.factors)}, {group}: {percent_text(share)} of {busy}"
            )
            place = {"label": row.label, "series": group, "from": start, "to": start + share}
            parts.append({**place, "hover": hover})
            start += share
    return charts.shares(panel.label, parts, totals, colours, Span(0.0, 1.0), "share")


def table(cells: Sequence[CpuCell]) -> Table:
    """CPU time by cell, host and mode."""
    common = common_factors(cell.factors for cell in cells)
    one_machine = {cell.host for cell in cells} == {"shared"}

    def of_group(group: str) -> Callable[[CpuCell], Entry]:
        return lambda cell: PrintedNumber.share(cell.shares[group])

    return Table.of(
        cells,
        {
            "Load": lambda cell: words(cell.factors, common),
            "Plane": lambda cell: cell.plane,
            **({} if one_machine else {"Host": lambda cell: cell.host}),
            "Busy": lambda cell: PrintedNumber.share(cell.busy),
            "Standard deviation": lambda cell: (
                PrintedNumber.share(float(np.std(cell.replicates_busy, ddof=1)))
                if len(cell.replicates_busy) > 1
                else Missing("one replicate")
            ),
            "Least, quartiles, most of a replicate": lambda cell: " – ".join(
                percent_text(float(value))
                for value in np.quantile(cell.replicates_busy, (0.0, 0.25, 0.5, 0.75, 1.0))
            ),
            **{group.capitalize(): of_group(group) for group in GROUPS},
        },
    )
