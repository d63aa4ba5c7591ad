"""What a replicate measured: a value, its resolution and bounds, from its trials.

A replicate is one cell in one block: one trial, or all its load trials. Times are those of the main
guest at the sender; where a quantile is compared, it is the quantile of one trial's packets.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from planewise.judge.bounded import Bounded
from planewise.judge.headroom import headrooms
from planewise.store.histogram import buckets
from planewise.store.levels import CPU_WINDOW_S, cpu_of, cpu_window_s, keeps_levels
from planewise.store.models import Latency, Level, RunInfo, TrialKind, TrialRecord
from planewise.store.packets import RttMetric

PLR = 0.005
"""Loss ratio that PDR allows."""
USER_HZ = 100
"""Ticks a second in which the kernel books CPU time."""
HISTOGRAM_SHARE = 1e-3
"""Resolution of a latency histogram with three significant digits."""
KERNEL_MODES = ("sys", "irq", "soft")
"""CPU modes that a data plane's work is booked in; the probes' own work is in `usr`."""
CPU_MODES = ("usr", "nice", "sys", "iowait", "irq", "soft", "steal", "guest", "gnice", "idle")
"""mpstat's."""
IDLE_MODES = ("idle", "iowait")
_SHARES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999, "max_ns": 1.0}


@dataclass(frozen=True)
class MeasuredValue:
    """What a replicate measured."""

    value: float
    resolution: float
    """Least difference that the instrument can tell, in the unit of the value."""
    at_least: bool = False
    """Something other than the SUT, or the end of the ladder, was the limit: the true value is
    this or more."""
    headroom: float = 0.0
    """How much more it may be: nothing is known between two loads of a ladder."""
    at_most: bool = False
    """The ladder begins above it: the true value is this or less."""
    counts: tuple[int, int] | None = None
    """Packets lost and sent, where the value is their ratio."""

    @property
    def bounded(self) -> Bounded:
        """The value with what is known of where the truth lies: what statistics use."""
        low = -math.inf if self.at_most else self.value
        return Bounded(self.value, low, math.inf if self.at_least else self.value + self.headroom)


@dataclass(frozen=True)
class RunSample:
    """The trials of one run, as far as statistics need them."""

    label: str
    """Unique among the runs that are looked at together."""
    info: RunInfo
    trials: Sequence[TrialRecord]
    extra: Mapping[str, Level] = field(default_factory=dict)
    """Factors of the whole run, such as its kernel, added to every cell."""

    @cached_property
    def done(self) -> Sequence[TrialRecord]:
        """Trials that came to a result at the levels of their cell."""
        return [trial for trial in self.trials if keeps_levels(trial)]

    @cached_property
    def block_s(self) -> float:
        """How long a block took, the median; 0 where there is none."""
        begins: dict[int, float] = {}
        ends: dict[int, float] = {}
        for trial in self.trials:
            begin = trial.started.timestamp()
            begins[trial.block] = min(begin, begins.get(trial.block, begin))
            ends[trial.block] = max(begin + trial.duration_s, ends.get(trial.block, begin))
        return statistics.median(ends[block] - begins[block] for block in begins) if begins else 0.0

    @cached_property
    def best_loads(self) -> Mapping[frozenset[tuple[str, Level]], float]:
        """By cell: the offered load at which it forwards most on average, of those that at least
        half of its blocks measured. The greatest rate of each block would count the luckiest
        trial."""
        cells: dict[frozenset[tuple[str, Level]], dict[float, dict[int, list[float]]]] = (
            defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        )
        for trial in self.done:
            if trial.kind == "load" and (rate := _forwarded_pps(trial)) is not None and trial.load:
                of_load = cells[frozenset(trial.cell.items())][trial.load.intended_pps]
                of_load[trial.block].append(rate)
        best = {}
        for cell, loads in cells.items():
            most = max(map(len, loads.values()))
            means = {
                load: statistics.fmean(map(statistics.fmean, blocks.values()))
                for load, blocks in loads.items()
                if 2 * len(blocks) >= most
            }
            best[cell] = max(means, key=lambda load: means[load])
        return best

    def cpus(self, host: str) -> int:
        """How many CPUs a host has."""
        return self.info.hosts[host].cpus if host in self.info.hosts else 1

    def cell(self, trial: TrialRecord) -> dict[str, Level]:
        """The trial's factor levels and the run's."""
        return {**trial.cell, **self.extra}


Trials = Sequence[TrialRecord]
Reading = Callable[[Trials, RunSample, RttMetric], MeasuredValue | None]
"""Reads one value from the trials of a replicate, at least one; None if they have no such value."""


# --- RTT trials ---------------------------------------------------------------------------------


def quantile_of_sent(trial: TrialRecord, source: RttMetric, name: str) -> MeasuredValue | None:
    """A quantile of the times of all packets that were sent; a lost one is infinitely late.

    By the trial's histogram; of a trial without one, what its quantiles leave open. A lower bound
    where so many were lost that the quantile is among them.
    """
    latency = trial.latency.get(source)
    plain = _quantile(latency, name)
    lost = trial.counts.lost if trial.counts is not None else 0
    if plain is None or latency is None or not lost:
        return plain
    share = _SHARES[name] * (latency.count + lost) / latency.count
    if share > 1:
        return MeasuredValue(float(latency.max_ns), plain.resolution, at_least=True)
    if latency.hdr is not None:
        ends_ns, counted = buckets(latency.hdr)
        slow = ends_ns[np.searchsorted(counted, max(1, int(share * counted[-1] + 0.5)))]
        return MeasuredValue(max(float(slow), plain.value), plain.resolution)
    above = next(quantile for quantile, level in _SHARES.items() if level >= share)
    return replace(plain, headroom=max(0.0, float(getattr(latency, above)) - plain.value))


def _quantile(latency: Latency | None, name: str) -> MeasuredValue | None:
    if latency is None or not latency.count:
        return None
    value = float(getattr(latency, name))
    return MeasuredValue(value, max(1.0, abs(value) * HISTOGRAM_SHARE))


def rtt(quantile: str) -> Reading:
    """A quantile of the round-trip time."""
    return lambda trials, _, source: quantile_of_sent(trials[0], source, quantile)


def part(name: str) -> Reading:
    """The median of a part of the round trip."""
    return lambda trials, *_: _quantile(trials[0].latency.get(name), "p50_ns")


def jitter(trials: Trials, _: RunSample, source: RttMetric) -> MeasuredValue | None:
    """Packet delay variation (RFC 5481, section 4.2): 99th percentile less the smallest delay."""
    latest = quantile_of_sent(trials[0], source, "p99_ns")
    if latest is None:
        return None
    return replace(
        latest,
        value=latest.value - trials[0].latency[source].min_ns,
        resolution=max(1.0, latest.value * HISTOGRAM_SHARE),
    )


def loss(trials: Trials, *_: object) -> MeasuredValue | None:
    """Share of the probes that were lost."""
    counts = trials[0].counts
    if counts is None or not counts.sent:
        return None
    lost, sent = counts.lost, counts.sent
    return MeasuredValue(lost / sent, 1 / sent, counts=(lost, sent))


# --- load trials --------------------------------------------------------------------------------


def _forwarded_pps(trial: TrialRecord) -> float | None:
    """Forwarding rate of a load trial; None when it sent nothing."""
    if trial.load is None or trial.counts is None or not trial.counts.sent:
        return None
    return trial.load.achieved_pps * trial.counts.received / trial.counts.sent


def throughput(trials: Trials, sample: RunSample, _: RttMetric) -> MeasuredValue | None:
    """The mean forwarding rate of a block at its cell's best load, or the nearest that it has.

    The choice of the load minds no result of the block, which the greatest rate would favour.
    Where its trials lost nothing, more is possible: up to the next load that lost something, and
    without limit where there is none.
    """
    rates: dict[float, list[tuple[float, TrialRecord]]] = defaultdict(list)
    for trial in trials:
        if trial.load is not None and (rate := _forwarded_pps(trial)) is not None:
            rates[trial.load.intended_pps].append((rate, trial))
    if not rates:
        return None
    best_pps = sample.best_loads[frozenset(trials[0].cell.items())]
    at_load = rates[min(rates, key=lambda load: abs(load - best_pps))]
    rate = statistics.fmean(rate for rate, _ in at_load)
    durations_s = [trial.duration_s for _, trial in at_load if trial.duration_s]
    resolution = 1 / sum(durations_s) if durations_s else 1.0
    if any(trial.is_bound for _, trial in at_load):
        return MeasuredValue(rate, resolution, at_least=True)
    if any(trial.counts and trial.counts.lost for _, trial in at_load):
        return MeasuredValue(rate, resolution)
    lossy = [t.load.intended_pps for t in trials if t.load and t.counts and t.counts.lost > 0]
    above = [load for load in lossy if load >= rate]
    return MeasuredValue(
        rate, resolution, at_least=not above, headroom=min(above, default=rate) - rate
    )


def _ladder(trials: Trials) -> list[tuple[float, float]]:
    """Offered loads, rising, with the mean PLR of the trials there that tell of the SUT."""
    losses: dict[float, list[float]] = defaultdict(list)
    for trial in trials:
        if not trial.is_bound and trial.counts and trial.counts.sent and trial.load:
            losses[trial.load.intended_pps].append(trial.counts.lost / trial.counts.sent)
    return [(load, statistics.fmean(lost)) for load, lost in sorted(losses.items()) if load > 0]


def drop_rate(plr: float) -> Reading:
    """The highest load up to which at most `plr` was lost: NDR with 0, else PDR.

    PDR is read off between two loads, as the verdict reads it off the means of all blocks; its
    resolution is how far apart the lower and the upper reading are. That of NDR is the step that
    follows. Where the first load already loses more: at most that load.
    """

    def read(trials: Trials, *_: object) -> MeasuredValue | None:
        ladder = _ladder(trials)
        if not ladder:
            return None
        loads, losses = np.array(ladder).T
        over = np.flatnonzero(losses > plr)
        if not over.size:
            return MeasuredValue(float(loads[-1]), 0.0, at_least=True)
        if over[0] == 0:
            return MeasuredValue(float(loads[0]), 0.0, at_most=True)
        if plr == 0:
            low, high = float(loads[over[0] - 1]), float(loads[over[0]])
        else:
            readings = headrooms(loads, losses[None, :], plr)
            low, high = float(readings.pdr_low_pps[0]), float(readings.pdr_high_pps[0])
        return MeasuredValue(low, high - low, headroom=high - low)

    return read


def kernel_ns_per_packet(trials: Trials, sample: RunSample, _: RttMetric) -> MeasuredValue | None:
    """Median over a block's load trials of kernel CPU time per forwarded packet [ns]."""
    of_cpu = [trial for trial in trials if trial.cpu]
    if sum(trial.duration_s for trial in of_cpu) < CPU_WINDOW_S:
        return None
    costs = [
        (
            trial.duration_s
            * sum(
                sum(modes.get(mode, 0.0) for mode in KERNEL_MODES) * sample.cpus(host)
                for host, modes in trial.cpu.items()
            )
            / trial.counts.received
            * 1e9,
            1e9 / USER_HZ / trial.counts.received,
        )
        for trial in of_cpu
        if trial.counts is not None and trial.counts.received
    ]
    if not costs:
        return None
    cost, resolution = (statistics.median(part) for part in zip(*costs, strict=True))
    return MeasuredValue(cost, resolution)


# --- other trials -------------------------------------------------------------------------------


def _rate(trial: TrialRecord, value: float, step: float) -> MeasuredValue:
    """What was counted in steps, per second."""
    resolution = step / trial.duration_s if trial.duration_s else 1.0
    return MeasuredValue(value, resolution, at_least=trial.is_bound)


def transmitted(trials: Trials, *_: object) -> MeasuredValue | None:
    """Rate of all functions of a chain; a counter's step is one packet."""
    chain = trials[0].chain
    return None if chain is None else _rate(trials[0], chain.tx_pps, 1)


def transmitted_bits(trials: Trials, *_: object) -> MeasuredValue | None:
    """The same in bits a second, of frames without FCS."""
    chain = trials[0].chain
    return None if chain is None else _rate(trials[0], chain.tx_bps, 8 * chain.frame_bytes)


def goodput(trials: Trials, *_: object) -> MeasuredValue | None:
    """What a TCP receiver got [bit/s]; the step is one message."""
    tcp = trials[0].tcp
    return None if tcp is None else _rate(trials[0], tcp.goodput_bps, 8 * tcp.message_bytes)


def figure(name: str) -> Reading:
    """A number that the trial brings with it."""

    def read(trials: Trials, *_: object) -> MeasuredValue | None:
        found = trials[0].figures.get(name)
        if found is None:
            return None
        return MeasuredValue(found.value, found.resolution, at_least=trials[0].is_bound)

    return read


def cpu(host: str, mode: str) -> Reading:
    """Share of one mode of a host's CPUs; without a mode, that they were busy."""
    counted = [mode] if mode else [name for name in CPU_MODES if name not in IDLE_MODES]

    def read(trials: Trials, sample: RunSample, _: RttMetric) -> MeasuredValue | None:
        modes = cpu_of(trials[0]).get(host)
        if not modes:
            return None
        ticks = max(1.0, cpu_window_s(trials[0]) * USER_HZ * sample.cpus(host))
        return MeasuredValue(sum(modes.get(name, 0.0) for name in counted), 1 / ticks)

    return read


def replicates(sample: RunSample, kind: TrialKind | None, *, by_block: bool) -> Iterator[Trials]:
    """The trials of each replicate, of a kind (None: of all): all of a cell in a block that sent a
    load, or each by itself."""
    of_kind = [trial for trial in sample.done if kind in (None, trial.kind)]
    if not by_block:
        yield from ([trial] for trial in of_kind)
        return
    blocks: dict[object, list[TrialRecord]] = defaultdict(list)
    for trial in of_kind:
        if trial.load is not None and trial.counts is not None:
            blocks[trial.block, frozenset(trial.cell.items())].append(trial)
    yield from blocks.values()
