"""Load-loss curves as PASTRAMI draws them: PLR on a log axis, DR beside it. Knows no run.

PLR is floored at 10⁻⁶ (arXiv 2410.18644, section IV): a linear axis hides the region of low loss
in which a curve shows whether its PDR can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import altair as alt

from planewise.judge.curve import Curve, LoadPoint
from planewise.judge.verdict import Estimate, Verdict
from planewise.report import theme
from planewise.report.cells import Factors, words
from planewise.report.data import JudgedCurve
from planewise.report.figures import base
from planewise.report.figures.base import Entry, Figure, Missing, Row, Span, Spec, Table, Value
from planewise.units import rate_text

FLOOR = 1e-6
_BENDS = 24
"""Points by which a segment is bent on the log axis."""
_CROSS: dict[str, Any] = {
    "filled": False,
    "shape": "cross",
    "size": 60,
    "strokeWidth": 1.5,
    "fill": "transparent",
}
"""The mark of a load at which only the generator's limit was seen."""
_HEIGHT = 210
_LOSS_ROOM = 78
"""Left of the plot, for labels such as `≤ 0.0001 %`."""
_MARK_ROOM = 34
"""Above the plot, for the names of its vertical lines."""


def load_loss(
    curve: Curve,
    verdict: Verdict,
    *,
    colour: str = theme.PLANES["veth"].light,
    width: int = base.WIDE,
) -> alt.TopLevelMixin:
    """One curve for a file: as `panels`, with its name, the verdict and the reason above."""
    return base.chart_of(
        base.with_title(
            panels(curve, verdict, colour=colour, width=width),
            f"{curve.name}: {verdict.verdict}",
            verdict.reason,
            width,
        )
    )


def panels(curve: Curve, verdict: Verdict, *, colour: str, width: int) -> Spec:
    """PLR with its 95 % interval, the limit of PDR, where PDR and saturation lie; DR beside it.

    `colour` is one of the theme's, `width` in px: below 560 the two panels lie below each other.
    """
    narrow = width < 560
    span = _loads(curve.offered_pps.tolist())
    if narrow:
        plot, side = width - _LOSS_ROOM - 12, width - _LOSS_ROOM - 12
    else:
        plot = round((width - 2 * _LOSS_ROOM - 40) * 0.62)
        side = round((width - 2 * _LOSS_ROOM - 40) * 0.38)
    loss = _loss_panel(curve, verdict, span, colour, plot)
    delivered = _delivery_panel(curve, span, colour, side)
    both = [loss, delivered]
    return base.finish(base.below(both, spacing=18) if narrow else base.beside(both))


def figure(item: JudgedCurve, planes: Sequence[str], common: Factors) -> Figure:
    """The figure of one curve of a run."""
    title = f"{item.plane}, {words(item.factors, common)}"
    verdict = item.verdict
    limit = theme.share(verdict.plr)
    colour = theme.colours_of(planes)[item.plane]

    def draw(width: int) -> Spec:
        return panels(item.curve, verdict, colour=colour, width=width)

    return Figure(
        name=base.slug(f"loss-{item.plane}-{words(item.factors)}"),
        title=title,
        caption=(
            "Packets lost and delivered against the load that was offered. Band: 95 % interval of "
            f"the mean over the runs; dashed line: {limit} loss, the limit of PDR; shaded: 95 % "
            "interval of PDR; rings: at most one in a million lost"
            + (
                "; crosses: nothing but the generator's own limit was seen."
                if any(_limited(point) for point in item.curve.points)
                else "."
            )
        ),
        alt=(
            f"Load-loss curve of {title}: {verdict.verdict}. {verdict.reason}. "
            f"PDR at {limit}: {_pdr_said(verdict)}."
        ),
        draw=draw,
        table=table(item.curve),
        verdict=verdict.verdict,
        lead=verdict.reason,
        notes=(
            *(caution.text for caution in verdict.warnings),
            *(
                (
                    "further trials would decide most at "
                    + ", ".join(rate_text(load) for load in verdict.next_loads),
                )
                if verdict.next_loads
                else ()
            ),
        ),
    )


def overview(
    items: Sequence[JudgedCurve], planes: Sequence[str], label: str, *, name: str, title: str
) -> Figure:
    """The curves of several planes under one load in one panel."""
    limit = items[0].verdict.plr
    span = _loads([load for item in items for load in item.curve.offered_pps.tolist()])
    colours = theme.colours_of(planes)

    def draw(width: int) -> Spec:
        room = base.label_room((item.plane for item in items), most=130 if width > 560 else 84)
        plot = width - _LOSS_ROOM - room - 16
        rows: list[Row] = [
            {
                "plane": item.plane,
                "load": point.offered_pps,
                "plr": max(FLOOR, point.plr),
                "limited": _limited(point),
                "said": f"{item.plane} at {rate_text(point.offered_pps)}: "
                f"{theme.share(point.plr)} lost",
            }
            for item in items
            for point in item.curve.points
        ]
        lines = [{"plane": item.plane, **row} for item in items for row in line(item.curve)]
        colour = alt.Color("plane:N", scale=base.plane_colour(planes), legend=None)
        x = alt.X(
            "load:Q", scale=span.scale(), axis=base.x_axis("offered load", span, "rate", plot)
        )
        y = _loss_axis()
        chart = alt.Chart(base.data(rows))
        ends = _ends(items, colours)
        names = (
            alt.Chart(base.data(ends))
            .mark_text(align="left", fontWeight=600, limit=room - 4)
            .encode(
                x=base.x_px(plot + 6),
                y=alt.Y("place:Q", axis=None, scale=alt.Scale(domain=[_HEIGHT, 0])),
                text=alt.Text("plane:N"),
                color=alt.Color("colour:N", scale=None),
            )
        )
        curves = base.layers(
            [
                _limit_line(limit),
                alt.Chart(base.data(lines))
                .mark_line(strokeWidth=2)
                .encode(x=x, y=y, color=colour, order=alt.Order("load:Q")),
                chart.transform_filter("!datum.limited")
                .mark_point(filled=True, size=28, opacity=1)
                .encode(x=x, y=y, color=colour, description=alt.Description("said:N")),
                chart.transform_filter("datum.limited")
                .mark_point(**_CROSS)
                .encode(x=x, y=y, color=colour, description=alt.Description("said:N")),
                *_limit_name(limit),
            ]
        )
        return base.finish(
            base.layers(
                [curves, names],
                width=plot,
                height=_HEIGHT,
                resolve={"scale": {"y": "independent"}},
            )
        )

    pdrs = ", ".join(f"{item.plane} {_pdr_said(item.verdict)}" for item in items)
    return Figure(
        name=name,
        title=title,
        caption=(
            "Share of packets lost against the load that was offered, mean over the runs, on a "
            "logarithmic axis that ends at one in a million; between two loads straight in loss, "
            "and so bent here. The further right a line climbs, the more its plane carries. "
            f"Dashed: {theme.share(limit)} loss."
            + (
                " Crosses: nothing but the generator's own limit was seen."
                if any(_limited(point) for item in items for point in item.curve.points)
                else ""
            )
        ),
        alt=f"Load-loss curves of all planes, {label}. PDR: {pdrs}.",
        draw=draw,
        table=verdict_table(items, ()),
    )


def verdict_table(items: Sequence[JudgedCurve], common: Factors) -> Table:
    """Verdict, PDR, NDR and saturation by curve."""
    return Table(
        columns=(
            "Plane",
            "Load",
            "Verdict",
            "PDR",
            "NDR",
            "Saturation",
            "Probability of GOOD",
            "Warnings",
        ),
        rows=tuple(
            (
                item.plane,
                words(item.factors, common),
                item.verdict.verdict,
                _estimate(item.verdict.pdr, item.verdict.no_pdr),
                _estimate(item.verdict.ndr, item.verdict.no_ndr),
                _saturation(item.verdict),
                Value(_probability(item.verdict.probability_good), item.verdict.probability_good),
                Value(str(len(item.verdict.warnings)), len(item.verdict.warnings)),
            )
            for item in items
        ),
    )


def table(curve: Curve) -> Table:
    """A curve's numbers, one row an offered load."""
    tirs = [None, *curve.tir.tolist()]
    rows = []
    for point, tir in zip(curve.points, tirs, strict=True):
        interval = point.interval95
        rows.append(
            (
                Value(rate_text(point.offered_pps), point.offered_pps),
                Value(str(len(point.runs)), len(point.runs)),
                Value(str(point.limited), point.limited),
                Value(theme.share(point.plr), point.plr),
                Missing("a single run has no interval")
                if interval is None
                else f"{theme.share(interval[0])} – {theme.share(interval[1])}",
                Value(theme.share(point.dr), point.dr),
                Value(rate_text(point.forwarded_pps), point.forwarded_pps),
                Missing("there is no load before the first")
                if tir is None
                else Value(f"{tir:.3f}", tir),
                Value(theme.count(point.lost), point.lost),
                Missing("no counter was read")
                if point.drops is None
                else Value(theme.count(point.drops), point.drops),
            )
        )
    return Table(
        columns=(
            "Offered",
            "Runs",
            "Of them limited by the generator",
            "PLR",
            "95 % interval",
            "DR",
            "Forwarded",
            "TIR",
            "Lost",
            "Of them counted by drop counters",
        ),
        rows=tuple(rows),
    )


def _limited(point: LoadPoint) -> bool:
    """Whether every run at this load says more of the generator than of the plane."""
    return point.limited == len(point.runs)


def _loads(loads: Sequence[float]) -> Span:
    low, high = min(loads), max(loads)
    if high / low > 30:
        return Span(low / 1.1, high * 1.1, log=True)
    return Span(0.0, high * 1.04, log=False)


def _loss_axis(field: str = "plr") -> alt.Y:
    return alt.Y(
        f"{field}:Q",
        scale=alt.Scale(type="log", domain=[FLOOR, 1.0], clamp=True, nice=False),
        axis=alt.Axis(
            title="packets lost (PLR)",
            titleAngle=0,
            titleAlign="left",
            titleAnchor="start",
            titleX=-_LOSS_ROOM + 8,
            titleY=-8,
            titleBaseline="bottom",
            values=[10.0**power for power in range(-6, 1)],
            labelExpr="datum.value < 1.5e-6 ? '≤ 0.0001 %' "
            f": {base.with_unit('datum.value', 'share')}",
            minExtent=_LOSS_ROOM,
            maxExtent=_LOSS_ROOM,
            domain=False,
            ticks=False,
        ),
    )


def _limit_line(limit: float) -> alt.Chart:
    chart = alt.Chart(base.data([{"plr": limit}])).mark_rule(strokeDash=[5, 4], strokeWidth=1.2)
    line: alt.Chart = chart.encode(y=_loss_axis(), color=alt.ColorValue(theme.ALERT.light))
    return line


def _limit_name(limit: float) -> list[alt.Chart | Spec]:
    """What the limit is: below its line, where points seldom lie, on a rim of paper."""
    chart = alt.Chart(base.data([{"plr": limit, "text": f"{theme.share(limit)} lost"}]))
    place = {"x": base.x_px(4), "y": _loss_axis(), "text": alt.Text("text:N")}
    rim = chart.mark_text(
        align="left", dy=9, stroke=theme.PAPER.light, strokeWidth=3, strokeJoin="round"
    )
    return [
        rim.encode(**place, color=alt.ColorValue(theme.PAPER.light)),
        chart.mark_text(align="left", dy=9).encode(
            **place, color=alt.ColorValue(theme.ALERT.light)
        ),
    ]


def _loss_panel(curve: Curve, verdict: Verdict, span: Span, colour: str, plot: int) -> Spec:
    rows: list[Row] = []
    band: list[tuple[float, Mapping[str, float]]] = []
    for point in curve.points:
        interval = point.interval95
        rows.append(
            {
                "load": point.offered_pps,
                "plr": max(FLOOR, point.plr),
                "floored": point.plr <= FLOOR,
                "limited": _limited(point),
                "said": f"{rate_text(point.offered_pps)}: {theme.share(point.plr)} lost, "
                f"{point.count} runs"
                + (f", {point.limited} limited by the generator" if point.limited else ""),
            }
        )
        if interval is not None:
            band.append((point.offered_pps, {"low": interval[0], "high": interval[1]}))
    x = alt.X("load:Q", scale=span.scale(), axis=base.x_axis("offered load", span, "rate", plot))
    y = _loss_axis()
    chart = alt.Chart(base.data(rows))
    layers: list[alt.Chart | Spec] = []
    if len(band) > 1:
        layers.append(
            alt.Chart(base.data(_bent(band)))
            .mark_area(opacity=0.22)
            .encode(
                x=x,
                y=_loss_axis("low"),
                y2=alt.Y2("high"),
                color=alt.ColorValue(colour),
            )
        )
    layers.append(_limit_line(verdict.plr))
    layers += _marks(verdict, span, plot)
    layers += [
        alt.Chart(base.data(line(curve)))
        .mark_line(strokeWidth=2)
        .encode(x=x, y=y, order=alt.Order("load:Q"), color=alt.ColorValue(colour)),
        chart.transform_filter("!datum.floored && !datum.limited")
        .mark_point(filled=True, size=36, opacity=1)
        .encode(x=x, y=y, color=alt.ColorValue(colour), description=alt.Description("said:N")),
        chart.transform_filter("datum.floored && !datum.limited")
        .mark_point(filled=False, size=36, strokeWidth=1.5, fill="transparent")
        .encode(x=x, y=y, color=alt.ColorValue(colour), description=alt.Description("said:N")),
        chart.transform_filter("datum.limited")
        .mark_point(**_CROSS)
        .encode(
            x=x, y=y, color=alt.ColorValue(theme.MUTED.light), description=alt.Description("said:N")
        ),
    ]
    layers += _limit_name(verdict.plr)
    return base.layers(layers, width=plot, height=_HEIGHT)


def _marks(verdict: Verdict, span: Span, plot: int) -> list[alt.Chart | Spec]:
    """Vertical lines at PDR and saturation, with their names above the plot."""
    marks: list[tuple[str, float, int]] = []
    layers: list[alt.Chart | Spec] = []
    pdr, saturation = verdict.pdr, verdict.saturation
    if pdr is not None and pdr.bounded and pdr.pps <= span.high:
        marks.append((f"PDR {rate_text(pdr.pps)}", pdr.pps, -_MARK_ROOM + 24))
        shade = alt.Chart(
            base.data([{"from": max(pdr.low_pps, span.low), "to": min(pdr.high_pps, span.high)}])
        )
        layers.append(
            shade.mark_rect(opacity=0.12).encode(
                x=alt.X("from:Q", scale=span.scale()),
                x2=alt.X2("to"),
                color=alt.ColorValue(theme.INK.light),
            )
        )
    if saturation is not None and saturation.offered_pps <= span.high:
        marks.append(
            (
                f"saturation {rate_text(saturation.offered_pps)}",
                saturation.offered_pps,
                -_MARK_ROOM + 8,
            )
        )
    for text, load, place in marks:
        chart = alt.Chart(base.data([{"load": load, "text": text}]))
        x = alt.X("load:Q", scale=span.scale())
        # PDR's name lies left of its line and saturation's right of its own, a row higher: the two
        # lines are often close, and so neither crosses the other's name.
        room, at = base.text_width(text) + 6, _position(load, span) * plot
        left = at > room if text.startswith("PDR") else at > plot - room
        layers += [
            chart.mark_rule(strokeWidth=1.2).encode(
                x=x,
                y=base.y_px(place - 6),
                y2=base.y2_px(_HEIGHT),
                color=alt.ColorValue(theme.INK.light),
            ),
            chart.mark_text(align="right" if left else "left", dx=-4 if left else 4).encode(
                x=x,
                y=base.y_px(place),
                text=alt.Text("text:N"),
                color=alt.ColorValue(theme.INK.light),
            ),
        ]
    return layers


def _bent(points: Sequence[tuple[float, Mapping[str, float]]]) -> list[Row]:
    """Loads and the PLRs (by field) between them: straight in PLR, as the judge interpolates PDR.

    On a log axis that is bent: so the line meets the limit where PDR lies.
    """
    rows: list[Row] = []

    def add(load: float, values: Mapping[str, float]) -> None:
        rows.append({"load": load, **{field: max(FLOOR, value) for field, value in values.items()}})

    for (load, here), (next_load, there) in pairwise(points):
        add(load, here)
        bends = sorted({bend for field in here for bend in _bends(here[field], there[field])})
        for bend in bends:
            add(
                load + bend * (next_load - load),
                {field: here[field] + bend * (there[field] - here[field]) for field in here},
            )
    add(*points[-1])
    return rows


def _bends(here: float, there: float) -> list[float]:
    """Places between 0 and 1 at which the segment's PLR has risen by equal steps on a log axis."""
    low, high = sorted((max(FLOOR, here), max(FLOOR, there)))
    if high / low < 1.05:
        return []
    steps = (low * (high / low) ** (step / _BENDS) for step in range(_BENDS))
    places = ((value - here) / (there - here) for value in steps)
    return [place for place in places if 0 < place < 1]


def line(curve: Curve) -> list[Row]:
    """The line of a curve: `load` [packet/s] and `plr`, from point to point."""
    return _bent([(point.offered_pps, {"plr": point.plr}) for point in curve.points])


def _position(value: float, span: Span) -> float:
    if span.log:
        return math.log(value / span.low) / math.log(span.high / span.low)
    return (value - span.low) / (span.high - span.low)


def _delivery_panel(curve: Curve, span: Span, colour: str, plot: int) -> Spec:
    rows: list[Row] = [
        {
            "load": point.offered_pps,
            "dr": point.dr,
            "said": f"{rate_text(point.offered_pps)}: {theme.share(point.dr)} delivered",
        }
        for point in curve.points
    ]
    x = alt.X("load:Q", scale=span.scale(), axis=base.x_axis("offered load", span, "rate", plot))
    y = alt.Y(
        "dr:Q",
        scale=alt.Scale(domain=[0, 1], nice=False),
        axis=alt.Axis(
            title="packets delivered (DR)",
            titleAngle=0,
            titleAlign="left",
            titleAnchor="start",
            titleX=-48,
            titleY=-8,
            titleBaseline="bottom",
            values=[0, 0.25, 0.5, 0.75, 1],
            labelExpr=base.with_unit("datum.value", "share"),
            minExtent=44,
            domain=False,
            ticks=False,
        ),
    )
    chart = alt.Chart(base.data(rows))
    return base.layers(
        [
            chart.mark_line(strokeWidth=2).encode(x=x, y=y, color=alt.ColorValue(colour)),
            chart.mark_point(filled=True, size=36, opacity=1).encode(
                x=x, y=y, color=alt.ColorValue(colour), description=alt.Description("said:N")
            ),
        ],
        width=plot,
        height=_HEIGHT,
    )


def _ends(items: Sequence[JudgedCurve], colours: dict[str, str]) -> list[Row]:
    """Names beside the ends of the lines, moved apart where they would overlap [px]."""
    ends = sorted(
        (
            -math.log10(max(FLOOR, min(1.0, item.curve.points[-1].plr))) / 6 * _HEIGHT,
            item.plane,
        )
        for item in items
    )
    places: list[float] = []
    for place, _ in ends:
        places.append(max(place, places[-1] + 15) if places else place)
    excess = max(0.0, places[-1] - _HEIGHT)
    for at in range(len(places) - 1, -1, -1):
        limit = _HEIGHT if at == len(places) - 1 else places[at + 1] - 15
        places[at] = min(places[at], limit) if excess else places[at]
    return [
        {"place": place, "plane": plane, "colour": colours[plane]}
        for place, (_, plane) in zip(places, ends, strict=True)
    ]


def _pdr_said(verdict: Verdict) -> str:
    if verdict.pdr is None:
        return "below the first load" if verdict.tested else "not known"
    return _said(verdict.pdr)


def _said(estimate: Estimate) -> str:
    if estimate.bounded:
        return rate_text(estimate.pps)
    return f"at least {rate_text(estimate.low_pps)}" if estimate.low_pps > 0 else "not known"


def _estimate(estimate: Estimate | None, why: str) -> Entry:
    if estimate is None:
        return Missing(why)
    if estimate.bounded:
        low, high = rate_text(estimate.low_pps), rate_text(estimate.high_pps)
        return Value(_said(estimate), estimate.pps, small=theme.interval(low, high))
    if estimate.low_pps <= 0:
        return Missing("the loads end too early to say")
    # The lower end of its interval: the point estimate is only where the ladder ends.
    return Value(_said(estimate), estimate.low_pps)


def _probability(value: float) -> str:
    """Drawn curves are counted: what was never seen is rare, not impossible."""
    if value < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if value > 0.999 else theme.share(value)


def _saturation(verdict: Verdict) -> Entry:
    if verdict.saturation is None:
        return Missing("not seen to begin and last")
    seen = verdict.saturation
    return Value(
        rate_text(seen.offered_pps),
        seen.offered_pps,
        small=f"then {rate_text(seen.throughput_pps)} pass",
    )
