"""RTT of one cell over its replicates, from packets or, without them, histograms."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

from planewise.judge.bounded import Bounded, median_of
from planewise.judge.statistics.metrics import quantile_of_sent
from planewise.report.left_out import LeftOut
from planewise.store.cells import Factors, words
from planewise.store.models import Counts, Latency, Metric, TrialRecord
from planewise.store.packets import RttMetric
from planewise.units import time_text

Floats = NDArray[np.float64]

_POINTS = ("sender_nic", "responder_nic", "sender_inside", "responder_inside")
_STAMPS = (
    *(f"{stage}_{way}_ns" for stage in ("user", "kernel") for way in ("tx", "rx")),
    *(f"{point}_{way}_ns" for point in _POINTS for way in ("request", "reply")),
)


@dataclass(frozen=True)
class Packets:
    """Durations of a cell's packets [ns], arrays of one length; NaN where a stamp is missing."""

    rtt_ns: Floats
    """RTT between the stamps of the metric."""
    kernel_ns: Floats
    """RTT between the guest's kernel stamps."""
    nic_ns: Floats
    """RTT at the sender's NIC."""
    response_ns: Floats
    """NIC to NIC inside the responder."""
    sender_inside_ns: Floats
    """RTT at the interface of the sender's guest."""
    responder_inside_ns: Floats
    """From the interface of the responder's guest into the guest and back."""


@dataclass(frozen=True)
class Unread:
    """The packets of a cell that cannot be used, and why."""

    file: str = ""
    """Empty when the packets were never kept."""
    why: str = ""


def read(run: Path, trials: Sequence[TrialRecord], metric: RttMetric) -> Packets | Unread:
    """The packets of a cell's trials."""
    if not trials or any(trial.packets is None for trial in trials):
        return Unread()
    stage = metric.removeprefix("rtt_")
    durations = (
        _between(f"{stage}_tx_ns", f"{stage}_rx_ns").alias("rtt"),
        _between("kernel_tx_ns", "kernel_rx_ns").alias("kernel"),
        *(_between(f"{point}_request_ns", f"{point}_reply_ns").alias(point) for point in _POINTS),
    )
    scanned = _scanned([run / str(trial.packets) for trial in trials], durations)
    if isinstance(scanned, Unread):
        return scanned
    return Packets(*(scanned[name].to_numpy() for name in scanned.columns))


def _between(start: str, end: str) -> pl.Expr:
    return (pl.col(end) - pl.col(start)).cast(pl.Float64)


def _scanned(files: list[Path], durations: Sequence[pl.Expr]) -> pl.DataFrame | Unread:
    """The durations in all files: in one scan, or file by file, which finds the damaged one.

    A stamp that no packet of a trial has may be of any type in its file.
    """
    schema = pl.Schema(dict.fromkeys(_STAMPS, pl.Int64))
    try:
        return (
            pl.scan_parquet(
                files, schema=schema, missing_columns="insert", extra_columns="ignore", glob=False
            )
            .select(durations)
            .collect()
        )
    except (OSError, pl.exceptions.PolarsError):
        pass
    frames = []
    for file in files:
        try:
            frame = pl.read_parquet(file, glob=False)
        except (OSError, pl.exceptions.PolarsError) as error:
            why = f"it cannot be read ({str(error).splitlines()[0]})"
            return Unread(f"{file.parent.name}/{file.name}", why)
        missing = {column: None for column in _STAMPS if column not in frame.columns}
        stamps = frame.with_columns(**{column: pl.lit(None) for column in missing})
        frames.append(stamps.select(_STAMPS).cast(schema, strict=False).select(durations))
    return pl.concat(frames)


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
    packets: Packets | Unread,
) -> tuple[RttCell | None, list[LeftOut]]:
    """One cell from its trials and their packets (None without any RTT), and what is missing."""
    notes: list[LeftOut] = []
    latencies = [trial.latency[metric] for trial in trials if metric in trial.latency]
    values: list[float] = []
    n = 0
    distribution = None
    parts: dict[str, float] = {}
    parts_packets = 0
    why = _unmeasurable("overhead", trials) or _unmeasurable("response", trials)
    if isinstance(packets, Packets):
        rtts = packets.rtt_ns[~np.isnan(packets.rtt_ns)]
        n = len(rtts)
        if n:
            ordered = np.sort(rtts)
            values = at(ordered, BOX)
            indices = np.linspace(0, n - 1, min(n, MOST_POINTS)).astype(int)
            points = tuple(map(float, rtts[indices]))
            of_cell = tuple(at(ordered, meaningful(n)))
            distribution = Distribution(of_cell, points, float(ordered[-1]), n)
        if not why and (np.isnan(packets.nic_ns).all() or np.isnan(packets.response_ns).all()):
            why = _NO_CAPTURE
        parts, parts_packets = _parts(packets, of_user=metric == "rtt_user", hosts_see=not why)
        why = "" if parts else why or "no packet was seen at every capture point"
    else:
        if packets.file:
            histograms = f"{packets.why}; this cell's figures come from the trials' histograms"
            notes.append(LeftOut(f"packets of {packets.file}", histograms))
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
    merged = HdrHistogram(1, 3_600_000_000_000, 3)
    for summary in summaries:
        merged.add(HdrHistogram.decode(summary.hdr))
    n = int(merged.total_count)
    if n == 0:
        return [], 0
    return [float(merged.get_value_at_percentile(quantile * 100)) for quantile in quantiles], n


def _unmeasurable(name: Metric, trials: Sequence[TrialRecord]) -> str:
    """Why these trials could not measure the metric; empty when they could."""
    whys = (trial.not_measurable[name] for trial in trials if name in trial.not_measurable)
    return next((f"not measurable: {why}" for why in whys), "")


def _spread(
    name: Literal["overhead", "response"], trials: Sequence[TrialRecord], packets: Packets | Unread
) -> Spread | str:
    if why := _unmeasurable(name, trials):
        return why
    latencies = [trial.latency[name] for trial in trials if name in trial.latency]
    medians = [float(summary.p50_ns) for summary in latencies if summary.count]
    if isinstance(packets, Unread):
        quantiles, n = _from_histograms(latencies, BOX)
        return Spread.of(quantiles, n, medians) if quantiles else _NO_CAPTURE
    values = packets.response_ns if name == "response" else packets.rtt_ns - packets.nic_ns
    values = np.sort(values[~np.isnan(values)])
    return Spread.of(at(values, BOX), len(values), medians) if len(values) else _NO_CAPTURE


def _parts(packets: Packets, *, of_user: bool, hosts_see: bool) -> tuple[dict[str, float], int]:
    """Means over the middle half of the packets with all stamps [ns], and their number.

    `sum`; `overhead` and `response` where the hosts see the packets; and the parts that add up:
    `sender_stack` (the sender's guest; with it `instrument` is a part of it), `instrument` (between
    user-space and kernel stamps), `sender`, `wire` (or `between`, where the hosts see nothing),
    `responder` and `responder_stack`. Empty where no packet has all stamps.
    """
    inside = (packets.sender_inside_ns, packets.responder_inside_ns)
    has_stacks = of_user and not any(np.isnan(values).all() for values in inside)
    has_instrument = of_user and not np.isnan(packets.kernel_ns).all()
    if not hosts_see and not has_stacks:
        return {}, 0
    outer = (packets.nic_ns, packets.response_ns) if hosts_see else inside
    needed = [packets.rtt_ns, *outer, *(inside if has_stacks else ())]
    needed += [packets.kernel_ns] if has_instrument else []
    rtt_ns = np.where(np.isnan(sum(needed)), np.nan, packets.rtt_ns)
    total = rtt_ns[~np.isnan(rtt_ns)]
    if not len(total):
        return {}, 0
    low, high = np.quantile(total, (0.25, 0.75))
    middle = (rtt_ns >= low) & (rtt_ns <= high)

    def mean(values: Floats) -> float:
        return float(values[middle].mean())

    parts = {"sum": mean(packets.rtt_ns)}
    if has_instrument:
        parts["instrument"] = mean(packets.rtt_ns - packets.kernel_ns)
    if has_stacks:
        parts["sender_stack"] = mean(packets.rtt_ns - inside[0])
        parts["responder_stack"] = mean(inside[1])
    parts["wire" if hosts_see else "between"] = mean(outer[0] - outer[1])
    if hosts_see:
        parts["overhead"] = mean(packets.rtt_ns - packets.nic_ns)
        guest = parts.get("sender_stack", parts.get("instrument", 0.0))
        parts["sender"] = parts["overhead"] - guest
        parts["responder"] = mean(packets.response_ns) - parts.get("responder_stack", 0.0)
    return parts, int(middle.sum())
