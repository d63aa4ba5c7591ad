"""Sections on which planes differ significantly, and the statistics behind that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from planewise.judge import policies
from planewise.judge.statistics.comparison import Comparison, Family, LevelValue, compare_levels
from planewise.judge.statistics.kendall import KendallBar
from planewise.judge.statistics.metrics import by_sending, figures_in
from planewise.judge.statistics.pairing import OVERALL
from planewise.judge.statistics.ranking import best_first, check_ranking
from planewise.judge.statistics.sentences import bound_text, change_text, level_text, value_text
from planewise.report import charts, theme
from planewise.report.data import RunData
from planewise.report.figure import (
    Entry,
    Figure,
    Missing,
    PrintedNumber,
    Section,
    Table,
    slug,
)
from planewise.report.sections import load
from planewise.report.vega import Span
from planewise.store.cells import common_factors, words
from planewise.units import percent_text

FACTOR = "plane"

_METRICS = (
    *("rtt", "rtt_p99", "overhead", "response", "throughput", "pdr", "loss"),
    *("transmitted", "transmitted_bits", "goodput"),
)
"""Metrics of a report's comparisons, in order; then CPU."""
_MOST_PAIRS = 6
"""Most pairs drawn of a stratum; of more, only the best plane against each other one."""

OUTCOMES = {"better": "good", "worse": "bad", "practically the same": "muted"}
"""Colour of an outcome; others are undecided."""

_STRATA = {
    "idle": "Without load",
    "none": "Without load",
    "cpu": "CPU load",
    "sender": "Load at the sender",
    "responder": "Load at the responder",
    OVERALL: "All conditions",
    "all": "All loads",
}
_COMPARED = {FACTOR: "Planes", policies.FACTOR: "Policies"}


Compared = tuple[Family, str]
"""The levels of a factor compared by one metric, and a sentence on whether the ranking changes with
load; empty with one load."""


def compare(data: RunData) -> list[Compared]:
    """Comparisons of planes by every metric that at least two of them have."""
    hosts = sorted({host for trial in data.done for host in trial.cpu})
    result: list[Compared] = []
    for name in (*_METRICS, *sorted(figures_in([data.sample])), *(f"cpu:{host}" for host in hosts)):
        for observed in by_sending(data.observed(name), FACTOR):
            if len({one.cell[FACTOR] for one in observed.observations if FACTOR in one.cell}) < 2:
                continue
            family = compare_levels(observed, FACTOR)
            if family.comparisons:
                check = check_ranking(observed, FACTOR) if name == "rtt" else None
                result.append((family, check.sentence if check is not None else ""))
    return result


def sections(compared: Sequence[Compared]) -> Iterator[Section]:
    """Planes compared pair by pair; the first metric is open."""
    if not compared:
        return
    figures: dict[str, Figure] = {}
    for family, ranking in compared:
        metric, sending = family.metric, family.metric.sending
        name = slug(f"compared-{metric.name}")
        if sending is not None and name in figures:
            way = f"{sending.frequency_pps:g}pps-{sending.pattern}-{sending.application}"
            name = slug(f"{name}-{way}")
        figures[name] = comparison_figure(family, name, ranking)
    yield Section(
        "compared",
        "Significant differences",
        "Planes compared pair by pair within blocks, by replicates. “Better” and "
        "“worse” hold after correction for all comparisons of a metric; “practically the same” "
        "means that the difference is within the margin.",
        tuple(figures.values()),
    )


def statistics(compared: Sequence[Compared], data: RunData) -> Iterator[Section]:
    """What the statements above rest on: effect sizes, correlations, values and curves."""
    curves = common_factors(item.factors for item in data.curves)
    tables = [
        (
            f"PLR, DR and TIR: {item.plane}, {words(item.factors, curves)}",
            load.curve_table(item.curve),
        )
        for item in data.curves[: load.MOST_CURVES]
    ]
    families = [family for family, _ in compared]
    if families:
        tables = [
            ("Every comparison (Hodges–Lehmann estimates)", table(families)),
            ("Typical values", values(families)),
            *tables,
        ]
    if tables:
        yield Section(
            "statistics",
            "Statistics",
            "For those who check the statements above. PLR: packet loss ratio; DR: delivery ratio; "
            "TIR: throughput increase ratio between neighbouring loads.",
            tuple(kendall_figures(families, data)),
            tuple(tables),
        )


def comparison_figure(family: Family, name: str, ranking: str = "") -> Figure:
    """A line a pair, a panel a stratum."""
    drawn = _drawn(family)
    is_ratio = family.scale == "ratio"
    margin = family.comparisons[0].margin
    span = Span(*_ends(family), log=is_ratio)
    within = (1 / (1 + margin), 1 + margin) if is_ratio else (-margin, margin)
    said = percent_text(round(margin, 3)) if is_ratio else "the margin"
    dropped = len(family.comparisons) - sum(len(pairs) for _, pairs in drawn)
    axis = {
        "values": _ticks(span.low, span.high, ratio=is_ratio),
        "labelExpr": "format(datum.value, '~r') + '×'"
        if is_ratio
        else "format(datum.value * 100, '+~r') + ' points'",
        "title": "first / second" if is_ratio else "first minus second",
        "titleAnchor": "start",
        "labelOverlap": "greedy",
        "labelSeparation": 18,
    }

    def row(pair: Comparison) -> dict[str, object]:
        def place(change: float) -> float:
            return span.inside(1 + change if is_ratio else change)

        pair_words = f"{pair.a} against {pair.b}"
        outcome = outcome_text(pair, family)
        return {
            "value": place(pair.change),
            "low": place(pair.low),
            "high": place(pair.high),
            "label": f"{pair.a} / {pair.b}",
            "text": outcome,
            "colour": theme.var(OUTCOMES.get(pair.outcome, "undecided")),
            "hover": f"{pair_words}, {stratum_words(pair.stratum)}: {outcome} "
            f"({interval_text(pair, family)})",
        }

    return Figure(
        name,
        f"{_COMPARED[family.factor]} compared by {family.metric.title}",
        f"Dot: change of the first {family.factor} against the second; line: 95 % interval; grey "
        f"band: up to {said} apart is practically the same. The outcome holds for all comparisons "
        "of this metric together."
        + (f" {dropped} more comparisons are under Statistics." if dropped else "")
        + (f" {ranking}" if ranking else ""),
        tuple(
            charts.intervals(
                stratum_words(stratum),
                [row(pair) for pair in pairs],
                span,
                zero=1.0 if is_ratio else 0.0,
                margin=within,
                axis=axis,
            )
            for stratum, pairs in drawn
        ),
        table([family]),
        lead=summary(family),
        notes=tuple(family.notes[:6]),
    )


def _drawn(family: Family) -> list[tuple[str, list[Comparison]]]:
    """Comparisons by stratum, all conditions first; in each, `a` is the better level."""
    ranked = [value.level for value in best_first(family, OVERALL)]
    order = [*ranked, *(level for level in family.levels if level not in ranked)]
    result = []
    for stratum in (OVERALL, *(name for name in family.strata if name != OVERALL)):
        pairs = [pair for pair in family.comparisons if pair.stratum == stratum]
        if len(pairs) > _MOST_PAIRS:
            pairs = [pair for pair in pairs if order[0] in (pair.a, pair.b)]
        better = [sorted((pair.a, pair.b), key=order.index) for pair in pairs]
        better.sort(key=lambda levels: [order.index(level) for level in levels])
        if found := [pair for a, b in better if (pair := family.find(a, b, stratum))]:
            result.append((stratum, found))
    return result


def stratum_words(stratum: str) -> str:
    """A stratum as a heading."""
    load_words = f"{stratum[:1].upper()}{stratum[1:]} load"
    is_load = stratum in ("network", "cache", "memory")
    return _STRATA.get(stratum, load_words if is_load else stratum[:1].upper() + stratum[1:])


def outcome_text(pair: Comparison, family: Family) -> str:
    """The outcome with the change: `better, −21 %`; a bound is marked as one."""
    change = bound_text(pair.bound, change_text(pair.change, pair, family.metric))
    return pair.outcome if change == pair.outcome else f"{pair.outcome}, {change}"


def interval_text(pair: Comparison, family: Family) -> str:
    """The change's 95 % interval."""
    low, high = (change_text(end, pair, family.metric) for end in (pair.low, pair.high))
    return theme.interval(low, high)


def summary(family: Family) -> str:
    """The outcomes over all conditions, pair by pair, in one sentence."""
    better: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for pair in family.comparisons:
        if pair.stratum != OVERALL:
            continue
        if pair.outcome in ("better", "worse"):
            a, b = (pair.a, pair.b) if pair.outcome == "better" else (pair.b, pair.a)
            turned = family.find(a, b) or pair
            change = bound_text(turned.bound, change_text(turned.change, turned, family.metric))
            better.setdefault(str(a), []).append(f"{b} ({change})")
        else:
            others.setdefault(pair.outcome, []).append(f"{pair.a} and {pair.b}")
    parts = [f"{plane} is better than {_shortened(than)}" for plane, than in better.items()]
    parts += [f"{outcome}: {_shortened(pairs)}" for outcome, pairs in others.items()]
    return f"By {family.metric.title}, over all conditions: {'; '.join(parts) or 'nothing'}."


def _shortened(texts: list[str]) -> str:
    more = f"{', '.join(texts[:3])} and {len(texts) - 3} more"
    return ", ".join(texts) if len(texts) <= 4 else more


def _ends(family: Family) -> tuple[float, float]:
    """Ends of the axis: all estimates and finite ends, at most a factor of 100."""
    found = [c for pair in family.comparisons if (c := family.find(pair.b, pair.a, pair.stratum))]
    values = [
        value
        for pair in (*family.comparisons, *found)
        for value in (pair.change, pair.low, pair.high, pair.margin)
        if math.isfinite(value)
    ]
    if family.scale != "ratio":
        reach = max((abs(value) for value in values), default=0.0) * 1.1 or 0.01
        return -reach, reach
    reach = max((max(1 + v, 1 / (1 + v)) for v in values if v > -1), default=1.2)
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


def table(families: Iterable[Family]) -> Table:
    """Every comparison: one row a metric, stratum and pair."""
    rows: list[tuple[Entry, ...]] = []
    for family in families:
        for pair in family.comparisons:
            change = bound_text(pair.bound, change_text(pair.change, pair, family.metric))
            is_finite = math.isfinite(pair.low) and math.isfinite(pair.high)
            rank = f"{pair.rank_biserial:+.2f}".replace("-", "−")
            p = "< 0.001" if pair.p_family < 0.001 else f"{pair.p_family:.2g}"
            unbounded = not math.isfinite(pair.change)
            rows.append(
                (
                    family.metric.title,
                    stratum_words(pair.stratum),
                    f"{pair.a} against {pair.b}",
                    pair.outcome,
                    Missing("unbounded") if unbounded else PrintedNumber(change, pair.change),
                    interval_text(pair, family) if is_finite else "too few blocks, or a bound",
                    PrintedNumber(rank, pair.rank_biserial),
                    PrintedNumber(p, pair.p_family),
                    PrintedNumber.plain(pair.blocks),
                )
            )
        for level, reason in family.not_measurable.items():
            missing = Missing(f"not measurable: {reason}")
            title = family.metric.title
            rows.append((title, "All conditions", str(level), missing, *["—"] * 5))
    names = ("Metric", "Where", "Pair", "Outcome of the first", "Change", "95 % interval")
    return Table((*names, "Rank-biserial", "p (family)", "Blocks"), tuple(rows))


def values(families: Sequence[Family]) -> Table:
    """The typical value of each plane by metric and stratum, with its interval over blocks."""

    def interval(family: Family, value: LevelValue) -> Entry:
        if value.low is None or value.high is None:
            return "one block"
        unit = family.metric.unit
        return theme.interval(value_text(value.low, unit), value_text(value.high, unit))

    return Table.of(
        [(family, value) for family in families for value in family.values],
        {
            "Metric": lambda row: row[0].metric.title,
            "Where": lambda row: stratum_words(row[1].stratum),
            "Plane": lambda row: str(row[1].level),
            "Median over blocks": lambda row: PrintedNumber(
                level_text(row[1], row[0].metric), row[1].value
            ),
            "95 % interval": lambda row: interval(*row),
            "Replicates": lambda row: PrintedNumber.plain(row[1].replicates),
        },
    )


def kendall_figures(families: Sequence[Family], data: RunData) -> Iterator[Figure]:
    """Bars from −1 to 1: a panel a metric and stratum, as publications K and D draw them."""
    shown = [
        (family.metric.title, stratum, bars)
        for family in families
        if family.metric.name == "rtt" or family.metric.name.startswith("cpu:")
        for stratum in family.strata
        if (bars := [bar for bar in _bars(family, data) if bar.stratum == stratum])
    ]
    if not shown:
        return
    strongest, title, tau = max(
        ((bar, title, tau) for title, _, bars in shown for bar in bars if (tau := bar.correlation)),
        key=lambda found: abs(found[2].tau),
    )
    lead = "The strongest interval includes 0: no association is certain."
    if tau.low > 0 or tau.high < 0:
        lead = (
            f"Strongest: {title} is {'higher' if tau.tau > 0 else 'lower'} with {strongest.level} "
            f"(τ-b {_signed(tau.tau)}, 95 % interval {_signed(tau.low)} to {_signed(tau.high)}, "
            f"{stratum_words(strongest.stratum).lower()})."
        )
    axis = {
        "values": [-1, -0.5, 0, 0.5, 1],
        "labelExpr": "format(datum.value, '+~r')",
        "title": None,
    }
    yield Figure(
        "kendall",
        "Association between plane and metric (Kendall's τ-b)",
        "Kendall's τ-b between being on a plane and the metric, over all replicates: left of 0 "
        "the metric is lower with this plane than with the others, right of it higher; thin "
        "line: 95 % interval. It shows order, not size.",
        tuple(
            charts.intervals(
                f"{title}: {stratum_words(stratum).lower()}",
                [_bar_row(bar, data.colours) for bar in bars],
                Span(-1.0, 1.0),
                zero=0.0,
                axis=axis,
            )
            for title, stratum, bars in shown
        ),
        kendall_table(families, data.planes),
        lead=lead,
    )


def _bars(family: Family, data: RunData) -> list[KendallBar]:
    bars = [bar for bar in family.kendall if bar.correlation and str(bar.level) in data.planes]
    return sorted(bars, key=lambda bar: data.planes.index(str(bar.level)))


def _bar_row(bar: KendallBar, colours: Mapping[str, str]) -> dict[str, object]:
    tau = bar.correlation
    assert tau is not None
    ends = f"{_signed(tau.tau)} ({_signed(tau.low)} to {_signed(tau.high)})"
    return {
        "value": tau.tau,
        "low": tau.low,
        "high": tau.high,
        "label": str(bar.level),
        "text": _signed(tau.tau),
        "colour": colours[str(bar.level)],
        "hover": f"{bar.level}, {stratum_words(bar.stratum)}: τ-b {ends}, {tau.n} replicates",
    }


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def kendall_table(families: Sequence[Family], planes: Sequence[str]) -> Table:
    """Every correlation with its interval."""
    rows: list[tuple[Entry, ...]] = []
    for family in families:
        for bar in family.kendall:
            known: tuple[Entry, ...] = (Missing("nothing to compare with"), "—", "—")
            if (tau := bar.correlation) is not None:
                ends = theme.interval(_signed(tau.low), _signed(tau.high))
                number = PrintedNumber(_signed(tau.tau), tau.tau)
                known = (number, ends, PrintedNumber.plain(tau.n))
            if str(bar.level) in planes:
                title, where = family.metric.title, stratum_words(bar.stratum)
                rows.append((title, where, str(bar.level), *known))
    return Table(("Metric", "Where", "Plane", "τ-b", "95 % interval", "Replicates"), tuple(rows))
