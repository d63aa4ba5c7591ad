"""Sections of the allocator's policies: latency by group, times with a VF, downloads, switches."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import polars as pl

from planewise.judge.policies import (
    SWITCH_QUANTILES,
    by_phase,
    policy_families,
    switch_sentence,
)
from planewise.report import charts, facets, theme
from planewise.report.data import RunData
from planewise.report.facets import Item
from planewise.report.figure import Entry, Figure, Missing, PrintedNumber, Section, Table, slug
from planewise.report.rtt_cell import RttCell, summarise
from planewise.report.sections.compared import comparison_figure
from planewise.report.sections.rtt import box_figure
from planewise.report.vega import Row, Span
from planewise.store.allocations import DOWNLOAD_METRIC, by_groups, members
from planewise.store.levels import keeps_levels
from planewise.store.models import AllocResult, Download, Latency, TrialRecord
from planewise.units import bits_text, count_text, percent_text, rate_text, time_text

POLICIES = ("none", "static", "fair", "activity", "benefit")
"""In the order in which the report shows them."""
_SHADES = tuple(map(theme.var, ("veth", "bridge", "macvlan", "ipvlan", "docker-bridge")))
_MOST_DOTS = 500
"""Most requests of a series that are drawn."""

Results = Mapping[str, Sequence[AllocResult]]
"""Results of trials by policy."""


def _rank(policy: str) -> tuple[int, str]:
    return (POLICIES.index(policy) if policy in POLICIES else len(POLICIES), policy)


def results(data: RunData) -> Results:
    """Results of the allocator's trials by policy, without trials of a switch."""
    by_policy: dict[str, list[AllocResult]] = {}
    for trial in data.done:
        if trial.alloc is not None and not trial.alloc.switch:
            by_policy.setdefault(str(trial.cell["policy"]), []).append(trial.alloc)
    return {policy: by_policy[policy] for policy in sorted(by_policy, key=_rank)}


def sections(data: RunData) -> Iterator[Section]:
    """The sections of policies, downloads and switches that the run has data for."""
    by_policy = results(data)
    if by_policy:
        yield _policies(data, by_policy)
    switches = [trial for trial in data.done if trial.alloc is not None and trial.alloc.switch]
    if switches:
        packets = data.run.packets(switches[0])
        over = f"Before, during and after, over {count_text(len(switches), 'trial')}"
        yield Section(
            "switch",
            "Latency while a VF is given and taken",
            "One guest gets a VF in the middle of the run and loses it again; the other guests "
            "show how busy the hosts were meanwhile.",
            () if packets is None else (switch_figure(switches[0], packets),),
            ((over, switch_table(switches)),),
        )
    downloads = {
        policy: [(result, result.download) for result in of_policy if result.download is not None]
        for policy, of_policy in by_policy.items()
        if any(result.download for result in of_policy)
    }
    if downloads:
        _, download = next(iter(downloads.values()))[0]
        table = download_table(downloads)
        yield Section(
            "download",
            "Duration of a download",
            f"Beside the requests, one guest sends {download.bytes / (1 << 20):.0f} MiB by one TCP "
            "stream from the end of the warm-up on, and planewised gives it a VF or not.",
            (
                download_figure(downloads, table),
                *_compared(data, DOWNLOAD_METRIC, lambda _: "download-compared"),
            ),
            (("Duration of downloads", table),),
        )


def _compared(data: RunData, metric: str, name: Callable[[str], str]) -> Iterator[Figure]:
    """The policies compared by a metric, group by group; `name` makes a figure's of its title."""
    for family in policy_families(data.trials, data.info, metric):
        yield comparison_figure(family, name(family.metric.title))


def _policies(data: RunData, by_policy: Results) -> Section:
    cells = latency_cells(data)
    trials = [trial for trial in data.done if trial.alloc is not None]
    missed = sum(not keeps_levels(trial) for trial in by_groups(trials))
    first = next(iter(by_policy.values()))[0]
    compared = (
        figure
        for metric in ("rtt", "rtt_p99")
        for figure in _compared(data, metric, lambda title: slug(f"policies-{title}"))
    )
    return Section(
        "policies",
        "Latency of guests by policy",
        f"{len(first.guests)} guests and {first.vfs} VFs: planewised assigns them while "
        "every guest is sent requests at the rate of its group. Less is better.",
        (
            *([_latency(data, cells, by_policy)] if cells else ()),
            timeline([(policy, of_policy[0]) for policy, of_policy in by_policy.items()]),
            *compared,
        ),
        (
            ("Share of the time in which guests held a VF", shares(data)),
            ("Costs of the daemon, and its delay", costs(by_policy)),
        ),
        note=f"In {missed} cases the rate of a group was not kept within 1 %: figures of latency "
        "leave them out."
        if missed
        else "",
    )


def latency_cells(data: RunData) -> list[RttCell]:
    """Latency by policy and group, over trials that kept the group's rate."""
    by_cell: dict[tuple[str, float], list[TrialRecord]] = {}
    for trial in by_groups([trial for trial in data.done if trial.alloc is not None]):
        if trial.kind == "rtt" and keeps_levels(trial):
            key = str(trial.cell["policy"]), float(trial.cell["frequency_pps"])
            by_cell.setdefault(key, []).append(trial)
    summaries = [
        summarise(policy, (("frequency_pps", pps),), "rtt_user", trials, None)[0]
        for (policy, pps), trials in by_cell.items()
    ]
    cells = [cell for cell in summaries if cell is not None]
    return sorted(cells, key=lambda cell: (cell.factors[0][1], _rank(cell.plane)))


def _latency(data: RunData, cells: Sequence[RttCell], by_policy: Results) -> Figure:
    """Boxes of the RTT by group and policy, as FlexVF's figure 7."""
    items = [Item(cell.plane, cell.factors, cell) for cell in cells]
    return box_figure(
        facets.split(items, data.naming),
        dict(zip(by_policy, _SHADES * 3, strict=False)),
        lambda cell: cell.rtt,
        name="policies",
        title="Round-trip time of the guests by request rate and policy",
        what="Round-trip time of all guests of a group, as the client's program sees it. "
        "`none`: no guest has a VF; `static`: guests drawn at random keep one.",
        columns=("Requests to a guest", "Policy"),
    )


def hold_intervals(result: AllocResult, end_s: float) -> list[tuple[str, float, float]]:
    """The times in which guests held a VF up to `end_s`: name, begin, end [s after the warm-up]."""
    since: dict[str, float] = {}
    intervals = []
    for move in sorted(result.moves, key=lambda move: move.at_s):
        if move.direction == "give" and move.ending == "completed":
            since.setdefault(move.guest, move.at_s + (move.duration_s or 0.0))
        elif move.direction == "take" and move.guest in since:
            intervals.append((move.guest, since.pop(move.guest), min(move.at_s, end_s)))
    intervals += [(guest, begin_s, end_s) for guest, begin_s in since.items()]
    return [interval for interval in intervals if interval[2] > interval[1]]


def _by_rate(result: AllocResult) -> list[tuple[str, float]]:
    """The result's guests with their rates, the busiest first."""
    named = [(name, guest.request_pps) for name, guest in result.guests.items()]
    return sorted(named, key=lambda guest: (-guest[1], len(guest[0]), guest[0]))


def _end_s(result: AllocResult) -> float:
    """Time of the trial's last recorded event [s]."""
    ends_s = [move.at_s + (move.duration_s or 0.0) for move in result.moves if move.ending]
    steady = [end_s for end_s in ends_s if end_s <= result.window_s]
    return max([result.window_s, *(steady if result.change is None else ends_s)])


def timeline(trials: Sequence[tuple[str, AllocResult]]) -> Figure:
    """The times in which each guest held a VF, in the first trial of each policy."""
    longest_s = max(_end_s(result) for _, result in trials)
    first_s = min([0.0, *(move.at_s for _, result in trials for move in result.moves)])
    span = Span(max(first_s, -0.5 * longest_s), longest_s)
    rates = sorted({pps for _, result in trials for _, pps in _by_rate(result)}, reverse=True)
    colours = dict(zip(map(rate_text, rates), _SHADES, strict=False))
    changes = any(result.change for _, result in trials)
    panels = []
    for policy, result in trials:
        rate = {name: rate_text(pps) for name, pps in _by_rate(result)}
        rows: list[Row] = [
            {
                "label": guest,
                "series": rate[guest],
                "from": span.inside(begin_s),
                "to": span.inside(end_s),
                "hover": f"{policy}: {guest} ({rate[guest]}) held a VF from {begin_s:.1f} to "
                f"{end_s:.1f} s",
            }
            for guest, begin_s, end_s in hold_intervals(result, span.high)
            if guest in rate
        ]
        rules = [0.0, *([result.window_s] if result.change is not None else [])]
        panels.append(
            charts.lanes(
                policy,
                rows,
                list(rate),
                colours,
                span,
                "seconds after the warm-up",
                height=7,
                named=False,
                rules=rules,
            )
        )
    counts = ", ".join(f"{policy} {len(result.moves)}" for policy, result in trials)
    return Figure(
        "policies-held",
        "Guests that held a VF",
        "One row per guest, the busiest on top; a bar is the time it held a VF, coloured by its "
        "request rate. Times are from the daemon's clock, starting at the end of the warm-up."
        + (" At the second line the groups' rates are reversed." if changes else ""),
        tuple(panels),
        Table.of(
            [(policy, result, name) for policy, result in trials for name, _ in _by_rate(result)],
            {
                "Policy": lambda row: row[0],
                "Guest": lambda row: row[2],
                "Requests": lambda row: PrintedNumber.rate(row[1].guests[row[2]].request_pps),
                "Held a VF": lambda row: PrintedNumber.share(
                    min(1.0, row[1].guests[row[2]].held_s / row[1].window_s), 3
                ),
                "Times given": lambda row: PrintedNumber.plain(row[1].guests[row[2]].given),
                "Median RTT": lambda row: (
                    PrintedNumber.time(rtt.p50_ns)
                    if (rtt := row[1].guests[row[2]].rtt) is not None
                    else Missing("no answer came")
                ),
                "Lost": lambda row: PrintedNumber.count(row[1].guests[row[2]].counts.lost),
            },
        ),
        key=colours,
        lead=f"VF moves in the first trial of each policy: {counts}.",
    )


def shares(data: RunData) -> Table:
    """Share of time in which a group's guests held a VF, mean over trials."""
    held: dict[tuple[str, float], list[float]] = {}
    for trial in data.done:
        if trial.alloc is not None:
            for pps in sorted({guest.request_pps for guest in trial.alloc.guests.values()}):
                guests = members(trial, f"{pps:g}").values()
                share = statistics.fmean(guest.held_s for guest in guests) / trial.alloc.window_s
                held.setdefault((str(trial.cell["policy"]), pps), []).append(min(1.0, share))
    groups = sorted({pps for _, pps in held})

    def of_group(pps: float) -> Callable[[str], Entry]:
        return lambda policy: PrintedNumber.share(statistics.fmean(held[policy, pps]), 3)

    return Table.of(
        sorted({policy for policy, _ in held}, key=_rank),
        {
            "Policy": lambda policy: policy,
            **{f"Guests with {rate_text(pps)}": of_group(pps) for pps in groups},
        },
    )


def costs(by_policy: Results) -> Table:
    """Costs of the daemon, and its delay after a change of load: medians over trials."""

    def median(
        values: Callable[[AllocResult], Sequence[float | None]],
        show: Callable[[float], str] = _seconds,
        why: str = "not known",
    ) -> Callable[[tuple[str, Sequence[AllocResult]]], Entry]:
        def entry(row: tuple[str, Sequence[AllocResult]]) -> Entry:
            known = [v for trial in row[1] for v in values(trial) if v is not None]
            finite = [value for value in known if math.isfinite(value)]
            return _number(statistics.median(finite), show) if finite else Missing(why)

        return entry

    def durations(trial: AllocResult) -> list[float | None]:
        return [move.duration_s for move in trial.moves if move.ending == "completed"]

    def change(name: str) -> Callable[[AllocResult], Sequence[float | None]]:
        return lambda trial: [getattr(trial.change, name)] if trial.change else []

    def daemon(name: str) -> Callable[[AllocResult], Sequence[float | None]]:
        return lambda trial: [getattr(trial.daemon, name)]

    return Table.of(
        by_policy.items(),
        {
            "Policy": lambda row: row[0],
            "Trials": lambda row: PrintedNumber.plain(len(row[1])),
            "Moves": median(lambda trial: [len(trial.moves)], lambda number: f"{number:g}"),
            "A move": median(durations, why="no VF was moved"),
            "CPU": median(daemon("cpu"), lambda v: percent_text(round(v, 4))),
            "Memory": median(daemon("memory_bytes"), lambda size: f"{size / 2**20:.1f} MiB"),
            "A decision": median(daemon("decision_s"), why="nothing was decided"),
            "Reading counters": median(daemon("sample_s"), why="no counter was read"),
            "First VF after the change of load": median(change("first_s"), why="none was given"),
            "Clock error": median(change("error_s"), why="the load did not change"),
        },
    )


def _seconds(value: float) -> str:
    return time_text(value * 1e9)


def _number(value: float, show: Callable[[float], str] = _seconds) -> PrintedNumber:
    return PrintedNumber(show(value), value)


Downloads = Mapping[str, Sequence[tuple[AllocResult, Download]]]
"""By policy: a trial's result and its download."""


def download_figure(by_policy: Downloads, table: Table) -> Figure:
    """A line a trial: payload by second, up to the last byte."""
    rows: list[Row] = []
    for policy, of_policy in by_policy.items():
        for number, (_, download) in enumerate(of_policy):
            begin_s = 0.0
            for interval in download.intervals:  # two points each: a single one is a line, too
                place = {"series": policy, "value": interval.bps, "trial": f"{policy} {number}"}
                rows += [{**place, "x": begin_s}, {**place, "x": interval.end_s}]
                begin_s = interval.end_s
    colours = {policy: _SHADES[POLICIES.index(policy)] for policy in by_policy}
    across = Span(0.0, max((float(row["x"]) for row in rows), default=1.0))
    medians = ", ".join(
        f"{policy} {_seconds(statistics.median(one.seconds for _, one in of_policy))}"
        for policy, of_policy in by_policy.items()
    )
    return Figure(
        "download",
        "Throughput of a download, by policy",
        "One line per trial: payload received in each second, up to the end of the download.",
        (
            charts.lines(
                "",
                rows,
                colours,
                Span.of((float(row["value"]) for row in rows), log_from=math.inf),
                "bits",
                charts.numbers(across, "seconds since it began"),
                points=(),
                labels=False,
                more={"detail": {"field": "trial", "type": "nominal"}},
            ),
        ),
        table,
        key=colours,
        lead=f"Median duration of the whole download: {medians}.",
    )


def download_table(by_policy: Downloads) -> Table:
    """Durations of downloads, and the share of time in which their guest held a VF."""

    def seconds(of: Callable[[list[float]], float]) -> Callable[[_Row], Entry]:
        return lambda row: _number(of([download.seconds for _, download in row[1]]))

    def throughput(row: _Row) -> Entry:
        rates = [8 * download.bytes / download.seconds for _, download in row[1]]
        return _number(statistics.median(rates), bits_text)

    def held(row: _Row) -> Entry:
        times = [
            min(1.0, result.guests[download.guest].held_s / result.window_s)
            for result, download in row[1]
        ]
        return PrintedNumber.share(statistics.fmean(times), 3)

    return Table.of(
        by_policy.items(),
        {
            "Policy": lambda row: row[0],
            "Takes (median)": seconds(statistics.median),
            "Shortest": seconds(min),
            "Longest": seconds(max),
            "Throughput": throughput,
            "Share with a VF": held,
            "Trials": lambda row: PrintedNumber.plain(len(row[1])),
        },
    )


_Row = tuple[str, Sequence[tuple[AllocResult, Download]]]


def switch_figure(trial: TrialRecord, packets: pl.DataFrame) -> Figure:
    """Each request as a dot, with the median of each second, for the moved guest and the others.

    `packets` as a trial of the allocator keeps them (docs/reference/formats.md).
    """
    alloc = trial.alloc
    assert alloc is not None
    assert alloc.zero_ns is not None
    phases = alloc.switch
    moved = "guest that is moved"
    colours = {moved: theme.var("vf"), "other guests": theme.var("bridge")}
    answered = (
        packets.select(
            x=(pl.col("scheduled_ns") - alloc.zero_ns) / 1e9,
            value=(pl.col("user_rx_ns") - pl.col("user_tx_ns")).cast(pl.Float64),
            series=pl.when(pl.col("guest") == next(iter(alloc.guests)))
            .then(pl.lit(moved))
            .otherwise(pl.lit("other guests")),
        )
        .drop_nulls()
        .filter(pl.col("x").is_between(phases[0].begin_s, phases[-1].end_s))
        .sort("x")
    )
    span = Span.of([float(value) for value in answered["value"]])
    across = Span(phases[0].begin_s, phases[-1].end_s)
    shaded: list[Row] = [
        {
            "from": phase.begin_s,
            "to": phase.end_s,
            "hover": f"{phase.name}: {phase.end_s - phase.begin_s:.1f} s",
        }
        for phase in phases
        if phase.name in ("being given", "being taken")
    ]
    panels = []
    for name in colours:
        requests = answered.filter(pl.col("series") == name)
        medians = (
            requests.with_columns(x=(pl.col("x").floor() + 0.5).clip(upper_bound=across.high))
            .group_by("x", "series")
            .agg(pl.col("value").median())
            .sort("x")
        )
        dots = requests.gather_every(-(-requests.height // _MOST_DOTS) or 1).to_dicts()
        panels.append(
            charts.lines(
                name,
                medians.to_dicts(),
                colours,
                span,
                "duration",
                charts.numbers(across, "seconds after the warm-up"),
                points=dots,
                shaded=shaded,
                labels=False,
            )
        )
    return Figure(
        "switch",
        "Requests while a VF is given and taken",
        "A dot is a request at the time when it was due, the line the median of each second; grey: "
        "the VF is being given, later taken. Packets have the sender's clock and moves the "
        f"daemon's; the two may be {_seconds(alloc.clock_error_s or 0.0)} off. The axis is "
        f"{span.word}.",
        tuple(panels),
        switch_table([trial]),
        lead=switch_sentence([trial]),
    )


def switch_table(trials: Sequence[TrialRecord]) -> Table:
    """The phases: medians over trials, and losses of all trials."""
    rows: list[tuple[Entry, ...]] = []
    for name, phases in by_phase(trials):
        length_s = statistics.median(phase.end_s - phase.begin_s for phase in phases)
        rows.append(
            (
                name,
                _number(length_s),
                PrintedNumber.count(sum(phase.counts.sent for phase in phases)),
                PrintedNumber.count(sum(phase.counts.lost for phase in phases)),
                *(_median([phase.rtt for phase in phases], name) for name in SWITCH_QUANTILES),
                PrintedNumber.count(sum(phase.beside_lost for phase in phases)),
                *(_median([phase.beside for phase in phases], name) for name in SWITCH_QUANTILES),
            )
        )
    columns = ("Phase", "Takes", "Requests", "Lost", "p50", "p99")
    return Table((*columns, "Lost by others", "p50 of others", "p99 of others"), tuple(rows))


def _median(latencies: Sequence[Latency | None], quantile: str) -> Entry:
    values = [float(getattr(latency, quantile)) for latency in latencies if latency is not None]
    if not values:
        return Missing("no request was answered")
    return PrintedNumber.time(statistics.median(values))
