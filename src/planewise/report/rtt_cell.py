"""RTT of one cell over its replicates, from packets or, without them, histograms."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from planewise.judge.bounded import Bounded, median_of
from planewise.judge.statistics.metrics import quantile_of_sent
from planewise.report.left_out import LeftOut
from planewise.store.cells import Factors, words
from planewise.store.models import Counts, Latency, Metric, TrialRecord
from planewise.store.packets import Durations, RttMetric, arrays, buckets, rtt_stamps, scan
from planewise.units import time_text

Floats = NDArray[np.floating]

Packets = Durations
"""Of all packets of a cell: `rtt` between the stamps of the metric and `kernel` between those of
the kernel; `sender_nic` at the sender's NIC and `sender_inside` at the interface of its guest;
`responder_nic` NIC to NIC inside the responder, and `responder_inside` from the interface of its
guest into the guest and back."""
_POINTS = ("sender_nic", "responder_nic", "sender_inside", "responder_inside")
_STAMPS = {
    "kernel": rtt_stamps("rtt_kernel"),
    **{point: (f"{point}_request_ns", f"{point}_reply_ns") for point in _POINTS},
}


def read(run: Path, trials: Sequence[TrialRecord], metric: RttMetric) -> Packets | LeftOut | None:
    """The packets of a cell's trials; None where they were not kept, or a note on a bad file."""
    if not trials or any(trial.packets is None for trial in trials):
        return None
    wanted = {"rtt": rtt_stamps(metric), **_STAMPS}
    files = [str(run / str(trial.packets)) for trial in trials]
    table = scan(files, wanted)
    if isinstance(table, str):  # read alone, most files can be read
        tables = []
        for file, trial in zip(files, trials, strict=True):
            if isinstance(alone := scan([file], wanted), str):
                why = f"it cannot be read ({alone}); this cell's figures come from the trials'"
                return LeftOut(f"packets of {trial.packets}", f"{why} histograms")
            tables.append(alone)
        table = pl.concat(tables)
    return arrays(table)


BOX = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of a box: whiskers, ends and middle."""
TAIL = (
    *(("p50", "p50_ns", 2), ("p90", "p90_ns", 10)),
    *(("p99", "p99_ns", 100), ("p99.9", "p999_ns", 1000)),
)
"""Quantiles of the tail table, their fields, and the packets that each needs."""
PROBABILITIES: tuple[float, ...] = (
    0.001,
    0.005,
    *(percent / 100 for percent in range(1, 100)),
    *(1 - digit * 10.0**-power for power in (3, 4, 5, 6) for digit in (5, 2, 1)),
)
"""Quantiles that are kept of a distribution: every per cent, then towards 1 - 10⁻⁶."""
MOST_POINTS = 400
"""Most packets of a cell that a scatter draws."""


@dataclass(frozen=True)
class Spread:
    """A cell's time as a box [ns]."""

    ends_ns: tuple[float, ...]
    """At `BOX`, over all packets; the middle over replicates: the value that planes are compared
    by."""
    packets: int
    medians_ns: tuple[float, ...]
    """Median of each replicate."""

    @classmethod
    def of(cls, ends_ns: Sequence[float], packets: int, medians_ns: Sequence[float]) -> Spread:
        """The box of quantiles over all packets, its middle that of the replicates' medians."""
        ends = list(ends_ns)
        ends[2] = statistics.median(medians_ns) if medians_ns else ends[2]
        return cls(tuple(ends), packets, tuple(medians_ns))

    @property
    def row(self) -> dict[str, float]:
        """The quantiles as fields of a mark."""
        return dict(zip(("low", "q25", "median", "q75", "high"), self.ends_ns, strict=True))

    @property
    def median_ns(self) -> float:
        """Median over the replicates of their medians."""
        return self.ends_ns[2]

    @property
    def words(self) -> str:
        """The quantiles in words."""
        low, q25, median, q75, high = map(time_text, self.row.values())
        return (
            f"median {median}, middle half {q25} to {q75}, 5th to 95th percentile {low} to {high}"
        )

    @property
    def replicates(self) -> str:
        """The lowest and the highest median of a replicate."""
        if not self.medians_ns:
            return "—"
        return f"{time_text(min(self.medians_ns))} – {time_text(max(self.medians_ns))}"


@dataclass(frozen=True)
class Distribution:
    """A cell's RTT in full: for the cumulative curve, the tail and the scatter [ns]."""

    quantiles_ns: tuple[float, ...]
    """At `PROBABILITIES`, as far as at least one packet lies beyond."""
    points_ns: tuple[float, ...]
    """Packets at even distances in the order of sending, `MOST_POINTS` at most."""
    max_ns: float
    packets: int


@dataclass(frozen=True)
class RttCell:
    """RTT of one cell over all its replicates."""

    plane: str
    factors: Factors
    rtt: Spread
    counts: Counts
    """Sum over all trials."""
    tail_ns: Mapping[str, Bounded | None]
    """By name of `TAIL`: the median over replicates, as planes are compared by it. None where the
    packets are too few."""
    kernel_medians_ns: tuple[float, ...]
    """Median RTT between the guest's kernel stamps, of the replicates that have them."""
    parts_ns: Mapping[str, float]
    """Means of the parts of a typical packet's round trip, which add up to `sum`; see `_parts`."""
    parts_packets: int
    no_parts: str
    """Why there are no parts; else empty."""
    no_stacks: str
    """Why the parts lack the time in the guests' network stacks; else empty."""
    overhead: Spread | str
    """RTT at the guest minus RTT at the sender's NIC, or why it is not known."""
    response: Spread | str
    """NIC to NIC inside the responder, or why it is not known."""
    distribution: Distribution | None
    """None where only histograms or summaries were kept."""
    achieved_pps: tuple[float, ...] = ()
    """Probes sent a second, by trial that recorded it."""

    @property
    def share_lost(self) -> float:
        """Of the probes sent."""
        return self.counts.lost / (self.counts.sent or 1)

    def why_no(self, part: str) -> str:
        """Why it lacks this part of the round trip."""
        if not self.parts_ns:
            return self.no_parts
        if part == "between":
            return "see its parts: the hosts see these packets"
        if part == "instrument":
            return "no kernel stamps in every trial"
        if part in ("sender_stack", "responder_stack"):
            return self.no_stacks
        unseen = "the hosts do not see these packets"
        return self.overhead if isinstance(self.overhead, str) else unseen


def summarise(
    plane: str,
    factors: Factors,
    metric: RttMetric,
    trials: Sequence[TrialRecord],
    packets: Packets | LeftOut | None,
) -> tuple[RttCell | None, list[LeftOut]]:
    """One cell from its trials and their packets (None without any RTT), and what is missing."""
    notes = [packets] if isinstance(packets, LeftOut) else []
    latencies = [trial.latency[metric] for trial in trials if metric in trial.latency]
    values: list[float] = []
    n = 0
    distribution = None
    parts: dict[str, float] = {}
    parts_packets = 0
    why = _unmeasurable("overhead", trials) or _unmeasurable("response", trials)
    if packets is not None and not isinstance(packets, LeftOut):
        rtts = packets["rtt"][~np.isnan(packets["rtt"])]
        n = len(rtts)
        if n:
            ordered = np.sort(rtts)
            values = at(ordered, BOX)
            indices = np.linspace(0, n - 1, min(n, MOST_POINTS)).astype(int)
            points = tuple(map(float, rtts[indices]))
            of_cell = tuple(at(ordered, meaningful(n)))
            distribution = Distribution(of_cell, points, float(ordered[-1]), n)
        if not why and any(np.isnan(packets[point]).all() for point in _POINTS[:2]):
            why = _NO_CAPTURE
        parts, parts_packets = _parts(packets, of_user=metric == "rtt_user", hosts_see=not why)
        why = "" if parts else why or "no packet was seen at every capture point"
    else:
        values, n = _from_histograms(latencies, BOX)
        why = why or "its packets were not kept"
    if not values:
        none = "neither its packets nor a histogram were kept" if latencies else _NO_ANSWER
        return None, [*notes, LeftOut(f"RTT of {plane}, {words(factors)}", none)]
    counts = [trial.counts for trial in trials if trial.counts]
    no_stacks = _unmeasurable("sender_stack", trials) or _NO_GUEST_STAMPS

    def of_trials(field: str) -> list[Bounded]:
        read = (quantile_of_sent(trial, metric, field) for trial in trials)
        return [one.bounded for one in read if one is not None]

    cell = RttCell(
        plane=plane,
        factors=factors,
        rtt=Spread.of(values, n, [one.value for one in of_trials("p50_ns")]),
        counts=Counts(**{f: sum(getattr(c, f) for c in counts) for f in Counts.model_fields}),
        tail_ns={
            name: median_of(of_trials(field)) if n >= needed else None
            for name, field, needed in TAIL
        },
        kernel_medians_ns=tuple(
            trial.latency["rtt_kernel"].p50_ns for trial in trials if "rtt_kernel" in trial.latency
        ),
        parts_ns=parts,
        parts_packets=parts_packets,
        no_parts=why,
        no_stacks="" if "sender_stack" in parts else no_stacks,
        overhead=_spread("overhead", trials, packets),
        response=_spread("response", trials, packets),
        distribution=distribution,
        achieved_pps=tuple(trial.load.paced_pps for trial in trials if trial.load),
    )
    return cell, notes


_NO_CAPTURE = "no capture at the network cards in this run"
_NO_ANSWER = "no packet came back"
_NO_GUEST_STAMPS = "packets were not stamped inside the guests (`rtt.guest_stamps`)"


def at(ordered: Floats, probabilities: Sequence[float]) -> list[float]:
    """Quantiles of values in rising order, linear between neighbours (Hyndman & Fan, type 7).

    Faster than `np.quantile`, which sorts again.
    """
    places = np.asarray(probabilities) * (len(ordered) - 1)
    return [float(v) for v in np.interp(places, np.arange(len(ordered)), ordered)]


def meaningful(packets: int) -> tuple[float, ...]:
    """The `PROBABILITIES` with at least one of `packets` on either side."""
    least = (1 - 1e-9) / max(1, packets)
    return tuple(p for p in PROBABILITIES if least <= p <= 1 - least) or (0.5,)


def _from_histograms(
    summaries: Sequence[Latency], quantiles: Sequence[float]
) -> tuple[list[float], int]:
    """Quantiles [ns] of the merged histograms, and their packets; none when one is missing."""
    if not summaries or any(summary.hdr is None for summary in summaries):
        return [], 0
    ends_ns, counted = zip(*(buckets(str(summary.hdr)) for summary in summaries), strict=True)
    order = np.argsort(np.concatenate(ends_ns), kind="stable")
    counts = np.concatenate([np.diff(of_one, prepend=0) for of_one in counted])
    total = np.cumsum(counts[order])
    n = int(total[-1])
    ranks = [max(1, int(quantile * n + 0.5)) for quantile in quantiles]
    ends = np.concatenate(ends_ns)[order]
    return ([float(ends[np.searchsorted(total, rank)]) for rank in ranks], n) if n else ([], 0)


def _unmeasurable(name: Metric, trials: Sequence[TrialRecord]) -> str:
    """Why these trials could not measure the metric; empty when they could."""
    whys = (trial.not_measurable[name] for trial in trials if name in trial.not_measurable)
    return next((f"not measurable: {why}" for why in whys), "")


def _spread(
    name: Literal["overhead", "response"],
    trials: Sequence[TrialRecord],
    packets: Packets | LeftOut | None,
) -> Spread | str:
    if why := _unmeasurable(name, trials):
        return why
    latencies = [trial.latency[name] for trial in trials if name in trial.latency]
    medians = [float(summary.p50_ns) for summary in latencies if summary.count]
    if packets is None or isinstance(packets, LeftOut):
        quantiles, n = _from_histograms(latencies, BOX)
        return Spread.of(quantiles, n, medians) if quantiles else _NO_CAPTURE
    inside = packets["responder_nic"]
    values = inside if name == "response" else packets["rtt"] - packets["sender_nic"]
    values = np.sort(values[~np.isnan(values)])
    return Spread.of(at(values, BOX), len(values), medians) if len(values) else _NO_CAPTURE


def _parts(packets: Packets, *, of_user: bool, hosts_see: bool) -> tuple[dict[str, float], int]:
    """Means over the middle half of the packets with all stamps [ns], and their number.

    `sum`; `overhead` and `response` where the hosts see the packets; and the parts that add up:
    `sender_stack` (the sender's guest; with it `instrument` is a part of it), `instrument` (between
    user-space and kernel stamps), `sender`, `wire` (or `between`, where the hosts see nothing),
    `responder` and `responder_stack`. Empty where no packet has all stamps.
    """
    rtt, kernel, response = (packets[name] for name in ("rtt", "kernel", "responder_nic"))
    nic, inside = packets["sender_nic"], (packets["sender_inside"], packets["responder_inside"])
    has_stacks = of_user and not any(np.isnan(values).all() for values in inside)
    has_instrument = of_user and not np.isnan(kernel).all()
    if not hosts_see and not has_stacks:
        return {}, 0
    outer = (nic, response) if hosts_see else inside
    needed = [rtt, *outer, *(inside if has_stacks else ())]
    needed += [kernel] if has_instrument else []
    rtt_ns = np.where(np.isnan(sum(needed)), np.nan, rtt)
    total = rtt_ns[~np.isnan(rtt_ns)]
    if not len(total):
        return {}, 0
    low, high = np.quantile(total, (0.25, 0.75))
    middle = (rtt_ns >= low) & (rtt_ns <= high)

    def mean(values: Floats) -> float:
        return float(values[middle].mean())

    parts = {"sum": mean(rtt)}
    if has_instrument:
        parts["instrument"] = mean(rtt - kernel)
    if has_stacks:
        parts["sender_stack"] = mean(rtt - inside[0])
        parts["responder_stack"] = mean(inside[1])
    parts["wire" if hosts_see else "between"] = mean(outer[0] - outer[1])
    if hosts_see:
        parts["overhead"] = mean(rtt - nic)
        guest = parts.get("sender_stack", parts.get("instrument", 0.0))
        parts["sender"] = parts["overhead"] - guest
        parts["responder"] = mean(response) - parts.get("responder_stack", 0.0)
    return parts, int(middle.sum())
