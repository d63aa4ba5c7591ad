"""Trials of requests on open connections, open loop: netperf's UDP_RR and TCP_RR, but on schedule.

A request by UDP is a STAMP packet that `pw-probe reflect` answers; by TCP an `ECHO` to Redis on one
connection, whose server's time is part of every answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from planewise.judge.statistics.metrics import USER_HZ
from planewise.measure.designs.design import Design, DesignModel
from planewise.measure.station import OnSample, Place, Request, Station, Trial, TrialResult
from planewise.measure.trials.applications import REDIS, start_answering
from planewise.measure.trials.ping import ping
from planewise.measure.trials.probe import PingOutput, result_of, time_figure
from planewise.store.levels import CPU_WINDOW_S
from planewise.store.models import Figure

_IDLE = ("idle", "iowait", "steal", "unaccounted")
Transport = Literal["udp", "tcp"]
_PROTOCOLS = {"udp": "stamp", "tcp": "redis"}


class RrPart(DesignModel):
    """Trials of requests: one a cell, block and transport."""

    per_s: Annotated[float, Field(gt=0, le=1e6)] = 2000.0
    """Requests due a second, whether or not earlier ones were answered."""
    duration_s: Annotated[float, Field(ge=0.2, le=600)] = 1.0
    """Of a trial; CPU time needs a second."""
    transports: Annotated[tuple[Transport, ...], Field(min_length=1, strict=False)] = ("udp",)
    """`udp`, `tcp` or both; `tcp` needs redis-server."""
    size_bytes: Annotated[int, Field(ge=128, le=1518)] = 128
    """Ethernet frame of a request, with FCS."""


@dataclass(frozen=True)
class RrTrial(Trial):
    """One trial of requests."""

    part: RrPart
    transport: Transport = "udp"
    rank = 9
    key = "rr"
    own_part = RrPart

    @classmethod
    def requested(cls, request: Request) -> list[Trial]:
        """One for each transport."""
        part = request.design.part(cls.key, RrPart)
        name = f"{request.cell.name}#r{request.block}"
        return [cls(f"rr-{one}:{name}", part, one) for one in part.transports]

    @classmethod
    def programs(cls, design: Design) -> Sequence[str]:
        """Redis, for TCP."""
        return (REDIS,) if "tcp" in design.part(cls.key, RrPart).transports else ()

    @classmethod
    def offered(cls, design: Design) -> Iterator[tuple[str, float | str]]:
        """A request and its answer."""
        yield "rr.per_s", 2 * design.part(cls.key, RrPart).per_s

    @property
    def expected_s(self) -> float:
        return self.part.duration_s

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        client, server, part = station.ends["sender"], station.ends["responder"], self.part
        protocol = _PROTOCOLS[self.transport]
        with ExitStack() as running:
            start_answering(protocol, server.host, [(server.netns, server.address)], running)
            traffic = (protocol, part.per_s, part.size_bytes, part.duration_s)
            output = ping(station, place, *traffic, "--duration", f"{part.duration_s:g}")
        # A virtual machine's probe sees its own CPUs alone, a server's those of one host.
        whole = not station.separate and not client.machine
        cpus = client.host.read_text("/proc/stat").count("\ncpu") if whole else 0
        found = figures(output, self.transport, cpus)
        return result_of(place, output, found, output.counts, output.warnings)


def figures(output: PingOutput, transport: Transport, cpus: int) -> dict[str, Figure]:
    """Answers a second, quantiles of their times, and CPU time of each where `cpus` are known.

    Pure.
    """
    times, answered = output.rtt_user, output.counts.received
    assert times is not None
    name, words = f"rr_{transport}", f"requests by {transport.upper()}"

    p50, p99 = max(0.0, times.p50_ns), max(0.0, times.p99_ns)
    found = {
        name: time_figure(f"median time of {words}", p50),
        f"{name}_p99": time_figure(f"99th percentile of {words}", p99),
        f"{name}_rate": Figure(
            title=f"answered {words} a second",
            unit="pps",
            lower_is_better=False,
            value=answered / output.duration_s,
            resolution=1 / output.duration_s,
        ),
    }
    if cpus and output.cpu is not None and output.duration_s >= CPU_WINDOW_S:
        busy = sum(share for mode, share in output.cpu.all.items() if mode not in _IDLE)
        found[f"{name}_cpu"] = Figure(
            title=f"busy CPU time for each of {words}",
            unit="ns",
            lower_is_better=True,
            value=busy * output.duration_s * cpus * 1e9 / answered,
            resolution=1e9 / USER_HZ / answered,
        )
    return found
