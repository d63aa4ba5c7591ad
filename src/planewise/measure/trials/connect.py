"""Trials of connections: how long a guest takes to make a TCP connection to another, by `pw-probe`.

The smallest kind of trial: it has its own part of a design, and figures instead of a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, ClassVar

from hdrh.histogram import HdrHistogram
from pydantic import Field, NonNegativeInt

from planewise.errors import PlanewiseError
from planewise.judge.statistics.metrics import HISTOGRAM_SHARE
from planewise.measure.designs.design import Design, DesignModel
from planewise.measure.station import OnSample, Place, Station, Trial, TrialResult
from planewise.measure.trials.kind import Kind, TrialRequest
from planewise.measure.trials.probe import ProbeOutput, parse
from planewise.store.models import Figure, Latency, TrialRecord

_PORT = 7000
_READY_S = 240.0
"""Starting a program takes an emulated guest as long as a trial."""
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


class ConnectOutput(ProbeOutput):
    """`pw-probe connect`."""

    started_ns: int
    duration_s: float
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
    figure: ClassVar[str] = "connect"
    """Name of its median; those of the others begin with it."""
    timed: ClassVar[str] = "time to connect"

    @property
    def expected_s(self) -> float:
        """See `Trial`."""
        return self.count / self.per_s

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        """See `Trial`."""
        client, server = station.ends["sender"], station.ends["responder"]
        to = server.at(_PORT)
        accept = [server.host.probe, "accept", "--listen", to]
        connect = [client.host.probe, "connect", to, "--count", str(self.count)]
        if self.request_bytes:
            accept += ["--echo", str(self.request_bytes)]
            connect += ["--request", str(self.request_bytes)]
        with server.host.start(accept, netns=server.netns) as accepting:
            accepting.wait_ready("ready", _READY_S)
            finished = client.host.run(
                [*connect, "--rate", f"{self.per_s:g}"],
                netns=client.netns,
                timeout_s=_READY_S + 2 * self.expected_s,
                expected_s=self.expected_s,
            )
        output = parse(finished, ConnectOutput)
        if output.interrupted:
            raise KeyboardInterrupt
        if output.time is None:
            raise PlanewiseError(
                f"none of {output.failed} connections was made: {output.why}",
                remedy="see whether something filters the testbed's packets (`nft list ruleset`)",
            )
        failed = f"{output.failed} connections were not made, the first: {output.why}"
        return TrialResult(
            TrialRecord(
                **place.fields,
                kind="other",
                started=datetime.fromtimestamp(output.started_ns / 1e9, UTC),
                duration_s=output.duration_s,
                figures=figures(output.time, output.made, output.failed, self.figure, self.timed),
                limits=("sut",),
                warnings=(failed,) if output.failed else (),
            )
        )


def figures(
    time: Latency, made: int, failed: int, figure: str = "connect", timed: str = "time to connect"
) -> dict[str, Figure]:
    """Quantiles of all connections, failed ones as infinitely late; and their share. Pure."""
    attempts = made + failed
    times = HdrHistogram.decode(time.hdr)
    by_name = {}
    for ending, title, quantile in _QUANTILES:
        of_made = quantile * attempts / made
        if of_made <= 1:
            value = float(times.get_value_at_percentile(100 * of_made))
            by_name[figure + ending] = Figure(
                title=f"{title} {timed}",
                unit="ns",
                lower_is_better=True,
                value=value,
                resolution=HISTOGRAM_SHARE * value,
            )
    by_name[f"{figure}_failed"] = Figure(
        title="connections that were not made",
        unit="share",
        lower_is_better=True,
        value=failed / attempts,
        resolution=1 / attempts,
    )
    return by_name


class Connect(Kind):
    """See `Kind`."""

    rank = 6
    part = "connect"
    own_part = ConnectPart

    def trials(self, request: TrialRequest) -> list[Trial]:
        """One."""
        part = ConnectPart.model_validate(request.design.others[self.part])
        return [
            ConnectTrial(f"connect:{request.cell.name}#r{request.block}", part.count, part.per_s)
        ]

    def offered(self, design: Design) -> Iterator[tuple[str, float | str]]:
        """Four packets a connection, which is reset at once."""
        yield "connect.per_s", 4 * ConnectPart.model_validate(design.others[self.part]).per_s


KIND = Connect()
