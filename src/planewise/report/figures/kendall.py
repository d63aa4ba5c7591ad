"""Kendall's rank correlation of each plane with each metric, as bars (publications K and D)."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.judge.statistics import KendallBar
from planewise.report import theme
from planewise.report.figures import base, grid
from planewise.report.figures.base import Entry, Figure, Missing, Row, Spec, Table, Value
from planewise.report.figures.comparison import stratum_words
from planewise.report.inference import Compared

_ROW = 20


def figure(all_compared: Sequence[Compared], planes: Sequence[str], *, name: str) -> Figure | None:
    """Bars from −1 to 1: a panel a metric and stratum; None where nothing can be correlated."""
    shown = [
        compared
        for compared in all_compared
        if any(bar.correlation is not None for bar in compared.family.kendall)
    ]
    if not shown:
        return None
    colours = theme.colours_of(planes)
    known = [
        (bar, bar.correlation)
        for compared in shown
        for bar in compared.family.kendall
        if bar.correlation is not None
    ]
    strongest, tau = max(known, key=lambda pair: abs(pair[1].tau))
    titles = {compared.family.metric.name: compared.family.metric.title for compared in shown}
    lead = (
        f"Strongest: {strongest.level} goes with {'more' if tau.tau > 0 else 'less'} "
        f"{titles[strongest.metric]} (τ-b {_signed(tau.tau)}, 95 % interval "
        f"{_signed(tau.low)} to {_signed(tau.high)}, "
        f"{stratum_words(strongest.stratum).lower()})."
    )

    def draw(width: int) -> Spec:
        rows: list[Spec] = []
        for place, compared in enumerate(shown):
            family = compared.family
            strata = [name for name in family.strata if _has(family.kendall, name)]
            across = len(strata) if width >= 600 and len(strata) <= 4 else 1
            levels = [str(level) for level in planes if level in family.levels]
            room = base.label_room(levels, most=120)
            each = (width - 20 - room - (across - 1) * 16) / across
            rows.append(
                base.note(
                    family.metric.title[:1].upper() + family.metric.title[1:], width - room - 20
                )
            )
            panels = [
                _panel(
                    [bar for bar in family.kendall if bar.stratum == stratum],
                    levels,
                    colours,
                    stratum_words(stratum),
                    each,
                    room if number % across == 0 else 0,
                    last=place == len(shown) - 1 and (across > 1 or number == len(strata) - 1),
                )
                for number, stratum in enumerate(strata)
            ]
            rows += [base.beside(panels, spacing=16)] if across > 1 else panels
        return base.finish(base.below(rows, spacing=6))

    return Figure(
        name=name,
        title="Which plane goes with more, which with less",
        lead=lead,
        caption=(
            "Kendall's τ-b between being on a plane (yes or no) and the metric, over all "
            "replicates: at the left of 0 the metric is less with this plane than with the "
            "others, at the right more; thin line: 95 % interval. It tells of order, not of size: "
            "a difference nobody would notice can order perfectly."
        ),
        alt=f"Bars of rank correlations. {lead}",
        draw=draw,
        table=table(shown, planes),
    )


def _has(bars: Sequence[KendallBar], stratum: str) -> bool:
    return any(bar.stratum == stratum and bar.correlation is not None for bar in bars)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _panel(
    bars: Sequence[KendallBar],
    levels: Sequence[str],
    colours: dict[str, str],
    label: str,
    width: float,
    room: int,
    *,
    last: bool,
) -> Spec:
    rows: list[Row] = [
        {
            "plane": str(bar.level),
            "zero": 0,
            "tau": one.tau,
            "low": one.low,
            "high": one.high,
            "colour": colours[str(bar.level)],
            "said": f"{bar.level}, {label}: τ-b {_signed(one.tau)} "
            f"({_signed(one.low)} to {_signed(one.high)}), {one.n} replicates",
        }
        for bar in bars
        if (one := bar.correlation) is not None and str(bar.level) in levels
    ]
    x = {
        "type": "quantitative",
        "scale": {"domain": [-1, 1], "nice": False},
        "axis": {
            "values": [-1, -0.5, 0, 0.5, 1],
            "labelExpr": "format(datum.value, '+~r')",
            "title": None,
            "labels": last,
            "ticks": last,
            "domain": False,
            "labelOverlap": True,
        },
    }
    y = {
        "field": "plane",
        "type": "nominal",
        "scale": {"domain": list(levels)},
        "axis": {
            "title": None,
            "domain": False,
            "ticks": False,
            "labels": room > 0,
            "labelPadding": 6,
            "labelLimit": max(1, room - 6),
            "minExtent": room,
            "maxExtent": room,
        },
    }
    colour = {"color": {"field": "colour", "type": "nominal", "scale": None}}
    return base.layers(
        [
            grid.mark(
                rows,
                "bar",
                {
                    "x": {"field": "zero", **x},
                    "x2": {"field": "tau"},
                    "y": y,
                    **colour,
                    "description": grid.said(),
                },
                height=11,
            ),
            grid.mark(
                rows,
                "rule",
                {"x": {"field": "low", **x}, "x2": {"field": "high"}, "y": y},
                strokeWidth=1.3,
                color=theme.INK.light,
            ),
        ],
        width=round(width),
        height=_ROW * len(levels),
        title=base.heading(label, width + room),
    )


def table(all_compared: Sequence[Compared], planes: Sequence[str]) -> Table:
    """Every correlation with its interval."""
    rows: list[tuple[Entry, ...]] = []
    for compared in all_compared:
        family = compared.family
        for stratum in family.strata:
            for plane in planes:
                bar = next(
                    (
                        one
                        for one in family.kendall
                        if one.stratum == stratum and str(one.level) == plane
                    ),
                    None,
                )
                if bar is None:
                    continue
                one = bar.correlation
                rows.append(
                    (
                        family.metric.title,
                        stratum_words(stratum),
                        plane,
                        Missing("nothing to compare with")
                        if one is None
                        else Value(_signed(one.tau), one.tau),
                        "—" if one is None else theme.interval(_signed(one.low), _signed(one.high)),
                        "—" if one is None else Value(str(one.n), one.n),
                    )
                )
    return Table(("Metric", "Where", "Plane", "τ-b", "95 % interval", "Replicates"), tuple(rows))
