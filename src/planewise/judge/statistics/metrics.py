"""Metrics that levels are compared by: from the trials of runs to one value a replicate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from planewise.errors import BadInputError
from planewise.judge.statistics import values
from planewise.judge.statistics.values import (
    CPU_MODES,
    IDLE_MODES,
    PLR,
    MeasuredValue,
    Reading,
    RunSample,
)
from planewise.store.cells import Sending, sending_of
from planewise.store.levels import cpu_of, keeps_levels
from planewise.store.models import Figure, Level, TrialKind, TrialRecord
from planewise.store.packets import RttMetric
from planewise.units import percent_text

Unit = Literal["ns", "pps", "bps", "share"]


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
class _Source:
    """Where a metric comes from."""

    metric: Metric
    read: Reading
    kind: TrialKind | None = None
    """Of trials; None: all."""
    by_block: bool = False
    """Whether all trials of a cell in a block make one value."""


def _sources() -> Iterator[_Source]:
    for name, title, read in (
        ("rtt", "median round-trip time", values.rtt("p50_ns")),
        ("rtt_p90", "90th percentile of the round-trip time", values.rtt("p90_ns")),
        ("rtt_p99", "99th percentile of the round-trip time", values.rtt("p99_ns")),
        ("rtt_p999", "99.9th percentile of the round-trip time", values.rtt("p999_ns")),
        ("overhead", "median overhead at the sender", values.part("overhead")),
        ("response", "median response time", values.part("response")),
        ("jitter", "jitter (99th percentile of the delay variation)", values.jitter),
    ):
        yield _Source(Metric(name, title, "ns", True), read, "rtt")
    yield _Source(Metric("loss", "loss of probe packets", "share", True), values.loss, "rtt")
    title = f"PDR at {percent_text(PLR)} loss"
    best = Metric("throughput", "forwarding rate at the best load", "pps", False)
    cost = Metric("cpu_per_packet", "kernel CPU time per packet", "ns", True)
    yield _Source(best, values.throughput, "load", by_block=True)
    yield _Source(Metric("ndr", "NDR", "pps", False), values.drop_rate(0.0), "load", by_block=True)
    yield _Source(Metric("pdr", title, "pps", False), values.drop_rate(PLR), "load", by_block=True)
    yield _Source(cost, values.kernel_ns_per_packet, "load", by_block=True)
    packets = Metric("transmitted", "packets that all functions transmit", "pps", False)
    bits = Metric("transmitted_bits", "bits that all functions transmit", "bps", False)
    yield _Source(packets, values.transmitted, "chain")
    yield _Source(bits, values.transmitted_bits, "chain")
    yield _Source(Metric("goodput", "goodput of TCP", "bps", False), values.goodput, "tcp")


_SOURCES = {source.metric.name: source for source in _sources()}
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
        if modes:
            names += [f"cpu:{host}:{mode}" for mode in CPU_MODES if mode in hosts[host]]
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
            for trials in values.replicates(sample, source.kind, by_block=source.by_block)
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
    if (figure := figures_in(samples).get(name)) is not None:
        metric = Metric(name, figure.title, figure.unit, figure.lower_is_better)
        return _Source(metric, values.figure(name))
    if name == "cpu" or name.startswith("cpu:"):
        return _of_cpu(samples, name)
    names = ", ".join((*NAMES, *figures_in(samples)))
    raise BadInputError(
        f"there is no metric '{name}'",
        where="--metric",
        remedy=f"choose among {names}, cpu:HOST, cpu:HOST:MODE, or all",
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
    metric = Metric(full_name, title, "share", mode not in IDLE_MODES)
    kind: TrialKind = "rtt" if any(trial.kind == "rtt" for trial in measured) else "load"
    return _Source(metric, values.cpu(host, mode), kind)


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
    return tuple(
        replace(
            observed,
            metric=replace(
                observed.metric, title=f"{observed.metric.title} {sending.words}", sending=sending
            ),
            observations=tuple(one for one, way in sent if way in (None, sending)),
            missing=tuple(entry for entry in observed.missing if of(entry[0]) in (None, sending)),
        )
        for sending in sendings
    )
