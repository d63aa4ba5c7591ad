"""A metric against the number of background guests, a line a plane. Knows points, no trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planewise.judge.statistics.sentences import bound_text
from planewise.report import facets, theme
from planewise.report.data import RunData
from planewise.report.facets import FacetPage
from planewise.report.figures import base, grid, vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.grid import Plot, Slot
from planewise.report.figures.vega import Row, Span, Spec
from planewise.report.guests import Curves, GuestsPoint
from planewise.report.guests import curves as all_curves
from planewise.store.cells import common_factors, words
from planewise.units import rate_text, time_text


def figures(data: RunData) -> tuple[Figure, ...]:
    """Every metric of a run whose number of background guests varies; else empty."""
    drawn = []
    for curves in all_curves(data):
        pages = facets.pages(curves.points, data.naming)
        for place, page in enumerate(pages, start=1):
            name = base.slug(f"guests-{curves.name}{f'-{place}' if len(pages) > 1 else ''}")
            drawn.append(figure(curves, page, data.planes, name=name))
    return tuple(drawn)


def figure(
    curves: Curves, page: FacetPage[GuestsPoint], planes: Sequence[str], *, name: str
) -> Figure:
    """Lines through medians over blocks, with their intervals, a panel each condition."""
    points = [item.content for item in page.items]
    ends = [end for p in points for end in (p.low, p.value, p.high) if end is not None]
    span = Span.of(ends)
    text = shown(curves)
    least = min(page.items, key=lambda item: item.content.value)
    most = max(page.items, key=lambda item: item.content.value)
    label = f", {page.label}" if page.label else ""
    lead = (
        f"Least {text(least.content)} ({least.series}, {words(least.factors)}), most "
        f"{text(most.content)} ({most.series}, {words(most.factors)})."
    )
    return Figure(
        name=name,
        title=f"{curves.title[:1].upper()}{curves.title[1:]} by number of background guests{label}",
        caption=(
            "Median over blocks; thin line: its 95 % interval by order statistics, which takes six "
            "blocks. Trials that missed their level are left out, but for the load itself. The "
            f"axis upwards is {span.word}."
        ),
        lead=lead,
        alt=f"Lines of {curves.title}. {lead}",
        draw=lambda width: grid.draw(
            page,
            planes,
            span,
            curves.quantity or "number",
            lambda slots, plot: marks(slots, plot, text),
            width,
        ),
        table=table(curves, page),
    )


def _number(curves: Curves) -> Callable[[float], str]:
    if curves.quantity is None:
        return lambda value: f"{value:.3g}"
    return {"duration": time_text, "rate": rate_text, "share": theme.share}[curves.quantity]


def shown(curves: Curves) -> Callable[[GuestsPoint], str]:
    """Formats the value of a point; a bound is marked as one."""
    number = _number(curves)
    return lambda point: bound_text(point.bound, number(point.value))


def marks(
    slots: Sequence[Slot[GuestsPoint]], plot: Plot, show: Callable[[GuestsPoint], str]
) -> list[Spec]:
    """A line a series through its points, each with its interval where it has one."""
    rows: list[Row] = [
        {
            "series": slot.series,
            "place": _aside(slot),
            "value": plot.span.inside(slot.item.content.value),
            "hover": f"{slot.series}, {words(slot.item.factors)}: {show(slot.item.content)}",
        }
        for slot in slots
    ]
    intervals: list[Row] = [
        {
            "series": slot.series,
            "place": _aside(slot),
            "low": plot.span.inside(slot.item.content.low),
            "high": plot.span.inside(slot.item.content.high),
        }
        for slot in slots
        if slot.item.content.low is not None and slot.item.content.high is not None
    ]
    at = {"x": plot.x("place"), "color": plot.colour()}
    between = {"y": plot.y("low"), "y2": {"field": "high"}}
    return [
        vega.mark("line", rows, {**at, "y": plot.y("value")}, strokeWidth=1.5),
        vega.mark("rule", intervals, {**at, **between}, strokeWidth=1),
        vega.mark("point", rows, {**at, "y": plot.y("value")}, hover=True, filled=True, size=30),
    ]


_DODGE = 0.25
"""Shift of a series from the middle of its band, as a share of its slot's, so that intervals of
several series do not overlap."""


def _aside(slot: Slot[GuestsPoint]) -> float:
    middle = round(slot.centre)
    return middle + _DODGE * (slot.centre - middle)


def table(curves: Curves, page: FacetPage[GuestsPoint]) -> Table:
    """The points in numbers."""
    show, number = shown(curves), _number(curves)
    common = common_factors(item.factors for item in page.items)
    return Table.of(
        page.items,
        {
            "Load": lambda item: words(item.factors, common),
            "Plane": lambda item: item.series,
            "Median over blocks": lambda item: PrintedNumber(
                show(item.content), item.content.value
            ),
            "95 % interval": lambda item: interval(item.content, number),
            "Blocks": lambda item: PrintedNumber.plain(item.content.blocks),
        },
    )


def interval(point: GuestsPoint, show: Callable[[float], str]) -> Entry:
    """The interval in numbers."""
    if point.low is None or point.high is None:
        return Missing("open: too few blocks, or a bound")
    return theme.interval(show(point.low), show(point.high))
