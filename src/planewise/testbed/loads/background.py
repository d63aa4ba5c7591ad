"""Background load: CPU time burnt in, or bursts sent between, the background guests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from planewise import procfs
from planewise.errors import BadInputError, PlanewiseError
from planewise.store.models import BackgroundResult
from planewise.testbed.loads.crew import Count, Crew, CrewProcess, ProcessCrew, StartCrew
from planewise.testbed.model import HostRole, LoadType, other_host
from planewise.testbed.setting import Arrangement

STRESS_NG = "stress-ng"
STRESSORS: Mapping[str, str] = {"cache": "--cache", "memory": "--vm"}
"""Load types that stress-ng makes: each of its workers takes a whole thread's time."""

UNPACED_PPS = 1e9
"""Rate for `pw-probe blast` where a guest sends as fast as it can."""
CYCLE_S, LEAST_WORK_S, LONGEST_CYCLE_S = 0.01, 0.002, 1.0
"""Cycles of `pw-probe burn`: the shortest; the least work in each, so that a small share has longer
ones; the longest."""
_PORT = 47_000
_START_S = 120.0


@dataclass(frozen=True)
class LoadSpec:
    """Background load, by guest, or as a total over all background guests of a host.

    By guest the load grows with the number of guests, and its sum is a result. A total does not
    depend on the number of guests.
    """

    type: LoadType = "none"
    location: HostRole = "responder"
    """The host whose guests burn; for network load the host that receives the bursts."""
    cpu_share: float | None = 0.5
    """CPU time to burn. A total: a share of all CPUs of the host. By guest: CPUs, which may be more
    than 1; None: all that `busy_threads` can get."""
    rate_pps: float | None = 20_000
    """Datagrams a second to send, in total or by guest; None: as many as a guest can."""
    burst: int = 64
    """Datagrams that a guest sends back to back."""
    payload_bytes: int = 1024
    """UDP payload of a datagram."""
    limit_s: float = 3600
    """The load ends by itself after this time."""
    by_guest: bool = False
    busy_threads: int = 1
    """Processes of each guest that burn, where `cpu_share` is None, or that stress-ng runs."""
    memory_mib: int = 32
    """Memory that each process of memory load writes and reads."""


@dataclass(frozen=True)
class Demand:
    """The load of one background guest."""

    threads: int
    share: float
    """Busy share of each thread's time."""
    rate_pps: float | None
    """None: as fast as it can."""


def demand(spec: LoadSpec, guests: int, cpus: int) -> Demand:
    """The load of each of `guests` on a host with `cpus`. Pure."""
    if spec.type in STRESSORS:
        return Demand(spec.busy_threads, 1.0, None)
    if spec.by_guest:
        if spec.cpu_share is None:
            return Demand(spec.busy_threads, 1.0, spec.rate_pps)
        threads = max(1, math.ceil(spec.cpu_share))
        return Demand(threads, spec.cpu_share / threads, spec.rate_pps)
    # A guest needs a thread for each CPU that it shall use.
    cpus_by_guest = (0.5 if spec.cpu_share is None else spec.cpu_share) * cpus / guests
    threads = max(1, math.ceil(cpus_by_guest))
    rate = None if spec.rate_pps is None else spec.rate_pps / guests
    return Demand(threads, cpus_by_guest / threads, rate)


@dataclass(frozen=True)
class Work:
    """Counts of a load at one moment; the difference of two is its work in between."""

    done: Mapping[str, Count]
    """By guest: CPU time [ns] (CPU load), or packets that left it (network load)."""
    received: Mapping[str, Count] = field(default_factory=dict)
    """Packets that arrived at the receiving guests (network load)."""


def achieved(spec: LoadSpec, before: Work, after: Work, cpus: int) -> BackgroundResult | None:
    """The work of a load between two moments, and its demand; None without load. Pure.

    `cpus` are those of the loaded host. Guests are polled one after another, and many busy ones
    take minutes to answer: each rate is over its guest's own window. The resolution is a cycle or
    burst a guest, which may lie just outside the window, and the uncertainty of the moments.
    """
    rates = _rates(before.done, after.done)
    if spec.type == "none" or not rates:
        return None
    quota = demand(spec, len(rates), cpus)
    if spec.type != "network":
        endless = spec.type in STRESSORS or (spec.by_guest and spec.cpu_share is None)
        demanded = None if endless else quota.share * quota.threads
        cycle_s = min(LONGEST_CYCLE_S, max(CYCLE_S, LEAST_WORK_S / quota.share))
        unit, step = 1e9, cycle_s * quota.share * quota.threads
    else:
        demanded = quota.rate_pps
        unit, step = 1.0, float(spec.burst)
    by_guest = {name: rate.per_s / unit for name, rate in rates.items()}
    return BackgroundResult(
        unit="pps" if spec.type == "network" else "cpus",
        window_s=statistics.fmean(rate.window_s for rate in rates.values()),
        wanted=None if demanded is None else demanded * len(rates),
        achieved=math.fsum(by_guest.values()),
        resolution=math.fsum(
            (step + by_guest[name] * rate.within_s) / rate.window_s for name, rate in rates.items()
        ),
        guests=by_guest,
        received_pps=math.fsum(
            rate.per_s for rate in _rates(before.received, after.received).values()
        )
        if spec.type == "network"
        else None,
    )


@dataclass(frozen=True)
class _Rate:
    per_s: float
    window_s: float
    within_s: float
    """Uncertainty of the window's length."""


def _rates(before: Mapping[str, Count], after: Mapping[str, Count]) -> dict[str, _Rate]:
    """The rate of each guest between two counts."""
    rates = {}
    for name, last in after.items():
        first = before.get(name)
        if first is not None and (window_s := last.at_s - first.at_s) > 0:
            difference = max(0.0, last.value - first.value)
            rates[name] = _Rate(difference / window_s, window_s, first.within_s + last.within_s)
    return rates


class BackgroundLoad:
    """Background load on a testbed: entering the `with` block starts it, leaving ends it.

    Raises on entry:
        BadInputError: there are no background guests.
        PlanewiseError: a guest did not get to work.

    Raises on exit:
        PlanewiseError: a part of it failed.
    """

    def __init__(
        self, testbed: Arrangement, spec: LoadSpec, start_crew: StartCrew = ProcessCrew
    ) -> None:
        self.spec = spec
        self._testbed = testbed
        self._start_crew = start_crew
        self._cpus = 1
        self._workers: Crew | None = None
        self._sinks: Crew | None = None

    @property
    def _crews(self) -> list[Crew]:
        return [crew for crew in (self._workers, self._sinks) if crew is not None]

    def __enter__(self) -> BackgroundLoad:
        if self.spec.type == "none":
            return self
        if not self._testbed.background(self.spec.location):
            raise BadInputError(
                f"{self.spec.type} load needs background guests, and this testbed has none",
                remedy="give it background guests: 8, 32, 64 or 128 a host",
            )
        try:
            if self.spec.type == "network":
                self._start_sending()
            else:
                self._start_burning()
        except BaseException:
            for crew in self._crews:
                crew.kill()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for crew in self._crews:
            crew.interrupt()
        if kind is not None:
            for crew in self._crews:
                crew.kill()
            return
        for process in [process for crew in self._crews for process in crew.end()]:
            if self.spec.type not in STRESSORS:  # stress-ng fails when it is ended
                process.check()

    def check(self) -> None:
        """Checks that all of the load still runs.

        Raises:
            PlanewiseError: a part of it ended.
        """
        ended = list(dict.fromkeys(name for crew in self._crews for name in crew.ended))
        if ended:
            names = ", ".join(ended[:3]) + (f" and {len(ended) - 3} more" if len(ended) > 3 else "")
            raise PlanewiseError(
                f"a part of the background load stopped unexpectedly: {names}",
                remedy=f"it lasts {self.spec.limit_s:g} s: raise its limit_s, or see whether "
                "something ended its guests (the kernel log reports a lack of memory)",
            )

    def work(self) -> Work:
        """Its counts now: to be taken before a trial, for `achieved` after it."""
        return Work(*({} if crew is None else crew.done() for crew in (self._workers, self._sinks)))

    def achieved(self, since: Work) -> BackgroundResult | None:
        """Its work since then; None without load."""
        return achieved(self.spec, since, self.work(), self._cpus)

    def _start_burning(self) -> None:
        host = self._testbed.hosts[self.spec.location]
        guests = self._testbed.background(self.spec.location)
        self._cpus = procfs.count_cpus(host.read_text("/proc/cpuinfo"))
        quota = demand(self.spec, len(guests), self._cpus)
        if self.spec.type in STRESSORS:
            argv = stress_command(self.spec, host.directory)
            self._workers = self._start_crew(
                host, [CrewProcess(guest, argv) for guest in guests], "stress"
            )
            self._workers.await_ready(_START_S)
            return
        argv = (
            host.probe,
            "burn",
            "--load",
            f"{quota.share:.6f}",
            "--duration",
            self._limit,
        )
        # A process a thread: the kernel then counts its CPU time as one number.
        members = [CrewProcess(guest, argv) for guest in guests for _ in range(quota.threads)]
        self._workers = self._start_crew(host, members, "burn")
        self._workers.await_ready(_START_S)

    def _start_sending(self) -> None:
        receiver = self.spec.location
        sender = other_host(receiver)
        sink_host, blast_host = self._testbed.hosts[receiver], self._testbed.hosts[sender]
        targets, sources = self._testbed.background(receiver), self._testbed.background(sender)
        self._sinks = self._start_crew(
            sink_host,
            [
                CrewProcess(guest, (sink_host.probe, "sink", "--listen", f"{guest.ipv4}:{_PORT}"))
                for guest in targets
            ],
            "sink",
        )
        self._sinks.await_ready(_START_S)
        rate = demand(self.spec, len(sources), self._cpus).rate_pps or UNPACED_PPS
        blasts = [
            CrewProcess(source, (blast_host.probe, "blast", "--to", f"{target.ipv4}:{_PORT}",
                            "--rate", f"{rate:.6f}", "--burst", str(self.spec.burst),
                            "--size", str(self.spec.payload_bytes), "--duration", self._limit))
            for source, target in zip(sources, targets, strict=True)
        ]  # fmt: skip
        self._workers = self._start_crew(blast_host, blasts, "blast")
        # The first burst of a slow rate may come late.
        self._sinks.await_receiving(_START_S + 2 * self.spec.burst / rate)

    @property
    def _limit(self) -> str:
        return f"{self.spec.limit_s:g}"


def stress_command(spec: LoadSpec, directory: str) -> tuple[str, ...]:
    """Command line of stress-ng for one guest, which may write to `directory`. Pure."""
    memory = ("--vm-bytes", f"{spec.memory_mib}m") if spec.type == "memory" else ()
    return (
        *(STRESS_NG, STRESSORS[spec.type], str(spec.busy_threads), *memory),
        *("--timeout", f"{math.ceil(spec.limit_s)}s", "--temp-path", directory, "--quiet"),
    )
