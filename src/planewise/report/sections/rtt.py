"""Sections of the RTT trials: round-trip time, slow packets, breakdown and losses."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from planewise.judge.statistics.sentences import bound_text
from planewise.report import charts, facets, theme, vega
from planewise.report.data import RunData
from planewise.report.facets import Facets, Item, Panel
from planewise.report.figure import (
    Entry,
    Figure,
    Missing,
    PrintedNumber,
    Section,
    Table,
)
from planewise.report.rtt_cell import MOST_POINTS, TAIL, Distribution, RttCell, Spread, meaningful
from planewise.report.vega import Row, Span, Spec
from planewise.store.cells import Factors, common_factors, words
from planewise.units import percent_text, rate_text, time_text

Time = Callable[[RttCell], Spread | str]
"""A time of a cell, or the reason why it is missing."""

_MOST_DOTS = 2400
"""Most dots of a scatter; more only overlap."""
_MOST_TAILS = 4
"""Most conditions whose distribution is drawn; the table of the tail has all."""


def by_condition(data: RunData) -> Facets[RttCell]:
    """The run's RTT cells in panels."""
    return facets.split([Item(cell.plane, cell.factors, cell) for cell in data.rtt], data.naming)


def times(data: RunData) -> Iterator[Section]:
    """Round-trip time by plane and condition."""
    if not data.rtt:
        return
    where = (
        "as the sending guest's program sees it"
        if data.rtt_metric == "rtt_user"
        else "between the kernel's time stamps at the sending guest"
    )
    yield Section(
        "rtt",
        "Round-trip time",
        "Less is better. Where the rings of two planes overlap, the planes may not differ.",
        (
            box_figure(
                by_condition(data),
                data.colours,
                lambda cell: cell.rtt,
                name="rtt",
                title="Round-trip time",
                what=f"Round-trip time {where}.",
            ),
        ),
        (("Round-trip time of every cell", rtt_table(data.rtt)),),
    )


def details(data: RunData) -> Iterator[Section]:
    """Slow packets, breakdown and losses."""
    if not data.rtt:
        return
    conditions = by_condition(data)
    distributions = (*_distributions(data, conditions), *_scatters(data, conditions))
    yield Section(
        "tail",
        "Slow packets",
        "Of 1000 packets, 1 takes longer than the 99.9th percentile. A guest that waits for many "
        "answers at once feels this tail, not the median.",
        distributions,
        () if distributions else (("Tail of the round-trip time", tail_table(data.rtt)),),
    )
    if any(cell.parts_ns or cell.no_parts for cell in data.rtt):
        figures = [_parts_figure(data, conditions)]
        if any(cell.parts_ns for cell in data.rtt):
            figures += [
                box_figure(
                    conditions, data.colours, time, name=name, title=title, what=what, of_rtt=True
                )
                for name, title, what, time in _HOST_PARTS
            ]
        yield Section(
            "parts",
            "Latency breakdown",
            "Where a typical packet and its answer spend their time. A plane can only shorten what "
            "lies inside the hosts.",
            tuple(figures),
        )
    lost = any(cell.counts.lost for cell in data.rtt)
    yield Section(
        "lost",
        "Lost packets",
        losses_lead(data.rtt),
        (_losses(data, conditions),) if lost else (),
    )


def box_figure(
    conditions: Facets[RttCell],
    colours: Mapping[str, str],
    time: Time,
    *,
    name: str,
    title: str,
    what: str,
    columns: tuple[str, str] = ("Load", "Plane"),
    of_rtt: bool = False,
) -> Figure:
    """Boxes of a time by series and condition. `what` begins the caption."""
    cells = facets.contents(conditions.panels)
    spreads = [spread for cell in cells if isinstance(spread := time(cell), Spread)]
    span = Span.of([end for spread in spreads for end in spread.ends_ns] or [1e3])
    levels = f" Numbers after a name are {conditions.axis}." if conditions.axis else ""
    idle = (
        " Without background guests there is no load: that measurement is repeated in every panel."
    )
    return Figure(
        name,
        title,
        f"{what} Rings: medians of replicates; thick line: their median, also at the right; box: "
        "the middle half of all packets; whiskers: their 5th to 95th percentile. The axis is "
        f"{span.word}.{levels}{idle if conditions.shared_idle else ''}",
        tuple(
            charts.boxes(panel.label, _boxes(panel, time), colours, span, "duration")
            for panel in conditions.panels
        ),
        times_table(cells, time, columns, of_rtt=of_rtt),
        lead=medians_lead(cells, time, title[0].lower() + title[1:]),
        notes=_reasons(cells, time),
    )


def _reasons(cells: Sequence[RttCell], time: Time) -> tuple[str, ...]:
    """Each reason of a missing time, with its planes."""
    reasons: dict[str, dict[str, None]] = {}
    for cell in cells:
        if isinstance(why := time(cell), str):
            reasons.setdefault(why, {})[cell.plane] = None
    return tuple(f"{', '.join(planes)}: {why}" for why, planes in reasons.items())


def _boxes(panel: Panel[RttCell], time: Time) -> list[Row]:
    rows: list[Row] = []
    for row in panel.rows:
        spread = time(row.item.content)
        place = {"label": row.label, "series": row.series}
        if isinstance(spread, str):
            rows.append({**place, "missing": spread})
            continue
        rows.append(
            {
                **place,
                **spread.row,
                "medians": list(spread.medians_ns),
                "text": time_text(spread.median_ns),
                "hover": f"{row.label}, {words(row.item.factors)}: {spread.words}",
            }
        )
    return rows


def medians_lead(cells: Sequence[RttCell], time: Time, what: str) -> str:
    """Which plane has the lowest median most often, and where planes differ most."""
    common = common_factors(cell.factors for cell in cells)
    conditions: dict[Factors, list[tuple[float, str]]] = {}
    for cell in cells:
        if isinstance(spread := time(cell), Spread):
            conditions.setdefault(cell.factors, []).append((spread.median_ns, cell.plane))
    if not conditions:
        return f"The {what} could not be measured in any condition."
    several = {factors: sorted(medians) for factors, medians in conditions.items() if medians[1:]}
    if not several:
        low, high = (of(medians[0][0] for medians in conditions.values()) for of in (min, max))
        between = f"between {time_text(low)} and {time_text(high)}"
        return f"The median {what} is {between if high > low else time_text(low)}."
    ((best, wins),) = Counter(medians[0][1] for medians in several.values()).most_common(1)
    n = len(several)
    often = (
        f" in {wins} of {n} conditions" if wins < n else f" in all {n} conditions" if n > 1 else ""
    )
    factors, medians = max(several.items(), key=lambda pair: pair[1][-1][0] / max(pair[1][0][0], 1))
    (low, fast), (high, slow) = medians[0], medians[-1]
    return (
        f"{best} has the lowest median {what}{often}; the widest gap: {time_text(low)} with "
        f"{fast}, {time_text(high)} with {slow} ({words(factors, common)})."
    )


def losses_lead(cells: Sequence[RttCell]) -> str:
    """The number of lost probe packets, and the cell that lost the largest share."""
    sent, lost = (sum(getattr(cell.counts, of) for cell in cells) for of in ("sent", "lost"))
    if not lost:
        return f"None of {theme.count(sent)} probe packets was lost."
    common = common_factors(cell.factors for cell in cells)
    worst = max(cells, key=lambda cell: cell.share_lost)
    return (
        f"{theme.count(lost)} of {theme.count(sent)} probe packets were lost "
        f"({percent_text(lost / sent)}); most with {worst.plane}, {words(worst.factors, common)}: "
        f"{percent_text(worst.share_lost)}. Trials with losses are kept."
    )


def _columns(
    cells: Sequence[RttCell], names: tuple[str, str] = ("Load", "Plane")
) -> dict[str, Callable[[RttCell], Entry]]:
    """The first columns of every table of cells."""
    common = common_factors(cell.factors for cell in cells)
    return {names[0]: lambda cell: words(cell.factors, common), names[1]: lambda cell: cell.plane}


def times_table(
    cells: Sequence[RttCell],
    time: Time,
    names: tuple[str, str] = ("Load", "Plane"),
    *,
    of_rtt: bool = False,
    more: Mapping[str, Callable[[RttCell], Entry]] | None = None,
) -> Table:
    """Quantiles of a time by cell; `of_rtt` adds its share of the median RTT."""

    def of(value: Callable[[RttCell, Spread], Entry]) -> Callable[[RttCell], Entry]:
        def entry(cell: RttCell) -> Entry:
            spread = time(cell)
            return Missing(spread) if isinstance(spread, str) else value(cell, spread)

        return entry

    def quantile(name: str) -> Callable[[RttCell], Entry]:
        return of(lambda _, spread: PrintedNumber.time(spread.row[name]))

    def share(cell: RttCell, spread: Spread) -> Entry:
        return PrintedNumber.share(spread.median_ns / (cell.rtt.median_ns or 1))

    return Table.of(
        cells,
        {
            **_columns(cells, names),
            "5 %": quantile("low"),
            "25 %": quantile("q25"),
            "Median": quantile("median"),
            "75 %": quantile("q75"),
            "95 %": quantile("high"),
            **({"Share of the median RTT": of(share)} if of_rtt else {}),
            "Replicates' medians": of(lambda _, spread: spread.replicates),
            "Packets": of(lambda _, spread: PrintedNumber.count(spread.packets)),
            **(more or {}),
        },
    )


def _achieved(cell: RttCell) -> Entry:
    """The probe rate of a cell's trials."""
    if not cell.achieved_pps:
        return Missing("not recorded")
    rates = dict.fromkeys(rate_text(of(cell.achieved_pps)) for of in (min, max))
    return PrintedNumber(" – ".join(rates), statistics.fmean(cell.achieved_pps))


def _count(name: str) -> Callable[[RttCell], Entry]:
    return lambda cell: PrintedNumber.count(getattr(cell.counts, name))


_COUNTS = {
    name.capitalize(): _count(name)
    for name in ("sent", "received", "lost", "duplicate", "reordered", "late")
}


def rtt_table(cells: Sequence[RttCell]) -> Table:
    """The RTT of every cell, with its probe rate, kernel stamps and packets."""

    def kernel(cell: RttCell) -> Entry:
        if not cell.kernel_medians_ns:
            return Missing("no kernel stamps")
        return PrintedNumber.time(statistics.median(cell.kernel_medians_ns))

    more = {"Probes a second": _achieved, "Median between kernel stamps": kernel}
    return times_table(cells, lambda cell: cell.rtt, more=_COUNTS | more)


def tail_table(cells: Sequence[RttCell]) -> Table:
    """Quantiles by cell; a quantile of too few packets is missing."""

    def quantile(name: str, packets: int) -> Callable[[RttCell], Entry]:
        def entry(cell: RttCell) -> Entry:
            if (ns := cell.tail_ns[name]) is None:
                return Missing(f"needs {packets} packets")
            return PrintedNumber(bound_text(ns.bound, time_text(ns.value)), ns.value)

        return entry

    def slowest(cell: RttCell) -> Entry:
        rtts = cell.distribution
        return PrintedNumber.time(rtts.max_ns) if rtts else Missing("its packets were not kept")

    return Table.of(
        cells,
        {
            **_columns(cells),
            **{name: quantile(name, packets) for name, _, packets in TAIL},
            "Slowest": slowest,
            "Packets": lambda cell: PrintedNumber.count(cell.rtt.packets),
        },
    )


def _distributions(data: RunData, conditions: Facets[RttCell]) -> Iterator[Figure]:
    """The cumulative curve and the tail, of many conditions of the first and the last ones."""
    by_factors: dict[Factors, dict[str, Distribution]] = {}
    for panel in conditions.panels:
        for row in panel.rows:
            if (rtts := row.item.content.distribution) is not None:
                by_factors.setdefault(row.item.factors, {})[row.series] = rtts
    drawn = list(by_factors.items())
    if len(drawn) > _MOST_TAILS:
        drawn = [drawn[0], *drawn[1 - _MOST_TAILS :]]
    if not drawn:
        return
    all_rtts = [rtts for _, by_series in drawn for rtts in by_series.values()]
    span = Span.of([rtts.quantiles_ns[end] for rtts in all_rtts for end in (0, -1)])
    furthest = max(-math.log10(1 - meaningful(rtts.packets)[-1]) for rtts in all_rtts)
    common = common_factors(factors for factors, _ in drawn)
    names = {series for _, by_series in drawn for series in by_series}
    colours = {series: colour for series, colour in data.colours.items() if series in names}
    panels: list[Spec] = []
    for factors, by_series in drawn:
        panels += _pair(words(factors, common), by_series, span, furthest, colours)
    tails = [(ns.value, cell) for cell in data.rtt if (ns := cell.tail_ns["p99"]) is not None]
    lead = "Too few packets for a 99th percentile."
    if tails:
        ends = [of(tails, key=lambda tail: tail[0]) for of in (min, max)]
        lead = "One packet in a hundred takes longer than " + " and longer than ".join(
            dict.fromkeys(
                f"{time_text(ns)} with {cell.plane}, {words(cell.factors, common)}"
                for ns, cell in ends
            )
        )
    few = f" {len(drawn)} of {len(by_factors)} conditions are drawn."
    yield Figure(
        "tail",
        "Distribution and tail of the round-trip time",
        "First: share of all packets that took no longer than the time below. Then: the time that "
        "one packet of 10, of 100, of 1000 exceeds, as far as a packet lies beyond; the far end is "
        "the least certain. The table has medians over replicates, as comparisons do."
        f"{few if len(drawn) < len(by_factors) else ''}",
        tuple(panels),
        tail_table(data.rtt),
        key=colours,
        lead=lead,
    )


def _pair(
    label: str,
    by_series: Mapping[str, Distribution],
    span: Span,
    furthest: float,
    colours: Mapping[str, str],
) -> Iterator[Spec]:
    """The cumulative curve and the tail of one condition."""
    curve: list[Row] = []
    tail: list[Row] = []
    medians: list[Row] = []
    ends: list[Row] = []
    for series, rtts in by_series.items():
        for share, ns in zip(meaningful(rtts.packets), rtts.quantiles_ns, strict=True):
            curve.append({"series": series, "x": ns, "value": share})
            if share >= 0.5:
                tail.append({"series": series, "x": -math.log10(1 - share), "value": ns})
        shares = meaningful(rtts.packets)
        median, slowest = rtts.quantiles_ns[shares.index(0.5)], tail[-1]
        hover = {"hover": f"{series}: half of all packets take no longer than {time_text(median)}"}
        medians.append({"series": series, "x": median, "value": 0.5, **hover})
        slow = f"{series}: {time_text(float(slowest['value']))} at the far end"
        ends.append({**slowest, "hover": slow})
    x = vega.along("x", span, "duration", 240, "RTT")
    yield charts.lines(
        label, curve, colours, Span(0.0, 1.0), "share", x, points=medians, labels=False
    )
    marks = [(math.log10(2), "1 in 2"), *((float(n), f"1 in {10**n}") for n in range(1, 7))]
    shown = [mark for mark in marks if mark[0] <= furthest + 0.01]
    shown = shown[::-1][:: 1 if len(shown) <= 4 else 2]
    texts = "{" + ",".join(f"'{place:.2f}': '{text}'" for place, text in shown) + "}"
    ticks = {"values": [p for p, _ in shown], "labelExpr": f"{texts}[format(datum.value, '.2f')]"}
    reach = Span(math.log10(2), max(furthest, 0.5))
    at = vega.along("x", reach, "number", 240, "packets that take longer", **ticks)
    yield charts.lines(f"{label}: tail", tail, colours, span, "duration", at, points=ends)


def _scatters(data: RunData, conditions: Facets[RttCell]) -> Iterator[Figure]:
    """Single packets as dots, thinned evenly."""
    drawn = [(cell, rtts) for cell in data.rtt if (rtts := cell.distribution) is not None]
    if not drawn:
        return
    each = max(10, min(MOST_POINTS, _MOST_DOTS // len(drawn)))
    span = Span.of([ns for _, rtts in drawn for ns in (min(rtts.points_ns), rtts.max_ns)])
    slowest, most = max(drawn, key=lambda pair: pair[1].max_ns)
    dots = {id(cell): rtts.points_ns[:: -(-len(rtts.points_ns) // each)] for cell, rtts in drawn}
    total = theme.count(sum(rtts.packets for _, rtts in drawn))
    yield Figure(
        "scatter",
        "Single packets",
        f"Shows {theme.count(sum(map(len, dots.values())))} of {total} packets: of each cell up to "
        f"{each}, evenly spaced in the order of sending, from top to bottom. Rings: the slowest "
        f"packets. The axis is {span.word}.",
        tuple(_dots(panel, dots, data.colours, span) for panel in conditions.panels),
        tail_table(data.rtt),
        lead=f"The slowest packet took {time_text(most.max_ns)}: {slowest.plane}, "
        f"{words(slowest.factors)}.",
    )


def _dots(
    panel: Panel[RttCell],
    drawn: Mapping[int, Sequence[float]],
    colours: Mapping[str, str],
    span: Span,
) -> Spec:
    dots: list[Row] = []
    rings: list[Row] = []
    for row in panel.rows:
        cell = row.item.content
        points = drawn.get(id(cell), ())
        place = {"label": row.label, "series": row.series}
        dots += [
            {**place, "at": round((n + 0.5) / len(points), 4), "value": ns}
            for n, ns in enumerate(points)
        ]
        if cell.distribution is not None:
            slowest = cell.distribution.max_ns
            hover = f"{row.label}: slowest of {theme.count(cell.rtt.packets)} packets"
            ring = {"at": 0.5, "value": slowest, "hover": f"{hover}, {time_text(slowest)}"}
            rings.append({**place, **ring, "text": time_text(slowest)})
    return charts.dots(panel.label, dots, rings, colours, span)


def _losses(data: RunData, conditions: Facets[RttCell]) -> Figure:
    """The share of lost probe packets."""
    span = Span.of([share for cell in data.rtt if (share := cell.share_lost)], log_from=20)
    far = " The axis is logarithmic; without a dot nothing was lost." if span.log else ""
    specs = []
    for panel in conditions.panels:
        bars: list[Row] = []
        for row in panel.rows:
            share = row.item.content.share_lost
            hover = f"{row.label}, {words(row.item.factors)}: {percent_text(share)} lost"
            bar = {"from": 0.0, "to": share, "text": percent_text(share), "hover": hover}
            bars.append({"label": row.label, "series": row.series, **bar})
        specs.append(charts.shares(panel.label, bars, bars, data.colours, span, "share"))
    return Figure(
        "lost",
        "Lost probe packets",
        f"Lost probe packets as a share of those sent.{far}",
        tuple(specs),
        Table.of(data.rtt, _columns(data.rtt) | _COUNTS),
    )


_PARTS = {
    "sender_stack": ("sender's guest", "sender-stack"),
    "sender": ("sender host", "sender"),
    "wire": ("wire", "wire"),
    "between": ("hosts and wire", "between"),
    "responder": ("responder host", "responder"),
    "responder_stack": ("responder's guest", "responder-stack"),
    "instrument": ("the probe itself", "instrument"),
}
"""Parts of the round trip in the order of a bar: name and colour."""

_HOST_PARTS: tuple[tuple[str, str, str, Time], ...] = (
    (
        "overhead",
        "Sender overhead",
        "RTT at the guest minus RTT at the sender's network card.",
        lambda cell: cell.overhead,
    ),
    (
        "response",
        "Response time",
        "Time from the responder's network card to its guest and back.",
        lambda cell: cell.response,
    ),
)


def _parts_figure(data: RunData, conditions: Facets[RttCell]) -> Figure:
    """Stacked bars of the parts; bars more than ten times longer get an axis of their own."""
    ends: list[float] = []
    least = 0.0
    for total in sorted(cell.parts_ns["sum"] for cell in data.rtt if cell.parts_ns):
        if not ends or total > 10 * least:
            ends.append(total)
            least = total
        ends[-1] = total
    colours = {name: theme.var(colour) for name, colour in _PARTS.values()}
    specs: list[Spec] = []
    used: set[str] = set()
    for panel in conditions.panels:
        for number, (low, end) in enumerate(zip([-1.0, *ends], ends or [1e3], strict=False)):
            bars, sums = _stacked(panel, low, end)
            used |= {str(bar["series"]) for bar in bars}
            if sums:
                label = f"{panel.label} (its own axis)" if number else panel.label
                span = Span(0.0, end * 1.02)
                specs.append(charts.shares(label, bars, sums, colours, span, "duration"))
    hidden = ", ".join(sorted({cell.plane for cell in data.rtt if not cell.parts_ns}))
    return Figure(
        "parts",
        "Latency breakdown",
        "Means over the middle half of the packets, so that the parts add up to the number at the "
        "right. Sender host: sender overhead; responder host: response time, each without its "
        "guest where that is shown; wire: between the two network cards; the probe itself: between "
        "its clock readings and the kernel's stamps."
        + (f" Not measurable for {hidden}." if hidden else ""),
        tuple(specs),
        parts_table(data.rtt),
        key={part: colour for part, colour in colours.items() if part in used},
    )


def _stacked(panel: Panel[RttCell], low: float, end: float) -> tuple[list[Row], list[Row]]:
    """Parts and sums of the cells whose sum is above `low` and up to `end` [ns]."""
    bars: list[Row] = []
    sums: list[Row] = []
    for row in panel.rows:
        cell = row.item.content
        total = cell.parts_ns.get("sum", 0.0)
        if not low < total <= end:
            continue
        sums.append({"label": row.label, "text": time_text(total), "missing": cell.no_parts})
        start = 0.0
        for part, (name, _) in _PARTS.items():
            ns = cell.parts_ns.get(part)
            # With the sender's guest the probe is a part of it.
            if ns is None or (part == "instrument" and "sender_stack" in cell.parts_ns):
                continue
            hover = f"{row.label}, {name}: {time_text(ns)} ({percent_text(ns / total)} of the RTT)"
            place = {"label": row.label, "series": name, "from": start, "to": start + ns}
            bars.append({**place, "hover": hover})
            start += ns
    return bars, sums


def parts_table(cells: Sequence[RttCell]) -> Table:
    """The parts of the round trip by cell."""
    used = {part for cell in cells for part in cell.parts_ns}
    used |= {"sender", "wire", "responder", "instrument"}

    def entry(part: str) -> Callable[[RttCell], Entry]:
        def of(cell: RttCell) -> Entry:
            if part in cell.parts_ns:
                return PrintedNumber.time(cell.parts_ns[part])
            return Missing(cell.why_no(part))

        return of

    return Table.of(
        cells,
        {
            **_columns(cells),
            "Sum": entry("sum"),
            "Sender overhead": entry("overhead"),
            **{
                f"{name[0].upper()}{name[1:]}": entry(part)
                for part, (name, _) in _PARTS.items()
                if part in used
            },
            "Packets": lambda cell: (
                PrintedNumber.count(cell.parts_packets) if cell.parts_ns else "—"
            ),
        },
    )
