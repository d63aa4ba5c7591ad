"""From a run directory to what the figures show: cells, summaries, curves. Knows no drawing.

Packets become summaries here, a few cells at a time; only a scatter's share of them is kept.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from hdrh.histogram import HdrHistogram

from planewise.errors import BadInputError
from planewise.judge.curve import Curve
from planewise.judge.drift import Drift, find_drift
from planewise.judge.from_store import curves_from_trials
from planewise.judge.verdict import Verdict, judge
from planewise.report import packets as packet_files
from planewise.report import summaries, theme
from planewise.report.cells import NO_PLANE, Factors, Naming, level_rank, rank, words
from planewise.report.packets import Packets, RttMetric, Unread
from planewise.report.summaries import HIGH, LOW, Distribution, Parts, Spread
from planewise.store.models import (
    ChainLimit,
    ChainResult,
    CoreUse,
    Counts,
    HostState,
    Latency,
    Level,
    Metric,
    Recommendation,
    TcpResult,
    TrialRecord,
)
from planewise.store.rundir import RunReader

_NUMBER = re.compile(r"\d+(\.\d+)?")

TAIL = (("p50", 0.5, 2), ("p90", 0.9, 10), ("p99", 0.99, 100), ("p99.9", 0.999, 1000))
"""Quantiles of the tail table, with the packets that each needs to mean anything."""


@dataclass(frozen=True)
class RttCell:
    """RTT of one cell over all its replicates."""

    plane: str
    factors: Factors
    replicates: int
    packets: int
    """Packets with an RTT."""
    sent: int
    lost: int
    low_ns: float
    q25_ns: float
    median_ns: float
    q75_ns: float
    high_ns: float
    tail_ns: Mapping[str, float | None]
    """By name of `TAIL`; None where the packets are too few."""
    medians_ns: tuple[float, ...]
    """Median of each replicate."""
    kernel_medians_ns: tuple[float, ...]
    """The same between the guest's kernel stamps, of the replicates that have them."""
    parts: Parts | None
    no_parts: str
    """Why there are no parts; empty when there are."""
    overhead: Spread | str
    """RTT at the guest minus RTT at the sender's NIC, or why it is not known."""
    response: Spread | str
    """NIC to NIC inside the responder, or why it is not known."""
    distribution: Distribution | None
    """None where only histograms or summaries were kept."""
    counts: Counts
    """Over all its trials."""

    @property
    def rtt(self) -> Spread:
        """Its RTT as a box."""
        return Spread(
            self.low_ns,
            self.q25_ns,
            self.median_ns,
            self.q75_ns,
            self.high_ns,
            self.packets,
            self.medians_ns,
        )


@dataclass(frozen=True)
class CpuCell:
    """CPU of one host in one cell's RTT trials, mean over replicates."""

    plane: str
    factors: Factors
    host: str
    shares: Mapping[str, float]
    """By group of `CPU_GROUPS`, each a share of all CPUs' time; idle is what remains."""
    busy_low: float
    busy_high: float
    """Least and most busy share of a replicate."""
    replicates: int

    @property
    def busy(self) -> float:
        """Share of time in which the CPUs were not idle."""
        return sum(self.shares.values())


CPU_GROUPS: Mapping[str, tuple[str, ...]] = {
    "programs": ("usr", "nice", "guest", "gnice"),
    "kernel": ("sys",),
    "interrupts": ("irq", "soft"),
    "stolen": ("steal",),
    "waiting": ("iowait",),
}
"""mpstat's modes, gathered."""


@dataclass(frozen=True)
class ChainCell:
    """Throughput of one chain over all its replicates."""

    plane: str
    path: str
    vnfs: int
    size: int | str
    """Bytes of a frame with FCS, or `imix`."""
    pps: tuple[float, ...]
    """What all functions transmit, by replicate."""
    bps: tuple[float, ...]
    delivered: float
    """Packets that came back, as a share of those handed over."""
    limit: ChainLimit
    """What bound most of the replicates."""
    why: str
    """What shows it, in the first replicate that it bound."""
    cores: tuple[CoreUse, ...]
    """Of that replicate."""


@dataclass(frozen=True)
class TcpCell:
    """Goodput of TCP over all replicates of a cell."""

    label: str
    """Plane, and functions where there are any."""
    message_bytes: int
    bps: tuple[float, ...]
    retransmits: int


@dataclass(frozen=True)
class JudgedCurve:
    """A load-loss curve with its verdict."""

    plane: str
    factors: Factors
    curve: Curve
    verdict: Verdict


@dataclass(frozen=True)
class Visit:
    """One trial in the run's order."""

    order: int
    plane: str
    factors: Factors
    kind: str
    failed: bool
    relative: float | None
    """Median RTT of the trial over the median of its cell's medians; None without an RTT, and
    where the cell has no other trial."""
    median_ns: float | None
    trial: TrialRecord


@dataclass(frozen=True)
class LeftOut:
    """Something that is not in the figures, and why."""

    what: str
    why: str
    times: int = 1


@dataclass(frozen=True)
class Watched:
    """What a host tells of its own state, and what it has no counter for."""

    host: str
    told: tuple[str, ...]
    unsupported: tuple[str, ...]
    """Its silence is not steadiness."""


_STATE: tuple[tuple[Callable[[HostState], bool], str], ...] = (
    (lambda state: state.governor != "none", "frequency governor"),
    (lambda state: state.cpu_mhz is not None, "clock of the CPUs"),
    (lambda state: state.temperature_c is not None, "temperature"),
    (lambda state: state.throttled is not None, "throttling"),
    (lambda state: state.steal is not None, "time that the hypervisor gave to others"),
    (lambda state: state.foreign_cpu is not None, "CPU time of other programs"),
    (lambda state: bool(state.offloads), "offloads of network cards"),
)


class RunData:
    """Everything that a report shows, computed when it is first asked for."""

    def __init__(self, run: RunReader) -> None:
        """Reads the trials. BadInputError for a line that is no trial record."""
        self.run = run
        self.info = run.info
        self.trials: list[TrialRecord] = run.trials()
        self.is_cut = run.is_cut()
        self._notes: list[LeftOut] = []
        self.naming = Naming(trial.cell for trial in self.trials)
        self._keys: dict[str, tuple[str, Factors]] = {}

    def key(self, trial: TrialRecord) -> tuple[str, Factors]:
        """What the trial's cell is called: its series (its plane, mostly) and its other levels."""
        found = self._keys.get(trial.trial)
        if found is None:
            found = self.naming.series(trial.cell), self.naming.factors(trial.cell)
            self._keys[trial.trial] = found
        return found

    @cached_property
    def done(self) -> list[TrialRecord]:
        """Trials that came to a result."""
        return [trial for trial in self.trials if trial.status == "done"]

    @cached_property
    def recommendation(self) -> Recommendation | None:
        """What the run advises; a damaged file is noted, not fatal."""
        try:
            return self.run.recommendation()
        except BadInputError as error:
            self._notes.append(LeftOut("The recommendation", error.what))
            return None

    @cached_property
    def planes(self) -> tuple[str, ...]:
        """All planes (series, where the background's planes vary as well)."""
        seen = dict.fromkeys(
            series for trial in self.trials for series in self.naming.like(self.key(trial)[0])
        )
        return tuple(sorted(seen, key=self.plane_rank))

    def plane_rank(self, series: str) -> tuple[int, str]:
        """Planes in the same order everywhere: as the colours name them, unknown ones after."""
        known = list(theme.PLANES)
        plane = self.naming.plane(series)
        place = known.index(plane) if plane in known else len(known)
        return (place + (plane == NO_PLANE), series)

    @cached_property
    def virtual(self) -> str:
        """Why the times of this run are not those of bare hardware; empty when they are."""
        if self.info.emulated:
            return self.info.emulated
        kinds = {
            host.virtualisation
            for host in self.info.hosts.values()
            if host.virtualisation not in ("", "none")
        }
        return f"measured in a virtual machine ({', '.join(sorted(kinds))})" if kinds else ""

    @property
    def virtual_word(self) -> str:
        """What kind of times this run has where they are not those of bare hardware."""
        return "emulated" if self.info.emulated else "virtualised" if self.virtual else ""

    @cached_property
    def rtt_metric(self) -> RttMetric:
        """RTT as the guest's program sees it, which the recommendation rests on as well.

        Kernel stamps only where a trial has no others, and then for all planes alike.
        """
        trials = [trial for trial in self.done if trial.kind == "rtt"]
        return "rtt_user" if all("rtt_user" in trial.latency for trial in trials) else "rtt_kernel"

    @cached_property
    def rtt(self) -> list[RttCell]:
        """RTT by cell, by context and plane."""
        cells: dict[tuple[str, Factors], list[TrialRecord]] = {}
        for trial in self.done:
            if trial.kind == "rtt":
                cells.setdefault(self.key(trial), []).append(trial)
        found = packet_files.summarise(
            self.run.path, list(cells.values()), self.rtt_metric, self._summary
        )
        result: list[RttCell] = []
        for summary, notes in found:
            self._notes += notes
            if summary is not None:
                result.append(summary)
        return sorted(result, key=lambda cell: (rank(cell.factors), self.plane_rank(cell.plane)))

    @cached_property
    def cpu(self) -> list[CpuCell]:
        """CPU by cell and host during RTT trials (load trials where there are no others)."""
        kind = "rtt" if any(trial.kind == "rtt" for trial in self.done) else "load"
        cells: dict[tuple[str, Factors, str], list[Mapping[str, float]]] = {}
        for trial in self.done:
            if trial.kind == kind:
                for host, modes in trial.cpu.items():
                    key = (*self.key(trial), host)
                    cells.setdefault(key, []).append(modes)
        result = []
        for (plane, factors, host), samples in cells.items():
            grouped = [
                {
                    group: sum(modes.get(mode, 0.0) for mode in members)
                    for group, members in CPU_GROUPS.items()
                }
                for modes in samples
            ]
            busy = [sum(groups.values()) for groups in grouped]
            result.append(
                CpuCell(
                    plane=plane,
                    factors=factors,
                    host=host,
                    shares={
                        group: statistics.fmean(groups[group] for groups in grouped)
                        for group in CPU_GROUPS
                    },
                    busy_low=min(busy),
                    busy_high=max(busy),
                    replicates=len(samples),
                )
            )
        return sorted(
            result, key=lambda cell: (rank(cell.factors), cell.host, self.plane_rank(cell.plane))
        )

    @cached_property
    def curves(self) -> list[JudgedCurve]:
        """Load-loss curves by context and plane, each judged by the default rule."""
        result = []
        for cell, curve in curves_from_trials(self.trials):
            plane, factors = self.naming.series(cell), self.naming.factors(cell)
            result.append(JudgedCurve(plane, factors, curve, judge(curve)))
        return sorted(result, key=lambda item: (rank(item.factors), self.plane_rank(item.plane)))

    @cached_property
    def chains(self) -> list[ChainCell]:
        """Throughput of chains, by plane, path, length and frame size."""
        cells: dict[tuple[str, str, int, Level], list[ChainResult]] = {}
        kinds: dict[Level, set[Level]] = {}
        for trial in self.done:
            if trial.chain is not None:
                own = kinds.setdefault(trial.cell.get("plane", NO_PLANE), set())
                own.add(trial.cell.get("guest", ""))
        for trial in self.done:
            if trial.chain is not None:
                cell = trial.cell
                plane = cell.get("plane", NO_PLANE)
                guest = f", {cell.get('guest')}" if len(kinds[plane]) > 1 else ""
                key = (
                    f"{plane}{guest}",
                    str(cell.get("path", "")),
                    int(cell.get("vnfs", len(trial.chain.vnfs))),
                    cell.get("size_bytes", 0),
                )
                cells.setdefault(key, []).append(trial.chain)
        found = []
        for (plane, path, vnfs, size), results in cells.items():
            limit, _ = Counter(one.limit for one in results).most_common(1)[0]
            shown = next(one for one in results if one.limit == limit)
            offered = sum(one.offered_pps for one in results)
            found.append(
                ChainCell(
                    plane=plane,
                    path=path,
                    vnfs=vnfs,
                    size=size if isinstance(size, str) else int(size),
                    pps=tuple(one.tx_pps for one in results),
                    bps=tuple(one.tx_bps for one in results),
                    delivered=sum(one.delivered_pps for one in results) / offered
                    if offered
                    else 0.0,
                    limit=limit,
                    why=shown.why,
                    cores=shown.cores,
                )
            )
        return sorted(
            found,
            key=lambda cell: (
                level_rank(cell.size),
                self.plane_rank(cell.plane.partition(", ")[0]),
                cell.plane,
                cell.path != "north-south",
                cell.vnfs,
            ),
        )

    @cached_property
    def tcp(self) -> list[TcpCell]:
        """Goodput of TCP, by plane, functions and message size."""
        cells: dict[tuple[str, int, int], list[TcpResult]] = {}
        for trial in self.done:
            if trial.tcp is not None:
                plane = str(trial.cell.get("plane", NO_PLANE))
                key = (plane, int(trial.cell.get("vnfs", 0)), trial.tcp.message_bytes)
                cells.setdefault(key, []).append(trial.tcp)
        ordered = sorted(cells.items(), key=lambda one: (self.plane_rank(one[0][0]), one[0]))
        return [
            TcpCell(
                label=plane if not vnfs else f"{plane}, {vnfs} function{'' if vnfs == 1 else 's'}",
                message_bytes=message,
                bps=tuple(one.goodput_bps for one in results),
                retransmits=sum(one.retransmits for one in results),
            )
            for (plane, vnfs, message), results in ordered
        ]

    @cached_property
    def visits(self) -> list[Visit]:
        """All trials in the order in which they were run."""
        medians: dict[tuple[str, Factors], list[float]] = {}
        for trial in self.done:
            if trial.kind == "rtt" and (rtt := trial.latency.get(self.rtt_metric)):
                medians.setdefault(self.key(trial), []).append(rtt.p50_ns)
        result = []
        for trial in sorted(self.trials, key=lambda trial: trial.order):
            key = self.key(trial)
            rtt = trial.latency.get(self.rtt_metric)
            median = rtt.p50_ns if rtt and trial.status == "done" and trial.kind == "rtt" else None
            # With a single trial there is nothing to compare it with: it would lie at its own
            # middle, and the run would seem to have no drift.
            several = len(medians.get(key, ())) > 1
            of_cell = statistics.median(medians[key]) if several else 0.0
            result.append(
                Visit(
                    order=trial.order,
                    plane=key[0],
                    factors=key[1],
                    kind=trial.kind,
                    failed=trial.status == "failed",
                    relative=median / of_cell if median is not None and of_cell > 0 else None,
                    median_ns=median,
                    trial=trial,
                )
            )
        return result

    @cached_property
    def drift(self) -> tuple[Drift, ...]:
        """What changed on the hosts, or in the results, while the run was measured."""
        return find_drift(self.trials, self.info)

    @cached_property
    def watched(self) -> tuple[Watched, ...]:
        """By host, what its state around every trial tells; empty where nothing was recorded."""
        states: dict[str, list[HostState]] = {}
        for trial in self.done:
            for role, state in trial.host.items():
                states.setdefault(role, []).append(state)
        return tuple(
            Watched(
                role,
                told=tuple(words for told, words in _STATE if any(map(told, own))),
                unsupported=tuple(words for told, words in _STATE if not any(map(told, own))),
            )
            for role, own in states.items()
        )

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """What is not in the figures or must be read with care, and why."""
        _ = self.rtt, self.recommendation  # they add notes
        notes = list(self._notes)
        if self.is_cut:
            notes.append(
                LeftOut(
                    "The last line of trials.jsonl",
                    "it was cut short (a kill or a full disk): that trial is not here; "
                    "--resume runs it again",
                )
            )
        skipped = Counter((self.naming.series(one.cell), one.reason) for one in self.info.skipped)
        notes += [
            LeftOut(
                f"{times} cell{'s' if times != 1 else ''} of {plane}", f"could not run here: {why}"
            )
            for (plane, why), times in skipped.items()
        ]
        for trial in self.trials:
            if trial.status == "failed":
                notes.append(LeftOut(f"Trial {trial.trial}", f"it failed: {trial.reason}"))
        missing = Counter(
            (self.key(trial)[0], metric, reason)
            for trial in self.done
            for metric, reason in trial.not_measurable.items()
        )
        notes += [
            LeftOut(f"{METRICS[metric]} of {plane}", f"not measurable: {reason}", times)
            for (plane, metric, reason), times in missing.items()
        ]
        limited = Counter(
            (self.key(trial)[0], limit)
            for trial in self.done
            for limit in trial.limits
            if limit != "sut"
        )
        notes += [
            LeftOut(f"Load trials of {plane}", LIMITS[limit], times)
            for (plane, limit), times in limited.items()
        ]
        warnings: dict[str, list[str]] = {}
        for trial in self.done:
            for warning in trial.warnings:
                warnings.setdefault(_NUMBER.sub("#", warning), []).append(warning)
        notes += [
            LeftOut(
                "Said during a trial" if len(set(said)) == 1 else "Said with varying figures",
                said[0],
                len(said),
            )
            for said in warnings.values()
        ]
        return notes

    def _summary(
        self, trials: Sequence[TrialRecord], packets: Packets | Unread
    ) -> tuple[RttCell | None, list[LeftOut]]:
        plane, factors = self.key(trials[0])
        metric = self.rtt_metric
        notes: list[LeftOut] = []
        of_trials = [trial.latency[metric] for trial in trials if metric in trial.latency]
        quantiles = [LOW, 0.25, 0.5, 0.75, HIGH, *(quantile for _, quantile, _ in TAIL)]
        values: list[float] | None = None
        n = 0
        distribution = None
        if isinstance(packets, Packets):
            rtts = summaries.known(packets.rtt_ns)
            n = len(rtts)
            if n:
                ordered = np.sort(rtts)
                values = summaries.at(ordered, quantiles)
                distribution = summaries.distribution(rtts, ordered)
        else:
            notes = _unread(packets)
            values, n = _from_histograms(of_trials, quantiles)
        if values is None:
            if of_trials:
                why = "neither its packets nor a histogram were kept"
            else:
                why = "no packet came back"
            return None, [*notes, LeftOut(f"RTT of {plane}, {words(factors)}", why)]
        parts, why = _parts(metric, trials, packets)
        cell = RttCell(
            plane=plane,
            factors=factors,
            replicates=len(trials),
            packets=n,
            sent=sum(trial.counts.sent for trial in trials if trial.counts),
            lost=sum(trial.counts.lost for trial in trials if trial.counts),
            low_ns=values[0],
            q25_ns=values[1],
            median_ns=values[2],
            q75_ns=values[3],
            high_ns=values[4],
            tail_ns={
                name: value if n >= needed else None
                for (name, _, needed), value in zip(TAIL, values[5:], strict=True)
            },
            medians_ns=tuple(summary.p50_ns for summary in of_trials),
            kernel_medians_ns=tuple(
                trial.latency["rtt_kernel"].p50_ns
                for trial in trials
                if "rtt_kernel" in trial.latency
            ),
            parts=parts,
            no_parts=why,
            overhead=_spread("overhead", trials, packets),
            response=_spread("response", trials, packets),
            distribution=distribution,
            counts=_added(trial.counts for trial in trials if trial.counts),
        )
        return cell, notes


def _unread(unread: Unread) -> list[LeftOut]:
    if not unread.file:
        return []
    return [
        LeftOut(
            f"The packets of {unread.file}",
            f"{unread.why}; this cell's figures come from the trials' histograms",
        )
    ]


METRICS: Mapping[Metric, str] = {
    "rtt_user": "RTT between user-space stamps",
    "rtt_kernel": "RTT between kernel stamps",
    "overhead": "RTT overhead at the sender",
    "response": "Response time at the responder",
    "one_way": "One-way latency",
}

LIMITS: Mapping[str, str] = {
    "generator": "the generator could not send as fast as intended, so they say nothing about "
    "the plane and do not count",
    "sink": "the sink could not receive as fast as frames arrived, so they say nothing about "
    "the plane and do not count",
    "clock": "a clock stepped or could not be trusted during them, so they do not count",
}


def _from_histograms(
    summaries: Sequence[Latency], quantiles: Sequence[float]
) -> tuple[list[float] | None, int]:
    """Quantiles [ns] of the merged histograms, and their packets; None when one is missing."""
    if not summaries or any(summary.hdr is None for summary in summaries):
        return None, 0
    merged = HdrHistogram(1, 3_600_000_000_000, 3)
    for summary in summaries:
        merged.add(HdrHistogram.decode(summary.hdr))
    n = int(merged.total_count)
    if n == 0:
        return None, 0
    return [float(merged.get_value_at_percentile(quantile * 100)) for quantile in quantiles], n


_NO_CAPTURE = "no capture at the network cards in this run"


def _unmeasurable(name: Metric, trials: Sequence[TrialRecord]) -> str:
    """Why the metric does not exist for these trials; empty when nothing is said against it."""
    return next(
        (
            f"not measurable: {trial.not_measurable[name]}"
            for trial in trials
            if name in trial.not_measurable
        ),
        "",
    )


def _parts(
    metric: RttMetric, trials: Sequence[TrialRecord], packets: Packets | Unread
) -> tuple[Parts | None, str]:
    """Where the time goes, or the reason why that is not known."""
    if why := _unmeasurable("overhead", trials) or _unmeasurable("response", trials):
        return None, why
    if isinstance(packets, Unread):
        return _parts_from_summaries(metric, trials)
    if np.isnan(packets.nic_ns).all() or np.isnan(packets.response_ns).all():
        return None, _NO_CAPTURE
    both = metric == "rtt_user" and not np.isnan(packets.kernel_ns).all()
    found = summaries.parts(packets, rtt_has_instrument=both)
    return found, "" if found is not None else "no packet was seen at all four capture points"


def _spread(
    name: Literal["overhead", "response"],
    trials: Sequence[TrialRecord],
    packets: Packets | Unread,
) -> Spread | str:
    if why := _unmeasurable(name, trials):
        return why
    of_trials = [trial.latency[name] for trial in trials if name in trial.latency]
    medians = [summary.p50_ns for summary in of_trials]
    if isinstance(packets, Unread):
        quantiles, n = _from_histograms(of_trials, (LOW, 0.25, 0.5, 0.75, HIGH))
        if quantiles is None:
            return "neither its packets nor a histogram were kept" if of_trials else _NO_CAPTURE
        low, q25, median, q75, high = quantiles
        return Spread(low, q25, median, q75, high, n, tuple(medians))
    values = packets.response_ns if name == "response" else packets.rtt_ns - packets.nic_ns
    values = summaries.known(values)
    return summaries.spread(np.sort(values), medians) if len(values) else _NO_CAPTURE


def _added(counts: Iterable[Counts]) -> Counts:
    totals = dict.fromkeys(Counts.model_fields, 0)
    for one in counts:
        for name in totals:
            totals[name] += getattr(one, name)
    return Counts(**totals)


def _parts_from_summaries(
    metric: RttMetric, trials: Sequence[TrialRecord]
) -> tuple[Parts | None, str]:
    """Means over all packets, from the trials' summaries: they add up, but outliers weigh in."""
    sums: dict[str, float] = {}
    n = 0
    for trial in trials:
        if not {"overhead", "response", metric} <= set(trial.latency):
            return None, "no capture at the network cards in this run"
        weight = trial.latency[metric].count
        n += weight
        for name, summary in trial.latency.items():
            sums[name] = sums.get(name, 0.0) + summary.mean_ns * weight
    mean = {name: total / n for name, total in sums.items()} if n else {}
    if not mean:
        return None, "no packet came back"
    total = mean[metric]
    both = metric == "rtt_user" and "rtt_kernel" in mean
    instrument = total - mean["rtt_kernel"] if both else None
    return (
        Parts(
            total_ns=total,
            instrument_ns=instrument,
            sender_ns=mean["overhead"] - (instrument or 0.0),
            wire_ns=total - mean["overhead"] - mean["response"],
            responder_ns=mean["response"],
            packets=n,
        ),
        "",
    )
