"""Load-loss curves as PASTRAMI draws them: PLR on a log axis, DR beside it.

PLR is floored at 10⁻⁶ (arXiv 2410.18644, section IV): a linear axis hides the region of low loss
in which a curve shows whether its PDR can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planewise.judge.curve import Curve, LoadPoint
from planewise.judge.verdict import LoadEstimate, Verdict
from planewise.report import charts, theme, vega
from planewise.report.data import JudgedCurve, RunData
from planewise.report.figure import Entry, Figure, Missing, PrintedNumber, Section, Table, slug
from planewise.report.vega import Row, Span, Spec
from planewise.store.cells import Factors, common_factors, words
from planewise.units import percent_text, rate_text

FLOOR = 1e-6
MOST_CURVES = 24
"""Most curves drawn one by one; the table has all."""
_LOSSES = Span(FLOOR, 1.0, log=True)
_LIMITED = " Hollow: only the generator's own limit was seen."


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
    loads = ", ".join(rate_text(load) for load in verdict.next_loads)
    delivered: list[Row] = [
        {
            "series": name,
            "x": point.offered_pps,
            "value": point.dr,
            "hover": f"{rate_text(point.offered_pps)}: {percent_text(point.dr)} delivered",
        }
        for point in curve.points
    ]
    return Figure(
        name,
        title,
        f"Packets lost and delivered by offered load, with 95 % intervals of the mean; dashed "
        f"line: {limit} loss, the limit of PDR; shaded: 95 % interval of PDR."
        f"{_LIMITED if any(map(_limited, curve.points)) else ''}",
        (
            _losses({name: curve}, {name: colour}, span, verdict.plr, verdict),
            charts.lines(
                "",
                delivered,
                {name: colour},
                Span(0.0, 1.0),
                "share",
                charts.numbers(span, "offered load", "rate"),
                labels=False,
                axis={"title": "packets delivered"},
            ),
        ),
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
    span = Span.of(
        (load for item in items for load in item.curve.offered_pps.tolist()), log_from=30
    )
    curves = {item.plane: item.curve for item in items}
    pdrs = ", ".join(
        f"{item.plane} {_estimate_text(pdr)}" for item in items if (pdr := item.verdict.pdr)
    )
    limited = any(_limited(point) for item in items for point in item.curve.points)
    return Figure(
        slug(f"loss-{label}"),
        f"Loss by offered load: all planes, {label}",
        "Share of packets lost, mean over the runs; the axis is logarithmic and ends at one in a "
        "million. The further right a line rises, the more its plane carries. Dashed: "
        f"{percent_text(limit)} loss.{_LIMITED if limited else ''}",
        (_losses(curves, {name: colours[name] for name in curves}, span, limit),),
        verdict_table(items, ()),
        lead=f"PDR: {pdrs}." if pdrs else "",
    )


def _losses(
    curves: Mapping[str, Curve],
    colours: Mapping[str, str],
    span: Span,
    limit: float,
    verdict: Verdict | None = None,
) -> Spec:
    """Loss by offered load; with a `verdict`, PDR and saturation are marked."""
    drawn = [row for name, curve in curves.items() for row in line(name, curve)]
    pdr = None if verdict is None else verdict.pdr
    saturation = None if verdict is None else verdict.saturation
    marked: dict[str, float] = {}
    shaded: list[Row] = []
    if pdr is not None and pdr.bounded and pdr.pps <= span.high:
        marked[f"PDR {rate_text(pdr.pps)}"] = pdr.pps
        ends = {"from": span.inside(pdr.low_pps), "to": span.inside(pdr.high_pps)}
        shaded = [{**ends, "hover": "95 % interval of PDR"}]
    if saturation is not None and saturation.offered_pps <= span.high:
        marked[f"saturation {rate_text(saturation.offered_pps)}"] = saturation.offered_pps
    small = f"datum.value < 1.5e-6 ? '≤ 0.0001 %' : {vega.with_unit('share')}"
    return charts.lines(
        "",
        drawn,
        colours,
        _LOSSES,
        "share",
        charts.numbers(span, "offered load", "rate"),
        points=[row for row in drawn if not row["limited"]],
        hollow=[row for row in drawn if row["limited"]],
        shaded=shaded,
        labels=verdict is None,
        level=(limit, f"{percent_text(limit)} lost"),
        marked=marked,
        axis={
            "title": "packets lost",
            "labelExpr": small,
            "values": theme.ticks(FLOOR, 1.0, log=True, most=7),
        },
    )


def line(name: str, curve: Curve) -> list[Row]:
    """The points of a curve, as `charts.lines` draws them."""

    def inside(plr: float) -> float:
        return max(FLOOR, plr)

    rows: list[Row] = []
    for point in curve.points:
        low, high = point.interval95 or (None, None)
        limited = f", {point.limited} limited by the generator" if point.limited else ""
        lost = f"{percent_text(point.plr)} lost, {point.count} runs{limited}"
        rows.append(
            {
                "series": name,
                "x": point.offered_pps,
                "value": inside(point.plr),
                "low": None if low is None else inside(low),
                "high": None if high is None else inside(high),
                "limited": _limited(point),
                "hover": f"{name} at {rate_text(point.offered_pps)}: {lost}",
            }
        )
    return rows


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
                Missing("no lower load")
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


def _estimate_text(estimate: LoadEstimate) -> str:
    if estimate.bounded:
        return rate_text(estimate.pps)
    return f"at least {rate_text(estimate.low_pps)}" if estimate.low_pps > 0 else "not known"


def _estimate(estimate: LoadEstimate | None, why: str) -> Entry:
    if estimate is None:
        return Missing(why)
    if estimate.bounded:
        small = estimate.interval_text(rate_text)
        return PrintedNumber(_estimate_text(estimate), estimate.pps, small=small)
    if estimate.low_pps <= 0:
        return Missing("the highest load is too low to tell")
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
