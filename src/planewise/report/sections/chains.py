"""Sections of chains of network functions, by their length, and of TCP, by message size."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planewise.report import charts, theme, vega
from planewise.report.data import RunData
from planewise.report.figure import Entry, Figure, PrintedNumber, R, Section, Table
from planewise.report.vega import Quantity, Row, Span
from planewise.store.cells import NO_PLANE, level_rank
from planewise.store.models import (
    ChainResult,
    CoreUse,
    FrameAccount,
    Level,
    Limit,
    TcpResult,
)
from planewise.units import bits_text, count_text, percent_text, rate_text

_LOG_FROM = 12
"""Rates further apart than this factor get a logarithmic axis: else low lines touch zero."""
_DASHES = {"north-south": [1, 0], "east-west": [5, 3]}


@dataclass(frozen=True)
class ChainCell:
    """Throughput of one chain over all its replicates."""

    plane: str
    path: str
    vnfs: int
    size: int | str
    """Bytes of a frame with FCS, or `imix`."""
    pps: tuple[float, ...]
    """Rate that all functions transmit together, by replicate."""
    bps: tuple[float, ...]
    delivered: float
    """Packets that returned, as a share of those offered."""
    limit: Limit
    """The bottleneck of most replicates."""
    why: str
    """Evidence of that bottleneck, from the first replicate that it limited."""
    cores: tuple[CoreUse, ...]
    """Of that replicate."""
    frames: FrameAccount | None
    """Of all replicates together; None where older versions measured them."""


@dataclass(frozen=True)
class TcpCell:
    """Goodput of TCP over all replicates of a cell."""

    label: str
    """Plane, and functions where there are any."""
    message_bytes: int
    bps: tuple[float, ...]
    retransmits: int


def chain_cells(data: RunData) -> list[ChainCell]:
    """Throughput of chains, by plane, path, length and frame size."""
    cells: dict[tuple[str, str, int, Level], list[ChainResult]] = {}
    trials = [(trial.cell, trial.chain) for trial in data.done if trial.chain is not None]
    guests: dict[Level, set[Level]] = {}
    for cell, _ in trials:
        guests.setdefault(cell.get("plane", NO_PLANE), set()).add(cell.get("guest", ""))
    for cell, chain in trials:
        plane = cell.get("plane", NO_PLANE)
        guest = cell.get("guest", "") if len(guests[plane]) > 1 else ""
        key = (
            ", ".join(str(part) for part in (plane, guest, cell.get("forwarder", "")) if part),
            str(cell.get("path", "")),
            int(cell.get("vnfs", len(chain.vnfs))),
            cell.get("size_bytes", 0),
        )
        cells.setdefault(key, []).append(chain)
    chains = []
    for (name, path, vnfs, size), results in cells.items():
        limit, _ = Counter(result.limit for result in results).most_common(1)[0]
        shown = next(result for result in results if result.limit == limit)
        offered = sum(result.offered_pps for result in results)
        chains.append(
            ChainCell(
                plane=name,
                path=path,
                vnfs=vnfs,
                size=size if isinstance(size, str) else int(size),
                pps=tuple(result.tx_pps for result in results),
                bps=tuple(result.tx_bps for result in results),
                delivered=sum(result.delivered_pps for result in results) / (offered or 1.0),
                limit=limit,
                why=shown.why,
                cores=shown.cores,
                frames=_all_frames([result.frames for result in results if result.frames]),
            )
        )

    def place(cell: ChainCell) -> tuple[object, ...]:
        plane = data.plane_rank(cell.plane.partition(", ")[0])
        return level_rank(cell.size), plane, cell.plane, cell.path != "north-south", cell.vnfs

    return sorted(chains, key=place)


def _all_frames(accounts: Sequence[FrameAccount]) -> FrameAccount | None:
    """Sum of the frame accounts of several replicates."""
    if not accounts:
        return None
    lost: Counter[str] = Counter()
    for account in accounts:
        lost.update(account.lost)
    return FrameAccount(
        sent=sum(account.sent for account in accounts),
        received=sum(account.received for account in accounts),
        lost=dict(lost),
        foreign=sum(account.foreign for account in accounts),
    )


def tcp_cells(data: RunData) -> list[TcpCell]:
    """Goodput of TCP, by plane, functions and message size."""
    cells: dict[tuple[str, int, int], list[TcpResult]] = {}
    for trial in data.done:
        if trial.tcp is not None:
            plane = str(trial.cell.get("plane", NO_PLANE))
            key = (plane, int(trial.cell.get("vnfs", 0)), trial.tcp.message_bytes)
            cells.setdefault(key, []).append(trial.tcp)
    ordered = sorted(cells.items(), key=lambda cell: (data.plane_rank(cell[0][0]), cell[0]))
    return [
        TcpCell(
            f"{plane}, {count_text(vnfs, 'function')}" if vnfs else plane,
            message,
            tuple(result.goodput_bps for result in results),
            sum(result.retransmits for result in results),
        )
        for (plane, vnfs, message), results in ordered
    ]


def sections(data: RunData) -> Iterator[Section]:
    """Chains, then TCP."""
    if cells := chain_cells(data):
        tables = (
            ("Bottlenecks", bottlenecks(cells)),
            ("Frames sent, returned and lost", frames_table(cells)),
            ("CPU use", cores(cells)),
        )
        yield Section(
            "chains",
            "Throughput of chains",
            "More is better. North-south, every function gets traffic of its own and sends it "
            "back; east-west, all traffic passes through one function after the other.",
            tuple(chain_figures(cells)),
            tuple((title, table) for title, table in tables if table.rows),
        )
    if streams := tcp_cells(data):
        yield Section(
            "tcp",
            "TCP throughput",
            "A stream of messages between two kernels' TCP stacks.",
            (tcp_figure(streams),),
        )


_MEASURES: tuple[
    tuple[str, str, Quantity, Callable[[ChainCell], tuple[float, ...]], Callable[[float], str]], ...
] = (
    ("pps", "Packets transmitted by all functions", "rate", lambda cell: cell.pps, rate_text),
    ("bps", "Bits transmitted by all functions", "bits", lambda cell: cell.bps, bits_text),
)


def chain_figures(cells: Sequence[ChainCell]) -> Iterator[Figure]:
    """Packets, then bits: a line a plane and path by number of functions, a panel a frame size."""
    colours = theme.colours_of(dict.fromkeys(cell.plane for cell in cells))
    sizes = list(dict.fromkeys(cell.size for cell in cells))
    paths = list(dict.fromkeys(cell.path for cell in cells))
    dash = {
        "field": "path",
        "type": "nominal",
        "scale": {"domain": list(_DASHES), "range": list(_DASHES.values())},
        "legend": None,
    }
    dashes = " Solid: north-south; dashed: east-west." if len(paths) > 1 else ""
    for name, title, quantity, of, show in _MEASURES:
        span = Span.of((value for cell in cells for value in of(cell)), log_from=_LOG_FROM)
        top = max(cells, key=lambda cell: statistics.median(of(cell)))
        at = f"{top.path}, {count_text(top.vnfs, 'function')}, {_size(top)}"
        lead = f"Most: {top.plane}, {at}: {show(statistics.median(of(top)))}."
        panels = []
        for size in sizes:
            own = [cell for cell in cells if cell.size == size]
            medians: list[Row] = [
                # A single function begins the lines of both paths.
                {
                    "series": cell.plane,
                    "path": path,
                    "x": cell.vnfs,
                    "value": statistics.median(of(cell)),
                }
                for cell in own
                for path in (paths if cell.vnfs == 1 else [cell.path])
            ]
            dots: list[Row] = [
                {
                    "series": cell.plane,
                    "x": cell.vnfs,
                    "value": value,
                    "hover": f"{cell.plane}, {cell.path}, {count_text(cell.vnfs, 'function')}: "
                    f"{show(value)}",
                }
                for cell in own
                for value in of(cell)
            ]
            x = charts.levels(sorted({cell.vnfs for cell in own}), "functions")
            more: Mapping[str, vega.Spec] = {"strokeDash": dash}
            panels.append(
                charts.lines(
                    _size(own[0]), medians, colours, span, quantity, x, points=dots, more=more
                )
            )
        yield Figure(
            f"chains-{name}",
            title,
            "Summed over all functions: in a chain each packet counts once per function. Dots are "
            f"replicates, lines their median. The axis is {span.word}.{dashes}",
            tuple(panels),
            table(cells),
            lead=lead,
        )


def _columns(of: Callable[[R], ChainCell]) -> dict[str, Callable[[R], Entry]]:
    """The first columns, of rows that have a chain."""
    return {
        "Plane": lambda row: of(row).plane,
        "Path": lambda row: of(row).path,
        "Functions": lambda row: PrintedNumber.plain(of(row).vnfs),
        "Frames": lambda row: _size(of(row)),
    }


def table(cells: Sequence[ChainCell]) -> Table:
    """Every chain: throughput, loss and bottleneck."""
    return Table.of(
        cells,
        {
            **_columns(lambda cell: cell),
            "Packets transmitted": lambda cell: _value(cell.pps, rate_text),
            "Bits transmitted": lambda cell: _value(cell.bps, bits_text),
            "Returned of offered": lambda cell: PrintedNumber.share(cell.delivered),
            "Bottleneck": lambda cell: cell.limit,
            "Evidence": lambda cell: cell.why,
        },
    )


def bottlenecks(cells: Sequence[ChainCell]) -> Table:
    """Number of chains of each plane by bottleneck."""
    groups: dict[tuple[str, str], list[ChainCell]] = {}
    for cell in cells:
        groups.setdefault((cell.plane, cell.limit), []).append(cell)
    totals = Counter(cell.plane for cell in cells)
    return Table.of(
        groups.values(),
        {
            "Plane": lambda group: group[0].plane,
            "Bottleneck": lambda group: group[0].limit,
            "In chains": lambda group: PrintedNumber(
                f"{len(group)} of {totals[group[0].plane]}", len(group)
            ),
            "For example": lambda group: (
                f"{group[0].path}, {count_text(group[0].vnfs, 'function')}, {_size(group[0])}"
            ),
            "Evidence there": lambda group: group[0].why,
        },
    )


def frames_table(cells: Sequence[ChainCell]) -> Table:
    """Frames sent, returned and lost by place, for chains of runs that counted them."""
    accounts = [(cell, cell.frames) for cell in cells if cell.frames is not None]

    def lost(frames: FrameAccount) -> str:
        return ", ".join(f"{theme.count(n)} {place}" for place, n in frames.lost.items()) or "none"

    columns: dict[str, Callable[[tuple[ChainCell, FrameAccount]], Entry]] = {
        **_columns(lambda row: row[0]),
        "Sent": lambda row: PrintedNumber.count(row[1].sent),
        "Returned": lambda row: PrintedNumber.count(row[1].received),
        "Lost, by place": lambda row: lost(row[1]),
    }
    if any(frames.foreign for _, frames in accounts):
        columns["Other frames at the end"] = lambda row: PrintedNumber.count(row[1].foreign)
    return Table.of(accounts, columns)


def cores(cells: Sequence[ChainCell]) -> Table:
    """CPU use, chain by chain."""

    def share(value: float | None, otherwise: str) -> Entry:
        return otherwise if value is None else PrintedNumber(percent_text(value), value)

    columns: dict[str, Callable[[tuple[ChainCell, CoreUse]], Entry]] = {
        **_columns(lambda row: row[0]),
        "CPU": lambda row: PrintedNumber.plain(row[1].cpu),
        "Tasks": lambda row: ", ".join(row[1].tasks),
        "Not idle": lambda row: PrintedNumber.share(row[1].used),
        "Got by the tasks": lambda row: share(row[1].ours, "no threads of their own"),
        "Spent on packets": lambda row: share(row[1].working, "not reported"),
    }
    return Table.of([(cell, core) for cell in cells for core in cell.cores], columns)


def tcp_figure(cells: Sequence[TcpCell]) -> Figure:
    """Goodput by message size, a line a plane and number of functions."""
    colours = theme.colours_of(dict.fromkeys(cell.label for cell in cells))
    span = Span.of((value for cell in cells for value in cell.bps), log_from=_LOG_FROM)
    medians: list[Row] = [
        {"series": cell.label, "x": cell.message_bytes, "value": statistics.median(cell.bps)}
        for cell in cells
    ]
    dots: list[Row] = [
        {
            "series": cell.label,
            "x": cell.message_bytes,
            "value": value,
            "hover": f"{cell.label}, {cell.message_bytes} bytes: {bits_text(value)}",
        }
        for cell in cells
        for value in cell.bps
    ]
    x = charts.levels(sorted({cell.message_bytes for cell in cells}), "bytes of a message")
    top = max(cells, key=lambda cell: statistics.median(cell.bps))
    goodput = bits_text(statistics.median(top.bps))
    most = f"{top.label} with messages of {top.message_bytes} bytes: {goodput}"
    return Figure(
        "tcp",
        "TCP goodput by message size",
        "Payload received, by iperf3. Dots are replicates, lines their median. The "
        f"axis is {span.word}. Small messages cost a system call each.",
        (charts.lines("", medians, colours, span, "bits", x, points=dots),),
        Table.of(
            cells,
            {
                "Plane": lambda cell: cell.label,
                "Message": lambda cell: PrintedNumber(
                    f"{cell.message_bytes} bytes", cell.message_bytes
                ),
                "Goodput": lambda cell: _value(cell.bps, bits_text),
                "Retransmitted segments": lambda cell: PrintedNumber.count(cell.retransmits),
            },
        ),
        lead=f"Most: {most}.",
    )


def _value(values: Sequence[float], show: Callable[[float], str]) -> PrintedNumber:
    middle = statistics.median(values)
    small = theme.interval(show(min(values)), show(max(values))) if len(values) > 1 else ""
    return PrintedNumber(show(middle), middle, small=small)


def _size(cell: ChainCell) -> str:
    return "IMIX" if cell.size == "imix" else f"{cell.size} bytes"
