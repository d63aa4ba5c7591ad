"""RTT of one cell over its replicates, from packets or, without them, histograms. Draws nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from hdrh.histogram import HdrHistogram

from planewise.report import summaries
from planewise.report.left_out import LeftOut
from planewise.report.packets import Packets, Unread
from planewise.report.summaries import BOX, Distribution, Spread, TimeParts
from planewise.store.cells import Factors, words
from planewise.store.levels import missed_levels
from planewise.store.models import Counts, Latency, Metric, TrialRecord
from planewise.store.packets import RttMetric

TAIL = (("p50", 0.5, 2), ("p90", 0.9, 10), ("p99", 0.99, 100), ("p99.9", 0.999, 1000))
"""Quantiles of the tail table, with the packets that each needs."""


@dataclass(frozen=True)
class RttCell:
    """RTT of one cell over all its replicates."""

    plane: str
    factors: Factors
    replicates: int
    rtt: Spread
    """Over all packets that have an RTT."""
    sent: int
    lost: int
    tail_ns: Mapping[str, float | None]
    """By name of `TAIL`; None where the packets are too few."""
    kernel_medians_ns: tuple[float, ...]
    """Median RTT between the guest's kernel stamps, of the replicates that have them."""
    parts: TimeParts | None
    no_parts: str
    """Why `parts` is None; else empty."""
    overhead: Spread | str
    """RTT at the guest minus RTT at the sender's NIC, or why it is not known."""
    response: Spread | str
    """NIC to NIC inside the responder, or why it is not known."""
    no_stacks: str
    """Why `parts` lacks the time in the guests' network stacks; else empty."""
    distribution: Distribution | None
    """None where only histograms or summaries were kept."""
    counts: Counts
    """Sum over all trials."""
    achieved_pps: tuple[float, ...] = ()
    """Probes sent a second, by trial that recorded it."""
    missed: tuple[str, ...] = ()
    """Levels that the trials missed; empty for trials that count."""

    @property
    def median_ns(self) -> float:
        """Median over all packets."""
        return self.rtt.median_ns


def summarise(
    plane: str,
    factors: Factors,
    metric: RttMetric,
    trials: Sequence[TrialRecord],
    packets: Packets | Unread,
) -> tuple[RttCell | None, list[LeftOut]]:
    """One cell from its trials and their packets (None without any RTT), and what is missing."""
    notes: list[LeftOut] = []
    latencies = [trial.latency[metric] for trial in trials if metric in trial.latency]
    quantiles = [*BOX, *(quantile for _, quantile, _ in TAIL)]
    values: list[float] | None = None
    n = 0
    distribution = None
    if isinstance(packets, Packets):
        rtts = summaries.without_nan(packets.rtt_ns)
        n = len(rtts)
        if n:
            ordered = np.sort(rtts)
            values = summaries.at(ordered, quantiles)
            distribution = summaries.distribution(rtts, ordered)
    else:
        notes = _unread(packets)
        values, n = _from_histograms(latencies, quantiles)
    if values is None:
        if latencies:
            why = "neither its packets nor a histogram were kept"
        else:
            why = "no packet came back"
        return None, [*notes, LeftOut(f"RTT of {plane}, {words(factors)}", why)]
    parts, why = _parts(metric, trials, packets)
    missed = [level for trial in trials for level in missed_levels(trial)]
    cell = RttCell(
        plane=plane,
        factors=factors,
        replicates=len(trials),
        rtt=Spread.of(values[:5], n, [summary.p50_ns for summary in latencies]),
        sent=sum(trial.counts.sent for trial in trials if trial.counts),
        lost=sum(trial.counts.lost for trial in trials if trial.counts),
        tail_ns={
            name: value if n >= needed else None
            for (name, _, needed), value in zip(TAIL, values[5:], strict=True)
        },
        kernel_medians_ns=tuple(
            trial.latency["rtt_kernel"].p50_ns for trial in trials if "rtt_kernel" in trial.latency
        ),
        parts=parts,
        no_parts=why,
        overhead=_spread("overhead", trials, packets),
        response=_spread("response", trials, packets),
        no_stacks=_no_stacks(parts, trials),
        distribution=distribution,
        counts=_added(trial.counts for trial in trials if trial.counts),
        achieved_pps=tuple(trial.load.paced_pps for trial in trials if trial.load),
        missed=tuple(dict.fromkeys(level.factor for level in missed)),
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
    """Why these trials could not measure the metric; empty when they could."""
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
) -> tuple[TimeParts | None, str]:
    """The parts of the time, or the reason why they are not known."""
    why = _unmeasurable("overhead", trials) or _unmeasurable("response", trials)
    if isinstance(packets, Unread):
        return (None, why) if why else _parts_from_summaries(metric, trials)
    if not why and (np.isnan(packets.nic_ns).all() or np.isnan(packets.response_ns).all()):
        why = _NO_CAPTURE
    time_parts = summaries.parts(packets, of_user=metric == "rtt_user", hosts_see=not why)
    if time_parts is not None:
        return time_parts, ""
    return None, why or "no packet was seen at all capture points"


def _no_stacks(parts: TimeParts | None, trials: Sequence[TrialRecord]) -> str:
    if parts is not None and parts.sender_stack_ns is not None:
        return ""
    why = _unmeasurable("sender_stack", trials)
    return why or "packets were not stamped inside the guests (`rtt.guest_stamps`)"


def _spread(
    name: Literal["overhead", "response"],
    trials: Sequence[TrialRecord],
    packets: Packets | Unread,
) -> Spread | str:
    if why := _unmeasurable(name, trials):
        return why
    latencies = [trial.latency[name] for trial in trials if name in trial.latency]
    medians = [summary.p50_ns for summary in latencies]
    if isinstance(packets, Unread):
        quantiles, n = _from_histograms(latencies, BOX)
        if quantiles is None:
            return "neither its packets nor a histogram were kept" if latencies else _NO_CAPTURE
        return Spread.of(quantiles, n, medians)
    values = packets.response_ns if name == "response" else packets.rtt_ns - packets.nic_ns
    values = summaries.without_nan(values)
    return summaries.spread(np.sort(values), medians) if len(values) else _NO_CAPTURE


def _added(counts: Iterable[Counts]) -> Counts:
    totals = dict.fromkeys(Counts.model_fields, 0)
    for count in counts:
        for name in totals:
            totals[name] += getattr(count, name)
    return Counts(**totals)


def _parts_from_summaries(
    metric: RttMetric, trials: Sequence[TrialRecord]
) -> tuple[TimeParts | None, str]:
    """Means over all packets, from the trials' summaries: they add up, but include outliers."""
    sums: dict[str, float] = {}
    n = 0
    for trial in trials:
        if not {"overhead", "response", metric} <= set(trial.latency):
            return None, _NO_CAPTURE
        weight = trial.latency[metric].count
        n += weight
        for name, summary in trial.latency.items():
            sums[name] = sums.get(name, 0.0) + summary.mean_ns * weight
    stacks = metric == "rtt_user" and all(
        {"sender_stack", "responder_stack"} <= set(trial.latency) for trial in trials
    )
    mean = {name: total / n for name, total in sums.items()} if n else {}
    if not mean:
        return None, "no packet came back"
    total = mean[metric]
    has_kernel = metric == "rtt_user" and "rtt_kernel" in mean
    parts = TimeParts.of(
        total=total,
        wire=total - mean["overhead"] - mean["response"],
        overhead=mean["overhead"],
        response=mean["response"],
        instrument=total - mean["rtt_kernel"] if has_kernel else None,
        stacks=(mean["sender_stack"], mean["responder_stack"]) if stacks else None,
        packets=n,
    )
    return parts, ""
