"""RTT trials with capture points: where a round trip's time goes, packet by packet.

With t(point, request) and t(point, reply) the kernel stamps of one packet at a capture point, all
of one host's clock (publication K, section 4):

    RTT           user stamps at the sender's guest
    overhead      RTT − (t(sender_nic, reply) − t(sender_nic, request))
    response      t(responder_nic, reply) − t(responder_nic, request)
    wire          RTT − overhead − response: what remains, between the two NICs

The same between a guest and its own interface, each by that guest's clock:

    sender_stack     RTT − (t(sender_inside, reply) − t(sender_inside, request)), of the overhead
    responder_stack  t(responder_inside, reply) − t(responder_inside, request), of the response
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from planewise.errors import PlanewiseError
from planewise.measure.designs.design import Protocol
from planewise.measure.designs.pattern import bursts_of
from planewise.measure.runs.stage import Place, TrialResult
from planewise.measure.trials.applications import start_redis
from planewise.measure.trials.probe import CpuOutput, PingOutput, TapOutput, parse
from planewise.measure.trials.rtt import RttTrial
from planewise.store.levels import is_kept, keeps_levels
from planewise.store.models import (
    BurstLoad,
    Capture,
    Latency,
    Limit,
    Metric,
    OfferedLoad,
    TrialRecord,
)
from planewise.testbed.hosts.coalescing import set_rx_usecs
from planewise.testbed.hosts.host import Host, HostProcess, ProcessTimeoutError
from planewise.testbed.hosts.scratch import scratch
from planewise.testbed.model import CapturePoint, Guest, HostRole

READY_S = 240.0
"""How long a probe may take to say that it is ready: an emulated guest on an emulated host needs a
minute and more while others send. Only what hangs waits so long."""

FIRST_ANSWER_S = 3.5
"""How long the first answer of all may take on one machine."""
SERVERS_PATIENCE_S = 10.0
"""The same between guests of two servers: a lab's are emulated, and a busy one stands still for
seconds."""
EMULATED_PATIENCE_S = 60.0
"""The same between guests whose CPUs are emulated, perhaps by an emulated CPU."""

_CHECK_S = 2.0
"""How often the guests are checked while packets are late."""

_PARTS: tuple[Metric, ...] = ("overhead", "response", "sender_stack", "responder_stack")

_LATE_SHARE = 0.01
"""Share of packets with impossible stamps, above which no stamp of the driver's counts."""

_GUEST_RING_MIB = 1
"""Of the capture in a virtual machine, which has little memory."""

_TEXTS = ("proto", "id", "flags")
"""Columns of the probe's files that are texts; all others are numbers, also without a row."""


@dataclass(frozen=True)
class RttPath:
    """What an RTT trial needs of a testbed."""

    hosts: Mapping[HostRole, Host]
    sender: Guest
    responder: Guest
    capture_points: Sequence[CapturePoint]
    not_measurable: Mapping[Metric, str]
    separate: bool = False
    """Whether the hosts are two machines: each then has CPUs of its own to watch."""
    patience_s: float = FIRST_ANSWER_S
    """How long the first answer of all may take."""
    most_steady_packets: int = 2_000_000
    """What the probe in the guest has memory for; a shorter window then tells nothing of CPUs."""
    check: Callable[[], None] | None = None
    """Raises where one of the guests ended, which leaves the other without an answer."""


def measure_rtt(path: RttPath, trial: RttTrial, place: Place) -> TrialResult:
    """Runs one RTT trial. PlanewiseError when it could not be run."""
    with scratch() as directory, ExitStack() as running:
        _coalesce(path, trial)
        if trial.protocol == "stamp":
            host = path.hosts["responder"]
            reflector = host.start([host.probe, "reflect"], netns=path.responder.netns)
            running.enter_context(reflector)
            reflector.wait_ready("ready", READY_S)
        if trial.protocol == "redis":
            path = _of_requests(path)
            start_redis(path.hosts["responder"], [path.responder], running)
        if not trial.guest_stamps:
            points = [point for point in path.capture_points if not point.name.endswith("_inside")]
            path = replace(path, capture_points=points)
        taps = _start_taps(path, trial.protocol, running)
        watch = _watch_responder(path, running)
        ping, packets = _ping(path, trial, directory)
        cpu = _cpu(ping, watch)
        captures: list[Capture] = []
        for tap in taps:
            tap.process.interrupt()  # all at once: each waits for what its kernel still holds
        for tap in taps:
            output = parse(tap.process.stop(), TapOutput)
            for point in output.points:
                if point.error is not None:
                    raise PlanewiseError(point.error.what, remedy=point.error.remedy)
            file = path.hosts[tap.role].take(tap.file, directory, netns=tap.guest)
            packets = join_stamps(packets, read_packets(file))
            captures += [
                Capture(point=p.name, host=tap.role, packets=p.packets, dropped=p.dropped)
                for p in output.points
            ]
        record = _record(path, place, ping, packets, captures, cpu)
        if trial.steady_s:  # once nothing captures any more
            watch = _watch_responder(path, running)
            # A trial that missed its rate counts nowhere, and its packets would take for ever.
            steady = _steady(path, trial) if keeps_levels(record) else ping
            update = _steady_fields(record, steady, _cpu(steady, watch))
            record = record.model_copy(update=update)
    return TrialResult(record, packets)


def _coalesce(path: RttPath, trial: RttTrial) -> None:
    """Sets the interrupts of the NICs that the packets pass."""
    if trial.rx_usecs is not None:
        for point in path.capture_points:
            if point.name.endswith("_nic"):
                set_rx_usecs(path.hosts[point.host], point.interface, trial.rx_usecs)


def _of_requests(path: RttPath) -> RttPath:
    """The path without capture points: of a TCP stream no frame is known to be one request."""
    reason = "a request's frame cannot be identified: TCP joins, cuts and repeats what it sends"
    parts: tuple[Metric, ...] = ("rtt_kernel", *_PARTS)
    return replace(path, capture_points=(), not_measurable=dict.fromkeys(parts, reason))


def _watch_responder(path: RttPath, running: ExitStack) -> HostProcess | None:
    """`pw-probe cpu` on the responder, where that is another machine than the sender."""
    if not path.separate:
        return None
    host = path.hosts["responder"]
    return running.enter_context(host.start([host.probe, "cpu"]))


def _cpu(ping: PingOutput, watch: HostProcess | None) -> dict[str, dict[str, float]]:
    """What the CPUs did, by host."""
    if watch is None:
        return {} if ping.cpu is None else {"shared": ping.cpu.all}
    responder_cpu = parse(watch.stop(), CpuOutput)
    cpu = {"responder": responder_cpu.cpu.all}
    return cpu if ping.cpu is None else {"sender": ping.cpu.all, **cpu}


@dataclass(frozen=True)
class _Tap:
    """A `pw-probe tap` that captures, with the file that it writes at its end."""

    role: HostRole
    guest: str | None
    """The virtual machine that it runs in; None: the host."""
    process: HostProcess
    file: str


def _start_taps(path: RttPath, protocol: Protocol, running: ExitStack) -> list[_Tap]:
    """A `pw-probe tap` for each kernel: one a host, and one a virtual machine."""
    kernels: dict[tuple[HostRole, str | None], list[CapturePoint]] = {}
    for point in path.capture_points:
        guest = point.netns if point.own_kernel else None
        kernels.setdefault((point.host, guest), []).append(point)
    taps: list[_Tap] = []
    for (role, guest), points in kernels.items():
        host = path.hosts[role]
        file = f"{host.directory}/{role}{'' if guest is None else '-inside'}.csv"
        argv = [host.probe, "tap", "--proto", protocol, "--packets", file]
        if guest is not None:
            argv += ["--ring-mib", str(_GUEST_RING_MIB)]
        for point in points:
            netns = f"@{point.netns}" if point.netns and guest is None else ""
            argv += ["--point", f"{point.name}={point.interface}{netns}"]
        process = running.enter_context(host.start(argv, netns=guest))
        taps.append(_Tap(role, guest, process, file))
    for tap in taps:
        tap.process.wait_ready("ready", READY_S)
    return taps


def _ping(path: RttPath, trial: RttTrial, directory: Path) -> tuple[PingOutput, pl.DataFrame]:
    host = path.hosts["sender"]
    file = f"{host.directory}/ping.csv"
    argv = [*_command(path, trial, trial.packets), "--packets", file]
    limit_s = 120 + 10 * path.patience_s + 2 * trial.sending_s
    expected_s = trial.sending_s
    with host.start(argv, netns=path.sender.netns, expected_s=expected_s) as process:
        if path.check is not None:
            await_late_end(process, path.check, expected_s, path.patience_s)
        finished = process.wait(limit_s)
    output = parse(finished, PingOutput)
    if output.interrupted:
        raise KeyboardInterrupt
    return output, read_packets(host.take(file, directory, netns=path.sender.netns))


def await_late_end(
    process: HostProcess, check: Callable[[], None], expected_s: float, late_s: float
) -> None:
    """Waits for a process, `late_s` longer than it is expected to take, and calls `check` now
    and then meanwhile. Returns also when it still runs after that."""
    deadline = time.monotonic() + expected_s + late_s
    pause_s = expected_s + _CHECK_S
    while time.monotonic() < deadline:
        with suppress(ProcessTimeoutError):
            process.wait(pause_s)
            return
        check()
        pause_s = _CHECK_S


def _steady(path: RttPath, trial: RttTrial) -> PingOutput:
    """The trial's traffic once more, for what the CPUs do; its packets are not kept.

    It ends in time also where its rate is not reached.
    """
    packets = math.ceil(trial.mean_pps * trial.steady_s)
    host = path.hosts["sender"]
    argv = _command(path, trial, min(packets, path.most_steady_packets))
    with host.start(argv, netns=path.sender.netns) as process:
        try:
            finished = process.wait(READY_S + path.patience_s + 2 * trial.steady_s)
        except ProcessTimeoutError:
            finished = process.stop()
    return parse(finished, PingOutput)


def _steady_fields(
    record: TrialRecord, steady: PingOutput, cpu: Mapping[str, dict[str, float]]
) -> dict[str, object]:
    """A record's fields by the traffic for CPU time; no CPU time where its rate was not kept."""
    if is_kept(steady.load.intended_pps, steady.load.achieved_pps):
        return {"cpu": dict(cpu), "cpu_window_s": steady.duration_s}
    reason = (
        f"the traffic for CPU time was sent at {steady.load.achieved_pps:.0f} packets/s in place "
        f"of {steady.load.intended_pps:.0f}: there is no CPU time of this trial"
    )
    return {"cpu": {}, "warnings": (*record.warnings, reason)}


def _command(path: RttPath, trial: RttTrial, packets: int) -> list[str]:
    bursts = bursts_of(trial.pattern)
    return [
        *(path.hosts["sender"].probe, "ping", path.responder.ipv4),
        *("--proto", trial.protocol),
        *("--rate", f"{trial.frequency_pps:g}"),
        *("--count", str(packets)),
        *("--size", str(trial.size_bytes)),
        *("--patience", f"{path.patience_s:g}"),
        *(
            ("--burst", str(bursts.packets), "--burst-every", f"{bursts.every_s:.9g}")
            if bursts is not None
            else ()
        ),
    ]


def read_packets(file: Path) -> pl.DataFrame:
    """What `ping` or `tap` wrote of packets: a row each, stamps [ns]; maybe no row."""
    names = pl.read_csv(file, n_rows=0).columns
    numbers = {name: pl.Int64 for name in names if name not in _TEXTS}
    return pl.read_csv(file, schema_overrides=numbers)


def join_stamps(packets: pl.DataFrame, captured: pl.DataFrame) -> pl.DataFrame:
    """Adds a tap's columns to the packets that were sent, by sequence number."""
    stamps = [name for name in captured.columns if name.endswith(("_request_ns", "_reply_ns"))]
    once = captured.unique(subset="seq", keep="first").select("seq", *stamps)
    return packets.join(once, on="seq", how="left", maintain_order="left")


def parts_ns(packets: pl.DataFrame) -> dict[Metric, np.ndarray]:
    """The parts [ns] of a round trip, of every packet whose stamps are complete.

    `packets` has a row a packet and the columns of docs/reference/formats.md; a part whose capture
    point is missing is left out.
    """
    rtt = pl.col("user_rx_ns") - pl.col("user_tx_ns")

    def at(point: str) -> pl.Expr:
        return pl.col(f"{point}_reply_ns") - pl.col(f"{point}_request_ns")

    formulas: dict[Metric, tuple[str, pl.Expr]] = {
        "overhead": ("sender_nic", rtt - at("sender_nic")),
        "response": ("responder_nic", at("responder_nic")),
        "sender_stack": ("sender_inside", rtt - at("sender_inside")),
        "responder_stack": ("responder_inside", at("responder_inside")),
    }
    parts: dict[Metric, np.ndarray] = {}
    for metric, (point, formula) in formulas.items():
        if f"{point}_reply_ns" in packets.columns:
            values = packets.select(formula.cast(pl.Int64)).to_series().drop_nulls().to_numpy()
            if len(values):
                parts[metric] = values
    return parts


def late_stamps(packets: pl.DataFrame) -> float | None:
    """The share of packets that by the sender's kernel stamps were away for less time than the
    responder had them: they were stamped after they had been sent. None: unknown.

    Some drivers stamp a frame when it is already on its way (igbvf in Linux 6.12 does).
    """
    shares = [
        packets.select(
            pl.col("kernel_rx_ns") - pl.col("kernel_tx_ns") < pl.col(reply) - pl.col(request)
        )
        .to_series()
        .mean()
        for point in ("responder_nic", "responder_guest", "responder_inside")
        if {request := f"{point}_request_ns", reply := f"{point}_reply_ns"} <= {*packets.columns}
    ]
    numbers = [float(share) for share in shares if isinstance(share, float)]
    return max(numbers, default=None)


def summarise(values_ns: np.ndarray) -> Latency:
    """The distribution of a per-packet part, which may be negative (hence no histogram)."""
    p50, p90, p99, p999 = np.quantile(values_ns, [0.5, 0.9, 0.99, 0.999])
    return Latency(
        count=len(values_ns),
        min_ns=int(values_ns.min()),
        mean_ns=float(values_ns.mean()),
        p50_ns=float(p50),
        p90_ns=float(p90),
        p99_ns=float(p99),
        p999_ns=float(p999),
        max_ns=int(values_ns.max()),
    )


def _record(
    path: RttPath,
    place: Place,
    ping: PingOutput,
    packets: pl.DataFrame,
    captures: Sequence[Capture],
    cpu: Mapping[str, dict[str, float]],
) -> TrialRecord:
    latency: dict[Metric, Latency] = {}
    not_measurable: dict[Metric, str] = dict(path.not_measurable)
    if ping.rtt_user is not None:
        latency["rtt_user"] = ping.rtt_user
    if (late := late_stamps(packets) or 0) > _LATE_SHARE:
        not_measurable["rtt_kernel"] = (
            f"the sender's driver stamps frames after they are sent: by its stamps {late:.0%} "
            "of them came back before the responder let go of them"
        )
    elif ping.rtt_kernel is not None:
        latency["rtt_kernel"] = ping.rtt_kernel
    for metric, values in parts_ns(packets).items():
        if metric not in not_measurable:
            latency[metric] = summarise(values)
    if ping.counts.sent and not ping.counts.received:
        raise PlanewiseError(
            f"none of {ping.counts.sent} probe packets came back on plane {path.sender.plane}",
            remedy="see whether something filters the testbed's packets (`nft list ruleset`)",
        )
    return TrialRecord(
        **place.fields,
        kind="rtt",
        started=datetime.fromtimestamp(ping.started_ns / 1e9, UTC),
        duration_s=ping.duration_s,
        load=_load(ping),
        counts=ping.counts,
        latency=latency,
        not_measurable=not_measurable,
        cpu=dict(cpu),
        schedule_slip_ns=ping.slip,
        captures=tuple(captures),
        limits=known_limits(ping.limits),
        warnings=ping.warnings,
    )


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


def known_limits(limits: Iterable[str]) -> tuple[Limit, ...]:
    """The probe's limits, those that the run directory knows."""
    return tuple(name for name in ("sut", "generator", "sink", "clock") if name in limits)
