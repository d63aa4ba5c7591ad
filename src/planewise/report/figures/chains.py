"""Throughput of chains by their length, and TCP by message size. Knows summaries only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import altair as alt

from planewise.report import theme
from planewise.report.data import ChainCell, TcpCell
from planewise.report.figures import base
from planewise.report.figures.base import Figure, Row, Span, Spec, Table, Value
from planewise.units import bits_text, percent_text, rate_text

_HEIGHT = 150
_DASHES = {"north-south": [1, 0], "east-west": [5, 3]}


def figures(cells: Sequence[ChainCell], planes: Sequence[str]) -> list[Figure]:
    """Packets, then bits. `planes` are those of the run, in order."""
    labels = {cell.plane for cell in cells}
    if not labels <= set(planes):  # functions of several kinds on a plane
        planes = [one for plane in planes for one in sorted(labels) if _is_on(one, plane)]
    return [
        _figure(
            cells,
            planes,
            name="chains-pps",
            title="Packets that all functions transmit",
            value=lambda cell: cell.pps,
            show=rate_text,
            quantity="rate",
        ),
        _figure(
            cells,
            planes,
            name="chains-bps",
            title="Bits that all functions transmit",
            value=lambda cell: cell.bps,
            show=bits_text,
            quantity="bits",
        ),
    ]


def _is_on(label: str, plane: str) -> bool:
    return label.partition(", ")[0] == plane


def _figure(
    cells: Sequence[ChainCell],
    planes: Sequence[str],
    *,
    name: str,
    title: str,
    value: Callable[[ChainCell], tuple[float, ...]],
    show: Callable[[float], str],
    quantity: base.Quantity,
) -> Figure:
    """A line a plane and path over the number of functions, a small multiple a frame size."""
    sizes = list(dict.fromkeys(cell.size for cell in cells))
    lengths = sorted({cell.vnfs for cell in cells})

    def draw(width: int) -> Spec:
        columns = 2 if width >= base.WIDE else 1
        plot = (width - 24 * (columns - 1)) // columns - 78
        charts = [
            _panel([cell for cell in cells if cell.size == size], size, planes, lengths, plot,
                   value, show, quantity)
            for size in sizes
        ]  # fmt: skip
        colours = theme.colours_of(planes)
        shown = {plane: colours[plane] for plane in planes}
        rows = [
            base.beside(charts[at : at + columns]) if columns > 1 else charts[at]
            for at in range(0, len(charts), columns)
        ]
        paths = {cell.path for cell in cells}
        parts = [base.key(shown, width - 10)]
        if len(paths) > 1:
            said = "Solid: north-south, each sends back. Dashed: east-west, each sends to the next."
            parts.append(base.note(said, width - 10))
        return base.finish(base.below([*parts, *rows], spacing=14))

    top = max(cells, key=lambda cell: _mean(value(cell)))
    said = (
        f"{top.plane}, {top.path}, {_functions(top.vnfs)}, {_size(top.size)}: "
        f"{show(_mean(value(top)))}"
    )
    return Figure(
        name=name,
        title=title,
        lead=f"Most: {said}.",
        caption="Summed over all functions of the chain, as publication N counts: in a chain each "
        "packet counts once a function. Points are replicates, lines their mean; generators offer "
        "more than is carried. Bits are those of frames without their 4-byte FCS.",
        alt=f"Lines of throughput over the number of functions. Most: {said}.",
        draw=draw,
        table=table(cells),
    )


def _panel(
    cells: Sequence[ChainCell],
    size: int | str,
    planes: Sequence[str],
    lengths: Sequence[int],
    plot: int,
    value: Callable[[ChainCell], tuple[float, ...]],
    show: Callable[[float], str],
    quantity: base.Quantity,
) -> Spec:
    points: list[Row] = []
    means: list[Row] = []
    for cell in cells:
        common = {"plane": cell.plane, "path": cell.path, "vnfs": cell.vnfs}
        for one in value(cell):
            words = f"{cell.plane}, {cell.path}, {_functions(cell.vnfs)}: {show(one)}"
            points.append({**common, "value": one, "said": words})
        # A single function has no neighbour: it begins the lines of both paths.
        paths = dict.fromkeys(one.path for one in cells) if cell.vnfs == 1 else (cell.path,)
        for path in paths:
            means.append({**common, "path": path, "value": _mean(value(cell))})
    most = max((row["value"] for row in points), default=1.0)
    span = Span(0.0, most * 1.08 or 1.0, log=False)
    x = alt.X(
        "vnfs:O",
        scale=alt.Scale(domain=list(lengths), paddingOuter=0.3),
        axis=alt.Axis(title="functions", labelAngle=0, grid=False),
    )
    y = alt.Y(
        "value:Q",
        scale=span.scale(),
        axis=alt.Axis(
            title=None,
            values=span.ticks(4),
            labelExpr=base.with_unit("datum.value", quantity),
            minExtent=66,
            maxExtent=66,
        ),
    )
    colour = alt.Color("plane:N", scale=base.plane_colour(planes), legend=None)
    dash = alt.StrokeDash(
        "path:N",
        scale=alt.Scale(domain=list(_DASHES), range=list(_DASHES.values())),
        legend=None,
    )
    return base.layers(
        [
            alt.Chart(base.data(means))
            .mark_line(strokeWidth=2, aria=False)
            .encode(x=x, y=y, color=colour, strokeDash=dash),
            alt.Chart(base.data(points))
            .mark_circle(size=42, opacity=0.85)
            .encode(x=x, y=y, color=colour, description=alt.Description("said:N")),
        ],
        width=plot,
        height=_HEIGHT,
        title=base.heading(_size(size), plot),
    )


def table(cells: Sequence[ChainCell]) -> Table:
    """Every chain: throughput, loss, and what bounds it."""
    return Table(
        columns=(
            "Plane",
            "Path",
            "Functions",
            "Frames",
            "Packets transmitted",
            "Bits transmitted",
            "Came back of offered",
            "What bounds it",
            "What shows it",
        ),
        rows=tuple(
            (
                cell.plane,
                cell.path,
                Value(str(cell.vnfs), cell.vnfs),
                _size(cell.size),
                _value(cell.pps, rate_text),
                _value(cell.bps, bits_text),
                Value(theme.share(cell.delivered), cell.delivered),
                cell.limit,
                cell.why,
            )
            for cell in cells
        ),
    )


def bounds(cells: Sequence[ChainCell]) -> Table:
    """In how many chains of each plane what bounds them."""
    groups: dict[tuple[str, str], list[ChainCell]] = {}
    for cell in cells:
        groups.setdefault((cell.plane, cell.limit), []).append(cell)
    totals = Counter(cell.plane for cell in cells)
    return Table(
        columns=("Plane", "What bounds it", "In chains", "For example", "What shows it there"),
        rows=tuple(
            (
                plane,
                limit,
                Value(f"{len(own)} of {totals[plane]}", len(own)),
                f"{own[0].path}, {_functions(own[0].vnfs)}, {_size(own[0].size)}",
                own[0].why,
            )
            for (plane, limit), own in groups.items()
        ),
    )


def cores(cells: Sequence[ChainCell]) -> Table:
    """What the CPUs did, chain by chain."""
    return Table(
        columns=(
            "Plane",
            "Path",
            "Functions",
            "Frames",
            "CPU",
            "Tasks",
            "Not idle",
            "The tasks had",
            "Spent on packets",
        ),
        rows=tuple(
            (
                cell.plane,
                cell.path,
                Value(str(cell.vnfs), cell.vnfs),
                _size(cell.size),
                Value(str(core.cpu), core.cpu),
                ", ".join(core.tasks),
                Value(theme.share(core.used), core.used),
                "no threads of their own"
                if core.ours is None
                else Value(percent_text(core.ours), core.ours),
                "not told"
                if core.working is None
                else Value(percent_text(core.working), core.working),
            )
            for cell in cells
            for core in cell.cores
        ),
    )


def tcp(cells: Sequence[TcpCell], planes: Sequence[str]) -> Figure:
    """Goodput over message size, a line a plane and number of functions."""
    names = list(dict.fromkeys(cell.label for cell in cells))
    sizes = sorted({cell.message_bytes for cell in cells})
    most = max(max(cell.bps) for cell in cells)
    span = Span(0.0, most * 1.08 or 1.0, log=False)

    def draw(width: int) -> Spec:
        plot = width - 88
        rows: list[Row] = [
            {"label": cell.label, "size": cell.message_bytes, "value": one,
             "said": f"{cell.label}, {cell.message_bytes} bytes: {bits_text(one)}"}
            for cell in cells
            for one in cell.bps
        ]  # fmt: skip
        means: list[Row] = [
            {"label": cell.label, "size": cell.message_bytes, "value": _mean(cell.bps)}
            for cell in cells
        ]
        colours = theme.colours_of(names)
        colour = alt.Color(
            "label:N",
            scale=alt.Scale(domain=names, range=[colours[name] for name in names]),
            legend=None,
        )
        x = alt.X(
            "size:O",
            scale=alt.Scale(domain=sizes, paddingOuter=0.3),
            axis=alt.Axis(title="bytes of a message", labelAngle=0, grid=False),
        )
        y = alt.Y(
            "value:Q",
            scale=span.scale(),
            axis=alt.Axis(
                title=None,
                values=span.ticks(5),
                labelExpr=base.with_unit("datum.value", "bits"),
                minExtent=72,
                maxExtent=72,
            ),
        )
        chart = base.layers(
            [
                alt.Chart(base.data(means))
                .mark_line(strokeWidth=2, aria=False)
                .encode(x=x, y=y, color=colour),
                alt.Chart(base.data(rows))
                .mark_circle(size=42, opacity=0.85)
                .encode(x=x, y=y, color=colour, description=alt.Description("said:N")),
            ],
            width=plot,
            height=220,
        )
        key = base.key({name: colours[name] for name in names}, width - 10)
        return base.finish(base.below([key, chart], spacing=14))

    top = max(cells, key=lambda cell: _mean(cell.bps))
    said = f"{top.label} with messages of {top.message_bytes} bytes: {bits_text(_mean(top.bps))}"
    return Figure(
        name="tcp",
        title="Goodput of TCP by message size",
        lead=f"Most: {said}.",
        caption="Payload that the receiver gets, by iperf3. Points are replicates, lines their "
        "mean. Small messages cost a system call each; large ones are segmented late.",
        alt=f"Lines of goodput over message size. Most: {said}.",
        draw=draw,
        table=Table(
            columns=("Plane", "Message", "Goodput", "Retransmitted segments"),
            rows=tuple(
                (
                    cell.label,
                    Value(f"{cell.message_bytes} bytes", cell.message_bytes),
                    _value(cell.bps, bits_text),
                    Value(theme.count(cell.retransmits), cell.retransmits),
                )
                for cell in cells
            ),
        ),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _value(values: Sequence[float], show: Callable[[float], str]) -> Value:
    mean = _mean(values)
    small = theme.interval(show(min(values)), show(max(values))) if len(values) > 1 else ""
    return Value(show(mean), mean, small=small)


def _functions(count: int) -> str:
    return f"{count} function{'' if count == 1 else 's'}"


def _size(size: int | str) -> str:
    return "IMIX" if size == "imix" else f"{size} bytes"
