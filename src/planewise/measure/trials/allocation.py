"""Measures a trial of the allocator: latency of guests by who holds the few VFs.

planewised runs on the responder's host and gives VFs to the guests there. Each is sent requests at
the rate of its group, open loop, by its own guest on the sender's host; the same packets are its
load and its probes (FlexVF, section 6.4).

Latency is by the clock of the sender's host, who held what by the daemon's. Only the moment when
the load changes is converted between them, by way of this machine's clock, and the result says how
far it may be off.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import polars as pl

from planewise.errors import PlanewiseError
from planewise.measure.station import Place, Station, TrialResult
from planewise.measure.trials.applications import (
    IPERF,
    IPERF_PORT,
    iperf_server,
    start_answering,
)
from planewise.measure.trials.probe import START_S
from planewise.measure.trials.requests import (
    RequestStream,
    SentRequests,
    counts_of,
    latency_of,
    parse_sent,
    rate_pps,
    script_of,
    streams_of,
)
from planewise.measure.trials.tcp import parse_iperf
from planewise.store.allocations import DOWNLOAD_METRIC
from planewise.store.models import (
    AllocResult,
    DaemonUse,
    Download,
    DownloadInterval,
    Figure,
    GuestMove,
    ManagedGuest,
    Reaction,
    SwitchPart,
    SwitchPhase,
    TrialRecord,
)
from planewise.testbed.hosts.host import Host, HostProcess
from planewise.testbed.model import Guest
from planewise.testbed.vfs.alloc_client import Client, MoveStatus, Status, guest_path
from planewise.testbed.vfs.allocator import AllocatorSettings, Stance

if TYPE_CHECKING:
    from planewise.measure.trials.alloc import AllocTrial

POLL_S = 1.0
"""Between two polls of the daemon, which gather its moves; their times are its own."""
_DOWNLOAD_END_S = 5.0
_CLOCK_READINGS = 5
_LEAST_SHARE = 0.5
"""Of a trial's duration that all guests must have been sent requests at a time."""


def settings_of(trial: AllocTrial, guests: Sequence[str]) -> AllocatorSettings:
    """The daemon's settings for a policy: pins and exclusions where it is not to decide. Pure."""
    part = trial.part
    stances: dict[str, Stance] = {}
    if trial.policy in ("none", "static", "switch"):
        drawn = random.Random(trial.draw).sample(list(guests), min(part.vfs, len(guests)))
        pinned = drawn if trial.policy == "static" else ()
        for guest in guests:
            stances[guest] = "pinned" if guest in pinned else "excluded"
    return AllocatorSettings(
        "static" if stances else trial.policy,
        stances,
        part.interval_s,
        part.max_moves,
        part.min_residency_s,
        part.fair_turn_s,
    )


def hold_times(
    holders: Iterable[str], moves: Sequence[MoveStatus], begin_ms: int, end_ms: int
) -> Mapping[str, tuple[float, int]]:
    """Seconds that guests held a VF between two moments of the daemon's clock, and how often they
    were given one. Pure.

    `holders` held one at the first moment. A VF counts as held from the end of its giving to the
    beginning of its taking.
    """
    since: dict[str, int] = dict.fromkeys(holders, begin_ms)
    seconds: dict[str, float] = {}
    given: dict[str, int] = {}

    def end(guest: str, at_ms: int) -> None:
        if guest in since:
            seconds[guest] = seconds.get(guest, 0.0) + max(0, at_ms - since.pop(guest)) / 1000

    for move in sorted(moves, key=lambda move: move.started_unix_ms):
        started_ms, done_ms = move.started_unix_ms, _done_ms(move)
        if move.direction == "give" and done_ms is not None and begin_ms < done_ms <= end_ms:
            since.setdefault(move.guest, done_ms)
            given[move.guest] = given.get(move.guest, 0) + 1
        elif (
            move.direction == "take" and started_ms < end_ms and begin_ms <= (done_ms or started_ms)
        ):
            end(move.guest, started_ms)
    for guest in list(since):
        end(guest, end_ms)
    names = seconds.keys() | given.keys()
    return {name: (seconds.get(name, 0.0), given.get(name, 0)) for name in names}


def _done_ms(move: MoveStatus) -> int | None:
    """When a move was completed; None where it was not."""
    if move.ending is None or move.ending.how != "completed" or move.duration_ms is None:
        return None
    return move.started_unix_ms + round(move.duration_ms)


_SAMPLE = re.compile(r"^([a-z_]+)(?:\{([^}]*)\})? (\S+)$")


@dataclass(frozen=True)
class DaemonMetrics:
    """The daemon's own metrics at one moment."""

    cpu_s: float
    memory_bytes: int
    spent: Mapping[str, tuple[float, float]]
    """By work, seconds and times since it was started."""


def parse_metrics(text: str) -> DaemonMetrics:
    """From OpenMetrics. Pure. PlanewiseError where one is missing."""
    samples: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            samples[match[1], match[2] or ""] = float(match[3])
    try:
        return DaemonMetrics(
            samples["process_cpu_seconds_total", ""],
            int(samples["process_resident_memory_bytes", ""]),
            {
                work: (
                    samples["planewise_daemon_duration_seconds_sum", f'work="{work}"'],
                    samples["planewise_daemon_duration_seconds_count", f'work="{work}"'],
                )
                for work in ("decision", "sample")
            },
        )
    except KeyError as error:
        raise PlanewiseError(
            f"planewised does not report its metric {error.args[0][0]}",
            remedy="install planewise and planewised from one wheel",
        ) from error


def use_of(begin: DaemonMetrics, end: DaemonMetrics, seconds: float) -> DaemonUse:
    """What the daemon took between two moments. Pure."""

    def mean_s(work: str) -> float | None:
        spent_s, times = (b - a for a, b in zip(begin.spent[work], end.spent[work], strict=True))
        return spent_s / times if times else None

    return DaemonUse(
        cpu=max(0.0, end.cpu_s - begin.cpu_s) / seconds,
        memory_bytes=end.memory_bytes,
        decision_s=mean_s("decision"),
        sample_s=mean_s("sample"),
    )


@dataclass(frozen=True)
class ClockOffset:
    """How far a clock is ahead of another, and how far off that may be [ns]."""

    ahead_ns: int
    error_ns: int


def offset_of(readings: Iterable[tuple[int, int, int]]) -> ClockOffset:
    """From readings of a clock, each as (local before, remote, local after); the quickest counts
    (Cristian, Distributed Computing 3, 1989). Pure."""
    before, remote, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return ClockOffset(remote - (before + after) // 2, (after - before + 1) // 2)


def _clock_offset(daemon: Host, sender: Host) -> ClockOffset:
    """Of the daemon's clock against the sender's, both by this machine's."""
    offsets = []
    for host in (daemon, sender):
        readings = []
        for _ in range(_CLOCK_READINGS):
            before = time.monotonic_ns()
            remote = int(host.run(["date", "+%s%N"]).check().stdout)
            readings.append((before, remote, time.monotonic_ns()))
        offsets.append(offset_of(readings))
    a, b = offsets
    return ClockOffset(a.ahead_ns - b.ahead_ns, a.error_ns + b.error_ns)


def reaction_of(
    moves: Sequence[MoveStatus], changed_ns: int | None, daemon: ClockOffset
) -> Reaction | None:
    """When VFs followed a change of load, which began at that time of the sender's clock; None
    where there was none. Pure."""
    if changed_ns is None:
        return None
    changed_ms = (changed_ns + daemon.ahead_ns) / 1e6
    done = [
        (at - changed_ms) / 1000
        for move in moves
        if move.direction == "give" and (at := _done_ms(move)) is not None and at > changed_ms
    ]
    return Reaction(
        error_s=daemon.error_ns / 1e9,
        first_s=min(done, default=None),
        last_s=max(done, default=None),
    )


@dataclass(frozen=True)
class DaemonObservation:
    """The daemon's state, metrics and moves while the load ran."""

    begin: Status
    """At the end of the warm-up."""
    end: Status
    """At the end of the steady load."""
    begin_metrics: DaemonMetrics
    end_metrics: DaemonMetrics
    moves: Sequence[MoveStatus]
    """All, from the start of the daemon to the end of the load."""
    clock: ClockOffset
    """Of the daemon's host against the sender's."""

    @property
    def window_s(self) -> float:
        """Length of the steady load by the daemon's clock."""
        return (self.end.at_unix_ms - self.begin.at_unix_ms) / 1000


class _Watcher:
    """Gathers the daemon's moves; it keeps the latest only."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._moves: dict[int, MoveStatus] = {}

    @property
    def moves(self) -> list[MoveStatus]:
        return list(self._moves.values())

    def poll(self) -> Status:
        status = self._client.status()
        self._moves |= {move.operation: move for move in status.moves}
        return status

    def poll_until(self, end_s: float, load: HostProcess) -> tuple[Status, DaemonMetrics]:
        """Polls until a moment of this machine's clock, or the end of the load."""
        while (left_s := end_s - time.monotonic()) > 0 and load.running:
            time.sleep(min(POLL_S, left_s))
            self.poll()
        with self._client.raw("/metrics") as response:
            return self.poll(), parse_metrics(response.read().decode())


def measure_allocation(station: Station, trial: AllocTrial, place: Place) -> TrialResult:
    """Runs one trial of the allocator.

    Raises:
        PlanewiseError: the daemon refuses a guest, or a probe failed.
    """
    part = trial.part
    allocator, sender = station.allocator(part.vfs), station.hosts["sender"]
    streams = streams_of(allocator.guests, station.clients, part.group_pps)
    script = script_of(streams, trial, sender, f"{sender.directory}/requests")
    settings = settings_of(trial, [stream.guest for stream in streams])
    file_server = allocator.guests[-1]
    with allocator.running(settings) as client, ExitStack() as running:
        at = [(guest.netns, guest.ipv4) for guest in allocator.guests]
        start_answering(trial.protocol, allocator.host, at, running)
        if part.download_mib is not None:
            running.enter_context(iperf_server(allocator.host, file_server.netns, file_server.ipv4))
        started = datetime.now(UTC)
        with sender.start(["sh", "-c", script], expected_s=trial.expected_s) as load:
            load.wait_ready("READY", START_S)
            watcher, begun_s = _Watcher(client), time.monotonic()
            steady_s = begun_s + part.warmup_s
            begin, begin_metrics = watcher.poll_until(steady_s, load)
            download = None
            if part.download_mib is not None:
                argv = download_command(file_server, part.download_mib)
                client_netns = station.clients[-1].netns
                download = running.enter_context(sender.start(argv, netns=client_netns))
            if trial.policy == "switch":
                for third, stance in enumerate(("pinned", "excluded"), start=1):
                    watcher.poll_until(steady_s + third * part.duration_s / 3, load)
                    where = guest_path(streams[0].guest, "stance")
                    client.order("PUT", where, {"stance": stance})
            end, end_metrics = watcher.poll_until(steady_s + part.duration_s, load)
            watcher.poll_until(begun_s + trial.expected_s, load)
            clock = _clock_offset(allocator.host, sender)
            text = load.wait(START_S).check().stdout
            downloaded = None if download is None else download_of(file_server.name, download)
        watcher.poll()
        seen = DaemonObservation(begin, end, begin_metrics, end_metrics, watcher.moves, clock)
        recording = allocator.host.read(allocator.recording)
    sent = parse_sent(text, streams)
    record = record_of(trial, place, started, streams, sent, seen)
    assert record.alloc is not None
    update: dict[str, object] = {"download": downloaded}
    if trial.policy == "switch":
        update["switch"] = phases_of(record.alloc, streams[0].guest, sent)
    alloc = record.alloc.model_copy(update=update)
    record = record.model_copy(update={"alloc": alloc, "figures": figures_of(downloaded)})
    return TrialResult(record, sent.packets, recording)


def download_command(guest: Guest, size_mib: int) -> list[str]:
    """A client that downloads so much from a guest, as from FlexVF's file server (section 6.4)."""
    return [
        *(IPERF, "-c", guest.ipv4, "-4", "-p", str(IPERF_PORT), "--json"),
        *("--reverse", "-n", f"{size_mib}M", "-i", "1"),
    ]


def download_of(guest: str, client: HostProcess) -> Download:
    """The finished download; PlanewiseError when it failed or still runs."""
    if client.running:
        raise PlanewiseError(
            f"the download from {guest} did not end with the trial",
            remedy="give `alloc.duration_s` more time, or a smaller `alloc.download_mib`",
        )
    report = parse_iperf(client.wait(_DOWNLOAD_END_S))
    received = report.end.sum_received
    return Download(
        guest=guest,
        bytes=received.bytes,
        seconds=received.seconds,
        intervals=tuple(
            DownloadInterval(end_s=interval.sum.end, bps=interval.sum.bits_per_second)
            for interval in report.intervals
        ),
    )


def figures_of(download: Download | None) -> dict[str, Figure]:
    """The figure that policies are compared by. Pure."""
    if download is None:
        return {}
    figure = Figure(
        title="completion time of the download",
        unit="ns",
        lower_is_better=True,
        value=download.seconds * 1e9,
        resolution=1e3,
    )
    return {DOWNLOAD_METRIC: figure}


_PARTS: tuple[SwitchPart, ...] = ("before", "being given", "on the VF", "being taken", "after")


def phases_of(alloc: AllocResult, moved: str, sent: SentRequests) -> tuple[SwitchPhase, ...]:
    """Loss and latency before, during and after a guest's two moves, by the moves' times. Pure.

    Raises:
        PlanewiseError: it was not given a VF, or did not lose it again.
    """
    ends: list[float] = [0.0]
    for direction in ("give", "take"):
        moves = (m for m in alloc.moves if m.guest == moved and m.direction == direction)
        move = next((m for m in moves if m.ending == "completed"), None)
        if move is None or move.duration_s is None:
            raise PlanewiseError(
                f"the VF was not {'given to' if direction == 'give' else 'taken from'} {moved} "
                "in time",
                remedy="give `alloc.duration_s` more time",
            )
        ends += [move.at_s, move.at_s + move.duration_s]
    ends.append(max(ends[-1], alloc.window_s))
    at = (pl.col("scheduled_ns") - alloc.zero_ns) / 1e9
    phases = []
    for name, begin_s, end_s in zip(_PARTS, ends, ends[1:], strict=False):
        in_phase = sent.packets.filter((at >= begin_s) & (at < end_s))
        of_moved = in_phase.filter(pl.col("guest") == moved)
        of_others = in_phase.filter(pl.col("guest") != moved)
        phases.append(
            SwitchPhase(
                name=name,
                begin_s=begin_s,
                end_s=end_s,
                counts=counts_of(of_moved),
                rtt=latency_of(of_moved),
                beside=latency_of(of_others),
                beside_lost=counts_of(of_others).lost,
            )
        )
    return tuple(phases)


def record_of(
    trial: AllocTrial,
    place: Place,
    started: datetime,
    streams: Sequence[RequestStream],
    sent: SentRequests,
    observation: DaemonObservation,
) -> TrialRecord:
    """The record of a trial, without phases of a switch and download. Pure."""
    part = trial.part
    window = sent.window(part.warmup_s, part.duration_s)
    window_s = (window[1] - window[0]) / 1e9
    if window_s < _LEAST_SHARE * part.duration_s:
        raise PlanewiseError(
            f"the requests to all guests ran together for {max(window_s, 0):.1f} s only, of "
            f"{part.duration_s:g}",
            remedy="stop other work on the hosts, or give `alloc.duration_s` more time",
        )
    packets = sent.steady(window)
    begin_ms, end_ms = observation.begin.at_unix_ms, observation.end.at_unix_ms
    holders = [vf.holder for vf in observation.begin.vfs if vf.holder]
    holds = hold_times(holders, observation.moves, begin_ms, end_ms)
    guests: dict[str, ManagedGuest] = {}
    for stream in streams:
        of_guest = packets.filter(pl.col("guest") == stream.guest)
        held_s, given = holds.get(stream.guest, (0.0, 0))
        guests[stream.guest] = ManagedGuest(
            request_pps=stream.steady_pps,
            sent_pps=rate_pps(of_guest),
            counts=counts_of(of_guest),
            rtt=latency_of(of_guest),
            held_s=held_s,
            given=given,
        )
    groups = {}
    for pps in part.group_pps:
        names = [stream.guest for stream in streams if stream.steady_pps == pps]
        rtt = latency_of(packets.filter(pl.col("guest").is_in(names)))
        if rtt is not None:
            groups[f"{pps:g}"] = rtt
    return TrialRecord(
        **place.fields,
        kind="alloc",
        started=started,
        duration_s=window_s,
        counts=counts_of(packets),
        alloc=AllocResult(
            vfs=part.vfs,
            window_s=observation.window_s,
            guests=guests,
            groups=groups,
            moves=tuple(_move(move, begin_ms) for move in observation.moves),
            daemon=use_of(observation.begin_metrics, observation.end_metrics, observation.window_s),
            zero_ns=begin_ms * 1_000_000 - observation.clock.ahead_ns,
            clock_error_s=observation.clock.error_ns / 1e9,
            change=reaction_of(observation.moves, sent.changed_ns, observation.clock),
        ),
    )


def _move(move: MoveStatus, begin_ms: int) -> GuestMove:
    return GuestMove(
        at_s=(move.started_unix_ms - begin_ms) / 1000,
        direction="give" if move.direction == "give" else "take",
        guest=move.guest,
        vf=move.vf,
        duration_s=None if move.duration_ms is None else move.duration_ms / 1000,
        ending="" if move.ending is None else move.ending.how,
    )
