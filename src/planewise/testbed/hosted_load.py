"""Background load in the guests of a hosted testbed: a crew a host. Knows no measurement."""

from __future__ import annotations

import time
from collections.abc import Sequence

from planewise.errors import BadInputError, PlanewiseError
from planewise.testbed.crew import Crew, Member
from planewise.testbed.hosted import Arrangement, JoiningHost
from planewise.testbed.load import LoadReport, LoadSpec, Work, account, shortfall
from planewise.testbed.model import GUEST_INTERFACE, Guest, HostRole

PORT = 47_000
START_S = 120.0
"""How long all guests may take to get to work; an emulated host starts ten a second."""


class HostedLoad:
    """As `load.BackgroundLoad`, on hosts that only commands reach.

    Raises on entry:
        BadInputError: there are no background guests.
        PlanewiseError: a guest did not get to work.
    """

    def __init__(self, arrangement: Arrangement, spec: LoadSpec) -> None:
        self.spec = spec
        self.report: LoadReport | None = None
        self._arrangement = arrangement
        self._workers: Crew | None = None
        self._sinks: Crew | None = None
        self._cpus = 1
        self._started = 0.0

    def __enter__(self) -> HostedLoad:
        self.report = None
        if self.spec.type == "none":
            return self
        if not self._arrangement.background(self.spec.location):
            raise BadInputError(
                f"{self.spec.type} load needs background guests, and this testbed has none",
                remedy="give it background guests: 8, 32, 64 or 128 a host",
            )
        try:
            if self.spec.type == "cpu":
                self._burn()
            else:
                self._send()
        except BaseException:
            for crew in (self._workers, self._sinks):
                if crew is not None:
                    crew.kill()
            raise
        self._started = time.monotonic()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._workers is None:
            self.report = LoadReport(self.spec, 0, 0.0)
            return
        duration_s = time.monotonic() - self._started
        crews = [crew for crew in (self._workers, self._sinks) if crew is not None]
        for crew in crews:
            crew.interrupt()
        if kind is not None:
            for crew in crews:
                crew.kill()
            return
        workers = self._workers.end()
        sinks = [] if self._sinks is None else self._sinks.end()
        self.report = account(self.spec, workers, sinks, duration_s, 0, self._cpus)

    def check(self) -> None:
        """See `load.Load.check`."""
        for crew in (self._workers, self._sinks):
            if crew is not None and not crew.running:
                raise PlanewiseError(
                    "the background load ended by itself",
                    remedy=f"it lasts {self.spec.limit_s:g} s: raise its limit_s, or see whether "
                    "something ended its guests",
                )

    def work(self) -> Work:
        """See `load.Load.work`."""
        done = 0.0 if self._workers is None else float(self._workers.done())
        return Work(time.monotonic(), done / 1e9 if self.spec.type == "cpu" else done)

    def shortfall(self, since: Work) -> tuple[str, ...]:
        """See `load.Load.shortfall`."""
        guests = len(self._arrangement.background(self.spec.location))
        return shortfall(self.spec, since, self.work(), guests, self._cpus)

    def _burn(self) -> None:
        role = self.spec.location
        host = self._arrangement.hosts[role]
        guests = self._arrangement.background(role)
        self._cpus = host.read_text("/proc/cpuinfo").count("\nprocessor") + 1
        share = min(1.0, self.spec.cpu_share * self._cpus / len(guests))
        argv = (host.probe, "burn", "--load", f"{share:.6f}", "--duration", self._limit)
        self._workers = self._crew(role, "burn", [(guest, argv) for guest in guests])
        self._workers.await_ready(START_S)

    def _send(self) -> None:
        receiver = self.spec.location
        sender: HostRole = "responder" if receiver == "sender" else "sender"
        targets = self._arrangement.background(receiver)
        sources = self._arrangement.background(sender)
        probe = self._arrangement.hosts[receiver].probe
        sinks = [(one, (probe, "sink", "--listen", f"{one.ipv4}:{PORT}")) for one in targets]
        self._sinks = self._crew(receiver, "sink", sinks)
        self._sinks.await_ready(START_S)
        probe = self._arrangement.hosts[sender].probe
        rate = self.spec.rate_pps / len(sources)
        blasts = [
            (source, (probe, "blast", "--to", f"{target.ipv4}:{PORT}", "--rate", f"{rate:.6f}",
                      "--burst", str(self.spec.burst), "--size", str(self.spec.payload_bytes),
                      "--duration", self._limit))
            for source, target in zip(sources, targets, strict=True)
        ]  # fmt: skip
        self._workers = self._crew(sender, "blast", blasts)
        # A slow rate's first burst may be a while away.
        gap_s = self.spec.burst * len(sources) / self.spec.rate_pps
        self._sinks.await_receiving(START_S + 2 * gap_s)

    def _crew(
        self, role: HostRole, kind: str, work: Sequence[tuple[Guest, tuple[str, ...]]]
    ) -> Crew:
        host = self._arrangement.hosts[role]
        members = [Member(tuple(entered(host, guest, argv)), argv) for guest, argv in work]
        return Crew(host, members, kind, GUEST_INTERFACE)

    @property
    def _limit(self) -> str:
        return f"{self.spec.limit_s:g}"


def entered(host: object, guest: Guest, argv: Sequence[str]) -> Sequence[str]:
    """A command that enters a guest and becomes `argv`. Pure."""
    if isinstance(host, JoiningHost):
        joined, netns = host.command(argv, guest.netns)
        if netns is None:
            return joined
    return ["nsenter", f"--net=/run/netns/{guest.netns}", "--", *argv]
