"""Trials of connections: how long a guest takes to make a TCP connection to another, by `pw-probe`.

The smallest kind of trial: it has its own part of a design, and figures instead of a record.
Open loop: a connection that is due while the one before lasts counts from when it was due.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from hdrh.histogram import HdrHistogram
from pydantic import Field, NonNegativeInt

from planewise.errors import PlanewiseError
from planewise.measure.designs.design import Design, DesignModel
from planewise.measure.station import OnSample, Place, Request, Station, Trial, TrialResult
from planewise.measure.trials.load import check_arrival
from planewise.measure.trials.probe import START_S, TimedOutput, parse, result_of, time_figure
from planewise.store.models import Figure, Latency

_PORT = 7000
_QUANTILES = (
    ("", "median", 0.5),
    ("_p99", "99th percentile of the", 0.99),
)


class ConnectPart(DesignModel):
    """Trials of connections: one a cell and block. TCP connections are made one after another."""

    count: Annotated[int, Field(ge=10, le=1_000_000)] = 200
    """Connections of a trial."""
    per_s: Annotated[float, Field(gt=0, le=1e6)] = 100.0
    """Connections due a second; one that waits for the previous counts from when it was due."""


class ConnectOutput(TimedOutput):
    """`pw-probe connect`."""

    made: NonNegativeInt
    failed: NonNegativeInt
    why: str | None = None
    time: Latency | None = None


@dataclass(frozen=True)
class ConnectTrial(Trial):
    """One trial of connections."""

    count: int
    per_s: float
    request_bytes: int = 0
    """A request of this size is sent on each, and its answer awaited; 0: none."""
    rank = 6
    key = "connect"
    own_part: ClassVar[type[ConnectPart]] = ConnectPart
    packets: ClassVar[int] = 4
    """Of a connection, which is reset at once."""

    @classmethod
    def requested(cls, request: Request) -> list[Trial]:
        """One."""
        part = request.design.part(cls.key, cls.own_part)
        return [cls(f"connect:{request.cell.name}#r{request.block}", part.count, part.per_s)]

    @classmethod
    def offered(cls, design: Design) -> Iterator[tuple[str, float | str]]:
        """The packets of all connections."""
        yield f"{cls.key}.per_s", cls.packets * design.part(cls.key, cls.own_part).per_s

    @property
    def expected_s(self) -> float:
        return self.count / self.per_s

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        client, server = station.ends["sender"], station.ends["responder"]
        to = server.at(_PORT)
        accept = [server.host.probe, "accept", "--listen", to]
        connect = [client.host.probe, "connect", to, "--count", str(self.count)]
        if self.request_bytes:
            accept += ["--echo", str(self.request_bytes)]
            connect += ["--request", str(self.request_bytes)]
        with server.host.start(accept, netns=server.netns) as accepting:
            accepting.wait_ready("ready", START_S)
            finished = client.host.run(
                [*connect, "--rate", f"{self.per_s:g}"],
                netns=client.netns,
                timeout_s=START_S + 2 * self.expected_s,
                expected_s=self.expected_s,
            )
        output = parse(finished, ConnectOutput)
        if output.interrupted:
            raise KeyboardInterrupt
        if output.time is None:
            check_arrival(station, place, 64)
            raise PlanewiseError(
                f"none of {output.failed} connections was made: {output.why}",
                remedy="see whether something filters the testbed's packets (`nft list ruleset`)",
            )
        failed = f"{output.failed} connections were not made, the first: {output.why}"
        found = figures(output.time, output.made, output.failed, bool(self.request_bytes))
        return result_of(place, output, found, warnings=(failed,) if output.failed else ())


def figures(time: Latency, made: int, failed: int, requests: bool = False) -> dict[str, Figure]:
    """Quantiles of all connections, failed ones as infinitely late; and their share. Pure."""
    figure, timed = "connect", "time to connect"
    if requests:
        figure, timed = "crr", "time to connect, request and close"
    attempts = made + failed
    times = HdrHistogram.decode(time.hdr)
    by_name = {}
    for ending, title, quantile in _QUANTILES:
        of_made = quantile * attempts / made
        if of_made <= 1:
            value = float(times.get_value_at_percentile(100 * of_made))
            by_name[figure + ending] = time_figure(f"{title} {timed}", value)
    by_name[f"{figure}_failed"] = Figure(
        title="connections that were not made",
        unit="share",
        lower_is_better=True,
        value=failed / attempts,
        resolution=1 / attempts,
    )
    return by_name
