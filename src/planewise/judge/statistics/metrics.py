"""Metrics that levels are compared by: from the trials of runs to one value a replicate.

A replicate is one cell in one block: one RTT trial, or all its load trials. Times are those of the
main guest at the sender; where a quantile is compared, it is the quantile of one trial's packets.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from planewise.errors import BadInputError
from planewise.judge.bounded import Bounded
from planewise.judge.headroom import headrooms
from planewise.store.cells import Sending, sending_of
from planewise.store.levels import CPU_WINDOW_S, cpu_of, cpu_window_s, keeps_levels
from planewise.store.models import Figure, Latency, Level, RunInfo, TrialKind, TrialRecord
from planewise.store.packets import RttMetric, buckets
from planewise.units import percent_text

Unit = Literal["ns", "pps", "bps", "share"]

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
class Metric:
    """Something that levels of a factor are compared by."""

    name: str
    """As `--metric` takes it; of CPU with host and mode: `cpu:sender`, `cpu:sender:sys`."""
    title: str
    unit: Unit
    lower_is_better: bool
    sending: Sending | None = None
    """How the probes were sent, where that varies (`by_sending`)."""

    @property
    def as_ratio(self) -> bool:
        """Whether levels are compared by ratio; shares (which may be 0) are by difference."""
        return self.unit != "share"


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


@dataclass(frozen=True, kw_only=True)
class Observation(MeasuredValue):
    """One replicate: one cell in one block of one run."""

    run: str
    block: int
    cell: Mapping[str, Level]


@dataclass(frozen=True)
class Observed:
    """One metric over all runs."""

    metric: Metric
    observations: tuple[Observation, ...]
    missing: tuple[tuple[Mapping[str, Level], str], ...] = ()
    """Cells for which the metric does not exist, with the reason."""
    run_factors: frozenset[str] = frozenset()
    """Factors that belong to a whole run."""
    ends: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By run: numbers of blocks after which it had ended as planned, and was extended since."""
    seed: int = 0
    block_s: float = 0.0
    """How long a block took; 0 where that is not recorded."""


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
        times: dict[int, list[float]] = defaultdict(list)
        for trial in self.trials:
            begin = trial.started.timestamp()
            times[trial.block] += begin, begin + trial.duration_s
        lengths = [max(of_block) - min(of_block) for of_block in times.values()]
        return statistics.median(lengths) if lengths else 0.0

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


def _rtt(quantile: str) -> Reading:
    return lambda trials, _, source: quantile_of_sent(trials[0], source, quantile)


def _part(name: str) -> Reading:
    return lambda trials, *_: _quantile(trials[0].latency.get(name), "p50_ns")


def _jitter(trials: Trials, _: RunSample, source: RttMetric) -> MeasuredValue | None:
    """Packet delay variation (RFC 5481, section 4.2): 99th percentile less the smallest delay."""
    latest = quantile_of_sent(trials[0], source, "p99_ns")
    if latest is None:
        return None
    least = latest.value - trials[0].latency[source].min_ns
    return replace(latest, value=least, resolution=max(1.0, latest.value * HISTOGRAM_SHARE))


def _loss(trials: Trials, *_: object) -> MeasuredValue | None:
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


def _throughput(trials: Trials, sample: RunSample, _: RttMetric) -> MeasuredValue | None:
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
    more = min(above, default=rate) - rate
    return MeasuredValue(rate, resolution, at_least=not above, headroom=more)


def _drop_rate(plr: float) -> Reading:
    """The highest load up to which at most `plr` was lost: NDR with 0, else PDR.

    Only trials that the SUT itself limited count. PDR lies between two loads, as in the verdict,
    which reads the means of all blocks; its resolution is the distance of the two readings. That of
    NDR is the next step. If the first load already loses more, the value is at most that load.
    """

    def read(trials: Trials, *_: object) -> MeasuredValue | None:
        ladder: dict[float, list[float]] = defaultdict(list)
        for trial in trials:
            if not trial.is_bound and trial.counts and trial.counts.sent and trial.load:
                ladder[trial.load.intended_pps].append(trial.counts.lost / trial.counts.sent)
        loads = np.array(sorted(load for load in ladder if load > 0))
        if not loads.size:
            return None
        losses = np.array([statistics.fmean(ladder[load]) for load in loads])
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


def _kernel_ns(trials: Trials, sample: RunSample, _: RttMetric) -> MeasuredValue | None:
    """Median over a block's load trials of kernel CPU time per forwarded packet [ns]."""
    of_cpu = [trial for trial in trials if trial.cpu]
    counted = [(t, t.counts.received) for t in of_cpu if t.counts is not None and t.counts.received]
    if not counted or sum(trial.duration_s for trial in of_cpu) < CPU_WINDOW_S:
        return None

    def cpus(trial: TrialRecord) -> float:
        """How many the kernel kept busy."""
        return sum(
            sum(modes.get(mode, 0.0) for mode in KERNEL_MODES) * sample.cpus(host)
            for host, modes in trial.cpu.items()
        )

    return MeasuredValue(
        statistics.median(t.duration_s * cpus(t) / received * 1e9 for t, received in counted),
        statistics.median(1e9 / USER_HZ / received for _, received in counted),
    )


# --- other trials -------------------------------------------------------------------------------


def _rate(trial: TrialRecord, value: float, step: float) -> MeasuredValue:
    """What was counted in steps, per second."""
    resolution = step / trial.duration_s if trial.duration_s else 1.0
    return MeasuredValue(value, resolution, at_least=trial.is_bound)


def _transmitted(trials: Trials, *_: object) -> MeasuredValue | None:
    """Rate of all functions of a chain; a counter's step is one packet."""
    chain = trials[0].chain
    return None if chain is None else _rate(trials[0], chain.tx_pps, 1)


def _transmitted_bits(trials: Trials, *_: object) -> MeasuredValue | None:
    """The same in bits a second, of frames without FCS."""
    chain = trials[0].chain
    return None if chain is None else _rate(trials[0], chain.tx_bps, 8 * chain.frame_bytes)


def _goodput(trials: Trials, *_: object) -> MeasuredValue | None:
    """What a TCP receiver got [bit/s]; the step is one message."""
    tcp = trials[0].tcp
    return None if tcp is None else _rate(trials[0], tcp.goodput_bps, 8 * tcp.message_bytes)


def _figure(name: str) -> Reading:
    """A number that the trial brings with it."""

    def read(trials: Trials, *_: object) -> MeasuredValue | None:
        found = trials[0].figures.get(name)
        if found is None:
            return None
        return MeasuredValue(found.value, found.resolution, at_least=trials[0].is_bound)

    return read


def _cpu(host: str, mode: str) -> Reading:
    """Share of one mode of a host's CPUs; without a mode, that they were busy."""
    counted = [mode] if mode else [name for name in CPU_MODES if name not in IDLE_MODES]

    def read(trials: Trials, sample: RunSample, _: RttMetric) -> MeasuredValue | None:
        modes = cpu_of(trials[0]).get(host)
        if not modes:
            return None
        ticks = max(1.0, cpu_window_s(trials[0]) * USER_HZ * sample.cpus(host))
        return MeasuredValue(sum(modes.get(name, 0.0) for name in counted), 1 / ticks)

    return read


# --- all metrics --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """Where a metric comes from."""

    metric: Metric
    read: Reading
    kind: TrialKind | None = None
    """Of trials; None: all. Of load trials, all of a cell in a block make one value."""

    def replicates(self, sample: RunSample) -> Iterable[Trials]:
        """The trials of each replicate of a run."""
        of_kind = [trial for trial in sample.done if self.kind in (None, trial.kind)]
        if self.kind != "load" or self.metric.name.startswith("cpu:"):
            return ([trial] for trial in of_kind)
        blocks: dict[object, list[TrialRecord]] = defaultdict(list)
        for trial in of_kind:
            if trial.load is not None and trial.counts is not None:
                blocks[trial.block, frozenset(trial.cell.items())].append(trial)
        return blocks.values()


def _sources(
    unit: Unit, kind: TrialKind, lower_is_better: bool, *named: tuple[str, str, Reading]
) -> Iterator[tuple[str, _Source]]:
    for name, title, read in named:
        yield name, _Source(Metric(name, title, unit, lower_is_better), read, kind)


_SOURCES = dict(
    (
        *_sources(
            *("ns", "rtt", True),
            ("rtt", "median round-trip time", _rtt("p50_ns")),
            ("rtt_p90", "90th percentile of the round-trip time", _rtt("p90_ns")),
            ("rtt_p99", "99th percentile of the round-trip time", _rtt("p99_ns")),
            ("rtt_p999", "99.9th percentile of the round-trip time", _rtt("p999_ns")),
            ("overhead", "median overhead at the sender", _part("overhead")),
            ("response", "median response time", _part("response")),
            ("jitter", "jitter (99th percentile of the delay variation)", _jitter),
        ),
        *_sources("share", "rtt", True, ("loss", "loss of probe packets", _loss)),
        *_sources(
            *("pps", "load", False),
            ("throughput", "forwarding rate at the best load", _throughput),
            ("ndr", "NDR", _drop_rate(0.0)),
            ("pdr", f"PDR at {percent_text(PLR)} loss", _drop_rate(PLR)),
        ),
        *_sources("ns", "load", True, ("cpu_per_packet", "kernel CPU time per packet", _kernel_ns)),
        *_sources(
            *("pps", "chain", False),
            ("transmitted", "packets that all functions transmit", _transmitted),
        ),
        *_sources(
            *("bps", "chain", False),
            ("transmitted_bits", "bits that all functions transmit", _transmitted_bits),
        ),
        *_sources("bps", "tcp", False, ("goodput", "goodput of TCP", _goodput)),
    )
)
NAMES = (*_SOURCES, "cpu")
"""What `--metric` takes, beside `cpu:HOST` and `cpu:HOST:MODE`."""


def metrics_in(samples: Sequence[RunSample]) -> tuple[str, ...]:
    """The names of all metrics that the trials have, CPU by host and mode, in the usual order."""
    kinds = {trial.kind for sample in samples for trial in sample.done}
    usual = (name for name, source in _SOURCES.items() if source.kind in kinds)
    return (*usual, *sorted(figures_in(samples)), *cpu_metrics(samples))


def figures_in(samples: Sequence[RunSample]) -> dict[str, Figure]:
    """The numbers that trials bring with them, by name; of each, that of some trial."""
    return {
        name: figure
        for sample in samples
        for trial in sample.done
        for name, figure in trial.figures.items()
    }


def cpu_metrics(samples: Sequence[RunSample], *, modes: bool = True) -> tuple[str, ...]:
    """`cpu:HOST` of each host, and (with `modes`) each mode that any trial spent time in."""
    hosts: dict[str, set[str]] = {}
    for sample in samples:
        for trial in sample.done:
            for host, shares in cpu_of(trial).items():
                hosts.setdefault(host, set()).update(m for m, share in shares.items() if share > 0)
    names = []
    for host in sorted(hosts):
        names.append(f"cpu:{host}")
        names += [f"cpu:{host}:{mode}" for mode in CPU_MODES if modes and mode in hosts[host]]
    return tuple(names)


def rtt_source(trials: Iterable[TrialRecord]) -> RttMetric:
    """RTT as the guest's program sees it; kernel stamps only where a trial has no others."""
    others = (one for one in trials if one.kind == "rtt" and "rtt_user" not in one.latency)
    return "rtt_kernel" if any(map(keeps_levels, others)) else "rtt_user"


def observe(samples: Sequence[RunSample], name: str) -> Observed:
    """One value a cell, block and run of the metric `name`.

    Raises:
        BadInputError: there is no such metric.
    """
    source = _source(samples, name.replace("-", "_").replace("p99.9", "p999"))
    stamps = rtt_source(trial for sample in samples for trial in sample.trials)
    return Observed(
        source.metric,
        tuple(
            Observation(
                **vars(value),
                run=sample.label,
                block=trials[0].block,
                cell=sample.cell(trials[0]),
            )
            for sample in samples
            for trials in source.replicates(sample)
            if (value := source.read(trials, sample, stamps)) is not None
        ),
        missing=tuple(
            (sample.cell(trial), trial.not_measurable[source.metric.name])
            for sample in samples
            for trial in sample.done
            if source.metric.name in trial.not_measurable
        ),
        run_factors=frozenset(factor for sample in samples for factor in sample.extra),
        ends={sample.label: sample.info.ends for sample in samples},
        seed=samples[0].info.seed if samples else 0,
        block_s=max((sample.block_s for sample in samples), default=0.0),
    )


def _source(samples: Sequence[RunSample], name: str) -> _Source:
    if name in _SOURCES:
        return _SOURCES[name]
    figures = figures_in(samples)
    if (figure := figures.get(name)) is not None:
        metric = Metric(name, figure.title, figure.unit, figure.lower_is_better)
        return _Source(metric, _figure(name))
    if name.partition(":")[0] == "cpu":
        return _of_cpu(samples, name)
    raise BadInputError(
        f"there is no metric '{name}'",
        where="--metric",
        remedy=f"choose among {', '.join((*NAMES, *figures))}, cpu:HOST, cpu:HOST:MODE, or all",
    )


def _of_cpu(samples: Sequence[RunSample], name: str) -> _Source:
    """Busy share, or the share of one mode, of one host's CPUs."""
    host, _, mode = name.partition(":")[2].partition(":")
    measured = [trial for sample in samples for trial in sample.done if cpu_of(trial)]
    hosts = {host for trial in measured for host in trial.cpu}
    if not host and len(hosts) > 1:
        raise BadInputError(
            f"the CPUs of several hosts were measured: {', '.join(sorted(hosts))}",
            where="--metric",
            remedy=f"name one: cpu:{min(hosts)}",
        )
    host = host or next(iter(hosts), "shared")
    if (hosts and host not in hosts) or (mode and mode not in CPU_MODES):
        raise BadInputError(
            f"there is no CPU metric '{name}'",
            where="--metric",
            remedy=f"cpu:HOST or cpu:HOST:MODE; hosts: {', '.join(sorted(hosts)) or 'none'}; "
            f"modes: {', '.join(CPU_MODES)}",
        )
    title = f"{'CPU' if host == 'shared' else f'CPU of the {host}'}, {mode or 'busy'}"
    full_name = f"cpu:{host}:{mode}" if mode else f"cpu:{host}"
    kind: TrialKind = "rtt" if any(trial.kind == "rtt" for trial in measured) else "load"
    metric = Metric(full_name, title, "share", mode not in IDLE_MODES)
    return _Source(metric, _cpu(host, mode), kind)


_COMPARED: Mapping[str, Mapping[str, Any]] = {
    "frequency_pps": {"frequency_pps": None},
    "pattern": {"pattern": ""},
    "protocol": {"application": ""},
}
"""By factor: what of the sending its levels are, and so does not tell results apart."""


def by_sending(observed: Observed, factor: str) -> tuple[Observed, ...]:
    """The metric at each rate and pattern of the probes apart; whole where there is one.

    A time at 1 kpps and one at 1 Mpps are two quantities, and so are those of a steady rate and of
    bursts, or of a kernel and of an application that answers: no pair holds their mean. Where one
    of these is compared, only the others are told apart.
    """

    def of(cell: Mapping[str, Level]) -> Sending | None:
        sending = sending_of(cell)
        return sending and sending._replace(**_COMPARED.get(factor, {}))

    sent = [(one, of(one.cell)) for one in observed.observations]
    sendings = sorted({way for _, way in sent if way is not None})
    if len(sendings) < 2:
        return (observed,)
    title = observed.metric.title
    return tuple(
        replace(
            observed,
            metric=replace(observed.metric, title=f"{title} {sending.words}", sending=sending),
            observations=tuple(one for one, way in sent if way in (None, sending)),
            missing=tuple(entry for entry in observed.missing if of(entry[0]) in (None, sending)),
        )
        for sending in sendings
    )
