"""The page of an advice: planes for a planned workload, drawn by number of functions."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.advise import table
from planewise.advise.advice import Advice, course
from planewise.advise.model.capacity import Prediction
from planewise.advise.model.profile import Profile
from planewise.report import charts, html, theme
from planewise.report.figure import Figure, Missing, PrintedNumber, Table
from planewise.report.vega import Row, Span
from planewise.units import rate_text


def render(advice: Advice, host: Profile | None) -> str:
    """The page as HTML that loads nothing."""
    chain = advice.workload.chain
    functions = f"{chain.vnfs} function{'s' if chain.vnfs > 1 else ''}"
    predictions = course(host, advice.workload)
    figures = [capacity(predictions, chain.vnfs)] if predictions else []
    return html.filled(
        "advice.html.j2",
        title=f"Which plane for {functions}, {chain.pattern}?",
        advice=advice,
        table=table,
        figures=html.drawn(figures),
    )


def capacity(predictions: Sequence[Prediction], asked_vnfs: int) -> Figure:
    """Throughput of each plane by number of functions, with its interval."""
    colours = theme.colours_of(dict.fromkeys(one.plane for one in predictions))
    ends = [one.interval or (one.pps, one.pps) for one in predictions]
    span = Span.of([*(one.pps for one in predictions), *(high for _, high in ends)], log_from=12)
    rows: list[Row] = [
        {
            "series": one.plane,
            "x": one.chain.vnfs,
            "value": span.inside(one.pps),
            "low": span.inside(low),
            "high": span.inside(high),
            "hover": f"{one.plane}, {one.chain.vnfs} functions: {rate_text(one.pps)}",
        }
        for one, (low, high) in zip(predictions, ends, strict=True)
    ]
    rates = "; ".join(
        f"{one.plane} {rate_text(one.pps)}, limited by the {one.bottleneck.name}"
        for one in predictions
        if one.chain.vnfs == asked_vnfs
    )
    lengths = sorted({one.chain.vnfs for one in predictions})
    return Figure(
        "capacity",
        "Throughput by number of functions",
        "Packets per second of all functions together, by the capacity model; lines: the largest "
        "error on chains that were left out of its fit.",
        (
            charts.lines(
                "", rows, colours, span, "rate", charts.levels(lengths, "network functions")
            ),
        ),
        Table.of(
            predictions,
            {
                "Plane": lambda one: one.plane,
                "Functions": lambda one: PrintedNumber.plain(one.chain.vnfs),
                "Throughput": lambda one: PrintedNumber.rate(one.pps),
                "Interval": lambda one: (
                    theme.interval(*map(rate_text, one.interval))
                    if one.interval
                    else Missing("not known")
                ),
                "Bottleneck": lambda one: one.bottleneck.name,
            },
        ),
        lead=f"With {asked_vnfs} functions: {rates}." if rates else "",
    )
