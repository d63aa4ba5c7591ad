"""Throughput of chains by their length, and TCP by message size. Knows summaries only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planewise.report import theme
from planewise.report.data import ChainCell, TcpCell
from planewise.report.figures import base, vega
from planewise.report.figures.base import Entry, Figure, PrintedNumber, Table
from planewise.report.figures.vega import Quantity, Row, Span, Spec
from planewise.store.models import FrameAccount
from planewise.units import bits_text, count_text, percent_text, rate_text

_HEIGHT = 150
_AXIS_ROOM = 72
_LOG_FROM = 12
"""Rates further apart than this factor get a logarithmic axis: else low lines touch zero."""
_DASHES = {"north-south": [1, 0], "east-west": [5, 3]}


@dataclass(frozen=True)
class _Measure:
    """A quantity of a chain to draw."""

    name: str
    title: str
    quantity: Quantity
    values: Callable[[ChainCell], tuple[float, ...]]
    show: Callable[[float], str]


_MEASURES = (
    _Measure(
        "chains-pps",
        "Packets that all functions transmit",
        "rate",
        lambda cell: cell.pps,
        rate_text,
    ),
    _Measure(
        "chains-bps",
        "Bits that all functions transmit",
        "bits",
        lambda cell: cell.bps,
        bits_text,
    ),
)


def figures(cells: Sequence[ChainCell], planes: Sequence[str]) -> list[Figure]:
    """Packets, then bits. `planes` are those of the run, in order."""
    labels = {cell.plane for cell in cells}
    if not labels <= set(planes):  # functions of several kinds on a plane
        planes = [
            label
            for plane in planes
            for label in sorted(labels)
            if label.partition(", ")[0] == plane
        ]
    return [_figure(cells, planes, measure) for measure in _MEASURES]


def _figure(cells: Sequence[ChainCell], planes: Sequence[str], measure: _Measure) -> Figure:
    """A line a plane and path over the number of functions, a small multiple a frame size."""
    sizes = list(dict.fromkeys(cell.size for cell in cells))
    drawn = {cell.plane for cell in cells}
    colours = {plane: code for plane, code in theme.colours_of(planes).items() if plane in drawn}
    span = Span.of((v for cell in cells for v in measure.values(cell)), log_from=_LOG_FROM)

    def draw(width: int) -> Spec:
        columns = 2 if width >= base.WIDE and len(sizes) > 1 else 1
        plot = (width - 24 * (columns - 1)) // columns - _AXIS_ROOM - 12
        charts = [
            _panel([cell for cell in cells if cell.size == size], colours, measure, span, plot)
            for size in sizes
        ]
        rows = [
            vega.beside(charts[at : at + columns]) if columns > 1 else charts[at]
            for at in range(0, len(charts), columns)
        ]
        parts = [vega.key(colours, width - 10)]
        if len({cell.path for cell in cells}) > 1:
            dashes = "Solid: north-south, each sends back. Dashed: east-west, each to the next."
            parts.append(vega.note(dashes, width - 10))
        return vega.finish(vega.below([*parts, *rows], spacing=14))

    top = max(cells, key=lambda cell: _mean(measure.values(cell)))
    most = (
        f"{top.plane}, {top.path}, {count_text(top.vnfs, 'function')}, {_size(top.size)}: "
        f"{measure.show(_mean(measure.values(top)))}"
    )
    return Figure(
        name=measure.name,
        title=measure.title,
        lead=f"Most: {most}.",
        caption="Summed over all functions of the chain, as publication N counts: in a chain each "
        "packet counts once a function. Points are replicates, lines their mean; generators offer "
        f"more than is carried. The axis is {span.word}. Bits are those of frames without their "
        "4-byte FCS.",
        alt=f"Lines of throughput over the number of functions. Most: {most}.",
        draw=draw,
        table=table(cells),
    )


def _panel(
    cells: Sequence[ChainCell],
    colours: Mapping[str, str],
    measure: _Measure,
    span: Span,
    plot: int,
) -> Spec:
    points: list[Row] = []
    means: list[Row] = []
    paths = dict.fromkeys(cell.path for cell in cells)
    for cell in cells:
        common = {"label": cell.plane, "x": cell.vnfs}
        for value in measure.values(cell):
            label = f"{cell.plane}, {cell.path}, {count_text(cell.vnfs, 'function')}"
            hover = f"{label}: {measure.show(value)}"
            points.append({**common, "value": span.inside(value), "hover": hover})
        # A single function has no neighbour: it begins the lines of both paths.
        for path in paths if cell.vnfs == 1 else (cell.path,):
            mean = span.inside(_mean(measure.values(cell)))
            means.append({**common, "path": path, "value": mean})
    dash = {
        "field": "path",
        "type": "nominal",
        "scale": {"domain": list(_DASHES), "range": list(_DASHES.values())},
        "legend": None,
    }
    return vega.layers(
        _lines(means, points, colours, span, measure.quantity, "functions", {"strokeDash": dash}),
        width=plot,
        height=_HEIGHT,
        title=vega.heading(_size(cells[0].size), plot),
    )


def _lines(
    means: Sequence[Row],
    points: Sequence[Row],
    colours: Mapping[str, str],
    span: Span,
    quantity: Quantity,
    axis: str,
    more: Mapping[str, vega.Channel],
) -> list[Spec]:
    """A line through `means`, a dot for each of `points`: `value` over `x`, coloured by `label`."""
    encoding = {
        "x": {
            "field": "x",
            "type": "ordinal",
            "scale": {"domain": sorted({row["x"] for row in means}), "paddingOuter": 0.3},
            "axis": {"title": axis, "labelAngle": 0, "grid": False, "labelOverlap": True},
        },
        "y": vega.quantitative("value", span, vega.y_axis(span, quantity, _AXIS_ROOM)),
        "color": vega.coloured("label", colours),
    }
    return [
        vega.mark("line", means, {**encoding, **more}, strokeWidth=2),
        vega.mark("circle", points, encoding, hover=True, size=42, opacity=0.85),
    ]


def table(cells: Sequence[ChainCell]) -> Table:
    """Every chain: throughput, loss and bottleneck."""
    return Table.of(
        cells,
        {
            "Plane": lambda cell: cell.plane,
            "Path": lambda cell: cell.path,
            "Functions": lambda cell: PrintedNumber.plain(cell.vnfs),
            "Frames": lambda cell: _size(cell.size),
            "Packets transmitted": lambda cell: _value(cell.pps, rate_text),
            "Bits transmitted": lambda cell: _value(cell.bps, bits_text),
            "Came back of offered": lambda cell: PrintedNumber.share(cell.delivered),
            "What bounds it": lambda cell: cell.limit,
            "What shows it": lambda cell: cell.why,
        },
    )


def bounds(cells: Sequence[ChainCell]) -> Table:
    """Number of chains of each plane by bottleneck."""
    groups: dict[tuple[str, str], list[ChainCell]] = {}
    for cell in cells:
        groups.setdefault((cell.plane, cell.limit), []).append(cell)
    totals = Counter(cell.plane for cell in cells)
    return Table.of(
        groups.values(),
        {
            "Plane": lambda group: group[0].plane,
            "What bounds it": lambda group: group[0].limit,
            "In chains": lambda group: PrintedNumber(
                f"{len(group)} of {totals[group[0].plane]}", len(group)
            ),
            "For example": lambda group: (
                f"{group[0].path}, {count_text(group[0].vnfs, 'function')}, {_size(group[0].size)}"
            ),
            "What shows it there": lambda group: group[0].why,
        },
    )


def account(cells: Sequence[ChainCell]) -> Table:
    """Frames sent, received and lost by place, for chains of runs that counted them."""
    accounts = [(cell, cell.frames) for cell in cells if cell.frames is not None]

    def lost(frames: FrameAccount) -> str:
        return ", ".join(f"{theme.count(n)} {place}" for place, n in frames.lost.items()) or "none"

    columns: dict[str, Callable[[tuple[ChainCell, FrameAccount]], Entry]] = {
        "Plane": lambda row: row[0].plane,
        "Path": lambda row: row[0].path,
        "Functions": lambda row: PrintedNumber.plain(row[0].vnfs),
        "Frames": lambda row: _size(row[0].size),
        "Sent": lambda row: PrintedNumber.count(row[1].sent),
        "Came back": lambda row: PrintedNumber.count(row[1].received),
        "Lost, by place": lambda row: lost(row[1]),
    }
    if any(frames.foreign for _, frames in accounts):
        columns["Others at the end"] = lambda row: PrintedNumber.count(row[1].foreign)
    return Table.of(accounts, columns)


def cores(cells: Sequence[ChainCell]) -> Table:
    """CPU use, chain by chain."""

    def share(value: float | None, otherwise: str) -> Entry:
        return otherwise if value is None else PrintedNumber(percent_text(value), value)

    return Table.of(
        [(cell, core) for cell in cells for core in cell.cores],
        {
            "Plane": lambda row: row[0].plane,
            "Path": lambda row: row[0].path,
            "Functions": lambda row: PrintedNumber.plain(row[0].vnfs),
            "Frames": lambda row: _size(row[0].size),
            "CPU": lambda row: PrintedNumber.plain(row[1].cpu),
            "Tasks": lambda row: ", ".join(row[1].tasks),
            "Not idle": lambda row: PrintedNumber.share(row[1].used),
            "The tasks had": lambda row: share(row[1].ours, "no threads of their own"),
            "Spent on packets": lambda row: share(row[1].working, "not reported"),
        },
    )


def tcp(cells: Sequence[TcpCell]) -> Figure:
    """Goodput over message size, a line a plane and number of functions."""
    colours = theme.colours_of(dict.fromkeys(cell.label for cell in cells))
    span = Span.of((value for cell in cells for value in cell.bps), log_from=_LOG_FROM)
    means: list[Row] = []
    points: list[Row] = []
    for cell in cells:
        common = {"label": cell.label, "x": cell.message_bytes}
        means.append({**common, "value": span.inside(_mean(cell.bps))})
        for value in cell.bps:
            hover = f"{cell.label}, {cell.message_bytes} bytes: {bits_text(value)}"
            points.append({**common, "value": span.inside(value), "hover": hover})

    def draw(width: int) -> Spec:
        lines = _lines(means, points, colours, span, "bits", "bytes of a message", {})
        chart = vega.layers(lines, width=width - _AXIS_ROOM - 16, height=220)
        return vega.finish(vega.below([vega.key(colours, width - 10), chart], spacing=14))

    top = max(cells, key=lambda cell: _mean(cell.bps))
    most = f"{top.label} with messages of {top.message_bytes} bytes: {bits_text(_mean(top.bps))}"
    return Figure(
        name="tcp",
        title="Goodput of TCP by message size",
        lead=f"Most: {most}.",
        caption="Payload that the receiver gets, by iperf3. Points are replicates, lines their "
        f"mean. The axis is {span.word}. Small messages cost a system call each; large ones are "
        "segmented late.",
        alt=f"Lines of goodput over message size. Most: {most}.",
        draw=draw,
        table=_tcp_table(cells),
    )


def _tcp_table(cells: Sequence[TcpCell]) -> Table:
    return Table.of(
        cells,
        {
            "Plane": lambda cell: cell.label,
            "Message": lambda cell: PrintedNumber(
                f"{cell.message_bytes} bytes", cell.message_bytes
            ),
            "Goodput": lambda cell: _value(cell.bps, bits_text),
            "Retransmitted segments": lambda cell: PrintedNumber.count(cell.retransmits),
        },
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _value(values: Sequence[float], show: Callable[[float], str]) -> PrintedNumber:
    mean = _mean(values)
    small = theme.interval(show(min(values)), show(max(values))) if len(values) > 1 else ""
    return PrintedNumber(show(mean), mean, small=small)


def _size(size: int | str) -> str:
    return "IMIX" if size == "imix" else f"{size} bytes"
