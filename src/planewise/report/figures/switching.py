"""RTT of requests over time, while their guest is given a VF and loses it again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import polars as pl

from planewise.judge.policies import SWITCH_QUANTILES, by_phase, switch_sentence
from planewise.report import theme
from planewise.report.figures import vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.vega import Row, Span, Spec
from planewise.store.models import Latency, SwitchPhase, TrialRecord
from planewise.units import time_text

HEIGHT = 180
_MOST_POINTS = 500
"""Most requests of a series that are drawn."""
_MOVED, _BESIDE = "the guest that is moved", "guests beside"
_COLOURS = {_MOVED: theme.PLANES["vf"].light, _BESIDE: theme.PLANES["bridge"].light}
_MOVES = ("being given", "being taken")


def figure(trial: TrialRecord, packets: pl.DataFrame) -> Figure:
    """Each request as a dot, with the median of each second, for the moved guest and the others.

    `packets` as a trial of the allocator keeps them (docs/reference/formats.md).
    """
    alloc = trial.alloc
    assert alloc is not None
    assert alloc.zero_ns is not None
    phases = alloc.switch
    moved = next(iter(alloc.guests))
    answered = (
        packets.select(
            at=(pl.col("scheduled_ns") - alloc.zero_ns) / 1e9,
            rtt=(pl.col("user_rx_ns") - pl.col("user_tx_ns")).cast(pl.Float64),
            series=pl.when(pl.col("guest") == moved)
            .then(pl.lit(_MOVED))
            .otherwise(pl.lit(_BESIDE)),
        )
        .drop_nulls()
        .filter(pl.col("at").is_between(phases[0].begin_s, phases[-1].end_s))
        .sort("at")
    )
    span = Span.of([float(value) for value in answered["rtt"]])
    across = Span(phases[0].begin_s, phases[-1].end_s, log=False)

    def draw(width: int) -> Spec:
        panels = [vega.key(_COLOURS, width - 24)]
        names = list(_COLOURS)
        for name in names:
            requests = answered.filter(pl.col("series") == name)
            panels.append(
                _panel(name, requests, phases, span, across, width - 24, last=name == names[-1])
            )
        return vega.finish(vega.below(panels))

    error = alloc.clock_error_s or 0.0
    return Figure(
        name="switch",
        title="Requests while a VF is given and taken",
        lead=switch_sentence([trial]),
        caption=(
            "A dot is a request by the moment when it was due, the line the median of each second; "
            "grey: the VF is being given, later taken. Packets have the sender's time and moves "
            f"the daemon's; the two may be {time_text(error * 1e9)} off. The axis upwards is "
            f"{span.word}."
        ),
        alt=f"Round-trip times along time. {switch_sentence([trial])}",
        draw=draw,
        table=table([trial]),
    )


def _panel(
    name: str,
    requests: pl.DataFrame,
    phases: Sequence[SwitchPhase],
    span: Span,
    across: Span,
    width: int,
    *,
    last: bool,
) -> Spec:
    room = 58
    plot = width - room
    axis = vega.x_axis("seconds after the warm-up", across, "number", plot, labels=last)
    up = vega.y_axis(span, "duration", room)

    def x(field: str) -> vega.Channel:
        return vega.quantitative(field, across, axis)

    colour = {"color": vega.coloured("series", _COLOURS)}
    stride = -(-requests.height // _MOST_POINTS) or 1
    dots: Sequence[Row] = requests.gather_every(stride).to_dicts()
    seconds = (
        requests.with_columns(second=pl.col("at").floor() + 0.5)
        .group_by("second")
        .agg(pl.col("rtt").median())
        .sort("second")
    )
    line: list[Row] = [
        {"at": min(at, across.high), "rtt": rtt, "series": name}
        for at, rtt in seconds.select("second", "rtt").iter_rows()
    ]
    bands: list[Row] = [
        {
            "from": phase.begin_s,
            "to": phase.end_s,
            "hover": f"{phase.name}: {phase.end_s - phase.begin_s:.1f} s",
        }
        for phase in phases
        if phase.name in _MOVES
    ]
    y = {"y": vega.quantitative("rtt", span, up)}
    full = {"y": vega.px(0), "y2": vega.px(HEIGHT)}
    between = {"x": x("from"), "x2": {"field": "to"}, **full}
    return vega.layers(
        [
            vega.mark("rect", bands, between, hover=True, color=theme.GRID.light, opacity=0.9),
            vega.mark(
                "point", dots, {"x": x("at"), **y, **colour}, size=7, filled=True, opacity=0.5
            ),
            vega.mark("line", line, {"x": x("at"), **y, **colour}, strokeWidth=1.5),
        ],
        width=plot,
        height=HEIGHT,
        title=vega.heading(name, plot),
    )


def table(trials: Sequence[TrialRecord]) -> Table:
    """The phases: medians over trials, and losses of all trials."""
    rows: list[tuple[Entry, ...]] = []
    for name, phases in by_phase(trials):
        length_s = statistics.median(phase.end_s - phase.begin_s for phase in phases)
        moved = [_time([phase.rtt for phase in phases], name) for name in SWITCH_QUANTILES]
        beside = [_time([phase.beside for phase in phases], name) for name in SWITCH_QUANTILES]
        rows.append(
            (
                name,
                PrintedNumber(time_text(length_s * 1e9), length_s),
                PrintedNumber.count(sum(phase.counts.sent for phase in phases)),
                PrintedNumber.count(sum(phase.counts.lost for phase in phases)),
                *moved,
                PrintedNumber.count(sum(phase.beside_lost for phase in phases)),
                *beside,
            )
        )
    columns = ("Phase", "Takes", "Requests", "Lost", "p50", "p99", "p50 beside", "p99 beside")
    return Table((*columns[:6], "Lost beside", *columns[6:]), tuple(rows))


def _time(latencies: Sequence[Latency | None], quantile: str) -> Entry:
    values = [float(getattr(latency, quantile)) for latency in latencies if latency is not None]
    if not values:
        return Missing("nothing was sent, or no answer came")
    return PrintedNumber.time(statistics.median(values))
