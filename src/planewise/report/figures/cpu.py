"""CPU time of both hosts by mode: as bars by plane, or along a factor. Knows summaries only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from planewise.report import sentences, theme
from planewise.report.data import CPU_GROUPS, CpuCell
from planewise.report.facets import FacetPage
from planewise.report.figures import grid, stacked, vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.grid import Plot, Slot
from planewise.report.figures.stacked import Bar, Layout
from planewise.report.figures.vega import Row, Span, Spec
from planewise.store.cells import Factors, common_factors, words

NAMES = {
    "programs": "programs",
    "kernel": "kernel",
    "interrupts": "interrupts",
    "stolen": "stolen by the hypervisor",
    "waiting": "waiting for disks",
}

SHADES: Mapping[str, float] = {
    "programs": 1.0,
    "kernel": 0.66,
    "interrupts": 0.36,
    "waiting": 0.14,
    "stolen": 1.0,
}
"""Opacity of a mode in its plane's colour; stolen time has its own colour."""

_WHAT = "Share of all CPUs' time that is spent while RTT is measured, mean over the replicates"


def figure(cells: Sequence[CpuCell], *, name: str, title: str) -> Figure:
    """Stacked bars of busy time by plane, one row of small multiples a load and host."""
    common = common_factors(cell.factors for cell in cells)
    one_machine = {cell.host for cell in cells} == {"shared"}
    shown = [group for group in CPU_GROUPS if any(cell.shares[group] >= 0.0005 for cell in cells)]
    layout = Layout(
        {NAMES[group]: theme.MODES[group].light for group in shown},
        quantity="share",
        axis="share of all CPUs' time",
        axis_end=1.0,
    )

    def label(cell: CpuCell) -> str:
        condition = words(cell.factors, common)
        return condition if one_machine else f"{condition} · {cell.host} host"

    bars = [_bar(cell, label(cell), shown) for cell in cells]
    most = max(cells, key=lambda cell: cell.busy)
    both_ends = ", and both ends of the testbed are in it: they are one machine"
    return Figure(
        name=name,
        title=title,
        caption=f"{_WHAT}; the number at the right is their sum, the rest is idle or not reported. "
        f"Background load is in it{both_ends if one_machine else ''}.",
        alt=(
            "Stacked bars of CPU time by mode. Most busy: "
            f"{most.plane}, {label(most)}, {theme.share(most.busy)}."
        ),
        draw=lambda width: stacked.draw(bars, layout, width),
        table=table(cells, common),
    )


def _bar(cell: CpuCell, condition: str, shown: Sequence[str]) -> Bar:
    return Bar(
        cell.plane,
        condition,
        {NAMES[group]: cell.shares[group] for group in shown},
        theme.share(cell.busy),
        {
            NAMES[group]: f"{cell.plane}, {condition}, {NAMES[group]}: "
            f"{theme.share(cell.shares[group])}"
            for group in shown
        },
    )


def by_factor(page: FacetPage[CpuCell], planes: Sequence[str], *, name: str, title: str) -> Figure:
    """Bars of busy time by series and band; shades are modes."""
    cells = [item.content for item in page.items]
    span = Span(0.0, min(1.0, max(0.05, *(cell.busy for cell in cells)) * 1.08), log=False)
    shown = [mode for mode in SHADES if any(cell.shares[mode] >= 0.0005 for cell in cells)]

    def marks(slots: Sequence[Slot[CpuCell]], plot: Plot) -> list[Spec]:
        return _marks(slots, plot, shown)

    def draw(width: int) -> Spec:
        colours = {
            NAMES[mode]: (theme.MODES["stolen"] if mode == "stolen" else theme.INK).light
            for mode in shown
        }
        shades = {NAMES[mode]: SHADES[mode] for mode in shown}
        modes = vega.key(colours, grid.room_above(width), shades)
        return grid.draw(page, planes, span, "share", marks, width, more_keys=[modes])

    lead = sentences.of_cpu(cells)
    return Figure(
        name=name,
        title=title,
        lead=lead,
        caption=(
            f"{_WHAT}; the rest is idle or not reported. The load of the background guests is in "
            "it. A bar has its plane's colour; its shades, from the axis up, are "
            f"{', '.join(NAMES[mode] for mode in shown)}."
        ),
        alt=f"Bars of CPU time by mode in {sum(len(row) for row in page.panels)} panels. {lead}",
        draw=draw,
        table=table(cells, common_factors(cell.factors for cell in cells)),
    )


def all_boxes(pages: Sequence[FacetPage[CpuCell]], planes: Sequence[str]) -> tuple[Figure, ...]:
    """A figure for each page that has a cell of several replicates."""
    return tuple(
        boxes(page, planes, name=f"cpu-replicates{f'-{place}' if len(pages) > 1 else ''}")
        for place, page in enumerate(pages, start=1)
        if any(item.content.replicates > 1 for item in page.items)
    )


def boxes(page: FacetPage[CpuCell], planes: Sequence[str], *, name: str) -> Figure:
    """Boxes of the replicates' busy time by series and band, as publication K draws them."""
    cells = [item.content for item in page.items]
    most = max(0.05, *(max(cell.replicates_busy) for cell in cells))
    span = Span(0.0, min(1.0, most * 1.08), log=False)
    lead = sentences.of_cpu(cells)
    return Figure(
        name=name,
        title=f"CPU time of replicates{f', {page.label}' if page.label else ''}",
        lead=lead,
        caption=(
            "Share of all CPUs' time that is not idle while RTT is measured, by replicate. Box: "
            "the middle half of them; thick line: median; thin line: least to most."
        ),
        alt=f"Boxplots of CPU time. {lead}",
        draw=lambda width: grid.draw(page, planes, span, "share", _boxes, width),
        table=table(cells, common_factors(cell.factors for cell in cells)),
    )


def _boxes(slots: Sequence[Slot[CpuCell]], plot: Plot) -> list[Spec]:
    names = ("least", "q25", "median", "q75", "most")
    rows: list[Row] = []
    for slot in slots:
        left, right = slot.inner(0.7)
        values = quartiles(slot.item.content)
        text = f"{slot.series}, {words(slot.item.factors)}: median {theme.share(values[2])}"
        place = {"series": slot.series, "left": left, "right": right, "centre": slot.centre}
        rows.append({**place, "hover": text, **dict(zip(names, values, strict=True))})
    colour = {"color": plot.colour()}
    whiskers = {"x": plot.x("centre"), "y": plot.y("least"), "y2": {"field": "most"}}
    middle = plot.box("left", "right", "q25", "q75")
    median = {"x": plot.x("left"), "x2": {"field": "right"}, "y": plot.y("median")}
    return [
        vega.mark("rule", rows, {**whiskers, **colour}, strokeWidth=1),
        vega.mark("rect", rows, {**middle, **colour}, opacity=0.35),
        vega.mark("rule", rows, {**median, **colour}, hover=True, strokeWidth=2),
    ]


def _marks(slots: Sequence[Slot[CpuCell]], plot: Plot, shown: Sequence[str]) -> list[Spec]:
    bars: list[Row] = []
    for slot in slots:
        cell = slot.item.content
        left, right = slot.inner(0.82)
        start = 0.0
        for mode in shown:
            share = cell.shares[mode]
            if share < 0.0002:
                continue
            bars.append(
                {
                    "series": slot.series,
                    "left": left,
                    "right": right,
                    "from": start,
                    "to": start + share,
                    "shade": SHADES[mode],
                    "stolen": mode == "stolen",
                    "hover": f"{slot.series}, {words(slot.item.factors)}, {NAMES[mode]}: "
                    f"{theme.share(share)} of {theme.share(cell.busy)}",
                }
            )
            start += share
    place = plot.box("left", "right", "from", "to")
    shade = {"opacity": vega.literal("shade"), "color": plot.colour()}
    stolen = [bar for bar in bars if bar["stolen"]]
    used = [bar for bar in bars if not bar["stolen"]]
    return [
        vega.mark("rect", used, {**place, **shade}, hover=True),
        vega.mark("rect", stolen, place, hover=True, color=theme.MODES["stolen"].light),
    ]


def quartiles(cell: CpuCell) -> tuple[float, ...]:
    """Least, lower quartile, median, upper quartile and most of the replicates' busy share."""
    return tuple(map(float, np.quantile(cell.replicates_busy, (0.0, 0.25, 0.5, 0.75, 1.0))))


def table(cells: Sequence[CpuCell], common: Factors) -> Table:
    """CPU time by cell, host and mode."""
    one_machine = {cell.host for cell in cells} == {"shared"}

    def of_mode(group: str) -> Callable[[CpuCell], Entry]:
        return lambda cell: PrintedNumber.share(cell.shares[group])

    return Table.of(
        cells,
        {
            "Load": lambda cell: words(cell.factors, common),
            "Plane": lambda cell: cell.plane,
            **({} if one_machine else {"Host": lambda cell: cell.host}),
            "Busy": lambda cell: PrintedNumber.share(cell.busy),
            "Standard deviation": lambda cell: (
                Missing("one replicate")
                if cell.deviation is None
                else PrintedNumber.share(cell.deviation)
            ),
            "Least, quartiles, most of a replicate": lambda cell: " – ".join(
                theme.share(value) for value in quartiles(cell)
            ),
            **{NAMES[group].capitalize(): of_mode(group) for group in CPU_GROUPS},
        },
    )
