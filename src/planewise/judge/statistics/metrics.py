"""From trials to one value a replicate: what is compared, in which unit, how finely measured.

Knows trial records and no statistics. Times are those of the main guest at the sender; where a
quantile is compared, it is the quantile of one trial's packets.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from hdrh.histogram import HdrHistogram

from planewise.errors import BadInputError
from planewise.judge.statistics.values import (
    MeasuredValue,
    best_load,
    figure_of,
    forwarded,
    goodput,
    ndr,
    pdr,
    transmitted,
    transmitted_bits,
)
from planewise.store.cells import Sending, sending_of
from planewise.store.levels import CPU_WINDOW_S, cpu_of, cpu_window_s, keeps_levels
from planewise.store.models import Figure, Latency, Level, RunInfo, TrialKind, TrialRecord
from planewise.store.packets import RttMetric

Unit = Literal["ns", "pps", "bps", "share"]

USER_HZ = 100
"""Ticks a second in which the kernel books CPU time."""
HISTOGRAM_SHARE = 1e-3
"""Resolution of a latency histogram with three significant digits."""
KERNEL_MODES = ("sys", "irq", "soft")
"""CPU modes that a data plane's work is booked in; the probes' own work is in `usr`."""
CPU_MODES = ("usr", "nice", "sys", "iowait", "irq", "soft", "steal", "guest", "gnice", "idle")
"""mpstat's."""
IDLE_MODES = ("idle", "iowait")


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


@dataclass(frozen=True, kw_only=True)
class Observation(MeasuredValue):
    """One replicate: one cell in one block of one run."""

    run: str
    block: int
    cell: Mapping[str, Level]


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

    def cell(self, trial: TrialRecord) -> dict[str, Level]:
        """The trial's factor levels and the run's."""
        return {**trial.cell, **self.extra}


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


_METRICS = {
    metric.name: metric
    for metric in (
        Metric("rtt", "median round-trip time", "ns", True),
        Metric("rtt_p90", "90th percentile of the round-trip time", "ns", True),
        Metric("rtt_p99", "99th percentile of the round-trip time", "ns", True),
        Metric("rtt_p999", "99.9th percentile of the round-trip time", "ns", True),
        Metric("overhead", "median overhead at the sender", "ns", True),
        Metric("response", "median response time", "ns", True),
        Metric("jitter", "jitter (99th percentile of the delay variation)", "ns", True),
        Metric("loss", "loss of probe packets", "share", True),
        Metric("throughput", "forwarding rate at the best load", "pps", False),
        Metric("ndr", "NDR", "pps", False),
        Metric("pdr", "PDR at 0.5 % loss", "pps", False),
        Metric("cpu_per_packet", "kernel CPU time per packet", "ns", True),
        Metric("transmitted", "packets that all functions transmit", "pps", False),
        Metric("transmitted_bits", "bits that all functions transmit", "bps", False),
        Metric("goodput", "goodput of TCP", "bps", False),
    )
}
NAMES = (*_METRICS, "cpu")
"""What `--metric` takes, beside `cpu:HOST` and `cpu:HOST:MODE`."""


def metrics_in(samples: Sequence[RunSample]) -> tuple[str, ...]:
    """The names of all metrics that the trials have, CPU by host and mode, in the usual order."""
    kinds = {trial.kind for sample in samples for trial in sample.done}
    names: list[str] = []
    if "rtt" in kinds:
        names += _OF_RTT
    if "load" in kinds:
        names += ["throughput", *_OF_BLOCK]
    if "chain" in kinds:
        names += ["transmitted", "transmitted_bits"]
    if "tcp" in kinds:
        names.append("goodput")
    names += sorted(figures_in(samples))
    return (*names, *cpu_metrics(samples))


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
        if modes:
            names += [f"cpu:{host}:{mode}" for mode in CPU_MODES if mode in hosts[host]]
    return tuple(names)


def observe(samples: Sequence[RunSample], name: str) -> Observed:
    """One value a cell, block and run of the metric `name`.

    Raises:
        BadInputError: there is no such metric.
    """
    observed = _observe(samples, name.replace("-", "_").replace("p99.9", "p999"))
    run_factors = frozenset(factor for sample in samples for factor in sample.extra)
    return replace(
        observed,
        run_factors=run_factors,
        ends={sample.label: sample.info.ends for sample in samples},
        seed=samples[0].info.seed if samples else 0,
        block_s=max((sample.block_s for sample in samples), default=0.0),
    )


def _observe(samples: Sequence[RunSample], name: str) -> Observed:
    if (of_rtt := _OF_RTT.get(name)) is not None:
        source = rtt_source(trial for sample in samples for trial in sample.trials)
        found = _of_trial(samples, _METRICS[name], lambda trial: of_rtt(trial, source), "rtt")
        return replace(found, missing=_not_measurable(samples, name))
    if name in _OF_TRIAL:
        return _of_trial(samples, _METRICS[name], _OF_TRIAL[name])
    if name == "throughput":
        return _of_load(samples, _METRICS[name], _forwarded_at_best)
    if name in _OF_BLOCK:
        return _of_load(samples, _METRICS[name], lambda sample: _OF_BLOCK[name])
    if (figure := figures_in(samples).get(name)) is not None:
        metric = Metric(name, figure.title, figure.unit, figure.lower_is_better)
        return _of_trial(samples, metric, lambda trial: figure_of(trial, name))
    if name == "cpu" or name.startswith("cpu:"):
        return _of_cpu(samples, name)
    raise BadInputError(
        f"there is no metric '{name}'",
        where="--metric",
        remedy=f"choose among {', '.join(NAMES)}, cpu:HOST, cpu:HOST:MODE, or all",
    )


def rtt_source(trials: Iterable[TrialRecord]) -> RttMetric:
    """RTT as the guest's program sees it; kernel stamps only where a trial has no others."""
    of_rtt = (trial for trial in trials if trial.kind == "rtt" and keeps_levels(trial))
    return "rtt_user" if all("rtt_user" in trial.latency for trial in of_rtt) else "rtt_kernel"


def _observation(sample: RunSample, trial: TrialRecord, value: MeasuredValue) -> Observation:
    return Observation(**vars(value), run=sample.label, block=trial.block, cell=sample.cell(trial))


def by_sending(observed: Observed, factor: str) -> tuple[Observed, ...]:
    """The metric at each rate and pattern of the probes apart; whole where there is one.

    A time at 1 kpps and one at 1 Mpps are two quantities, and so are those of a steady rate and of
    bursts, or of a kernel and of an application that answers: no pair holds their mean. Where one
    of these is compared, only the others are told apart.
    """
    of_cells = {_sending(observation.cell, factor) for observation in observed.observations}
    sendings = sorted(sending for sending in of_cells if sending is not None)
    if len(sendings) < 2:
        return (observed,)
    return tuple(_at(observed, sending, factor) for sending in sendings)


def _sending(cell: Mapping[str, Level], factor: str) -> Sending | None:
    """How a cell's probes were sent, without what is compared."""
    sending = sending_of(cell)
    if sending is None:
        return None
    match factor:
        case "frequency_pps":
            return sending._replace(frequency_pps=None)
        case "pattern":
            return sending._replace(pattern="")
        case "protocol":
            return sending._replace(application="")
    return sending


def _at(observed: Observed, sending: Sending, factor: str) -> Observed:
    def is_at(cell: Mapping[str, Level]) -> bool:
        return _sending(cell, factor) in (None, sending)

    title = f"{observed.metric.title} {sending.words}"
    return replace(
        observed,
        metric=replace(observed.metric, title=title, sending=sending),
        observations=tuple(
            observation for observation in observed.observations if is_at(observation.cell)
        ),
        missing=tuple(entry for entry in observed.missing if is_at(entry[0])),
    )


def _not_measurable(
    samples: Sequence[RunSample], name: str
) -> tuple[tuple[Mapping[str, Level], str], ...]:
    return tuple(
        (sample.cell(trial), why)
        for sample in samples
        for trial in sample.done
        for part, why in trial.not_measurable.items()
        if part == name
    )


def _quantile(latency: Latency | None, name: str) -> MeasuredValue | None:
    if latency is None or not latency.count:
        return None
    value = float(getattr(latency, name))
    return MeasuredValue(value, max(1.0, abs(value) * HISTOGRAM_SHARE))


_SHARES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999, "max_ns": 1.0}


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
        histogram = HdrHistogram.decode(latency.hdr)
        # As its own `get_value_at_percentile`, which adds up the counts one by one.
        target = histogram.get_target_count_at_percentile(100 * share)
        index = int(np.searchsorted(np.cumsum(histogram.counts), target))
        slow = histogram.get_highest_equivalent_value(histogram.get_value_from_index(index))
        return MeasuredValue(max(float(slow), plain.value), plain.resolution)
    above = next(quantile for quantile, level in _SHARES.items() if level >= share)
    return replace(plain, headroom=max(0.0, float(getattr(latency, above)) - plain.value))


def _jitter(trial: TrialRecord, source: RttMetric) -> MeasuredValue | None:
    """Packet delay variation (RFC 5481, section 4.2): 99th percentile less the smallest delay."""
    latest = quantile_of_sent(trial, source, "p99_ns")
    if latest is None:
        return None
    return replace(
        latest,
        value=latest.value - trial.latency[source].min_ns,
        resolution=max(1.0, latest.value * HISTOGRAM_SHARE),
    )


def _loss(trial: TrialRecord) -> MeasuredValue | None:
    if trial.counts is None or not trial.counts.sent:
        return None
    lost, sent = trial.counts.lost, trial.counts.sent
    return MeasuredValue(lost / sent, 1 / sent, counts=(lost, sent))


def _of_load(
    samples: Sequence[RunSample],
    metric: Metric,
    of_sample: Callable[[RunSample], Callable[..., MeasuredValue | None]],
) -> Observed:
    """One value for all load trials of a cell in a block, by a sample's own function of them."""
    observations = []
    for sample in samples:
        of_block = of_sample(sample)
        groups: dict[tuple[object, ...], list[TrialRecord]] = defaultdict(list)
        for trial in sample.done:
            if trial.kind == "load" and trial.load is not None and trial.counts is not None:
                groups[(trial.block, *sorted(trial.cell.items()))].append(trial)
        for trials in groups.values():
            measured = of_block(trials, sample.info)
            if measured is not None:
                observations.append(_observation(sample, trials[0], measured))
    return Observed(metric, tuple(observations))


def _forwarded_at_best(sample: RunSample) -> Callable[..., MeasuredValue | None]:
    """What a block of a cell forwarded at the load that is best for the cell over all blocks."""
    cells: dict[tuple[object, ...], list[TrialRecord]] = defaultdict(list)
    for trial in sample.done:
        if trial.kind == "load":
            cells[tuple(sorted(trial.cell.items()))].append(trial)
    best = {cell: best_load(trials) for cell, trials in cells.items()}
    return lambda trials, info: forwarded(trials, best[tuple(sorted(trials[0].cell.items()))])


def figures_in(samples: Sequence[RunSample]) -> dict[str, Figure]:
    """The numbers that trials bring with them, by name; of each, that of some trial."""
    return {
        name: figure
        for sample in samples
        for trial in sample.done
        for name, figure in trial.figures.items()
    }


def _of_trial(
    samples: Sequence[RunSample],
    metric: Metric,
    value: Callable[[TrialRecord], MeasuredValue | None],
    kind: TrialKind | None = None,
) -> Observed:
    """One value a trial (of a kind; None: of all): there is one of each cell in a block."""
    observations = [
        _observation(sample, trial, measured)
        for sample in samples
        for trial in sample.done
        if kind in (None, trial.kind) and (measured := value(trial)) is not None
    ]
    return Observed(metric, tuple(observations))


def _kernel_ns_per_packet(trials: Sequence[TrialRecord], info: RunInfo) -> MeasuredValue | None:
    """Median over a block's load trials of kernel CPU time per forwarded packet [ns]."""
    costs = []
    if sum(trial.duration_s for trial in trials if trial.cpu) < CPU_WINDOW_S:
        return None
    for trial in trials:
        if trial.counts is None or not trial.counts.received or not trial.cpu:
            continue
        busy_s = sum(
            sum(modes.get(mode, 0.0) for mode in KERNEL_MODES)
            * trial.duration_s
            * _cpus(info, host)
            for host, modes in trial.cpu.items()
        )
        received = trial.counts.received
        costs.append((busy_s / received * 1e9, 1e9 / USER_HZ / received))
    if not costs:
        return None
    return MeasuredValue(
        statistics.median(c for c, _ in costs), statistics.median(r for _, r in costs)
    )


def _of_cpu(samples: Sequence[RunSample], name: str) -> Observed:
    """Busy share, or the share of one mode, of one host's CPUs."""
    host, _, mode = name.partition(":")[2].partition(":")
    hosts = {h for sample in samples for trial in sample.done for h in cpu_of(trial)}
    if not host:
        if len(hosts) > 1:
            raise BadInputError(
                f"the CPUs of several hosts were measured: {', '.join(sorted(hosts))}",
                where="--metric",
                remedy=f"name one: cpu:{min(hosts)}",
            )
        host = next(iter(hosts), "shared")
    if (hosts and host not in hosts) or (mode and mode not in CPU_MODES):
        raise BadInputError(
            f"there is no CPU metric '{name}'",
            where="--metric",
            remedy=f"cpu:HOST or cpu:HOST:MODE; hosts: {', '.join(sorted(hosts)) or 'none'}; "
            f"modes: {', '.join(CPU_MODES)}",
        )
    prefix = "CPU" if host == "shared" else f"CPU of the {host}"
    metric = (
        Metric(f"cpu:{host}:{mode}", f"{prefix}, {mode}", "share", mode not in IDLE_MODES)
        if mode
        else Metric(f"cpu:{host}", f"{prefix}, busy", "share", True)
    )
    kinds = {trial.kind for sample in samples for trial in sample.done if cpu_of(trial)}
    kind = "rtt" if "rtt" in kinds else "load"
    observations = []
    for sample in samples:
        for trial in sample.done:
            modes = cpu_of(trial).get(host)
            if trial.kind != kind or not modes:
                continue
            share = (
                modes.get(mode, 0.0)
                if mode
                else sum(modes.get(busy, 0.0) for busy in CPU_MODES if busy not in IDLE_MODES)
            )
            ticks = max(1.0, cpu_window_s(trial) * USER_HZ * _cpus(sample.info, host))
            observations.append(_observation(sample, trial, MeasuredValue(share, 1 / ticks)))
    return Observed(metric, tuple(observations))


def _cpus(info: RunInfo, host: str) -> int:
    return info.hosts[host].cpus if host in info.hosts else 1


def _rtt(quantile: str) -> Callable[[TrialRecord, RttMetric], MeasuredValue | None]:
    return lambda trial, source: quantile_of_sent(trial, source, quantile)


_OF_RTT: Mapping[str, Callable[[TrialRecord, RttMetric], MeasuredValue | None]] = {
    "rtt": _rtt("p50_ns"),
    "rtt_p90": _rtt("p90_ns"),
    "rtt_p99": _rtt("p99_ns"),
    "rtt_p999": _rtt("p999_ns"),
    "overhead": lambda trial, _: _quantile(trial.latency.get("overhead"), "p50_ns"),
    "response": lambda trial, _: _quantile(trial.latency.get("response"), "p50_ns"),
    "jitter": _jitter,
    "loss": lambda trial, _: _loss(trial),
}
"""Metrics of an RTT trial, by the stamps that RTT is taken from."""
_OF_TRIAL: Mapping[str, Callable[[TrialRecord], MeasuredValue | None]] = {
    "transmitted": transmitted,
    "transmitted_bits": transmitted_bits,
    "goodput": goodput,
}
"""Metrics that a chain's or a TCP trial has, one value each."""
_OF_BLOCK: Mapping[str, Callable[[Sequence[TrialRecord], RunInfo], MeasuredValue | None]] = {
    "ndr": lambda trials, _: ndr(trials),
    "pdr": lambda trials, _: pdr(trials),
    "cpu_per_packet": _kernel_ns_per_packet,
}
"""Metrics of all load trials of a cell in a block."""
