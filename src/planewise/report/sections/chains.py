"""Sections of chains of network functions, by their length, and of TCP, by message size."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from planewise.report import charts, theme
from planewise.report.data import RunData
from planewise.report.figure import Entry, Figure, PrintedNumber, R, Section, Table
from planewise.report.vega import Quantity, Row, Span, Spec
from planewise.store.cells import NO_PLANE, level_rank
from planewise.store.models import ChainResult, CoreUse, FrameAccount, Limit, TcpResult
from planewise.units import bits_text, count_text, percent_text, rate_text

_LOG_FROM = 12
"""Rates further apart than this factor get a logarithmic axis: else low lines touch zero."""
_Cell = TypeVar("_Cell")
_DASHES = {"north-south": [1, 0], "east-west": [5, 3]}


@dataclass(frozen=True)
class ChainCell:
    """One chain, with the results of all its replicates."""

    plane: str
    path: str
    vnfs: int
    size: int | str
    """Bytes of a frame with FCS, or `imix`."""
    results: tuple[ChainResult, ...]

    @property
    def pps(self) -> list[float]:
        """Rate that all functions transmit together, by replicate."""
        return [result.tx_pps for result in self.results]

    @property
    def bps(self) -> list[float]:
        """The same in bits."""
        return [result.tx_bps for result in self.results]

    @property
    def delivered(self) -> float:
        """Packets that returned, as a share of those offered."""
        offered = sum(result.offered_pps for result in self.results)
        return sum(result.delivered_pps for result in self.results) / (offered or 1.0)

    @property
    def limit(self) -> Limit:
        """The bottleneck of most replicates."""
        return Counter(result.limit for result in self.results).most_common(1)[0][0]

    @property
    def shown(self) -> ChainResult:
        """The first replicate with that bottleneck."""
        return next(result for result in self.results if result.limit == self.limit)

    @property
    def frames(self) -> FrameAccount | None:
        """Of all replicates together; None where older versions measured them."""
        accounts = [result.frames for result in self.results if result.frames]
        lost: Counter[str] = Counter()
        for account in accounts:
            lost.update(account.lost)
        sums = {
            name: sum(getattr(account, name) for account in accounts)
            for name in ("sent", "received", "foreign")
        }
        return FrameAccount(lost=dict(lost), **sums) if accounts else None

    @property
    def words(self) -> str:
        """Path and functions."""
        return f"{self.path}, {count_text(self.vnfs, 'function')}"

    @property
    def frame(self) -> str:
        """Its frames."""
        return "IMIX" if self.size == "imix" else f"{self.size} bytes"


@dataclass(frozen=True)
class TcpCell:
    """TCP between guests, with the results of all replicates."""

    label: str
    """Plane, and functions where there are any."""
    message_bytes: int
    results: tuple[TcpResult, ...]

    @property
    def bps(self) -> list[float]:
        """Goodput by replicate."""
        return [result.goodput_bps for result in self.results]


def chain_cells(data: RunData) -> list[ChainCell]:
    """Throughput of chains, by plane, path, length and frame size."""
    cells: dict[tuple[str, str, int, int | str], list[ChainResult]] = {}
    trials = [(trial.cell, trial.chain) for trial in data.done if trial.chain is not None]
    guests = {(cell.get("plane"), cell.get("guest", "")) for cell, _ in trials}
    kinds = Counter(plane for plane, _ in guests)
    for cell, chain in trials:
        guest = cell.get("guest", "") if kinds[cell.get("plane")] > 1 else ""
        name = (cell.get("plane", NO_PLANE), guest, cell.get("forwarder", ""))
        size = cell.get("size_bytes", 0)
        key = (
            ", ".join(str(part) for part in name if part),
            str(cell.get("path", "")),
            int(cell.get("vnfs", len(chain.vnfs))),
            size if isinstance(size, str) else int(size),
        )
        cells.setdefault(key, []).append(chain)

    def place(cell: ChainCell) -> tuple[object, ...]:
        plane = data.plane_rank(cell.plane.partition(", ")[0])
        return level_rank(cell.size), plane, cell.plane, cell.path != "north-south", cell.vnfs

    return sorted((ChainCell(*key, tuple(found)) for key, found in cells.items()), key=place)


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
            f"{plane}, {count_text(vnfs, 'function')}" if vnfs else plane, message, tuple(found)
        )
        for (plane, vnfs, message), found in ordered
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


# --- figures ------------------------------------------------------------------------------------

_Drawn = tuple[str, int, str, str, Sequence[float]]
"""A cell as it is drawn: its series, place along the axis, path, words, and value by replicate."""


def _panels(
    by_heading: Mapping[str, Sequence[_Drawn]],
    quantity: Quantity,
    show: Callable[[float], str],
    axis: str,
) -> tuple[tuple[Spec, ...], Span]:
    """Dots, and medians as a line a series, dashed by path."""
    cells = [cell for own in by_heading.values() for cell in own]
    paths = list(dict.fromkeys(path for _, _, path, *_ in cells))
    colours = theme.colours_of(dict.fromkeys(series for series, *_ in cells))
    span = Span.of((value for *_, values in cells for value in values), log_from=_LOG_FROM)
    scale = {"domain": list(_DASHES), "range": list(_DASHES.values())}
    dash = {"field": "path", "type": "nominal", "scale": scale, "legend": None}
    panels = []
    for heading, own in by_heading.items():
        medians: list[Row] = []
        dots: list[Row] = []
        for series, x, path, words, values in own:
            place = {"series": series, "x": x}
            middle = statistics.median(values)
            # A single function begins the lines of both paths.
            own_paths = paths if x == 1 else [path]
            medians += [{**place, "path": one, "value": middle} for one in own_paths]
            dots += [
                {**place, "value": value, "hover": f"{series}, {words}: {show(value)}"}
                for value in values
            ]
        along = charts.levels(sorted({x for _, x, *_ in own}), axis)
        more = {"strokeDash": dash} if any(paths) else {}
        panels.append(
            charts.lines(heading, medians, colours, span, quantity, along, points=dots, more=more)
        )
    return tuple(panels), span


def chain_figures(cells: Sequence[ChainCell]) -> Iterator[Figure]:
    """Packets, then bits: a line a plane and path by number of functions, a panel a frame size."""
    dashes = " Solid: north-south; dashed: east-west." if len({c.path for c in cells}) > 1 else ""
    measures: tuple[tuple[str, str, Quantity, Callable[[float], str]], ...] = (
        ("pps", "Packets", "rate", rate_text),
        ("bps", "Bits", "bits", bits_text),
    )
    for name, what, quantity, show in measures:
        by_size: dict[str, list[_Drawn]] = {}
        for cell in cells:
            drawn = (cell.plane, cell.vnfs, cell.path, cell.words, getattr(cell, name))
            by_size.setdefault(cell.frame, []).append(drawn)
        panels, span = _panels(by_size, quantity, show, "functions")
        rate, top = _greatest([(getattr(cell, name), cell) for cell in cells])
        yield Figure(
            f"chains-{name}",
            f"{what} transmitted by all functions",
            "Summed over all functions: in a chain each packet counts once per function. Dots are "
            f"replicates, lines their median. The axis is {span.word}.{dashes}",
            panels,
            table(cells),
            lead=f"Most: {top.plane}, {top.words}, {top.frame}: {show(rate)}.",
        )


def tcp_figure(cells: Sequence[TcpCell]) -> Figure:
    """Goodput by message size, a line a plane and number of functions."""
    drawn = [
        (cell.label, cell.message_bytes, "", f"{cell.message_bytes} bytes", cell.bps)
        for cell in cells
    ]
    panels, span = _panels({"": drawn}, "bits", bits_text, "bytes of a message")
    bps, top = _greatest([(cell.bps, cell) for cell in cells])
    return Figure(
        "tcp",
        "TCP goodput by message size",
        "Payload received, by iperf3. Dots are replicates, lines their median. The "
        f"axis is {span.word}. Small messages cost a system call each.",
        panels,
        Table.of(
            cells,
            {
                "Plane": lambda cell: cell.label,
                "Message": lambda cell: PrintedNumber(
                    f"{cell.message_bytes} bytes", cell.message_bytes
                ),
                "Goodput": lambda cell: _value(cell.bps, bits_text),
                "Retransmitted segments": lambda cell: PrintedNumber.count(
                    sum(result.retransmits for result in cell.results)
                ),
            },
        ),
        lead=f"Most: {top.label} with messages of {top.message_bytes} bytes: {bits_text(bps)}.",
    )


def _greatest(cells: Sequence[tuple[Sequence[float], _Cell]]) -> tuple[float, _Cell]:
    """The greatest median, and its cell."""
    return max(((statistics.median(v), cell) for v, cell in cells), key=lambda found: found[0])


# --- tables -------------------------------------------------------------------------------------


def _columns(of: Callable[[R], ChainCell]) -> dict[str, Callable[[R], Entry]]:
    """The first columns, of rows that have a chain."""
    return {
        "Plane": lambda row: of(row).plane,
        "Path": lambda row: of(row).path,
        "Functions": lambda row: PrintedNumber.plain(of(row).vnfs),
        "Frames": lambda row: of(row).frame,
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
            "Evidence": lambda cell: cell.shown.why,
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
            "For example": lambda group: f"{group[0].words}, {group[0].frame}",
            "Evidence there": lambda group: group[0].shown.why,
        },
    )


def frames_table(cells: Sequence[ChainCell]) -> Table:
    """Frames sent, returned and lost by place, for chains of runs that counted them."""
    accounts = [(cell, frames) for cell in cells if (frames := cell.frames) is not None]

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
    return Table.of([(cell, core) for cell in cells for core in cell.shown.cores], columns)


def _value(values: Sequence[float], show: Callable[[float], str]) -> PrintedNumber:
    middle = statistics.median(values)
    small = theme.interval(show(min(values)), show(max(values))) if len(values) > 1 else ""
    return PrintedNumber(show(middle), middle, small=small)
