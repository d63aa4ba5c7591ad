"""Load-loss curves as PASTRAMI draws them: PLR on a log axis, DR beside it.

PLR is floored at 10⁻⁶ (arXiv 2410.18644, section IV): a linear axis hides the region of low loss
in which a curve shows whether its PDR can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from planewise.judge.curve import Curve, LoadPoint
from planewise.judge.verdict import LoadEstimate, Verdict
from planewise.report import theme, vega
from planewise.report.data import JudgedCurve, RunData
from planewise.report.figure import Entry, Figure, Missing, PrintedNumber, Section, Table, slug
from planewise.report.vega import AXIS_ROOM, WIDTH, Row, Span, Spec, mark
from planewise.store.cells import Factors, common_factors, words
from planewise.units import percent_text, rate_text

FLOOR = 1e-6
MOST_CURVES = 24
"""Most curves drawn one by one; the table has all."""
_BENDS = 24
"""Points by which a segment is bent on the log axis."""
_HEIGHT = 210
_ROOM = AXIS_ROOM + 16
"""Left of the plot, for labels such as `≤ 0.0001 %`."""
_LOSSES = Span(FLOOR, 1.0, log=True)
_ORDER: Spec = {"field": "load", "type": "quantitative"}
_LIMITED = " Crosses: only the generator's own limit was seen."


def sections(data: RunData) -> Iterator[Section]:
    """Curves of all planes together, then one by one."""
    if not data.curves:
        return
    common = common_factors(item.factors for item in data.curves)
    contexts: dict[Factors, list[JudgedCurve]] = {}
    for item in data.curves:
        contexts.setdefault(item.factors, []).append(item)
    figures = [
        overview(items, data.colours, words(factors, common))
        for factors, items in list(contexts.items())[:MOST_CURVES]
        if len(items) > 1
    ]
    drawn = data.curves[:MOST_CURVES]
    titles = [f"{item.plane}, {words(item.factors, common)}" for item in drawn]
    figures += [
        curve_figure(
            item.curve,
            item.verdict,
            title=title,
            name=slug(f"loss-{item.plane}-{words(item.factors)}"),
            colour=data.colours[item.plane],
        )
        for item, title in zip(drawn, titles, strict=True)
    ]
    limit = percent_text(data.curves[0].verdict.plr)
    more = len(data.curves) - MOST_CURVES
    yield Section(
        "loss",
        "Throughput and loss",
        f"PDR is the highest load at which at most {limit} is lost. The verdict says whether that "
        "figure represents the whole curve: GOOD if throughput stays level beyond it, BAD if it "
        "still rises or falls, UNDECIDED if the trials do not show which.",
        tuple(figures),
        (("Verdicts", verdict_table(data.curves, common)),),
        f"{more} more curves are in the table; `planewise judge RUN --figures DIR` draws them."
        if more > 0
        else "",
    )


def curve_figure(
    curve: Curve, verdict: Verdict, *, title: str, name: str, colour: str = theme.var("veth")
) -> Figure:
    """One curve: loss with its interval, PDR and saturation; delivery beside it."""
    limit = percent_text(verdict.plr)
    span = Span.of(curve.offered_pps.tolist(), log_from=30)
    pdr = "below the first load" if verdict.tested else "not known"
    pdr = pdr if verdict.pdr is None else _estimate_text(verdict.pdr)
    loads = ", ".join(rate_text(load) for load in verdict.next_loads)
    limited = any(_limited(point) for point in curve.points)
    return Figure(
        name,
        title,
        f"Packets lost and delivered by offered load. Band: 95 % interval of the mean; dashed "
        f"line: {limit} loss, the limit of PDR; shaded: 95 % interval of PDR; rings: at most one "
        f"packet in a million lost.{_LIMITED if limited else ''}",
        f"Load-loss curve of {title}: {verdict.verdict}. {verdict.reason}. PDR at {limit}: {pdr}.",
        (_loss_panel(curve, verdict, span, colour), _delivery_panel(curve, span, colour)),
        curve_table(curve),
        lead=verdict.reason,
        verdict=verdict.verdict,
        notes=(
            f"Stability: {verdict.stability}",
            *(caution.text for caution in verdict.warnings),
            *((f"further trials would help most at {loads}",) if loads else ()),
        ),
    )


def overview(items: Sequence[JudgedCurve], colours: Mapping[str, str], label: str) -> Figure:
    """The curves of several planes under one load in one panel."""
    limit = items[0].verdict.plr
    loads = [load for item in items for load in item.curve.offered_pps.tolist()]
    span = Span.of(loads, log_from=30)
    lines: list[Row] = []
    points: list[Row] = []
    crosses: list[Row] = []
    for item in items:
        lines += [{"plane": item.plane, **row} for row in line(item.curve)]
        for point in item.curve.points:
            said = f"{item.plane} at {rate_text(point.offered_pps)}: {percent_text(point.plr)} lost"
            row = {"plane": item.plane, **_point(point), "hover": said}
            (crosses if _limited(point) else points).append(row)
    room = vega.label_room(item.plane for item in items)
    plot = WIDTH - _ROOM - room - 4
    place = {**_place(span, plot), "color": vega.coloured("plane", colours)}
    ends = [(item.plane, _height(item.curve.points[-1].plr)) for item in items]
    pdrs = ", ".join(
        f"{item.plane} {_estimate_text(pdr)}" for item in items if (pdr := item.verdict.pdr)
    )
    marks = [
        _limit_line(limit),
        mark("line", lines, {**place, "order": _ORDER}, strokeWidth=2),
        mark("point", points, place, hover=True, filled=True, size=28, opacity=1),
        _crosses(crosses, place),
        *_limit_name(limit),
        vega.end_labels(ends, colours, x=plot + 6, height=_HEIGHT),
    ]
    return Figure(
        slug(f"loss-{label}"),
        f"Loss by offered load: all planes, {label}",
        "Share of packets lost, mean over the runs; the axis is logarithmic and ends at one in a "
        "million. The further right a line rises, the more its plane carries. Dashed: "
        f"{percent_text(limit)} loss.{_LIMITED if crosses else ''}",
        f"Load-loss curves of all planes, {label}. PDR: {pdrs}.",
        (vega.panel(marks, "", width=plot, height=_HEIGHT),),
        verdict_table(items, ()),
        lead=f"PDR: {pdrs}." if pdrs else "",
    )


def _point(point: LoadPoint) -> dict[str, float]:
    return {"load": point.offered_pps, "plr": max(FLOOR, point.plr)}


def _place(span: Span, plot: int) -> dict[str, Spec]:
    """Offered load along the plot, loss upwards."""
    return {"x": vega.along("load", span, "rate", plot, "offered load"), "y": _loss("plr")}


def _crosses(rows: Sequence[Row], encoding: Mapping[str, Spec], **look: str) -> Spec:
    """Loads at which only the generator's limit was seen."""
    return mark(
        "point",
        rows,
        encoding,
        hover=True,
        fill="transparent",
        filled=False,
        shape="cross",
        size=60,
        strokeWidth=1.5,
        **look,
    )


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
            "Runs that agree": lambda item: _agree(item.verdict),
            "Warnings": lambda item: PrintedNumber.plain(len(item.verdict.warnings)),
        },
    )


def _agree(verdict: Verdict) -> Entry:
    stability = verdict.stability
    agree = stability.runs - stability.disturbed
    return PrintedNumber(f"{agree} of {stability.runs}", agree)


def curve_table(curve: Curve) -> Table:
    """A curve's numbers, one row an offered load."""

    def interval(point: LoadPoint) -> Entry:
        if point.interval95 is None:
            return Missing("a single run has no interval")
        low, high = point.interval95
        return f"{percent_text(low)} – {percent_text(high)}"

    return Table.of(
        list(zip(curve.points, [None, *curve.tir.tolist()], strict=True)),
        {
            "Offered": lambda row: PrintedNumber.rate(row[0].offered_pps),
            "Runs": lambda row: PrintedNumber.plain(len(row[0].runs)),
            "Limited by the generator": lambda row: PrintedNumber.plain(row[0].limited),
            "PLR": lambda row: PrintedNumber.share(row[0].plr),
            "95 % interval": lambda row: interval(row[0]),
            "DR": lambda row: PrintedNumber.share(row[0].dr),
            "Forwarded": lambda row: PrintedNumber.rate(row[0].forwarded_pps),
            "TIR": lambda row: (
                Missing("no load before the first")
                if row[1] is None
                else PrintedNumber(f"{row[1]:.3f}", row[1])
            ),
            "Lost": lambda row: PrintedNumber.count(row[0].lost),
            "Seen by drop counters": lambda row: (
                Missing("no counter was read")
                if row[0].drops is None
                else PrintedNumber.count(row[0].drops)
            ),
        },
    )


def _limited(point: LoadPoint) -> bool:
    """Whether the generator limited every run at this load."""
    return point.limited == len(point.runs)


def _loss(field: str) -> Spec:
    """The share lost, on the axis that ends at `FLOOR`."""
    labels = f"datum.value < 1.5e-6 ? '≤ 0.0001 %' : {vega.with_unit('share')}"
    room: dict[str, Any] = {
        "minExtent": _ROOM,
        "maxExtent": _ROOM,
        "titleX": 8 - _ROOM,
        "labelExpr": labels,
    }
    room["values"] = theme.ticks(FLOOR, 1.0, log=True, most=7)
    channel = vega.upwards(field, _LOSSES, "share", "packets lost", **room)
    channel["scale"]["clamp"] = True
    return channel


def _height(plr: float) -> float:
    """Height of a PLR in the plot [px from its upper edge]."""
    return _HEIGHT * (1 - _LOSSES.place(_LOSSES.inside(plr)))


def _limit_line(limit: float) -> Spec:
    look: dict[str, Any] = {"strokeDash": [5, 4], "strokeWidth": 1.2, "color": theme.var("alert")}
    return mark("rule", [{"plr": limit}], {"y": _loss("plr")}, **look)


def _limit_name(limit: float) -> list[Spec]:
    """The limit's label below its line, where points are rare, with an outline."""
    rows = [{"plr": limit, "text": f"{percent_text(limit)} lost"}]
    place = {"x": vega.px(4), "y": _loss("plr"), "text": vega.text("text")}
    rim: dict[str, Any] = {"stroke": theme.var("paper"), "strokeWidth": 3, "strokeJoin": "round"}
    return [
        mark("text", rows, place, align="left", dy=9, **rim, color=theme.var("paper")),
        mark("text", rows, place, align="left", dy=9, color=theme.var("alert")),
    ]


def _loss_panel(curve: Curve, verdict: Verdict, span: Span, colour: str) -> Spec:
    plot = WIDTH - _ROOM - 12
    points: list[Row] = []
    rings: list[Row] = []
    crosses: list[Row] = []
    for point in curve.points:
        limited = f", {point.limited} limited by the generator" if point.limited else ""
        said = f"{percent_text(point.plr)} lost, {point.count} runs{limited}"
        row = {**_point(point), "hover": f"{rate_text(point.offered_pps)}: {said}"}
        (crosses if _limited(point) else rings if point.plr <= FLOOR else points).append(row)
    place = _place(span, plot)
    dot = {"size": 36, "color": colour}
    marks = [
        *_band(curve, place, colour),
        _limit_line(verdict.plr),
        *_load_lines(verdict, span, plot, place["x"]),
        mark("line", line(curve), {**place, "order": _ORDER}, strokeWidth=2, color=colour),
        mark("point", points, place, hover=True, filled=True, opacity=1, **dot),
        mark("point", rings, place, hover=True, strokeWidth=1.5, fill="transparent", **dot),
        _crosses(crosses, place, color=theme.var("muted")),
        *_limit_name(verdict.plr),
    ]
    return vega.panel(marks, "", width=plot, height=_HEIGHT)


def _band(curve: Curve, place: Mapping[str, Spec], colour: str) -> list[Spec]:
    """The 95 % interval of the mean, where at least two loads have one."""
    points = [
        (point.offered_pps, {"low": interval[0], "high": interval[1]})
        for point in curve.points
        if (interval := point.interval95) is not None
    ]
    if len(points) < 2:
        return []
    band = {**place, "y": _loss("low"), "y2": {"field": "high"}}
    return [mark("area", _bent(points), band, opacity=0.22, color=colour)]


def _load_lines(verdict: Verdict, span: Span, plot: int, x: Spec) -> list[Spec]:
    """Vertical lines at PDR and saturation, with their names above the plot."""
    marks: list[Spec] = []
    ink: dict[str, Any] = {"color": theme.var("ink")}
    pdr, saturation = verdict.pdr, verdict.saturation
    lines: list[tuple[str, float, int]] = []
    if pdr is not None and pdr.bounded and pdr.pps <= span.high:
        lines.append((f"PDR {rate_text(pdr.pps)}", pdr.pps, -10))
        ends = {"from": span.inside(pdr.low_pps), "to": span.inside(pdr.high_pps)}
        shade = {"x": {**x, "field": "from"}, "x2": {"field": "to"}}
        marks.append(mark("rect", [ends], shade, opacity=0.12, **ink))
    if saturation is not None and saturation.offered_pps <= span.high:
        name = f"saturation {rate_text(saturation.offered_pps)}"
        lines.append((name, saturation.offered_pps, -26))
    for text, load, height in lines:
        # The lines are often close: PDR's name lies left of its line, saturation's right.
        room, at = 7.2 * len(text) + 6, span.place(load) * plot
        is_left = at > room if text.startswith("PDR") else at > plot - room
        rows = [{"load": load, "text": text}]
        rule = {"x": x, "y": vega.px(height - 6), "y2": vega.px(_HEIGHT)}
        name_at = {"x": x, "y": vega.px(height), "text": vega.text("text")}
        align: dict[str, Any] = {
            "align": "right" if is_left else "left",
            "dx": -4 if is_left else 4,
        }
        marks += [
            mark("rule", rows, rule, strokeWidth=1.2, **ink),
            mark("text", rows, name_at, **align, **ink),
        ]
    return marks


def _bent(points: Sequence[tuple[float, Mapping[str, float]]]) -> list[Row]:
    """Loads with PLRs (by field), interpolated linearly in PLR as the judge interpolates PDR.

    On a log axis such a line is bent, and meets the limit at PDR.
    """
    rows: list[Row] = []

    def add(load: float, values: Mapping[str, float]) -> None:
        rows.append({"load": load, **{field: max(FLOOR, plr) for field, plr in values.items()}})

    for (load, plrs), (next_load, next_plrs) in pairwise(points):
        add(load, plrs)
        bends = sorted({bend for field in plrs for bend in _bends(plrs[field], next_plrs[field])})
        for bend in bends:
            between = {f: plrs[f] + bend * (next_plrs[f] - plrs[f]) for f in plrs}
            add(load + bend * (next_load - load), between)
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


def _delivery_panel(curve: Curve, span: Span, colour: str) -> Spec:
    plot = WIDTH - AXIS_ROOM - 12
    rows: list[Row] = [
        {
            "load": point.offered_pps,
            "dr": point.dr,
            "hover": f"{rate_text(point.offered_pps)}: {percent_text(point.dr)} delivered",
        }
        for point in curve.points
    ]
    steps = [0, 0.25, 0.5, 0.75, 1]
    place = {
        "x": vega.along("load", span, "rate", plot, "offered load"),
        "y": vega.upwards("dr", Span(0.0, 1.0), "share", "packets delivered", values=steps),
    }
    marks = [
        mark("line", rows, place, strokeWidth=2, color=colour),
        mark("point", rows, place, hover=True, color=colour, filled=True, size=36, opacity=1),
    ]
    return vega.panel(marks, "", width=plot, height=_HEIGHT)


def _estimate_text(estimate: LoadEstimate) -> str:
    if estimate.bounded:
        return rate_text(estimate.pps)
    return f"at least {rate_text(estimate.low_pps)}" if estimate.low_pps > 0 else "not known"


def _estimate(estimate: LoadEstimate | None, why: str) -> Entry:
    if estimate is None:
        return Missing(why)
    if estimate.bounded:
        ends = theme.interval(rate_text(estimate.low_pps), rate_text(estimate.high_pps))
        return PrintedNumber(_estimate_text(estimate), estimate.pps, small=ends)
    if estimate.low_pps <= 0:
        return Missing("the loads end too early to tell")
    # The lower end of its interval: the point estimate is only where the ladder ends.
    return PrintedNumber(_estimate_text(estimate), estimate.low_pps)


def _saturation(verdict: Verdict) -> Entry:
    if verdict.saturation is None:
        return Missing("not reached")
    saturation = verdict.saturation
    return PrintedNumber(
        rate_text(saturation.offered_pps),
        saturation.offered_pps,
        small=f"then {rate_text(saturation.throughput_pps)} are forwarded",
    )
