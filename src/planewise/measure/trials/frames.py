"""Load trials: paced frames from one interface to another, every loss accounted for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from planewise.errors import PlanewiseError
from planewise.measure.runs.stage import Place, TrialResult
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.probe import CalibrationOutput, TrialOutput, parse
from planewise.measure.trials.round_trips import known_limits
from planewise.store.levels import TOLERANCE
from planewise.store.models import Counts, Limit, LossPart, OfferedLoad, TrialRecord
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.steering import CpuSplit
from planewise.testbed.model import CounterPoint, IpVersion, TrialPath

_CALIBRATION_S = 120.0
"""It takes a fraction of a second, and many where an emulated guest has little of a busy CPU."""


@dataclass(frozen=True)
class LoadPath:
    """What a load trial needs of a testbed."""

    path: TrialPath
    counters: Sequence[CounterPoint]
    ip_version: IpVersion = 4


class HostGenerator:
    """The generator of a host, and what it can do by itself, measured once a frame size."""

    def __init__(
        self, host: Host, cpus: CpuSplit | None = None, *, netns: str | None = None
    ) -> None:
        """`netns` is the virtual machine that generates, where one does."""
        self.host = host
        """Where pw-probe runs; it enters the namespaces of both ends itself."""
        self.netns = netns
        self.cpus = cpus
        """The CPU that generates, and those that carry what it made, from the guest's own way out
        on; None leaves it to the kernel."""
        self._max_pps: dict[tuple[int, IpVersion], float] = {}
        self.kept_pps: dict[tuple[object, ...], float] = {}
        """The highest load that it has sent in full, by cell and frame size."""

    def max_pps(self, size_bytes: int, ip_version: IpVersion = 4) -> float:
        """Its maximum rate [packet/s], into a private veth pair that no plane limits."""
        key = (size_bytes, ip_version)
        if key not in self._max_pps:
            # A virtual machine takes its NIC for a physical one, and to these pw-probe sends from
            # user space. Nor would the kernel's generator fit into a small guest's memory.
            backend = () if self.netns is None else ("--backend", "af_packet")
            finished = self.host.run(
                [
                    *(self.host.probe, "trial", "--calibrate-only"),
                    *("--size", str(size_bytes), "--ip", str(ip_version)),
                    *backend,
                    *self.placement(),
                ],
                netns=self.netns,
                timeout_s=_CALIBRATION_S,
            )
            self._max_pps[key] = parse(finished, CalibrationOutput).max_pps
        return self._max_pps[key]

    def placement(self) -> list[str]:
        """The probe's options that say where the generator runs."""
        if self.cpus is None:
            return []
        carrier = self.cpus.receivers[-1]
        return ["--tx-cpu", str(self.cpus.generator), "--carrier-cpu", str(carrier)]


def measure_load(
    load: LoadPath, trial: LoadTrial, place: Place, generator: HostGenerator
) -> TrialResult:
    """Runs one load trial. PlanewiseError when it could not be run or ended early.

    A load that was not sent, though the generator has sent as much on this cell before, is sent
    once more: the machine stood still, which says nothing of generator or plane.
    """
    argv = command(load, trial, generator)
    output = _send(generator, argv, trial)
    cell = (*sorted(place.cell.items()), output.size_bytes)
    kept_pps = generator.kept_pps.get(cell, 0.0)
    warnings: tuple[str, ...] = ()
    if "generator" not in limits_of(output):
        generator.kept_pps[cell] = max(kept_pps, output.intended_pps)
    elif output.intended_pps <= kept_pps:
        share = output.achieved_pps / output.intended_pps
        warnings = (f"sent a second time: the first time the machine let {share:.1%} of it out",)
        output = _send(generator, argv, trial)
    cpu = {} if output.cpu is None else {"shared": output.cpu.all}
    done = record(place, output, cpu, _place_names(load.counters))
    return TrialResult(done.model_copy(update={"warnings": (*warnings, *done.warnings)}))


def _send(generator: HostGenerator, argv: Sequence[str], trial: LoadTrial) -> TrialOutput:
    finished = generator.host.run(argv, timeout_s=30 + 3 * trial.duration_s)
    output = parse(finished, TrialOutput)
    if output.interrupted:
        raise KeyboardInterrupt
    if output.error is not None:
        raise PlanewiseError(output.error.what, remedy=output.error.remedy)
    return output


def command(load: LoadPath, trial: LoadTrial, generator: HostGenerator) -> list[str]:
    """The probe's command line; calibrates the generator when it is not yet."""
    path, version = load.path, load.ip_version
    max_pps = generator.max_pps(trial.size_bytes, version)
    argv = [
        *(generator.host.probe, "trial"),
        *("--tx", _at(path.tx_interface, path.tx_netns)),
        *("--rx", _at(path.rx_interface, path.rx_netns)),
        *("--rate", f"{trial.offered_pps:.3f}"),
        *("--duration", f"{trial.duration_s:g}"),
        *("--size", str(trial.size_bytes)),
        *_unless_empty("--src", path.source(version)),
        *("--dst", path.destination(version)),
        *_unless_empty("--dst-mac", path.next_hop_mac),
        *("--max-pps", f"{max_pps:.0f}"),
        *("--drain", "0.1"),
        *generator.placement(),
    ]
    ends = {(path.tx_netns, path.tx_interface), (path.rx_netns, path.rx_interface)}
    for point in load.counters:
        if (point.netns, point.interface) not in ends:
            argv += ["--counter", _at(point.interface, point.netns)]
    return argv


def _at(interface: str, netns: str) -> str:
    """An interface as the probe reads it; an empty namespace is the one that planewise runs in."""
    return f"{interface}@{netns}" if netns else interface


def _unless_empty(option: str, value: str) -> tuple[str, ...]:
    return (option, value) if value else ()


def record(
    place: Place,
    output: TrialOutput,
    cpu: dict[str, dict[str, float]],
    names: Mapping[str, str] = MappingProxyType({}),
) -> TrialRecord:
    """The record of a load trial. Pure.

    `cpu` has shares of all CPUs' time by host and mode, `names` what the probe's places are called
    where that differs.
    """
    warnings = []
    if output.unexplained:
        warnings.append(f"{output.unexplained} lost packets are in no drop counter")
    return TrialRecord(
        **place.fields,
        kind="load",
        started=datetime.fromtimestamp(output.started_ns / 1e9, UTC),
        duration_s=output.duration_s,
        load=OfferedLoad(
            intended_pps=output.intended_pps,
            achieved_pps=output.achieved_pps,
            size_bytes=output.size_bytes,
        ),
        counts=Counts(
            sent=output.sent,
            received=output.received,
            lost=output.lost,
            duplicate=output.duplicate,
            reordered=output.reordered,
            late=output.late,
        ),
        loss=tuple(
            LossPart(
                where=names.get(part.where, part.where), counter=part.counter, count=part.count
            )
            for part in output.loss
            if part.count
        ),
        latency={} if output.latency is None else {"one_way": output.latency},
        cpu=cpu,
        generator=output.generator.backend,
        generator_max_pps=output.generator.max_pps,
        sink=output.sink.backend,
        limits=limits_of(output),
        warnings=tuple(warnings),
    )


def limits_of(output: TrialOutput) -> tuple[Limit, ...]:
    """What limited the trial. Pure.

    The probe names its generator from a shortfall of 0.1 % on. A short trial on a shared machine
    misses that by one pause of a millisecond; up to TOLERANCE the trial still stands for its load.
    """
    limits = known_limits(output.limits)
    max_pps = output.generator.max_pps or math.inf
    kept = output.achieved_pps >= output.intended_pps * (1 - TOLERANCE)
    if "generator" not in limits or not kept or output.intended_pps > max_pps:
        return limits
    lossy: tuple[Limit, ...] = ("sut",) if output.lost and "sink" not in limits else ()
    return (*lossy, *(limit for limit in limits if limit not in ("generator", "sut")))


def _place_names(counters: Sequence[CounterPoint]) -> Mapping[str, str]:
    """`IF@NETNS` or `IF`, as the probe says it, to `host:IF`, as a person reads it."""
    return {
        _at(point.interface, point.netns): f"{point.host}:{point.interface}" for point in counters
    }
