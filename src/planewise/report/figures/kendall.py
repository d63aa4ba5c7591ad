"""Kendall's rank correlation of each plane with each metric, as bars (publications K and D)."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.judge.statistics import Family, KendallBar
from planewise.report import theme
from planewise.report.figures import vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.comparison import stratum_words
from planewise.report.figures.vega import Row, Span, Spec
from planewise.report.inference import Compared

_ROW = 20


def figure(all_compared: Sequence[Compared], planes: Sequence[str]) -> Figure | None:
    """Bars from −1 to 1: a panel a metric and stratum; None where nothing can be correlated."""
    shown = [
        compared
        for compared in all_compared
        if any(bar.correlation is not None for bar in compared.family.kendall)
    ]
    if not shown:
        return None
    correlations = [
        (bar, bar.correlation, compared.family.metric.title)
        for compared in shown
        for bar in compared.family.kendall
        if bar.correlation is not None
    ]
    strongest, tau, title = max(correlations, key=lambda entry: abs(entry[1].tau))
    lead = (
        f"Strongest: {strongest.level} goes with {'more' if tau.tau > 0 else 'less'} "
        f"{title} (τ-b {_signed(tau.tau)}, 95 % interval "
        f"{_signed(tau.low)} to {_signed(tau.high)}, "
        f"{stratum_words(strongest.stratum).lower()})."
    )

    def draw(width: int) -> Spec:
        rows: list[Spec] = []
        for compared in shown:
            rows += _rows(compared.family, planes, width, last=compared is shown[-1])
        return vega.finish(vega.below(rows, spacing=6))

    return Figure(
        name="kendall",
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


def _has_stratum(bars: Sequence[KendallBar], stratum: str) -> bool:
    return any(bar.stratum == stratum and bar.correlation is not None for bar in bars)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _rows(family: Family, planes: Sequence[str], width: int, *, last: bool) -> list[Spec]:
    """One metric: its name, then a panel a stratum, beside each other where there is room."""
    strata = [name for name in family.strata if _has_stratum(family.kendall, name)]
    across = len(strata) if width >= 600 and len(strata) <= 4 else 1
    levels = [str(level) for level in planes if level in family.levels]
    room = vega.label_room(levels)
    panel_width = (width - 20 - room - (across - 1) * 16) / across
    title = family.metric.title[:1].upper() + family.metric.title[1:]
    colours = theme.colours_of(planes)
    panels = [
        _panel(
            [bar for bar in family.kendall if bar.stratum == stratum and str(bar.level) in levels],
            {level: colours[level] for level in levels},
            stratum_words(stratum),
            panel_width,
            room if number % across == 0 else 0,
            labels=last and (across > 1 or number == len(strata) - 1),
        )
        for number, stratum in enumerate(strata)
    ]
    metric = vega.note(title, width - room - 20)
    return [metric, *([vega.beside(panels, spacing=16)] if across > 1 else panels)]


def _panel(
    bars: Sequence[KendallBar],
    colours: dict[str, str],
    label: str,
    width: float,
    room: int,
    *,
    labels: bool,
) -> Spec:
    rows: list[Row] = [
        {
            "plane": str(bar.level),
            "zero": 0,
            "tau": tau.tau,
            "low": tau.low,
            "high": tau.high,
            "hover": f"{bar.level}, {label}: τ-b {_signed(tau.tau)} "
            f"({_signed(tau.low)} to {_signed(tau.high)}), {tau.n} replicates",
        }
        for bar in bars
        if (tau := bar.correlation) is not None
    ]
    span = Span(-1.0, 1.0, log=False)
    axis = {
        "values": [-1, -0.5, 0, 0.5, 1],
        "labelExpr": "format(datum.value, '+~r')",
        "title": None,
        "labels": labels,
        "ticks": labels,
        "domain": False,
        "labelOverlap": True,
    }
    y = vega.plane_axis(list(colours), room)
    bar = {"x": vega.quantitative("zero", span, axis), "x2": {"field": "tau"}, "y": y}
    interval = {"x": vega.quantitative("low", span, axis), "x2": {"field": "high"}, "y": y}
    return vega.layers(
        [
            vega.mark(
                "bar",
                rows,
                {**bar, "color": vega.coloured("plane", colours)},
                hover=True,
                height=11,
            ),
            vega.mark("rule", rows, interval, strokeWidth=1.3, color=theme.INK.light),
        ],
        width=round(width),
        height=_ROW * len(colours),
        title=vega.heading(label, width + room),
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
                        bar
                        for bar in family.kendall
                        if bar.stratum == stratum and str(bar.level) == plane
                    ),
                    None,
                )
                if bar is None:
                    continue
                tau = bar.correlation
                rows.append(
                    (
                        family.metric.title,
                        stratum_words(stratum),
                        plane,
                        Missing("nothing to compare with")
                        if tau is None
                        else PrintedNumber(_signed(tau.tau), tau.tau),
                        "—" if tau is None else theme.interval(_signed(tau.low), _signed(tau.high)),
                        "—" if tau is None else PrintedNumber.plain(tau.n),
                    )
                )
    return Table(("Metric", "Where", "Plane", "τ-b", "95 % interval", "Replicates"), tuple(rows))
