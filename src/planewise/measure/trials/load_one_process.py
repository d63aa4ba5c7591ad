"""Load trials by one pw-probe that sees both ends; also the record of every load trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from planewise.errors import PlanewiseError
from planewise.measure.station import Place, Station, TrialResult
from planewise.measure.trials.probe import TrialOutput, known_limits, parse
from planewise.store.levels import TOLERANCE
from planewise.store.models import Counts, Limit, LossPart, OfferedLoad, TrialRecord

if TYPE_CHECKING:
    from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.probe import CalibrationOutput
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.steering import CpuSplit
from planewise.testbed.model import IpVersion

_CALIBRATION_S = 120.0
"""It takes a fraction of a second, but long where an emulated guest gets little of a busy CPU."""


class Generator:
    """pw-probe as generator on a host, or in a virtual machine `netns`."""

    def __init__(
        self, host: Host, cpus: CpuSplit | None = None, *, netns: str | None = None
    ) -> None:
        self.host = host
        """Where pw-probe runs; it enters the namespaces of both ends itself."""
        self.netns = netns
        self.cpus = cpus
        """CPUs that generate and receive; None leaves them to the kernel."""
        self._max_pps: dict[tuple[int, IpVersion], float] = {}
        self.kept_pps: dict[tuple[object, ...], float] = {}
        """The highest load that it has sent in full, by cell and frame size."""

    def max_pps(self, size_bytes: int, ip_version: IpVersion = 4) -> float:
        """Its maximum rate [packet/s] into a private veth pair, measured once a frame size."""
        key = (size_bytes, ip_version)
        if key not in self._max_pps:
            # pw-probe takes a virtual machine's NIC for a physical one and sends from user space;
            # the kernel's generator would not fit into a small guest's memory either.
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
        """The probe's options for the generator's CPUs."""
        if self.cpus is None:
            return []
        carrier = self.cpus.receivers[-1]
        return ["--tx-cpu", str(self.cpus.generator), "--carrier-cpu", str(carrier)]


def measure(station: Station, trial: LoadTrial, place: Place) -> TrialResult:
    """Runs one load trial.

    When the generator falls short of a load that it has sent on this cell before, the machine stood
    still, which says nothing about generator or plane: the trial is repeated once.

    Raises:
        PlanewiseError: it could not be run, or ended early.
    """
    generator = station.generator
    assert generator is not None
    output = _send(station, trial)
    cell = (*sorted(place.cell.items()), output.size_bytes)
    kept_pps = generator.kept_pps.get(cell, 0.0)
    warnings: tuple[str, ...] = ()
    if "generator" not in limits_of(output):
        generator.kept_pps[cell] = max(kept_pps, output.intended_pps)
    elif output.intended_pps <= kept_pps:
        share = output.achieved_pps / output.intended_pps
        warnings = (f"repeated, as only {share:.1%} was sent the first time",)
        output = _send(station, trial)
    cpu = {} if output.cpu is None else {"shared": output.cpu.all}
    names = {
        _at(point.interface, point.netns): f"{point.host}:{point.interface}"
        for point in station.counter_points
    }
    done = record(place, output, cpu, names)
    return TrialResult(done.model_copy(update={"warnings": (*warnings, *done.warnings)}))


def _send(station: Station, trial: LoadTrial) -> TrialOutput:
    assert station.generator is not None
    argv = command(station, trial)
    output = parse(
        station.generator.host.run(argv, timeout_s=30 + 3 * trial.duration_s), TrialOutput
    )
    if output.interrupted:
        raise KeyboardInterrupt
    if output.error is not None:
        raise PlanewiseError(output.error.what, remedy=output.error.remedy)
    return output


def command(station: Station, trial: LoadTrial) -> list[str]:
    """The probe's command line; calibrates the generator first when necessary."""
    path, generator, version = station.path, station.generator, station.ip_version
    assert path is not None
    assert generator is not None
    argv = [
        *(generator.host.probe, "trial"),
        *("--tx", _at(path.tx_interface, path.tx_netns)),
        *("--rx", _at(path.rx_interface, path.rx_netns)),
        *("--rate", f"{trial.offered_pps:.3f}"),
        *("--duration", f"{trial.duration_s:g}"),
        *("--size", str(trial.size_bytes)),
        *(("--src", path.source(version)) if path.source(version) else ()),
        *("--dst", path.destination(version)),
        *(("--dst-mac", path.next_hop_mac) if path.next_hop_mac else ()),
        *("--max-pps", f"{station.max_pps(trial.size_bytes):.0f}"),
        *("--drain", "0.1"),
        *generator.placement(),
    ]
    ends = {(path.tx_netns, path.tx_interface), (path.rx_netns, path.rx_interface)}
    for point in station.counter_points:
        if (point.netns, point.interface) not in ends:
            argv += ["--counter", _at(point.interface, point.netns)]
    return argv


def _at(interface: str, netns: str) -> str:
    """An interface as the probe reads it; without a namespace it is in planewise's own."""
    return f"{interface}@{netns}" if netns else interface


def record(
    place: Place,
    output: TrialOutput,
    cpu: dict[str, dict[str, float]],
    names: Mapping[str, str] = MappingProxyType({}),
) -> TrialRecord:
    """The record of a load trial. Pure.

    `cpu` has shares of all CPUs' time by host and mode, `names` how results call the probe's
    interfaces.
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

    The probe names its generator from a shortfall of 0.1 % on, which one pause of a millisecond
    causes in a short trial. Up to TOLERANCE the trial still stands for its load.
    """
    limits = known_limits(output.limits)
    max_pps = output.generator.max_pps or math.inf
    kept = output.achieved_pps >= output.intended_pps * (1 - TOLERANCE)
    if "generator" not in limits or not kept or output.intended_pps > max_pps:
        return limits
    lossy: tuple[Limit, ...] = ("sut",) if output.lost and "sink" not in limits else ()
    return (*lossy, *(limit for limit in limits if limit not in ("generator", "sut")))
