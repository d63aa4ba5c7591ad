"""Background load: CPU time burnt in, or bursts sent between, the background guests.

Knows the guests of a testbed and pw-probe's `burn`, `blast` and `sink`; no measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from planewise import procfs
from planewise.errors import BadInputError, PlanewiseError
from planewise.testbed.crew import Crew, Member, ProcessCrew, StartCrew
from planewise.testbed.host import Finished, Host
from planewise.testbed.model import Guest, HostRole
from planewise.units import percent_text

LoadType = Literal["none", "cpu", "network"]

MAX_CPU_SHARE = 0.9
MAX_RATE_PPS = 1_000_000
_PORT = 47_000
_START_S = 120.0


@dataclass(frozen=True)
class LoadSpec:
    """Background load, summed over all background guests of a host.

    The sums are bounded, whatever the number of guests: a machine that cannot breathe measures
    only itself.
    """

    type: LoadType = "none"
    location: HostRole = "responder"
    """The host whose guests burn; for network load the host that receives the bursts."""
    cpu_share: float = 0.5
    """CPU time to burn, as a share of all CPUs of the host."""
    rate_pps: float = 20_000
    """Datagrams a second to send."""
    burst: int = 64
    """Datagrams that a guest sends back to back."""
    payload_bytes: int = 1024
    """UDP payload of a datagram."""
    limit_s: float = 3600
    """The load ends by itself after this, should nobody end it."""

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("cpu_share", self.cpu_share, 0, MAX_CPU_SHARE),
            ("rate_pps", self.rate_pps, 0, MAX_RATE_PPS),
            ("burst", self.burst, 1, 10_000),
            ("payload_bytes", self.payload_bytes, 0, 65_507),
            ("limit_s", self.limit_s, 0, 86_400),
        ):
            if not low <= value <= high or (value == 0 and name != "payload_bytes"):
                raise BadInputError(
                    f"a background load with {name} {value:g} is not possible",
                    remedy=f"give more than 0 and at most {high:g}"
                    if name != "payload_bytes"
                    else f"give 0 to {high:g}",
                )


@dataclass(frozen=True)
class LoadReport:
    """What a background load really did."""

    spec: LoadSpec
    guests: int
    duration_s: float
    cpu_s: float = 0.0
    """CPU time burnt, over all guests (CPU load)."""
    cpu_share: float = 0.0
    """The same as a share of all CPUs' time; compare with the spec's."""
    sent: int = 0
    """Datagrams sent, over all guests (network load)."""
    received: int = 0
    refused: int = 0
    """Datagrams that the senders' own sockets did not take."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """What a load had done at some moment; two of them tell what it did in between."""

    at_s: float
    """Of the monotonic clock."""
    done: float
    """CPU time [s] over all guests (CPU load), or packets that left them (network load)."""


def shortfall(spec: LoadSpec, before: Work, after: Work, guests: int, cpus: int) -> tuple[str, ...]:
    """Whether a load did much less between two moments than it should, in a sentence. Pure.

    `cpus` are those of the loaded host. A burst of each guest may lie just outside.
    """
    took_s = after.at_s - before.at_s
    done = after.done - before.done
    if spec.type == "cpu" and done < 0.9 * spec.cpu_share * cpus * took_s:
        return (
            f"CPU load got {percent_text(done / (took_s * cpus))} of the CPUs during this trial, "
            f"{percent_text(spec.cpu_share)} was asked for",
        )
    if spec.type == "network" and done < 0.9 * spec.rate_pps * took_s - spec.burst * guests:
        return (
            f"network load sent {done / took_s:.0f} packets/s during this trial, "
            f"{spec.rate_pps:.0f} were asked for",
        )
    return ()


class Loadable(Protocol):
    """What a load needs of a testbed, whatever its guests are."""

    @property
    def hosts(self) -> Mapping[HostRole, Host]:
        """`sender` and `responder`."""

    def background(self, host: HostRole) -> tuple[Guest, ...]:
        """The background guests of a host."""


class Load(Protocol):
    """A running background load; leaving its `with` block ends it."""

    spec: LoadSpec
    report: LoadReport | None

    def check(self) -> None:
        """Does nothing while the load runs as it should.

        Raises:
            PlanewiseError: a part of it ended.
        """

    def work(self) -> Work:
        """What it has done so far: mark it before a trial, and ask `shortfall` after it."""

    def shortfall(self, since: Work) -> tuple[str, ...]:
        """Whether it did much less than it should since then; empty when it kept up."""

    def __enter__(self) -> Load: ...

    def __exit__(self, kind: object, /, *_: object) -> None: ...


class BackgroundLoad:
    """Background load on a testbed. Entering returns when every guest is at work.

    After the `with` block `report` says what it did; a load that did much less than it should
    says so in `warnings`.

    Raises on entry:
        BadInputError: there are no background guests.
        PlanewiseError: a guest did not get to work.
    """

    def __init__(
        self, testbed: Loadable, spec: LoadSpec, start_crew: StartCrew = ProcessCrew
    ) -> None:
        self.spec = spec
        self.report: LoadReport | None = None
        self._testbed = testbed
        self._start_crew = start_crew
        self._cpus = 1
        self._workers: Crew | None = None
        self._sinks: Crew | None = None
        self._started = 0.0

    @property
    def _crews(self) -> list[Crew]:
        return [crew for crew in (self._workers, self._sinks) if crew is not None]

    def __enter__(self) -> BackgroundLoad:
        self.report = None
        if self.spec.type == "none":
            return self
        if not self._testbed.background(self.spec.location):
            raise BadInputError(
                f"{self.spec.type} load needs background guests, and this testbed has none",
                remedy="give it background guests: 8, 32, 64 or 128 a host",
            )
        try:
            if self.spec.type == "cpu":
                self._start_burning()
            else:
                self._start_sending()
        except BaseException:
            for crew in self._crews:
                crew.kill()
            raise
        self._started = time.monotonic()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._workers is None:
            self.report = LoadReport(self.spec, 0, 0.0)
            return
        duration_s = time.monotonic() - self._started
        early = self._workers.ended
        for crew in self._crews:
            crew.interrupt()
        if kind is not None:
            for crew in self._crews:
                crew.kill()
            return
        workers = self._workers.end()
        sinks = [] if self._sinks is None else self._sinks.end()
        self.report = account(self.spec, workers, sinks, duration_s, early, self._cpus)

    def check(self) -> None:
        """See `Load.check`."""
        if any(crew.ended for crew in self._crews):
            raise PlanewiseError(
                "a part of the background load ended by itself",
                remedy=f"it lasts {self.spec.limit_s:g} s: raise its limit_s, or see whether "
                "something ended its guests",
            )

    def work(self) -> Work:
        """See `Load.work`."""
        done = 0.0 if self._workers is None else float(self._workers.done())
        return Work(time.monotonic(), done / 1e9 if self.spec.type == "cpu" else done)

    def shortfall(self, since: Work) -> tuple[str, ...]:
        """See `Load.shortfall`."""
        guests = len(self._testbed.background(self.spec.location))
        return shortfall(self.spec, since, self.work(), guests, self._cpus)

    def _start_burning(self) -> None:
        host = self._testbed.hosts[self.spec.location]
        guests = self._testbed.background(self.spec.location)
        self._cpus = procfs.count_cpus(host.read_text("/proc/cpuinfo"))
        share = min(1.0, self.spec.cpu_share * self._cpus / len(guests))
        argv = (host.probe, "burn", "--load", f"{share:.6f}", "--duration", self._limit)
        self._workers = self._start_crew(host, [Member(guest, argv) for guest in guests], "burn")
        self._workers.await_ready(_START_S)

    def _start_sending(self) -> None:
        receiver = self.spec.location
        sender: HostRole = "responder" if receiver == "sender" else "sender"
        here, there = self._testbed.hosts[receiver], self._testbed.hosts[sender]
        targets, sources = self._testbed.background(receiver), self._testbed.background(sender)
        self._sinks = self._start_crew(
            here,
            [
                Member(guest, (here.probe, "sink", "--listen", f"{guest.ipv4}:{_PORT}"))
                for guest in targets
            ],
            "sink",
        )
        self._sinks.await_ready(_START_S)
        rate = self.spec.rate_pps / len(sources)
        blasts = [
            Member(source, (there.probe, "blast", "--to", f"{target.ipv4}:{_PORT}",
                            "--rate", f"{rate:.6f}", "--burst", str(self.spec.burst),
                            "--size", str(self.spec.payload_bytes), "--duration", self._limit))
            for source, target in zip(sources, targets, strict=True)
        ]  # fmt: skip
        self._workers = self._start_crew(there, blasts, "blast")
        # A slow rate's first burst may be a while away.
        gap_s = self.spec.burst * len(sources) / self.spec.rate_pps
        self._sinks.await_receiving(_START_S + 2 * gap_s)

    @property
    def _limit(self) -> str:
        return f"{self.spec.limit_s:g}"


def account(
    spec: LoadSpec,
    workers: Sequence[Finished],
    sinks: Sequence[Finished],
    duration_s: float,
    early: int,
    cpus: int,
) -> LoadReport:
    """What a load did, from what its processes printed. Pure.

    `early` workers had ended by themselves; `cpus` are those of the loaded host.

    Raises:
        PlanewiseError: a process failed.
    """
    reports = [one.json() for one in workers]
    warnings = []
    if early:
        warnings.append(f"{early} of {len(workers)} background guests ended before the end")
    if spec.type == "cpu":
        cpu_s = math.fsum(one["achieved_load"] * one["duration_s"] for one in reports)
        ran_s = max(one["duration_s"] for one in reports)
        share = cpu_s / (ran_s * cpus)
        if share < 0.9 * spec.cpu_share:
            warnings.append(
                f"CPU load got {percent_text(share)} of the CPUs, "
                f"{percent_text(spec.cpu_share)} was asked for"
            )
        return LoadReport(
            spec, len(workers), ran_s, cpu_s=cpu_s, cpu_share=share,
            warnings=tuple(warnings),
        )  # fmt: skip
    sent = sum(one["sent"] for one in reports)
    ran_s = max((one["duration_s"] for one in reports), default=duration_s)
    if sent < 0.9 * spec.rate_pps * ran_s - spec.burst * len(workers):
        warnings.append(
            f"network load sent {sent / ran_s:.0f} datagrams/s, {spec.rate_pps:.0f} were asked for"
        )
    return LoadReport(
        spec,
        len(workers),
        ran_s,
        sent=sent,
        received=sum(one.json()["packets"] for one in sinks),
        refused=sum(one["refused"] for one in reports),
        warnings=tuple(warnings),
    )
