"""Planes compared pair by pair: the change, its interval and the outcome. Decides nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planewise.judge import policies
from planewise.judge.statistics import Comparison, Family, LevelValue, Outcome
from planewise.judge.statistics.metrics import Unit
from planewise.judge.statistics.pairing import OVERALL
from planewise.judge.statistics.ranking import best_first
from planewise.judge.statistics.sentences import bound_text
from planewise.report import inference, theme
from planewise.report.figures import vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.vega import Channel, Look, Row, Span, Spec
from planewise.report.inference import Compared
from planewise.store.models import Level

_LINE = 15
"""Height of a line of text [px]."""
_MOST_PAIRS = 6
"""Most pairs drawn of a stratum; of more, only the best plane against each other one."""

OUTCOMES: dict[Outcome, theme.Colour] = {
    "better": theme.VERDICTS["GOOD"],
    "worse": theme.VERDICTS["BAD"],
    "practically the same": theme.MUTED,
    "not distinguishable": theme.VERDICTS["UNDECIDED"],
    "too few blocks": theme.VERDICTS["UNDECIDED"],
    "not known": theme.VERDICTS["UNDECIDED"],
}

STRATA = {
    "idle": "Without load",
    "none": "Without load",
    "cpu": "CPU load",
    "network": "Network load",
    "cache": "Cache load",
    "memory": "Memory load",
    "sender": "Load at the sender",
    "responder": "Load at the responder",
    OVERALL: "All conditions",
}


_COMPARED = {inference.FACTOR: "Planes", policies.FACTOR: "Policies"}


def figure(compared: Compared, *, name: str) -> Figure:
    """A line a pair, a panel a stratum."""
    family = compared.family
    drawn = _drawn(family)
    title = f"{_COMPARED[family.factor]} compared by {family.metric.title}"
    lead = inference.sentence(compared)
    margin = (
        theme.share(round(family.comparisons[0].margin, 3))
        if family.scale == "ratio"
        else "the margin"
    )

    def draw(width: int) -> Spec:
        panels = [
            _panel(family, stratum, pairs, width - 24, last=place == len(drawn) - 1)
            for place, (stratum, pairs) in enumerate(drawn)
        ]
        return vega.finish(vega.below(panels))

    dropped = len(family.comparisons) - sum(len(pairs) for _, pairs in drawn)
    return Figure(
        name=name,
        title=title,
        lead=lead,
        caption=(
            f"Dot: change of the first {family.factor} against the second (Hodges–Lehmann "
            "estimate over blocks, all else alike); line: its 95 % interval, by the same test as "
            f"the word; grey band: up to {margin} apart is practically the same. The coloured "
            "word holds for all comparisons of this metric together."
            + (f" {dropped} more comparisons are in the table." if dropped else "")
            + (f" {compared.ranking}" if compared.ranking else "")
        ),
        alt=f"Intervals of the change, pair by pair. {lead}",
        draw=draw,
        table=table([compared]),
        notes=tuple(family.notes[:6]),
    )


def _drawn(family: Family) -> list[tuple[str, list[Comparison]]]:
    """Comparisons by stratum, all conditions first; in each, `a` is the better level."""
    order = _best_first(family)
    result = []
    for stratum in (OVERALL, *(name for name in family.strata if name != OVERALL)):
        pairs = [comparison for comparison in family.comparisons if comparison.stratum == stratum]
        if len(pairs) > _MOST_PAIRS:
            pairs = [pair for pair in pairs if order[0] in (pair.a, pair.b)]
        turned = [
            comparison
            for pair in pairs
            if (comparison := family.find(*_in_order(pair, order), stratum)) is not None
        ]
        turned.sort(key=lambda pair: (order.index(pair.a), order.index(pair.b)))
        if turned:
            result.append((stratum, turned))
    return result


def _in_order(pair: Comparison, order: Sequence[Level]) -> tuple[Level, Level]:
    return (pair.a, pair.b) if order.index(pair.a) <= order.index(pair.b) else (pair.b, pair.a)


def _best_first(family: Family) -> list[Level]:
    """The levels, ranked over all conditions; levels without a rank last."""
    ranked = [value.level for value in best_first(family, OVERALL)]
    return [*ranked, *(level for level in family.levels if level not in ranked)]


def stratum_words(stratum: str) -> str:
    """A stratum as a heading."""
    return STRATA.get(stratum, stratum[:1].upper() + stratum[1:])


def _panel(
    family: Family, stratum: str, pairs: Sequence[Comparison], width: int, *, last: bool
) -> Spec:
    ratio = family.scale == "ratio"
    span = Span(*_ends(family), log=ratio)
    unit = family.metric.unit
    texts = [(f"{pair.a} against {pair.b}", _outcome(pair, unit)) for pair in pairs]
    two_lines = any(vega.text_width(pair + outcome) > width - 24 for pair, outcome in texts)
    lines = 2 if two_lines else 1
    height = _LINE * (lines + 1) * len(pairs) + 8
    margin = pairs[0].margin
    rows = [_row(pair, number, stratum, span, lines, unit) for number, pair in enumerate(pairs)]
    axis = _axis(span, labels=last)
    band = {
        "low": span.inside(1 / (1 + margin) if ratio else -margin),
        "high": span.inside(1 + margin if ratio else margin),
    }

    def along(field: str, end: str = "") -> dict[str, Channel]:
        to = {"x2": {"field": end}} if end else {}
        return {"x": vega.quantitative(field, span, axis), **to}

    full_height = {"y": vega.px(0), "y2": vega.px(height)}
    line = {"y": vega.literal("y"), "color": vega.literal("colour")}
    pair_text = {"x": vega.px(2), "y": vega.literal("pair_y"), "text": vega.nominal("pair")}
    outcome_text = {
        "x": vega.px(2 if two_lines else width - 2),
        "y": vega.literal("outcome_y"),
        "text": vega.nominal("outcome"),
        "color": vega.literal("colour"),
    }
    return vega.layers(
        [
            vega.mark(
                "rect",
                [band],
                {**along("low", "high"), **full_height},
                color=theme.GRID.light,
                opacity=0.8,
            ),
            vega.mark(
                "rule",
                [{"none": 1.0 if ratio else 0.0}],
                {**along("none"), **full_height},
                color=theme.MUTED.light,
            ),
            vega.mark("rule", rows, {**along("low", "high"), **line}, strokeWidth=2),
            vega.mark(
                "point",
                rows,
                {**along("change"), **line},
                hover=True,
                filled=True,
                size=52,
                opacity=1,
            ),
            vega.mark("text", rows, pair_text, limit=width, **_LEFT, color=theme.INK.light),
            vega.mark(
                "text",
                rows,
                outcome_text,
                **{**_LEFT, "align": "left" if two_lines else "right"},
                fontWeight=600,
            ),
        ],
        width=width,
        height=height,
        title=vega.heading(stratum_words(stratum), width),
    )


_LEFT: Look = {"align": "left", "baseline": "middle"}


def _outcome(pair: Comparison, unit: Unit) -> str:
    change = inference.bounded_change(pair, unit)
    return pair.outcome if change == pair.outcome else f"{pair.outcome}, {change}"


def _row(pair: Comparison, number: int, stratum: str, span: Span, lines: int, unit: Unit) -> Row:
    """The marks of a pair: one or two `lines` of text, and below them the interval."""

    def place(change: float) -> float:
        return span.inside(1 + change if span.log else change)

    names = f"{pair.a} against {pair.b}"
    outcome, interval = _outcome(pair, unit), inference.interval_text(pair, unit)
    top = number * _LINE * (lines + 1) + 9
    return {
        "change": place(pair.change),
        "low": place(pair.low),
        "high": place(pair.high),
        "pair_y": top,
        "outcome_y": top + _LINE * (lines - 1),
        "y": top + _LINE * lines,
        "pair": names,
        "outcome": outcome,
        "colour": OUTCOMES[pair.outcome].light,
        "hover": f"{names}, {stratum_words(stratum)}: {outcome} ({interval})",
    }


def _axis(span: Span, *, labels: bool) -> Spec:
    title = "times the second one's" if span.log else "difference"
    return {
        "values": _ticks(span.low, span.high, ratio=span.log),
        "labelExpr": "format(datum.value, '~r') + '×'"
        if span.log
        else "format(datum.value * 100, '+~r') + ' points'",
        "title": title if labels else None,
        "titleAnchor": "start",
        "labels": labels,
        "ticks": labels,
        "domain": labels,
        "labelOverlap": "greedy",
        "labelSeparation": 18,
    }


def _ends(family: Family) -> tuple[float, float]:
    """Ends of the axis: all estimates and finite ends, at most a factor of 100."""
    ratio = family.scale == "ratio"
    values = [0.0]
    for comparison in family.comparisons:
        finite = [
            v
            for v in (comparison.change, comparison.low, comparison.high, comparison.margin)
            if math.isfinite(v)
        ]
        values += finite
        turned = family.find(comparison.b, comparison.a, comparison.stratum)
        if turned is not None:
            values += [v for v in (turned.change, turned.low, turned.high) if math.isfinite(v)]
    if not ratio:
        reach = max(abs(value) for value in values) * 1.1 or 0.01
        return -reach, reach
    reach = max(max(1 + v, 1 / (1 + v)) for v in values if v > -1)
    reach = min(max(reach, 1.2) * 1.1, 100.0)
    return 1 / reach, reach


def _ticks(low: float, high: float, *, ratio: bool) -> list[float]:
    if not ratio:
        return theme.ticks(low, high, log=False, most=5)
    steps = next((steps for reach, steps in _STEPS if high < reach), _STEPS[-1][1])
    return [value for value in steps if low <= value <= high]


_STEPS = (
    (1.6, (0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5)),
    (3.0, (0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.6, 2, 2.5)),
    (math.inf, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)),
)
"""Ratios that an axis names, by how far it reaches from 1."""


def table(all_compared: Sequence[Compared]) -> Table:
    """Every comparison: one row a metric, stratum and pair."""
    several = len(all_compared) > 1
    rows: list[tuple[Entry, ...]] = []
    for compared in all_compared:
        family = compared.family
        for comparison in family.comparisons:
            rows.append(
                (
                    *((family.metric.title,) if several else ()),
                    stratum_words(comparison.stratum),
                    f"{comparison.a} against {comparison.b}",
                    comparison.outcome,
                    PrintedNumber(
                        inference.bounded_change(comparison, family.metric.unit), comparison.change
                    )
                    if math.isfinite(comparison.change)
                    else Missing("unbounded"),
                    inference.interval_text(comparison, family.metric.unit)
                    if math.isfinite(comparison.low) and math.isfinite(comparison.high)
                    else "too few blocks, or a bound",
                    PrintedNumber(
                        f"{comparison.rank_biserial:+.2f}".replace("-", "−"),
                        comparison.rank_biserial,
                    ),
                    PrintedNumber(p_text(comparison.p_family), comparison.p_family),
                    PrintedNumber.plain(comparison.blocks),
                )
            )
        for level, reason in family.not_measurable.items():
            rows.append(
                (
                    *((family.metric.title,) if several else ()),
                    "All conditions",
                    str(level),
                    Missing(f"not measurable: {reason}"),
                    *["—"] * 5,
                )
            )
    return Table(
        columns=(
            *(("Metric",) if several else ()),
            "Where",
            "Pair",
            "Outcome of the first",
            "Change",
            "95 % interval",
            "Rank-biserial",
            "p (family)",
            "Blocks",
        ),
        rows=tuple(rows),
    )


def values(all_compared: Sequence[Compared]) -> Table:
    """The typical value of each plane by metric and stratum, with its interval over blocks."""

    def interval(family: Family, value: LevelValue) -> Entry:
        if value.low is None or value.high is None:
            return "one block"
        return theme.interval(
            inference.value_text(family, value.low), inference.value_text(family, value.high)
        )

    return Table.of(
        [(compared.family, value) for compared in all_compared for value in compared.family.values],
        {
            "Metric": lambda row: row[0].metric.title,
            "Where": lambda row: stratum_words(row[1].stratum),
            "Plane": lambda row: str(row[1].level),
            "Mean": lambda row: PrintedNumber(
                bound_text(row[1].bound, inference.value_text(row[0], row[1].value)), row[1].value
            ),
            "95 % interval": lambda row: interval(*row),
            "Replicates": lambda row: PrintedNumber.plain(row[1].replicates),
        },
    )


def p_text(p: float) -> str:
    """A p-value as it is printed."""
    return "< 0.001" if p < 0.001 else f"{p:.2g}"
