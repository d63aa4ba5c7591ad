"""CPU time of both hosts by mode, along a factor. Knows summaries only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planewise.report import sentences, theme
from planewise.report.cells import common_factors, words
from planewise.report.data import CPU_GROUPS, CpuCell
from planewise.report.facets import Page
from planewise.report.figures import base, cpu, grid
from planewise.report.figures.base import Figure, Row, Span, Spec
from planewise.report.figures.grid import Plot, Slot

SHADES: Mapping[str, float] = {
    "programs": 1.0,
    "kernel": 0.66,
    "interrupts": 0.36,
    "waiting": 0.14,
    "stolen": 1.0,
}
"""How much of a plane's colour a mode has; stolen time has a colour of its own."""


def figure(page: Page[CpuCell], planes: Sequence[str], *, name: str, title: str) -> Figure:
    """Bars of busy time by series and band; shades are modes."""
    cells = [item.content for item in page.items]
    span = Span(0.0, min(1.0, max(0.05, *(cell.busy for cell in cells)) * 1.08), log=False)
    shown = [mode for mode in SHADES if any(cell.shares[mode] >= 0.0005 for cell in cells)]

    def marks(slots: Sequence[Slot[CpuCell]], plot: Plot) -> list[Spec]:
        return _marks(slots, plot, shown)

    def draw(width: int) -> Spec:
        keys = [_key(shown, grid.room_above(width))]
        return grid.draw(page, planes, span, "share", marks, width, more_keys=keys)

    lead = sentences.of_cpu(cells)
    return Figure(
        name=name,
        title=title,
        lead=lead,
        caption=(
            "Share of all CPUs' time that is spent while RTT is measured, mean over the "
            "replicates; the rest is idle. The load of the background guests is in it. A bar has "
            "its plane's colour; its shades, from the axis up, are "
            f"{', '.join(cpu.NAMES[mode] for mode in shown)}."
        ),
        alt=f"Bars of CPU time by mode in {sum(len(row) for row in page.panels)} panels. {lead}",
        draw=draw,
        table=cpu.table(cells, common_factors(cell.factors for cell in cells)),
    )


def _key(shown: Sequence[str], width: int) -> Spec:
    rows: list[Row] = []
    x, y = 0.0, 0
    for mode in shown:
        room = 32 + base.text_width(cpu.NAMES[mode])
        if x and x + room > width:
            x, y = 0.0, y + 18
        colour = theme.MODES["stolen"] if mode == "stolen" else theme.INK
        rows.append(
            {"x": x, "y": y, "name": cpu.NAMES[mode], "shade": SHADES[mode], "colour": colour.light}
        )
        x += room
    place = {
        "x": {
            "field": "x",
            "type": "quantitative",
            "scale": {"domain": [0, width], "nice": False},
            "axis": None,
        },
        "y": {
            "field": "y",
            "type": "quantitative",
            "scale": {"domain": [y + 10, 0], "nice": False},
            "axis": None,
        },
    }
    squares = grid.mark(
        rows,
        "square",
        place
        | {
            "opacity": {"field": "shade", "type": "quantitative", "scale": None},
            "color": {"field": "colour", "type": "nominal", "scale": None},
        },
        size=130,
        xOffset=6,
        yOffset=6,
    )
    text = {"text": {"field": "name", "type": "nominal"}}
    labels = grid.mark(rows, "text", place | text, align="left", dx=18, dy=6)
    return base.layers([squares, labels], width=width, height=y + 10)


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
                    "said": f"{slot.series}, {words(slot.item.factors)}, {cpu.NAMES[mode]}: "
                    f"{theme.share(share)} of {theme.share(cell.busy)}",
                }
            )
            start += share
    places = {
        "x": plot.x("left"),
        "x2": {"field": "right"},
        "y": plot.y("from"),
        "y2": {"field": "to"},
        "description": grid.said(),
    }
    shade = {"opacity": {"field": "shade", "type": "quantitative", "scale": None}}
    own = [bar for bar in bars if not bar["stolen"]]
    stolen = [bar for bar in bars if bar["stolen"]]
    layers = []
    if own:
        layers.append(grid.mark(own, "rect", places | shade | {"color": plot.colour()}))
    if stolen:
        layers.append(grid.mark(stolen, "rect", places, color=theme.MODES["stolen"].light))
    return layers


def by_host(cells: Sequence[CpuCell]) -> bool:
    """Whether several hosts are told apart."""
    return len({cell.host for cell in cells}) > 1


__all__ = ["CPU_GROUPS", "SHADES", "by_host", "figure"]
