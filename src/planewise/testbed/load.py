"""Background load: CPU time burnt in, or bursts sent between, the background guests.

Knows the guests of a testbed and pw-probe's `burn`, `blast` and `sink`; no measurement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from planewise.errors import BadInputError, PlanewiseError
from planewise.testbed import counters
from planewise.testbed.host import Finished, Host, HostProcess, ProcessTimeoutError
from planewise.testbed.model import CounterPoint, Guest, HostRole
from planewise.units import percent_text

LoadType = Literal["none", "cpu", "network"]

MAX_CPU_SHARE = 0.9
MAX_RATE_PPS = 1_000_000
_PORT = 47_000
_START_S = 120.0
_POLL_S = 0.005


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

    @property
    def sent_pps(self) -> float:
        """Datagrams sent per second."""
        return self.sent / self.duration_s if self.duration_s > 0 else 0.0


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

    def __init__(self, testbed: Loadable, spec: LoadSpec) -> None:
        self.spec = spec
        self.report: LoadReport | None = None
        self._testbed = testbed
        self._cpus = 1
        self._sources: Sequence[Guest] = ()
        self._sinks: list[HostProcess] = []
        self._workers: list[HostProcess] = []
        self._started = 0.0

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
            self._started = time.monotonic()
        except BaseException:
            for process in (*self._workers, *self._sinks):
                process.kill()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.spec.type == "none":
            self.report = LoadReport(self.spec, 0, 0.0)
            return
        early = [one for one in self._workers if not one.running]
        duration_s = time.monotonic() - self._started
        workers = _end(self._workers)
        sinks = _end(self._sinks)
        if kind is None:
            self.report = account(self.spec, workers, sinks, duration_s, len(early), self._cpus)

    def check(self) -> None:
        """See `Load.check`."""
        for process in (*self._workers, *self._sinks):
            if not process.running:
                process.wait().check()
                raise PlanewiseError(
                    f"the background load ended by itself after {self.spec.limit_s:g} s",
                    remedy="raise its limit_s above the duration of the measurement",
                )

    def work(self) -> Work:
        """See `Load.work`."""
        return Work(time.monotonic(), self._done())

    def shortfall(self, since: Work) -> tuple[str, ...]:
        """See `Load.shortfall`."""
        return shortfall(self.spec, since, self.work(), len(self._workers), self._cpus)

    def _done(self) -> float:
        if self.spec.type == "cpu":
            host = self._testbed.hosts[self.spec.location]
            guests = self._testbed.background(self.spec.location)
            pairs = zip(guests, self._workers, strict=True)
            return math.fsum(_ran_s(host, process, guest) for guest, process in pairs)
        return float(sum(self._transmitted(guest) for guest in self._sources))

    def _start_burning(self) -> None:
        host = self._testbed.hosts[self.spec.location]
        guests = self._testbed.background(self.spec.location)
        self._cpus = host.read_text("/proc/cpuinfo").count("\nprocessor") + 1
        share = min(1.0, self.spec.cpu_share * self._cpus / len(guests))
        argv = (
            host.probe,
            "burn",
            "--load",
            f"{share:.6f}",
            "--duration",
            f"{self.spec.limit_s:g}",
        )
        self._workers = [host.start(argv, netns=guest.netns) for guest in guests]
        for worker in self._workers:
            worker.wait_ready("ready", _START_S)

        def burning(guest: Guest, process: HostProcess) -> bool:
            return _ran_s(host, process, guest) > 2e-3  # beyond what the start itself takes

        pairs = zip(guests, self._workers, strict=True)
        self._await([partial(burning, *pair) for pair in pairs])

    def _start_sending(self) -> None:
        receiver = self.spec.location
        sender: HostRole = "responder" if receiver == "sender" else "sender"
        here, there = self._testbed.hosts[receiver], self._testbed.hosts[sender]
        targets, sources = self._testbed.background(receiver), self._testbed.background(sender)
        self._sources = sources
        self._sinks = [
            here.start((here.probe, "sink", "--listen", f"{guest.ipv4}:{_PORT}"), netns=guest.netns)
            for guest in targets
        ]
        for sink in self._sinks:
            sink.wait_ready("ready", _START_S)
        before = [self._received(guest) for guest in targets]
        rate = self.spec.rate_pps / len(sources)
        for source, target in zip(sources, targets, strict=True):
            argv = (there.probe, "blast", "--to", f"{target.ipv4}:{_PORT}", "--rate", f"{rate:.6f}",
                    "--burst", str(self.spec.burst), "--size", str(self.spec.payload_bytes),
                    "--duration", f"{self.spec.limit_s:g}")  # fmt: skip
            self._workers.append(there.start(argv, netns=source.netns))

        def reached(guest: Guest, start: int) -> bool:
            return self._received(guest) > start

        self._await([partial(reached, *pair) for pair in zip(targets, before, strict=True)])

    def _received(self, guest: Guest) -> int:
        return self._counter(guest, "rx_packets")

    def _transmitted(self, guest: Guest) -> int:
        return self._counter(guest, "tx_packets")

    def _counter(self, guest: Guest, name: str) -> int:
        point = CounterPoint(guest.host, guest.netns, guest.interface)
        return counters.read(self._testbed.hosts[guest.host], point).counters[name]

    def _await(self, signs: Sequence[Callable[[], bool]]) -> None:
        """Waits until every guest shows a sign of work."""
        # A slow rate's first burst may be a while away.
        gap_s = self.spec.burst * len(signs) / self.spec.rate_pps if self.spec.type != "cpu" else 0
        deadline = time.monotonic() + _START_S + 2 * gap_s
        waiting = list(signs)
        while True:
            self.check()
            waiting = [sign for sign in waiting if not sign()]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise PlanewiseError(
                    f"{len(waiting)} of {len(signs)} background guests did not get to work "
                    f"within {_START_S:g} s",
                    remedy="use fewer background guests, or end other work on this machine",
                )
            time.sleep(_POLL_S)


def _ran_s(host: Host, process: HostProcess, guest: Guest) -> float:
    """CPU time that a process in a guest has had; a virtual machine counts its own processes."""
    text = host.read_text(f"/proc/{process.pid}/schedstat", netns=guest.netns)
    return int(text.split()[0]) / 1e9


def _end(processes: list[HostProcess]) -> list[Finished]:
    """Asks all to end before it waits for the first: they end together."""
    for process in processes:
        process.interrupt()
    with suppress(ProcessTimeoutError):
        for process in processes:
            process.wait(5.0)
    ended = [process.stop() for process in processes]
    processes.clear()
    return ended


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
