"""Chooses the sections and figures of a run's report. Knows summaries and figures, no page.

A run with a handful of conditions gets a row of planes for each; a factorial experiment gets small
multiples along its factors. Numbers of many cells are in tables that fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypedDict, TypeVar

from planewise.report import facets, inference, others, policies, sentences, theme
from planewise.report.data import CpuCell, RunData
from planewise.report.facets import FacetPage, Item
from planewise.report.figures import (
    base,
    boxes,
    chains,
    comparison,
    cpu,
    distribution,
    guests,
    kendall,
    loss_curve,
    losses,
    parts,
    rtt,
    scatter,
    schedule,
    tail,
)
from planewise.report.figures.base import Figure, Table
from planewise.report.inference import Compared
from planewise.report.rtt_cell import RttCell
from planewise.report.section import OPEN, Section
from planewise.store.cells import Sending, common_factors, words

_MOST_CONTEXTS = 6
"""Most conditions drawn as rows of planes; more become small multiples along a factor."""
_FEW_CONTEXTS = 3
"""So few conditions are always drawn as rows."""
_MOST_CURVES = 24
"""Most load-loss curves drawn one by one; the table has all."""
_MOST_PAGES = 4
"""Most figures of small multiples in the section of RTT; other sections have half as many. The
tables have every cell, `--figures` draws every figure."""


_Page = TypeVar("_Page")


class _Named(TypedDict):
    name: str
    title: str


def choose(data: RunData) -> Iterator[Section]:
    """The report's sections that this run has data for, with all their figures.

    Cheap ones first, not in the order of the page (`ORDER`), so that they are drawn while others
    are computed.
    """
    for section in _sections(data):
        yield replace(section, figures=tuple(_labelled(figure, data) for figure in section.figures))


def _sections(data: RunData) -> Iterator[Section]:
    with ThreadPoolExecutor(1) as pool:
        # Reading and sorting packets release the GIL: sections without packets are made meanwhile.
        packets = pool.submit(lambda: data.rtt)
        yield from _compared(data)
        yield from policies.sections(data)
        yield from others.sections(data)
        if any(visit.kind != "alloc" for visit in data.visits):
            yield Section(
                "schedule",
                "When it was measured",
                "Planes take turns in a random order, so that a machine that slows down or "
                "speeds up during the run hits all of them alike.",
                tuple(schedule.figures(data.visits, data.planes)),
            )
        if data.curves:
            yield _loss(data)
        if data.chains:
            yield _chains(data)
        if data.tcp:
            yield Section(
                "tcp",
                "What TCP carries",
                "The traditional stack: a kernel at both ends, a stream of messages between them.",
                (chains.tcp(data.tcp),),
                virtual="rates",
            )
        packets.result()
    if data.missed:
        yield Section(
            "missed",
            "Trials that missed their level",
            "Their rate or load is not that of their cell: no figure or comparison includes them.",
            tables=(("Trials that do not count", rtt.table(data.missed, _common(data.missed))),),
        )
    large = _is_factorial(data)
    if data.cpu:
        yield _cpu_by_factor(data) if large else _cpu(data)
    if data.rtt:
        items = [Item(cell.plane, cell.factors, cell) for cell in data.rtt]
        pages = facets.pages(items, data.naming)
        yield _rtt_by_factor(data, pages) if large else _rtt(data)
    yield from _by_guests(data)
    if data.rtt:
        yield _tail(data, pages)
        yield from _places_by_factor(data, pages) if large else _places(data, pages)
        yield _lost(data, pages)


def _by_guests(data: RunData) -> Iterator[Section]:
    if figures := guests.figures(data):
        yield Section(
            "guests",
            "Effect of the number of background guests",
            "The first figure shows their load together, the others its effect.",
            figures,
            open_figures=2,
            folded="Other metrics",
        )


def _labelled(figure: Figure, data: RunData) -> Figure:
    """The figure, with a note in its caption where times are not those of hardware."""
    if not data.virtual:
        return figure
    label = f"{data.virtual_word.capitalize()} times: {data.virtual.rstrip('.')}."
    return replace(figure, caption=f"{figure.caption} {label}", virtual=label)


def _is_factorial(data: RunData) -> bool:
    """Whether the run has enough conditions for small multiples along a factor."""
    cells: Sequence[RttCell | CpuCell] = data.rtt or data.cpu
    if not cells:
        return False
    contexts = {cell.factors for cell in cells}
    if len(contexts) <= _FEW_CONTEXTS:
        return False
    along = facets.choose([Item(cell.plane, cell.factors, cell) for cell in cells]).along
    return len(contexts) > _MOST_CONTEXTS or along in ("background_guests", "frequency_pps")


def _chains(data: RunData) -> Section:
    return Section(
        "chains",
        "What chains of network functions carry",
        "More is better. North-south, every function has traffic of its own and sends it back; "
        "east-west, all traffic goes through one function after the other.",
        tuple(chains.figures(data.chains, data.planes)),
        tuple(
            (label, table)
            for label, table in (
                ("Bottlenecks", chains.bounds(data.chains)),
                ("Where every frame went", chains.account(data.chains)),
                ("CPU use", chains.cores(data.chains)),
            )
            if table.rows
        ),
        virtual="rates",
    )


def _rtt(data: RunData) -> Section:
    pages = _pages(data.rtt)
    return Section(
        "rtt",
        "How long a packet and its answer take",
        "Less is better. Compare planes within one load; where boxes overlap and the rings mix, "
        "the planes can hardly be told apart.",
        tuple(
            rtt.figure(
                page,
                data.planes,
                **named,
                where=_latency_place(data),
            )
            for page, named in _named(pages, "rtt", "Round-trip time by plane and load")
        ),
    )


def _latency_place(data: RunData) -> str:
    return (
        "as the sending guest's program sees it"
        if data.rtt_metric == "rtt_user"
        else "at the sending guest, between the kernel's time stamps"
    )


def _rtt_by_factor(data: RunData, pages: Sequence[FacetPage[RttCell]]) -> Section:
    figures = tuple(
        boxes.figure(
            page,
            data.planes,
            lambda cell: cell.rtt,
            **named,
            what=f"Round-trip time {_latency_place(data)}.",
            lead=sentences.of_times(_contents(page), lambda cell: cell.rtt, "RTT"),
        )
        for page, named in _named(pages, "rtt", "Round-trip time")
    )
    return _by_factor(
        Section(
            "rtt",
            "How long a packet and its answer take",
            f"Less is better. {_layout(pages)} Where boxes overlap and the dark lines do, too, "
            "the planes can hardly be told apart.",
            figures,
        ),
        [("Round-trip time of every cell", rtt.table(data.rtt, _common(data.rtt)))],
        open_figures=2,
    )


def _layout(pages: Sequence[FacetPage[RttCell]]) -> str:
    """A sentence on the layout of the small multiples."""
    axis = f"{pages[0].axis} along each panel, " if pages[0].axis else ""
    more = f", {len(pages)} figures for what remains" if len(pages) > 1 else ""
    return f"Figures are laid out by condition: {axis}a panel a load{more}; colours are planes."


def _by_factor(
    section: Section, tables: Sequence[tuple[str, Table]], *, open_figures: int
) -> Section:
    """The section with few figures open, some folded, and the others in tables only."""
    n = len(section.figures)
    most = _MOST_PAGES if section.anchor == "rtt" else _MOST_PAGES // 2
    if n <= most:
        return replace(section, open_figures=open_figures)
    return replace(
        section,
        open_figures=open_figures,
        most_drawn=most,
        tables=tuple(tables),
        note=f"{n - most} more figures would be too many to look through: their numbers are in "
        "the table, `planewise report RUN --figures DIR` draws every one.",
    )


def _tail(data: RunData, pages: Sequence[FacetPage[RttCell]]) -> Section:
    figures: list[Figure] = []
    conditions, total = distribution.choose(pages)
    if conditions:
        figures.append(distribution.figure(conditions, total, data.planes))
    dots = [
        scatter.figure(page, data.planes, **named)
        for page, named in _named(pages, "scatter", "Single packets")
    ]
    figures += [figure for figure in dots if figure is not None]
    return Section(
        "tail",
        "The slow packets",
        "The tail: of 1000 packets, 1 takes longer than the 99.9th percentile. A guest that waits "
        "for many answers at once feels the tail, not the median.",
        tuple(figures),
        tables=(("Tail of the round-trip time", tail.table(data.rtt)),),
        open_figures=1,
        most_drawn=3,
        folded="Single packets",
        note=(
            f"{len(figures) - 3} more scatters are drawn by `planewise report RUN --figures DIR`."
            if len(figures) > 3
            else ""
        ),
    )


def _places(data: RunData, pages: Sequence[FacetPage[RttCell]]) -> list[Section]:
    if not any(cell.parts is not None or cell.no_parts for cell in data.rtt):
        return []
    groups = _pages(data.rtt)
    drawn = [
        parts.figure(group, **named) for group, named in _named(groups, "parts", "Time by place")
    ]
    more: list[Figure] = []
    if any(cell.parts is not None for cell in data.rtt):
        more = [figure for part in _HOST_PARTS for figure in part.figures(data, pages)]
    return [
        Section(
            "parts",
            "Where the time goes",
            "A plane can only shorten what lies inside the hosts.",
            (*drawn, *more),
            open_figures=len(drawn),
            folded="Overhead and response time as boxes",
        )
    ]


@dataclass(frozen=True)
class _HostPart:
    """A part of the round trip inside one host, with its texts."""

    name: str
    title: str
    intro: str
    noun: str
    what: str
    time: boxes.Time
    lead: Callable[[Sequence[RttCell]], str]

    def figures(self, data: RunData, pages: Sequence[FacetPage[RttCell]]) -> list[Figure]:
        """Boxes of this part."""
        return [
            boxes.figure(
                page,
                data.planes,
                self.time,
                **named,
                what=self.what,
                lead=self.lead(_contents(page)),
                share_of_rtt=True,
            )
            for page, named in _named(pages, self.name, self.noun)
        ]


_HOST_PARTS = (
    _HostPart(
        "overhead",
        "RTT overhead of the sender's host",
        "RTT overhead: RTT at the guest minus RTT at the sender's network card, packet by packet. "
        "A plane can only shorten what lies inside the hosts.",
        "RTT overhead",
        "RTT at the guest minus RTT at the sender's network card.",
        boxes.overhead,
        sentences.of_overhead,
    ),
    _HostPart(
        "response",
        "Response time of the responder's host",
        "Response time: from the responder's network card to its guest and back.",
        "Response time",
        "Time from the responder's network card to its guest and back.",
        boxes.response,
        lambda cells: sentences.of_times(cells, boxes.response, "response time"),
    ),
)


def _places_by_factor(data: RunData, pages: Sequence[FacetPage[RttCell]]) -> Iterator[Section]:
    common = _common(data.rtt)
    for part in _HOST_PARTS:
        section = Section(part.name, part.title, part.intro, tuple(part.figures(data, pages)))
        table = boxes.table(data.rtt, part.time, common, share_of_rtt=True)
        yield _by_factor(section, [(f"{part.noun} of every cell", table)], open_figures=1)
    yield Section(
        "parts",
        "Where the time goes",
        "Means over the middle half of each cell's packets, so that the parts add up.",
        tables=(("Time by place", parts.table(data.rtt, common)),),
    )


def _lost(data: RunData, pages: Sequence[FacetPage[RttCell]]) -> Section:
    section = Section(
        "lost",
        "What was lost",
        f"{sentences.of_losses(data.rtt)} A trial with losses is kept: to repeat it until none "
        "is lost would hide what the plane does.",
        virtual="",
    )
    if not any(cell.lost for cell in data.rtt):
        return section
    figures = tuple(
        losses.figure(page, data.planes, **named)
        for page, named in _named(pages, "lost", "Lost probe packets")
    )
    return _by_factor(
        replace(section, figures=figures),
        [("Probe packets of every cell", losses.table(data.rtt))],
        open_figures=1,
    )


_CPU = Section(
    "cpu",
    "CPU time",
    "A plane that is fast because it takes a whole CPU is not cheap.",
    virtual="",
)


def _cpu(data: RunData) -> Section:
    pages = _pages(data.cpu)
    figures = tuple(
        cpu.figure(page, **named)
        for page, named in _named(pages, "cpu", "CPU time by plane and load")
    )
    return replace(_CPU, figures=figures)


def _cpu_by_factor(data: RunData) -> Section:
    hosts = len({cell.host for cell in data.cpu}) > 1
    items = [
        Item(
            cell.plane,
            (*cell.factors, ("host", cell.host)) if hosts else cell.factors,
            cell,
        )
        for cell in data.cpu
    ]
    pages = facets.pages(items, data.naming, rows=("load_type", "host") if hosts else ())
    figures = tuple(
        cpu.by_factor(page, data.planes, **named)
        for page, named in _named(pages, "cpu", "CPU time")
    )
    figures += cpu.all_boxes(pages, data.planes)
    return _by_factor(
        replace(_CPU, figures=figures),
        [
            (
                "CPU time of every cell",
                cpu.table(data.cpu, common_factors(cell.factors for cell in data.cpu)),
            )
        ],
        open_figures=1,
    )


def _stem(sending: Sending) -> str:
    """The sending as a part of a file name."""
    pattern = f"-{base.slug(sending.pattern)}" if sending.pattern else ""
    application = f"-{base.slug(sending.application)}" if sending.application else ""
    return f"{sending.frequency_pps:g}pps{pattern}{application}"


def _compared(data: RunData) -> list[Section]:
    compared = inference.compare(data)
    if not compared:
        return []
    first = {item.family.metric.name: item for item in reversed(compared)}
    figures = []
    for item in compared:
        name, sending = item.family.metric.name, item.family.metric.sending
        at = "" if item is first[name] or sending is None else f"-{_stem(sending)}"
        figures.append(comparison.figure(item, name=base.slug(f"compared-{name}{at}")))
    bars = kendall.figure(
        [item for item in compared if item.family.metric.name in _CORRELATED or _is_cpu(item)],
        data.planes,
    )
    return [
        Section(
            "compared",
            "What can be told apart",
            "Planes compared pair by pair within blocks, on replicates and not on packets. "
            "“Better” and “worse” hold after correction for all comparisons of a metric; what is "
            "surely closer than the margin is practically the same; all else is not known.",
            (*figures[:1], *([bars] if bars is not None else []), *figures[1:]),
            open_figures=2 if bars is not None else 1,
            folded="Other metrics",
        )
    ]


_CORRELATED = ("rtt",)
"""Metrics whose rank correlation the publications draw, beside CPU."""


def _is_cpu(compared: Compared) -> bool:
    return compared.family.metric.name.startswith("cpu:")


def _contents(page: FacetPage[RttCell]) -> list[RttCell]:
    return [item.content for item in page.items]


def _common(cells: Sequence[RttCell]) -> tuple[tuple[str, str | int | float], ...]:
    return common_factors(cell.factors for cell in cells)


def _loss(data: RunData) -> Section:
    common = common_factors(item.factors for item in data.curves)
    contexts = base.by_context(data.curves)
    figures: list[Figure] = []
    for factors, items in contexts[:_MOST_CURVES]:
        if len(items) > 1:
            label = words(factors, common)
            figures.append(
                loss_curve.overview(
                    items,
                    data.planes,
                    label,
                    name=base.slug(f"loss-{label}"),
                    title=f"Loss against offered load: all planes, {label}",
                )
            )
    shared = len(figures)
    figures += [loss_curve.figure(item, data.planes, common) for item in data.curves[:_MOST_CURVES]]
    limit = theme.share(data.curves[0].verdict.plr)
    return Section(
        "loss",
        "How much each plane carries",
        f"PDR is the highest load of which no more than {limit} is lost. The verdict says "
        "whether that one number may stand for the whole curve: GOOD where throughput stays "
        "level beyond it, BAD where it still rises or falls, UNDECIDED where the trials do "
        "not tell.",
        figures=tuple(figures),
        tables=(("Verdicts", loss_curve.verdict_table(data.curves, common)),),
        note=(
            f"{len(data.curves) - _MOST_CURVES} more curves are in the table only; "
            "`planewise judge RUN --figures DIR` draws every one."
            if len(data.curves) > _MOST_CURVES
            else ""
        ),
        open_figures=OPEN if len(figures) <= OPEN else max(1, min(shared, OPEN)),
        folded="Each curve with its intervals",
        virtual="rates",
    )


def _pages(cells: Sequence[base.C]) -> list[list[base.C]]:
    """Cells by figure: whole contexts, as many as one figure takes."""
    contexts = base.by_context(cells)
    return [
        [cell for _, group in contexts[start : start + _MOST_CONTEXTS] for cell in group]
        for start in range(0, len(contexts), _MOST_CONTEXTS)
    ]


def _named(pages: Sequence[_Page], stem: str, title: str) -> Iterator[tuple[_Page, _Named]]:
    """Each page with its figure's name and title, by its conditions or its number."""
    for place, page in enumerate(pages):
        number = f"-{place + 1}" if len(pages) > 1 else ""
        if isinstance(page, FacetPage):
            condition = f", {page.label}" if page.label else ""
        else:
            condition = f" ({place + 1} of {len(pages)})" if number else ""
        yield page, {"name": f"{stem}{number}", "title": f"{title}{condition}"}
