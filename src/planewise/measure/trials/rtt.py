"""RTT trials: round-trip times at one frequency and size, with capture points (`stamps`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar, cast

import polars as pl

from planewise.errors import PlanewiseError
from planewise.measure.designs.cells import combinations
from planewise.measure.designs.design import AS_IS, Design, Problem, Protocol, RttPart
from planewise.measure.designs.pattern import STEADY, bursts_of
from planewise.measure.station import OnSample, Place, Request, Station, Trial, TrialResult
from planewise.measure.trials.applications import REDIS, start_answering
from planewise.measure.trials.ping import ping
from planewise.measure.trials.probe import (
    START_S,
    CpuOutput,
    PingOutput,
    TapOutput,
    known_limits,
    parse,
)
from planewise.measure.trials.stamps import (
    distribution,
    join_stamps,
    late_stamps,
    parts_ns,
    read_packets,
)
from planewise.store.levels import is_kept, keeps_levels
from planewise.store.models import (
    BurstLoad,
    Capture,
    Latency,
    Level,
    Metric,
    OfferedLoad,
    TrialKind,
    TrialRecord,
)
from planewise.testbed.hosts.coalescing import set_rx_usecs
from planewise.testbed.hosts.host import HostProcess
from planewise.testbed.model import CapturePoint, HostRole
from planewise.units import rate_text, time_text

_LATE_SHARE = 0.01
"""Share of packets with impossible stamps above which no stamp of the driver counts."""

_GUEST_RING_MIB = 1
"""Of the capture in a virtual machine, which has little memory."""

_MOST_STEADY_PACKETS = 250_000
"""What a probe in a virtual machine has memory for in the traffic for CPU time."""

_OF_FRAMES: tuple[Metric, ...] = (
    "rtt_kernel", "overhead", "response", "sender_stack", "responder_stack"
)  # fmt: skip
"""Metrics that need the frames of a request."""


@dataclass(frozen=True)
class RttTrial(Trial):
    """One RTT trial."""

    frequency_pps: float
    size_bytes: int
    packets: int
    protocol: Protocol = "icmp"
    steady_s: float = 0.0
    """Its traffic continues for so long afterwards, for CPU time."""
    pattern: str = ""
    """How packets follow one another; empty in designs with steady traffic alone."""
    rx_usecs: int | None = None
    """How long the hosts' NICs wait before they interrupt; None: as they are."""
    guest_stamps: bool = False
    """Whether packets are stamped at the guests' own interfaces, too."""
    kind: ClassVar[TrialKind] = "rtt"

    rank = 1
    key = "rtt"

    @classmethod
    def requested(cls, request: Request) -> list[Trial]:
        """One for each frequency, size, protocol, pattern and setting of the NICs."""
        rtt, trials = request.design.part(cls.key, RttPart), list[Trial]()
        for levels in request.traffic:
            frequency_pps, size_bytes = float(levels["frequency_pps"]), int(levels["size_bytes"])
            protocol = cast("Protocol", levels["protocol"])
            # Cells of all-steady designs stay comparable with those from before there were bursts.
            steady = request.design.factors.pattern == (STEADY,)
            pattern = "" if steady else str(levels["pattern"])
            rx_usecs = None if levels["rx_usecs"] == AS_IS else int(levels["rx_usecs"])
            name = (
                f"rtt:{request.cell.name},{frequency_pps:g}pps,{size_bytes}B,{protocol}"
                f"{f',{pattern}' if pattern else ''}"
                f"{'' if rx_usecs is None else f',{rx_usecs}us'}#r{request.block}"
            )
            traffic = (name, frequency_pps, size_bytes, rtt.packets, protocol, rtt.steady_s)
            trials.append(cls(*traffic, pattern, rx_usecs, rtt.guest_stamps))
        return trials

    @classmethod
    def warmup(cls, design: Design, trials: Sequence[Trial]) -> Trial | None:
        """A few packets, with the traffic of the first trial."""
        packets = design.part(cls.key, RttPart).warmup_packets
        if not packets or not trials:
            return None
        return replace(cast("RttTrial", trials[0]), name="warm-up", packets=packets, steady_s=0.0)

    @classmethod
    def programs(cls, design: Design) -> Sequence[str]:
        """A Redis server, where it answers."""
        return (REDIS,) if "redis" in design.factors.protocol else ()

    @classmethod
    def problems(cls, design: Design) -> Iterator[Problem]:
        """A burst that takes longer than the time to the next, or that no trial holds whole."""
        packets = design.part(cls.key, RttPart).packets
        for levels in combinations(design):
            bursts = bursts_of(str(levels.get("pattern", "")))
            if bursts is None:
                continue
            rate, pattern = float(levels["frequency_pps"]), str(levels["pattern"])
            place = ("factors", "pattern", design.factors.pattern.index(pattern))
            if bursts.packets > rate * bursts.every_s:
                yield Problem(
                    place,
                    f"{bursts.packets} packets at {rate_text(rate)} take "
                    f"{time_text(1e9 * bursts.packets / rate)}, longer than until the next burst",
                    "raise `factors.frequency_pps`, or leave such cells out: `constraints: "
                    f"[{{when: {{pattern: {pattern}}}, exclude: {{frequency_pps: {rate:g}}}}}]`",
                )
            if packets % bursts.packets:
                yield Problem(
                    place,
                    f"a trial of {packets} packets holds no whole number of {pattern}",
                    f"set `rtt.packets` to a multiple of {bursts.packets}",
                )

    @classmethod
    def offered(cls, design: Design) -> Iterator[tuple[str, float | str]]:
        """Each frequency."""
        for rate in design.factors.frequency_pps:
            yield "factors.frequency_pps", rate

    @property
    def expected_s(self) -> float:
        return self.sending_s + self.steady_s

    @property
    def sending_s(self) -> float:
        """How long it takes to send its packets [s]."""
        bursts = bursts_of(self.pattern)
        return self.packets / self.frequency_pps if not bursts else bursts.duration_s(self.packets)

    @property
    def mean_pps(self) -> float:
        """Packets a second, the pauses between bursts included."""
        bursts = bursts_of(self.pattern)
        return self.frequency_pps if bursts is None else bursts.mean_pps

    def traffic(self) -> dict[str, Level]:
        return {
            "size_bytes": self.size_bytes,
            "frequency_pps": self.frequency_pps,
            "protocol": self.protocol,
            **({"pattern": self.pattern} if self.pattern else {}),
            **({} if self.rx_usecs is None else {"rx_usecs": self.rx_usecs}),
        }

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        with ExitStack() as running:
            return _measure(station, self, place, running)


def _measure(station: Station, trial: RttTrial, place: Place, running: ExitStack) -> TrialResult:
    points, not_measurable = _points(station, trial)
    if trial.rx_usecs is not None:
        for point in station.capture_points:
            if point.name.endswith("_nic"):
                set_rx_usecs(station.hosts[point.host], point.interface, trial.rx_usecs)
    responder = station.ends["responder"]
    at = [(responder.netns, responder.address)]
    start_answering(trial.protocol, responder.host, at, running)
    taps = _start_taps(station, points, trial.protocol, running)
    watches = _watch_cpus(station, running)
    end = station.ends["sender"]
    file = f"{end.host.directory}/ping.csv"
    options = ("--count", str(trial.packets), "--packets", file)
    sent = _ping(station, trial, place, trial.sending_s, *options)
    packets = read_packets(end.host.read(file, netns=end.netns))
    cpu = _cpu(sent, watches)
    captures: list[Capture] = []
    for _, _, process, _ in taps:
        process.interrupt()  # all at once: each waits for what its kernel still holds
    for role, guest, process, stamps in taps:
        for found in parse(process.stop(), TapOutput).points:
            if found.error is not None:
                raise PlanewiseError(found.error.what, remedy=found.error.remedy)
            captures.append(
                Capture(point=found.name, host=role, packets=found.packets, dropped=found.dropped)
            )
        stamped = read_packets(station.hosts[role].read(stamps, netns=guest))
        packets = join_stamps(packets, stamped)
    latency = _latency(sent, packets, not_measurable)
    record = TrialRecord(
        **place.fields,
        kind="rtt",
        started=datetime.fromtimestamp(sent.started_ns / 1e9, UTC),
        duration_s=sent.duration_s,
        load=_load(sent),
        counts=sent.counts,
        latency=latency,
        not_measurable=not_measurable,
        cpu=cpu,
        schedule_slip_ns=sent.slip,
        captures=tuple(captures),
        limits=known_limits(sent.limits),
        warnings=sent.warnings,
    )
    if trial.steady_s and keeps_levels(record):  # else the trial does not count anyway
        record = record.model_copy(update=_steady(station, trial, place, running, record.warnings))
    return TrialResult(record, packets)


def _points(station: Station, trial: RttTrial) -> tuple[Sequence[CapturePoint], dict[Metric, str]]:
    """The capture points, and the metrics that do not exist, with the reason."""
    if trial.protocol == "redis":
        reason = "a request's frame cannot be identified: TCP joins, splits and repeats data"
        return (), dict.fromkeys(_OF_FRAMES, reason)
    points = station.capture_points
    if not trial.guest_stamps:
        points = [point for point in points if not point.name.endswith("_inside")]
    return points, dict(station.not_measurable)


_Tap = tuple[HostRole, str | None, HostProcess, str]
"""Host, virtual machine (None: the host itself), `pw-probe tap`, and the file that it writes."""


def _start_taps(
    station: Station, points: Sequence[CapturePoint], protocol: Protocol, running: ExitStack
) -> list[_Tap]:
    """A `pw-probe tap` for each kernel: one a host, and one a virtual machine."""
    kernels: dict[tuple[HostRole, str | None], list[CapturePoint]] = {}
    for point in points:
        guest = point.netns if point.own_kernel else None
        kernels.setdefault((point.host, guest), []).append(point)
    taps: list[_Tap] = []
    for (role, guest), of_kernel in kernels.items():
        host = station.hosts[role]
        file = f"{host.directory}/{role}{'' if guest is None else '-inside'}.csv"
        argv = [host.probe, "tap", "--proto", protocol, "--packets", file]
        if guest is not None:
            argv += ["--ring-mib", str(_GUEST_RING_MIB)]
        for point in of_kernel:
            netns = f"@{point.netns}" if point.netns and guest is None else ""
            argv += ["--point", f"{point.name}={point.interface}{netns}"]
        process = running.enter_context(host.start(argv, netns=guest))
        taps.append((role, guest, process, file))
    for _, _, process, _ in taps:
        process.wait_ready("ready", START_S)
    return taps


def _watch_cpus(station: Station, running: ExitStack) -> dict[str, HostProcess]:
    """`pw-probe cpu` by host, where the pinging probe cannot see it: from within a virtual machine,
    and on the responder of two machines."""
    sender, responder = station.ends["sender"].host, station.ends["responder"].host
    hosts = {"responder": responder} if station.separate else {}
    if station.ends["sender"].machine:
        hosts["sender" if station.separate else "shared"] = sender
    # Planewise's own CPU time counts where it runs.
    parent = () if station.separate else ("--with-parent",)
    return {
        name: running.enter_context(host.start([host.probe, "cpu", *parent]))
        for name, host in hosts.items()
    }


def _cpu(ping: PingOutput, watches: Mapping[str, HostProcess]) -> dict[str, dict[str, float]]:
    """What the CPUs did, by host."""
    cpu = {name: parse(watch.stop(), CpuOutput).cpu.all for name, watch in watches.items()}
    own = "sender" if "responder" in cpu else "shared"
    return cpu if ping.cpu is None or own in cpu else {own: ping.cpu.all, **cpu}


def _steady(
    station: Station,
    trial: RttTrial,
    place: Place,
    running: ExitStack,
    warnings: tuple[str, ...],
) -> dict[str, object]:
    """Fields of a record from the trial's traffic once more, for so long, without captures.

    There is no CPU time where its rate was not kept. The packets are not kept.
    """
    seconds = trial.steady_s
    if station.ends["sender"].machine:
        seconds = min(seconds, _MOST_STEADY_PACKETS / trial.mean_pps)
    watches = _watch_cpus(station, running)
    steady = _ping(station, trial, place, seconds, "--duration", f"{seconds:g}")
    cpu = _cpu(steady, watches)
    load = steady.load
    if is_kept(load.intended_pps, load.achieved_pps):
        return {"cpu": cpu, "cpu_window_s": steady.duration_s}
    reason = (
        f"no CPU time: its traffic was sent at {load.achieved_pps:.0f} instead of "
        f"{load.intended_pps:.0f} packets/s"
    )
    return {"cpu": {}, "warnings": (*warnings, reason)}


def _ping(
    station: Station, trial: RttTrial, place: Place, expected_s: float, *options: str
) -> PingOutput:
    """The trial's traffic."""
    bursts = bursts_of(trial.pattern)
    if bursts is not None:
        options += ("--burst", str(bursts.packets), "--burst-every", f"{bursts.every_s:.9g}")
    traffic = (trial.protocol, trial.frequency_pps, trial.size_bytes)
    return ping(station, place, *traffic, expected_s, *options)


def _latency(
    ping: PingOutput, packets: pl.DataFrame, not_measurable: dict[Metric, str]
) -> dict[Metric, Latency]:
    """The latencies; adds to `not_measurable` what the packets' stamps rule out."""
    latency: dict[Metric, Latency] = {}
    if ping.rtt_user is not None:
        latency["rtt_user"] = ping.rtt_user
    if (late := late_stamps(packets) or 0) > _LATE_SHARE:
        not_measurable["rtt_kernel"] = (
            f"the sender's driver stamps frames after sending them: by its stamps {late:.0%} of "
            "them came back before the responder had sent them"
        )
    elif ping.rtt_kernel is not None:
        latency["rtt_kernel"] = ping.rtt_kernel
    for metric, values in parts_ns(packets).items():
        if metric not in not_measurable:
            latency[metric] = distribution(values)
    return latency


def _load(ping: PingOutput) -> OfferedLoad:
    """What was sent, with the rate within bursts where there were any."""
    burst = ping.burst
    if burst is None:
        return ping.load
    burst_load = BurstLoad(
        packets=burst.packets,
        every_s=burst.every_ns / 1e9,
        intended_pps=burst.intended_pps,
        achieved_pps=burst.kept_pps,
    )
    return ping.load.model_copy(update={"burst": burst_load})
