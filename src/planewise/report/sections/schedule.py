"""The section of the order of the trials, and of drift during the run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planewise.judge.drift import residuals
from planewise.report import charts, theme
from planewise.report.data import RunData
from planewise.report.figure import Entry, Figure, Missing, PrintedNumber, Section, Table
from planewise.report.left_out import KINDS
from planewise.report.vega import Row, Span, Spec
from planewise.store.cells import Factors, words
from planewise.store.levels import keeps_levels
from planewise.store.models import TrialRecord
from planewise.units import percent_text, rate_text

_MOST_POINTS = 400
"""Most marks of a kind; of a longer run, groups of trials are drawn."""
_MOST_ROWS = 1000
"""Most rows of the table."""


@dataclass(frozen=True)
class OrderedTrial:
    """One trial in the run's order."""

    plane: str
    factors: Factors
    relative: float | None
    """Median RTT of the trial over the geometric mean of its cell's, as drift is tested; None
    without an RTT, and where the cell has no other trial."""
    median_ns: float | None
    trial: TrialRecord

    @property
    def order(self) -> int:
        """Place in the run."""
        return self.trial.order


def visits(data: RunData) -> list[OrderedTrial]:
    """All trials in the order in which they were run."""

    def median_of(trial: TrialRecord) -> float | None:
        rtt = trial.latency.get(data.rtt_metric)
        return rtt.p50_ns if rtt and trial.kind == "rtt" and keeps_levels(trial) else None

    relative = {trial.trial: math.exp(value) for trial, value in residuals(data.counted)}
    return [
        OrderedTrial(*data.key(trial), relative.get(trial.trial), median_of(trial), trial)
        for trial in sorted(data.trials, key=lambda trial: trial.order)
    ]


def sections(data: RunData) -> Iterator[Section]:
    """The section; none for a run of the allocator alone."""
    ordered = visits(data)
    if all(visit.trial.kind == "alloc" for visit in ordered):
        return
    yield Section(
        "schedule",
        "Order of the trials",
        "Planes take turns in random order, so that all of them are affected alike if the machine "
        "becomes slower or faster.",
        (figure(ordered, data),),
    )


def figure(ordered: Sequence[OrderedTrial], data: RunData) -> Figure:
    """Drift, and the order of the trials."""
    with_rtt = [visit for visit in ordered if visit.relative is not None]
    failed = [visit for visit in ordered if visit.trial.status == "failed"]
    span = Span(-0.5, max(visit.order for visit in ordered) + 0.5)
    drift = ""
    if with_rtt:
        drift = "First: each RTT trial's median relative to its cell's, and their running median. "
    elif any(visit.median_ns is not None for visit in ordered):
        drift = "No cell has two RTT trials, so drift is unknown. "
    found = [one.sentence for one in data.drift if one.code in ("results", "block")]
    lead = " ".join(found or ["Round-trip times show no drift over the run."] * bool(with_rtt))
    crosses = "; crosses: failed ones" if failed else ""
    panels = [_drift_panel(with_rtt, data, span)] if with_rtt else []
    return Figure(
        "schedule",
        "Order of the trials, and drift",
        f"{drift}Order: which plane was measured when (tall: RTT trials, low: others{crosses}).",
        (*panels, _order_panel(ordered, failed, data, span)),
        _table(ordered),
        lead=lead,
    )


def _change(part: Sequence[OrderedTrial]) -> float:
    return statistics.median(visit.relative or 0.0 for visit in part) - 1


def _drift_panel(with_rtt: Sequence[OrderedTrial], data: RunData, span: Span) -> Spec:
    points: list[Row] = []
    stride = -(-len(with_rtt) // _MOST_POINTS)
    for plane in data.planes:
        own = [visit for visit in with_rtt if visit.plane == plane]
        for start in range(0, len(own), stride):
            part = own[start : start + stride]
            change = _change(part)
            label = f"{plane}, {words(part[0].factors)}" if stride == 1 else plane
            hover = f"trial {part[0].order}: {label}: {percent_text(change, signed=True)}"
            points.append({"series": plane, "x": part[0].order, "value": change, "hover": hover})
    half = max(5, len(with_rtt) // 12) // 2
    everything = "all planes"
    running: list[Row] = [
        {
            "series": everything,
            "x": with_rtt[at].order,
            "value": _change(with_rtt[max(0, at - half) : at + half + 1]),
        }
        for at in range(0, len(with_rtt), max(1, len(with_rtt) // 150))
    ]
    most = max(0.02, *(abs(float(point["value"])) for point in points)) * 1.1
    labels = "datum.value === 0 ? '0 %' : format(datum.value * 100, '+.3~r') + ' %'"
    return charts.lines(
        "Median RTT against its cell's",
        running,
        {**data.colours, everything: theme.var("ink")},
        Span(max(-1.0, -most), most),
        "share",
        charts.numbers(span, "trials in their order"),
        points=points,
        axis={"labelExpr": labels},
        labels=False,
    )


def _order_panel(
    ordered: Sequence[OrderedTrial], failed: Sequence[OrderedTrial], data: RunData, span: Span
) -> Spec:
    # Of a long run, the hundredths of it in which a plane was measured.
    step = 1.0 if len(ordered) <= _MOST_POINTS else (span.high - span.low) / 100
    places = dict.fromkeys(
        (visit.plane, visit.trial.kind, int((visit.order - span.low) // step)) for visit in ordered
    )
    bars: list[Row] = [
        {
            "label": plane,
            "series": plane,
            "from": span.low + at * step,
            "to": span.low + (at + 1) * step,
            "thin": kind != "rtt",
            "hover": f"{plane}, {KINDS.get(kind, kind)} trial",
        }
        for plane, kind, at in places
    ]
    crosses: list[Row] = [
        {
            "label": visit.plane,
            "from": visit.order,
            "hover": f"trial {visit.order} failed: {visit.trial.reason}",
        }
        for visit in failed[:_MOST_POINTS]
    ]
    planes = [plane for plane in data.planes if any(visit.plane == plane for visit in ordered)]
    return charts.lanes(
        "Order",
        bars,
        planes,
        data.colours,
        span,
        "trials in their order",
        height=24,
        crosses=crosses,
    )


def _table(ordered: Sequence[OrderedTrial]) -> Table:
    rows: list[tuple[Entry, ...]] = []
    for visit in ordered[:_MOST_ROWS]:
        trial = visit.trial
        kind = KINDS.get(trial.kind, trial.kind)
        if trial.kind == "load" and trial.load is not None:
            kind = f"load, {rate_text(trial.load.intended_pps)}"
        median: Entry = Missing("no RTT was measured")
        if visit.median_ns is not None:
            median = PrintedNumber.time(visit.median_ns)
        elif trial.status == "failed":
            median = Missing(f"failed: {trial.reason}")
        rows.append(
            (
                PrintedNumber.plain(visit.order),
                trial.started.strftime("%H:%M:%S"),
                visit.plane,
                words(visit.factors),
                kind,
                median,
            )
        )
    if len(ordered) > _MOST_ROWS:
        rows.append(("…", "", "", f"{len(ordered) - _MOST_ROWS} more in trials.jsonl", "", ""))
    columns = ("Order", "Started (UTC)", "Plane", "Load", "Trial", "Median RTT")
    return Table(columns, tuple(rows))
