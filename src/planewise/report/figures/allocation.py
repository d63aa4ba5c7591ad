"""The allocator's policies: latency by group, times with a VF, costs of the daemon."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from planewise.report import allocation, facets, theme
from planewise.report.allocation import GroupShare, by_group, hold_intervals
from planewise.report.data import RunData
from planewise.report.facets import Item
from planewise.report.figures import boxes, vega
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.figures.vega import Row, Span, Spec
from planewise.report.predicted import GroupPredictions
from planewise.report.rtt_cell import RttCell
from planewise.store.models import AllocResult
from planewise.units import percent_text, rate_text, time_text

_ROW = 7
"""Height of a guest's row [px]."""


def latency(data: RunData, cells: Sequence[RttCell]) -> list[Figure]:
    """Boxes of the RTT by group and policy, as FlexVF's figure 7."""
    policies = list(allocation.results(data))
    items = [Item(cell.plane, cell.factors, cell) for cell in cells]
    return [
        boxes.figure(
            page,
            policies,
            lambda cell: cell.rtt,
            name="policies",
            title="Round-trip time of the guests, by what each is sent and by policy",
            what="Round-trip time of all guests of a group, as the client's program sees it. "
            "`none`: no guest has a VF; `static`: guests drawn at random keep one.",
            lead=_lead(cells),
            columns=("Requests to a guest", "Policy"),
        )
        for page in facets.pages(items, data.naming)
    ]


def _lead(cells: Sequence[RttCell]) -> str:
    """A sentence on the medians of the busiest group."""
    busiest = max((float(cell.factors[0][1]) for cell in cells), default=0.0)
    busiest_cells = [cell for cell in cells if float(cell.factors[0][1]) == busiest]
    medians = ", ".join(f"{cell.plane} {time_text(cell.median_ns)}" for cell in busiest_cells)
    return f"Median of the guests with {busiest:g} requests a second: {medians}."


def timeline(trials: Sequence[tuple[str, AllocResult]]) -> Figure:
    """The times in which each guest held a VF, in the first trial of each policy."""
    end_s = max(_end_s(result) for _, result in trials)
    begin_s = min([0.0, *(move.at_s for _, result in trials for move in result.moves)])
    begin_s = max(begin_s, -0.5 * end_s)
    span = Span(begin_s, end_s, log=False)
    groups = sorted({pps for _, result in trials for _, pps in by_group(result)}, reverse=True)
    colours = dict(
        zip((rate_text(pps) for pps in groups), SHADES[: len(groups)], strict=False)
    )  # fmt: skip

    def draw(width: int) -> Spec:
        plot = width - 24
        last = len(trials) - 1
        panels = [vega.key(colours, plot)]
        panels += [
            _panel(policy, result, span, colours, plot, labels=place == last)
            for place, (policy, result) in enumerate(trials)
        ]
        return vega.finish(vega.below(panels))

    moves = {policy: len(result.moves) for policy, result in trials}
    counts = ", ".join(f"{policy} {count}" for policy, count in moves.items())
    return Figure(
        name="policies-held",
        title="Who held a VF when",
        lead=f"Moves of a VF in the first trial of each policy: {counts}.",
        caption=(
            "A row a guest, the busiest on top; a bar is the time in which it held a VF, coloured "
            "by the requests that it is sent a second. Times are the daemon's clock, from the end "
            "of the warm-up on."
            + (
                " The line is where the groups' rates are turned round: from there on, the guests "
                "at the bottom are the busiest."
                if any(result.change for _, result in trials)
                else ""
            )
        ),
        alt=f"Bars of the time in which each guest held a VF, a panel a policy. {counts}.",
        draw=draw,
        table=_guests(trials),
    )


SHADES = tuple(
    theme.PLANES[name].light for name in ("veth", "bridge", "macvlan", "ipvlan", "docker-bridge")
)


def _end_s(result: AllocResult) -> float:
    """Time of the trial's last recorded event [s]."""
    ends_s = [move.at_s + (move.duration_s or 0.0) for move in result.moves if move.ending]
    steady = [end_s for end_s in ends_s if end_s <= result.window_s]
    if result.change is None:
        return max([result.window_s, *steady])
    return max([result.window_s, *ends_s])


def _panel(
    policy: str,
    result: AllocResult,
    span: Span,
    colours: dict[str, str],
    width: int,
    *,
    labels: bool,
) -> Spec:
    order = by_group(result)
    place = {name: number for number, (name, _) in enumerate(order)}
    rate = {name: rate_text(pps) for name, pps in order}
    height = _ROW * len(order)
    rows: list[Row] = [
        {
            "from": span.inside(interval.begin_s),
            "to": span.inside(interval.end_s),
            "y": _ROW * place[interval.guest] + 1,
            "y2": _ROW * (place[interval.guest] + 1) - 1,
            "series": rate[interval.guest],
            "hover": f"{policy}: {interval.guest} ({rate[interval.guest]}) held a VF from "
            f"{interval.begin_s:.1f} to {interval.end_s:.1f} s",
        }
        for interval in hold_intervals(result, span.high)
        if interval.guest in place
    ]
    axis = vega.x_axis("seconds after the warm-up", span, "number", width, labels=labels)
    x = {"x": vega.quantitative("from", span, axis)}
    bar = {
        **x,
        "x2": {"field": "to"},
        "y": vega.literal("y"),
        "y2": {"field": "y2"},
        "color": vega.coloured("series", colours),
    }
    full = {"y": vega.px(0), "y2": vega.px(height)}
    marks = [
        vega.mark("rect", [{"from": span.low}], {**x, **full}, opacity=0),
        vega.mark("rect", rows, bar, hover=True),
    ]
    lines = [0.0, *([result.window_s] if result.change is not None else [])]
    marks.append(
        vega.mark(
            "rule",
            [{"from": at} for at in lines],
            {**x, **full},
            color=theme.MUTED.light,
            strokeDash=[3, 3],
        )
    )
    return vega.layers(marks, width=width, height=height, title=vega.heading(policy, width))


def _guests(trials: Sequence[tuple[str, AllocResult]]) -> Table:
    rows: list[tuple[Entry, ...]] = []
    for policy, result in trials:
        for name, _ in by_group(result):
            guest = result.guests[name]
            rtt: Entry = Missing("no answer came")
            if guest.rtt is not None:
                rtt = PrintedNumber.time(guest.rtt.p50_ns)
            rows.append(
                (
                    policy,
                    name,
                    PrintedNumber.rate(guest.request_pps),
                    PrintedNumber.share(min(1.0, guest.held_s / result.window_s), 3),
                    PrintedNumber.plain(guest.given),
                    rtt,
                    PrintedNumber.count(guest.counts.lost),
                )
            )
    return Table(
        ("Policy", "Guest", "Requests", "Held a VF", "Times given", "Median RTT", "Lost"),
        tuple(rows),
    )


def shares(group_shares: Sequence[GroupShare]) -> Table:
    """Share of time in which a group's guests held a VF, mean over trials."""
    groups = sorted({row.group for row in group_shares}, key=float)
    policies = list(dict.fromkeys(row.policy for row in group_shares))
    by_key = {(row.policy, row.group): statistics.fmean(row.shares) for row in group_shares}
    return Table(
        ("Policy", *(f"Guests with {rate_text(float(group))}" for group in groups)),
        tuple(
            (
                policy,
                *(PrintedNumber.share(by_key[policy, group], 3) for group in groups),
            )
            for policy in policies
        ),
    )


def predicted(predictions: GroupPredictions) -> Table:
    """Latency predicted from the time with a VF, beside the measured latency."""
    return Table.of(
        predictions.groups,
        {
            "Policy": lambda row: row.policy,
            "Guests with": lambda row: PrintedNumber.rate(float(row.group)),
            "Held a VF": lambda row: PrintedNumber.share(row.held, 3),
            "Mean predicted": lambda row: PrintedNumber.time(row.predicted_ns),
            "Mean measured": lambda row: PrintedNumber.time(row.measured_ns),
            "Error": lambda row: PrintedNumber(_error(row.error), row.error),
            "95 % interval": lambda row: (
                Missing("open: it takes six blocks")
                if row.low is None or row.high is None
                else theme.interval(_error(row.low), _error(row.high))
            ),
            "Blocks": lambda row: PrintedNumber.plain(row.blocks),
        },
    )


def _error(value: float) -> str:
    return percent_text(round(value, 3), signed=True)


def costs(data: RunData) -> Table:
    """Costs of the daemon, and its delay after a change of load: medians over trials."""

    def median(
        values: Callable[[AllocResult], Sequence[float | None]],
        show: Callable[[float], str],
        why: str = "not known",
    ) -> Callable[[tuple[str, Sequence[AllocResult]]], Entry]:
        return lambda row: _median([v for trial in row[1] for v in values(trial)], show, why)

    def durations(trial: AllocResult) -> list[float | None]:
        return [move.duration_s for move in trial.moves if move.ending == "completed"]

    def first_given(trial: AllocResult) -> list[float | None]:
        return [] if trial.change is None else [trial.change.first_s]

    def clock_error(trial: AllocResult) -> list[float]:
        return [] if trial.change is None else [trial.change.error_s]

    def mebibytes(size: float) -> str:
        return f"{size / 2**20:.1f} MiB"

    return Table.of(
        allocation.results(data).items(),
        {
            "Policy": lambda row: row[0],
            "Trials": lambda row: PrintedNumber.plain(len(row[1])),
            "Moves": median(lambda trial: [len(trial.moves)], lambda number: f"{number:g}"),
            "A move": median(durations, _seconds, "no VF was moved"),
            "CPU": median(lambda trial: [trial.daemon.cpu], lambda v: theme.share(round(v, 4))),
            "Memory": median(lambda trial: [trial.daemon.memory_bytes], mebibytes),
            "A decision": median(
                lambda trial: [trial.daemon.decision_s], _seconds, "nothing was decided"
            ),
            "Reading counters": median(
                lambda trial: [trial.daemon.sample_s], _seconds, "no counter was read"
            ),
            "First VF after the change of load": median(first_given, _seconds, "none was given"),
            "Clock error": median(clock_error, _seconds, "the load did not change"),
        },
    )


def _seconds(value: float) -> str:
    return time_text(value * 1e9)


def _median(
    values: Sequence[float | None], show: Callable[[float], str], why: str = "not known"
) -> Entry:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return Missing(why)
    median = statistics.median(finite)
    return PrintedNumber(show(median), median)
