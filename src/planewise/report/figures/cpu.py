"""CPU time by plane, load and mode. Knows summaries only."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from planewise.report import theme
from planewise.report.cells import Factors, common_factors, words
from planewise.report.data import CPU_GROUPS, CpuCell
from planewise.report.figures import base
from planewise.report.figures.base import Figure, Row, Span, Spec, Table, Value

_ROW = 28
_TOTAL_ROOM = 60

NAMES = {
    "programs": "programs",
    "kernel": "kernel",
    "interrupts": "interrupts",
    "stolen": "stolen by the hypervisor",
    "waiting": "waiting for disks",
}


def figure(cells: Sequence[CpuCell], *, name: str, title: str) -> Figure:
    """Stacked bars of busy time by plane, one row of small multiples a load and host."""
    common = common_factors(cell.factors for cell in cells)
    hosts = sorted({cell.host for cell in cells})
    groups: dict[tuple[Factors, str], list[CpuCell]] = {}
    for cell in cells:
        groups.setdefault((cell.factors, cell.host), []).append(cell)
    span = Span(0.0, 1.0, log=False)
    shown = [group for group in CPU_GROUPS if any(cell.shares[group] >= 0.0005 for cell in cells)]

    def label(factors: Factors, host: str) -> str:
        said = words(factors, common)
        return said if hosts == ["shared"] else f"{said} · {host} host"

    def draw(width: int) -> Spec:
        room = base.label_room((cell.plane for cell in cells), most=130)
        plot = width - room - _TOTAL_ROOM - 12
        charts = [
            _context(
                group,
                label(factors, host),
                span,
                shown,
                plot,
                room,
                last=place == len(groups) - 1,
            )
            for place, ((factors, host), group) in enumerate(groups.items())
        ]
        key = base.key({NAMES[one]: theme.MODES[one].light for one in shown}, plot + _TOTAL_ROOM)
        return base.finish(base.below([key, *charts], spacing=10))

    most = max(cells, key=lambda cell: cell.busy)
    return Figure(
        name=name,
        title=title,
        caption=(
            "Share of all CPUs' time that is spent while RTT is measured, mean over the "
            "replicates; the number at the right is their sum, the rest is idle. Background "
            "load is in it"
            + (
                ", and both ends of the testbed are in it: they are one machine."
                if hosts == ["shared"]
                else "."
            )
        ),
        alt=(
            "Stacked bars of CPU time by mode. Most busy: "
            f"{most.plane}, {label(most.factors, most.host)}, {theme.share(most.busy)}."
        ),
        draw=draw,
        table=table(cells, common),
    )


def table(cells: Sequence[CpuCell], common: Factors) -> Table:
    """CPU time by cell, host and mode."""
    hosts = sorted({cell.host for cell in cells})
    return Table(
        columns=(
            "Load",
            "Plane",
            *(("Host",) if hosts != ["shared"] else ()),
            "Busy",
            "Least and most of a replicate",
            *(NAMES[group].capitalize() for group in CPU_GROUPS),
        ),
        rows=tuple(
            (
                words(cell.factors, common),
                cell.plane,
                *((cell.host,) if hosts != ["shared"] else ()),
                Value(theme.share(cell.busy), cell.busy),
                f"{theme.share(cell.busy_low)} – {theme.share(cell.busy_high)}",
                *(
                    Value(theme.share(cell.shares[group]), cell.shares[group])
                    for group in CPU_GROUPS
                ),
            )
            for cell in cells
        ),
    )


def _context(
    cells: Sequence[CpuCell],
    label: str,
    span: Span,
    shown: Sequence[str],
    plot: int,
    room: int,
    *,
    last: bool,
) -> Spec:
    bars: list[Row] = []
    for cell in cells:
        start = 0.0
        for group in shown:
            value = cell.shares[group]
            bars.append(
                {
                    "plane": cell.plane,
                    "group": group,
                    "from": start,
                    "to": start + value,
                    "said": f"{cell.plane}, {label}, {NAMES[group]}: {theme.share(value)}",
                }
            )
            start += value
    sums: list[Row] = [{"plane": cell.plane, "text": theme.share(cell.busy)} for cell in cells]
    y = base.plane_axis([cell.plane for cell in cells], room)
    axis = base.x_axis("share of all CPUs' time", span, "share", plot, labels=last)
    colours = alt.Scale(domain=list(shown), range=[theme.MODES[one].light for one in shown])
    return base.layers(
        [
            alt.Chart(base.data(bars))
            .mark_bar(height=16)
            .encode(
                x=alt.X("from:Q", scale=span.scale(), axis=axis),
                x2=alt.X2("to"),
                y=y,
                color=alt.Color("group:N", scale=colours, legend=None),
                description=alt.Description("said:N"),
            ),
            alt.Chart(base.data(sums))
            .mark_text(align="right")
            .encode(x=base.x_px(plot + _TOTAL_ROOM), y=y, text=alt.Text("text:N")),
        ],
        width=plot,
        height=_ROW * len(cells),
        title=base.heading(label, plot + room),
    )
