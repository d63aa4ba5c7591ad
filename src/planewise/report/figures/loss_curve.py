"""Load-loss curves as PASTRAMI draws them: PLR on a log axis, DR beside it. Knows no run.

PLR is floored at 10⁻⁶ (arXiv 2410.18644, section IV): a linear axis hides the region of low loss
in which a curve shows whether its PDR can be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from planewise.judge.curve import Curve, LoadPoint
from planewise.judge.verdict import LoadEstimate, Verdict
from planewise.report import theme
from planewise.report.data import JudgedCurve
from planewise.report.figures import base, vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.vega import Channel, Look, Row, Span, Spec
from planewise.store.cells import Factors, words
from planewise.units import rate_text

FLOOR = 1e-6
_BENDS = 24
"""Points by which a segment is bent on the log axis."""
_HEIGHT = 210
_LOSS_ROOM = 78
"""Left of the plot, for labels such as `≤ 0.0001 %`."""
_DELIVERY_ROOM = 56
"""The same for `100 %`."""
_LOSSES = Span(FLOOR, 1.0, log=True)
_ORDER: Channel = {"field": "load", "type": "quantitative"}
_MARK_ROOM = 34
"""Above the plot, for the names of its vertical lines."""


def load_loss(curve: Curve, verdict: Verdict, *, width: int = base.WIDE) -> Spec:
    """One curve for a file: as `panels`, with its name, the verdict and the reason above."""
    drawn = panels(curve, verdict, colour=theme.PLANES["veth"].light, width=width)
    return vega.with_title(drawn, f"{curve.name}: {verdict.verdict}", verdict.reason, width)


def panels(curve: Curve, verdict: Verdict, *, colour: str, width: int) -> Spec:
    """PLR with its 95 % interval, the limit of PDR, PDR and saturation; DR beside it.

    `colour` is one of the theme's, `width` in px: below 560 the two panels lie below each other.
    """
    narrow = width < 560
    span = Span.of(curve.offered_pps.tolist(), log_from=30)
    if narrow:
        plot, side = width - _LOSS_ROOM - 12, width - _LOSS_ROOM - 12
    else:
        plot = round((width - 2 * _LOSS_ROOM - 40) * 0.62)
        side = round((width - 2 * _LOSS_ROOM - 40) * 0.38)
    loss = _loss_panel(curve, verdict, span, colour, plot)
    delivered = _delivery_panel(curve, span, colour, side)
    parts = [loss, delivered]
    return vega.finish(vega.below(parts, spacing=18) if narrow else vega.beside(parts))


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
            f"PDR at {limit}: {_pdr_text(verdict)}."
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
    span = Span.of(
        [load for item in items for load in item.curve.offered_pps.tolist()], log_from=30
    )
    colours = theme.colours_of(planes)

    def draw(width: int) -> Spec:
        room = vega.label_room((item.plane for item in items), most=130 if width > 560 else 84)
        plot = width - _LOSS_ROOM - room - 16
        ends = [(item.plane, _height(item.curve.points[-1].plr)) for item in items]
        return vega.finish(
            vega.layers(
                [
                    _limit_line(limit),
                    *_lines(items, colours, span, plot),
                    *_limit_name(limit),
                    vega.end_labels(ends, colours, x=plot + 6, height=_HEIGHT, room=room - 4),
                ],
                width=plot,
                height=_HEIGHT,
            )
        )

    pdrs = ", ".join(f"{item.plane} {_pdr_text(item.verdict)}" for item in items)
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


def _lines(
    items: Sequence[JudgedCurve], colours: Mapping[str, str], span: Span, plot: int
) -> list[Spec]:
    """A line a curve, with a mark at every load."""
    points: list[Row] = []
    crosses: list[Row] = []
    lines: list[Row] = []
    for item in items:
        lines += [{"plane": item.plane, **row} for row in line(item.curve)]
        for point in item.curve.points:
            load = rate_text(point.offered_pps)
            row = {
                "plane": item.plane,
                "load": point.offered_pps,
                "plr": max(FLOOR, point.plr),
                "hover": f"{item.plane} at {load}: {theme.share(point.plr)} lost",
            }
            (crosses if _limited(point) else points).append(row)
    place = {**_place(span, plot), "color": vega.coloured("plane", colours)}
    return [
        vega.mark("line", lines, {**place, "order": _ORDER}, strokeWidth=2),
        vega.mark("point", points, place, hover=True, filled=True, size=28, opacity=1),
        _crosses(crosses, place),
    ]


def _place(span: Span, plot: int) -> dict[str, Channel]:
    """Offered load along the plot, loss upwards."""
    axis = vega.x_axis("offered load", span, "rate", plot)
    return {"x": vega.quantitative("load", span, axis), "y": _loss("plr")}


def _crosses(rows: Sequence[Row], encoding: Mapping[str, Channel], **look: str) -> Spec:
    """Loads at which only the generator's limit was seen."""
    cross: Look = {"filled": False, "shape": "cross", "size": 60, "strokeWidth": 1.5}
    return vega.mark("point", rows, encoding, hover=True, fill="transparent", **cross, **look)


def verdict_table(items: Sequence[JudgedCurve], common: Factors) -> Table:
    """Verdict, PDR, NDR and saturation by curve."""
    return Table.of(
        items,
        {
            "Plane": lambda item: item.plane,
            "Load": lambda item: words(item.factors, common),
            "Verdict": lambda item: item.verdict.verdict,
            "PDR": lambda item: _estimate(item.verdict.pdr, item.verdict.no_pdr),
            "NDR": lambda item: _estimate(item.verdict.ndr, item.verdict.no_ndr),
            "Saturation": lambda item: _saturation(item.verdict),
            "Probability of GOOD": _probability,
            "Warnings": lambda item: PrintedNumber.plain(len(item.verdict.warnings)),
        },
    )


def _probability(item: JudgedCurve) -> Entry:
    probability = item.verdict.probability_good
    if probability is None:
        return Missing("these loads do not tell")
    return PrintedNumber(_share(probability), probability)


def table(curve: Curve) -> Table:
    """A curve's numbers, one row an offered load."""

    def interval(point: LoadPoint) -> Entry:
        if point.interval95 is None:
            return Missing("a single run has no interval")
        low, high = point.interval95
        return f"{theme.share(low)} – {theme.share(high)}"

    def tir(value: float | None) -> Entry:
        if value is None:
            return Missing("there is no load before the first")
        return PrintedNumber(f"{value:.3f}", value)

    def drops(point: LoadPoint) -> Entry:
        no_counter = Missing("no counter was read")
        return no_counter if point.drops is None else PrintedNumber.count(point.drops)

    return Table.of(
        list(zip(curve.points, [None, *curve.tir.tolist()], strict=True)),
        {
            "Offered": lambda row: PrintedNumber.rate(row[0].offered_pps),
            "Runs": lambda row: PrintedNumber.plain(len(row[0].runs)),
            "Of them limited by the generator": lambda row: PrintedNumber.plain(row[0].limited),
            "PLR": lambda row: PrintedNumber.share(row[0].plr),
            "95 % interval": lambda row: interval(row[0]),
            "DR": lambda row: PrintedNumber.share(row[0].dr),
            "Forwarded": lambda row: PrintedNumber.rate(row[0].forwarded_pps),
            "TIR": lambda row: tir(row[1]),
            "Lost": lambda row: PrintedNumber.count(row[0].lost),
            "Of them counted by drop counters": lambda row: drops(row[0]),
        },
    )


def _limited(point: LoadPoint) -> bool:
    """Whether the generator limited every run at this load."""
    return point.limited == len(point.runs)


def _loss(field: str) -> Channel:
    """The share lost, on the axis that ends at `FLOOR`."""
    axis = vega.y_axis(
        _LOSSES,
        "share",
        _LOSS_ROOM,
        title="packets lost (PLR)",
        most=7,
        labelExpr=f"datum.value < 1.5e-6 ? '≤ 0.0001 %' : {vega.with_unit('share')}",
    )
    channel = vega.quantitative(field, _LOSSES, axis)
    channel["scale"]["clamp"] = True
    return channel


def _height(plr: float) -> float:
    """Height of a PLR in the plot [px from its upper edge]."""
    return vega.height_of(_LOSSES.inside(plr), _LOSSES, _HEIGHT)


def _limit_line(limit: float) -> Spec:
    look: Look = {"strokeDash": [5, 4], "strokeWidth": 1.2, "color": theme.ALERT.light}
    return vega.mark("rule", [{"plr": limit}], {"y": _loss("plr")}, **look)


def _limit_name(limit: float) -> list[Spec]:
    """The limit's label below its line, where points are rare, with an outline."""
    rows = [{"plr": limit, "text": f"{theme.share(limit)} lost"}]
    place = {"x": vega.px(4), "y": _loss("plr"), "text": vega.nominal("text")}
    text: Look = {"align": "left", "dy": 9}
    rim: Look = {"stroke": theme.PAPER.light, "strokeWidth": 3, "strokeJoin": "round"}
    return [
        vega.mark("text", rows, place, **text, **rim, color=theme.PAPER.light),
        vega.mark("text", rows, place, **text, color=theme.ALERT.light),
    ]


def _loss_panel(curve: Curve, verdict: Verdict, span: Span, colour: str, plot: int) -> Spec:
    points: list[Row] = []
    rings: list[Row] = []
    crosses: list[Row] = []
    for point in curve.points:
        limited = f", {point.limited} limited by the generator" if point.limited else ""
        row = {
            "load": point.offered_pps,
            "plr": max(FLOOR, point.plr),
            "hover": f"{rate_text(point.offered_pps)}: {theme.share(point.plr)} lost, "
            f"{point.count} runs{limited}",
        }
        if _limited(point):
            crosses.append(row)
        else:
            (rings if point.plr <= FLOOR else points).append(row)
    place = _place(span, plot)
    dot: Look = {"size": 36, "color": colour}
    return vega.layers(
        [
            *_band(curve, place, colour),
            _limit_line(verdict.plr),
            *_marks(verdict, span, plot, place["x"]),
            vega.mark("line", line(curve), {**place, "order": _ORDER}, strokeWidth=2, color=colour),
            vega.mark("point", points, place, hover=True, filled=True, opacity=1, **dot),
            vega.mark(
                "point", rings, place, hover=True, strokeWidth=1.5, fill="transparent", **dot
            ),
            _crosses(crosses, place, color=theme.MUTED.light),
            *_limit_name(verdict.plr),
        ],
        width=plot,
        height=_HEIGHT,
    )


def _band(curve: Curve, place: Mapping[str, Channel], colour: str) -> list[Spec]:
    """The 95 % interval of the mean, where at least two loads have one."""
    points = [
        (point.offered_pps, {"low": interval[0], "high": interval[1]})
        for point in curve.points
        if (interval := point.interval95) is not None
    ]
    if len(points) < 2:
        return []
    band = {**place, "y": _loss("low"), "y2": {"field": "high"}}
    return [vega.mark("area", _bent(points), band, opacity=0.22, color=colour)]


def _marks(verdict: Verdict, span: Span, plot: int, x: Channel) -> list[Spec]:
    """Vertical lines at PDR and saturation, with their names above the plot."""
    layers: list[Spec] = []
    ink: Look = {"color": theme.INK.light}
    pdr, saturation = verdict.pdr, verdict.saturation
    lines: list[tuple[str, float, int]] = []
    if pdr is not None and pdr.bounded and pdr.pps <= span.high:
        lines.append((f"PDR {rate_text(pdr.pps)}", pdr.pps, -_MARK_ROOM + 24))
        ends = {"from": span.inside(pdr.low_pps), "to": span.inside(pdr.high_pps)}
        shade = {"x": {**x, "field": "from"}, "x2": {"field": "to"}}
        layers.append(vega.mark("rect", [ends], shade, opacity=0.12, **ink))
    if saturation is not None and saturation.offered_pps <= span.high:
        name = f"saturation {rate_text(saturation.offered_pps)}"
        lines.append((name, saturation.offered_pps, -_MARK_ROOM + 8))
    for text, load, height in lines:
        # PDR's name lies left of its line and saturation's right of its own, a row higher: the two
        # lines are often close, and so neither crosses the other's name.
        room, at = vega.text_width(text) + 6, vega.place_of(load, span) * plot
        is_left = at > room if text.startswith("PDR") else at > plot - room
        rows = [{"load": load, "text": text}]
        rule = {"x": x, "y": vega.px(height - 6), "y2": vega.px(_HEIGHT)}
        name_at = {"x": x, "y": vega.px(height), "text": vega.nominal("text")}
        align: Look = {"align": "right" if is_left else "left", "dx": -4 if is_left else 4}
        layers += [
            vega.mark("rule", rows, rule, strokeWidth=1.2, **ink),
            vega.mark("text", rows, name_at, **align, **ink),
        ]
    return layers


def _bent(points: Sequence[tuple[float, Mapping[str, float]]]) -> list[Row]:
    """Loads with PLRs (by field), interpolated linearly in PLR as the judge interpolates PDR.

    On a log axis such a line is bent, and meets the limit at PDR.
    """
    rows: list[Row] = []

    def add(load: float, values: Mapping[str, float]) -> None:
        rows.append({"load": load, **{field: max(FLOOR, value) for field, value in values.items()}})

    for (load, plrs), (next_load, next_plrs) in pairwise(points):
        add(load, plrs)
        bends = sorted({bend for field in plrs for bend in _bends(plrs[field], next_plrs[field])})
        for bend in bends:
            add(
                load + bend * (next_load - load),
                {field: plrs[field] + bend * (next_plrs[field] - plrs[field]) for field in plrs},
            )
    add(*points[-1])
    return rows


def _bends(plr: float, next_plr: float) -> list[float]:
    """Positions on a segment, between 0 and 1, at equal steps of PLR on a log axis."""
    low, high = sorted((max(FLOOR, plr), max(FLOOR, next_plr)))
    if high / low < 1.05:
        return []
    steps = (low * (high / low) ** (step / _BENDS) for step in range(_BENDS))
    places = ((value - plr) / (next_plr - plr) for value in steps)
    return [place for place in places if 0 < place < 1]


def line(curve: Curve) -> list[Row]:
    """The line of a curve: `load` [packet/s] and `plr`, from point to point."""
    return _bent([(point.offered_pps, {"plr": point.plr}) for point in curve.points])


def _delivery_panel(curve: Curve, span: Span, colour: str, plot: int) -> Spec:
    rows: list[Row] = [
        {
            "load": point.offered_pps,
            "dr": point.dr,
            "hover": f"{rate_text(point.offered_pps)}: {theme.share(point.dr)} delivered",
        }
        for point in curve.points
    ]
    shares = Span(0.0, 1.0, log=False)
    axis = vega.y_axis(
        shares,
        "share",
        _DELIVERY_ROOM,
        title="packets delivered (DR)",
        values=[0, 0.25, 0.5, 0.75, 1],
    )
    place = {
        "x": vega.quantitative("load", span, vega.x_axis("offered load", span, "rate", plot)),
        "y": vega.quantitative("dr", shares, axis),
    }
    look: Look = {"filled": True, "size": 36, "opacity": 1}
    return vega.layers(
        [
            vega.mark("line", rows, place, strokeWidth=2, color=colour),
            vega.mark("point", rows, place, hover=True, color=colour, **look),
        ],
        width=plot,
        height=_HEIGHT,
    )


def _pdr_text(verdict: Verdict) -> str:
    if verdict.pdr is None:
        return "below the first load" if verdict.tested else "not known"
    return _estimate_text(verdict.pdr)


def _estimate_text(estimate: LoadEstimate) -> str:
    if estimate.bounded:
        return rate_text(estimate.pps)
    return f"at least {rate_text(estimate.low_pps)}" if estimate.low_pps > 0 else "not known"


def _estimate(estimate: LoadEstimate | None, why: str) -> Entry:
    if estimate is None:
        return Missing(why)
    if estimate.bounded:
        low, high = rate_text(estimate.low_pps), rate_text(estimate.high_pps)
        return PrintedNumber(
            _estimate_text(estimate), estimate.pps, small=theme.interval(low, high)
        )
    if estimate.low_pps <= 0:
        return Missing("the loads end too early to say")
    # The lower end of its interval: the point estimate is only where the ladder ends.
    return PrintedNumber(_estimate_text(estimate), estimate.low_pps)


def _share(value: float) -> str:
    """A probability that was counted over drawn curves: never 0 or 1."""
    if value < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if value > 0.999 else theme.share(value)


def _saturation(verdict: Verdict) -> Entry:
    if verdict.saturation is None:
        return Missing("not seen to begin and last")
    saturation = verdict.saturation
    return PrintedNumber(
        rate_text(saturation.offered_pps),
        saturation.offered_pps,
        small=f"then {rate_text(saturation.throughput_pps)} pass",
    )
