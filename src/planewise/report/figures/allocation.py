"""The allocator's policies: latency by group, who held a VF when, what the daemon took."""

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
    """Boxes by group and policy, as FlexVF's figure 7."""
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
    """The medians of the busiest group."""
    busiest = max((float(cell.factors[0][1]) for cell in cells), default=0.0)
    own = [cell for cell in cells if float(cell.factors[0][1]) == busiest]
    told = ", ".join(f"{cell.plane} {time_text(cell.median_ns)}" for cell in own)
    return f"Median of the guests with {busiest:g} requests a second: {told}."


def timeline(trials: Sequence[tuple[str, AllocResult]]) -> Figure:
    """Who held a VF when, a row a guest, in the first trial of each policy."""
    end_s = max(_end_s(result) for _, result in trials)
    begin_s = min([0.0, *(move.at_s for _, one in trials for move in one.moves)])
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
    told = ", ".join(f"{policy} {count}" for policy, count in moves.items())
    return Figure(
        name="policies-held",
        title="Who held a VF when",
        lead=f"Moves of a VF in the first trial of each policy: {told}.",
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
        alt=f"Bars of the time in which each guest held a VF, a panel a policy. {told}.",
        draw=draw,
        table=_guests(trials),
    )


SHADES = tuple(
    theme.PLANES[name].light for name in ("veth", "bridge", "macvlan", "ipvlan", "docker-bridge")
)


def _end_s(result: AllocResult) -> float:
    """When the trial's last known thing happened."""
    last = [move.at_s + (move.duration_s or 0.0) for move in result.moves if move.ending]
    steady = [one for one in last if one <= result.window_s]
    if result.change is None:
        return max([result.window_s, *steady])
    return max([result.window_s, *last])


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
            "from": span.inside(one.begin_s),
            "to": span.inside(one.end_s),
            "y": _ROW * place[one.guest] + 1,
            "y2": _ROW * (place[one.guest] + 1) - 1,
            "series": rate[one.guest],
            "hover": f"{policy}: {one.guest} ({rate[one.guest]}) held a VF from "
            f"{one.begin_s:.1f} to {one.end_s:.1f} s",
        }
        for one in hold_intervals(result, span.high)
        if one.guest in place
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


def shares(found: Sequence[GroupShare]) -> Table:
    """How much of the time a group's guests held a VF, mean over trials."""
    groups = sorted({one.group for one in found}, key=float)
    policies = list(dict.fromkeys(one.policy for one in found))
    by_key = {(one.policy, one.group): statistics.fmean(one.shares) for one in found}
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


def predicted(found: GroupPredictions) -> Table:
    """Latency as it follows from who held a VF, against what was measured."""
    return Table.of(
        found.found,
        {
            "Policy": lambda one: one.policy,
            "Guests with": lambda one: PrintedNumber.rate(float(one.group)),
            "Held a VF": lambda one: PrintedNumber.share(one.held, 3),
            "Mean predicted": lambda one: PrintedNumber.time(one.predicted_ns),
            "Mean measured": lambda one: PrintedNumber.time(one.measured_ns),
            "Error": lambda one: PrintedNumber(_error(one.error), one.error),
            "95 % interval": lambda one: (
                Missing("open: it takes six blocks")
                if one.low is None or one.high is None
                else theme.interval(_error(one.low), _error(one.high))
            ),
            "Blocks": lambda one: PrintedNumber.plain(one.blocks),
        },
    )


def _error(value: float) -> str:
    return percent_text(round(value, 3), signed=True)


def costs(data: RunData) -> Table:
    """What the daemon took, and how soon VFs followed a change of load: medians over trials."""

    def moves(own: Sequence[AllocResult]) -> list[float | None]:
        return [move.duration_s for one in own for move in one.moves if move.ending == "completed"]

    def first(own: Sequence[AllocResult]) -> list[float | None]:
        return [one.change.first_s for one in own if one.change is not None]

    return Table.of(
        allocation.results(data).items(),
        {
            "Policy": lambda row: row[0],
            "Trials": lambda row: PrintedNumber.plain(len(row[1])),
            "Moves": lambda row: _median([len(one.moves) for one in row[1]], lambda v: f"{v:g}"),
            "A move": lambda row: _median(moves(row[1]), _seconds, "no VF was moved"),
            "CPU": lambda row: _median(
                [one.daemon.cpu for one in row[1]], lambda v: theme.share(round(v, 4))
            ),
            "Memory": lambda row: _median(
                [one.daemon.memory_bytes for one in row[1]], lambda v: f"{v / 2**20:.1f} MiB"
            ),
            "A decision": lambda row: _median(
                [one.daemon.decision_s for one in row[1]], _seconds, "nothing was decided"
            ),
            "Reading counters": lambda row: _median(
                [one.daemon.sample_s for one in row[1]], _seconds, "no counter was read"
            ),
            "First VF after the change of load": lambda row: _median(
                first(row[1]), _seconds, "none was given"
            ),
            "Clock error": lambda row: _median(
                [one.change.error_s for one in row[1] if one.change is not None],
                _seconds,
                "the load did not change",
            ),
        },
    )


def _seconds(value: float) -> str:
    return time_text(value * 1e9)


def _median(
    values: Sequence[float | None], said: Callable[[float], str], why: str = "not known"
) -> Entry:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return Missing(why)
    median = statistics.median(known)
    return PrintedNumber(said(median), median)
