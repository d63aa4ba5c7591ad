"""TCP trials: throughput of one or several iperf3 streams by message size."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.measure.designs.design import Design, TcpPart
from planewise.measure.runs import meter
from planewise.measure.station import (
    Counters,
    End,
    OnSample,
    Place,
    Request,
    Station,
    Trial,
    TrialResult,
)
from planewise.measure.trials.applications import IPERF, IPERF_PORT, iperf_server
from planewise.measure.trials.load import check_arrival
from planewise.measure.trials.probe import START_S
from planewise.store.models import CoreUse, Level, TcpResult, TrialKind, TrialRecord
from planewise.testbed.hosts.gauges import GaugeReading, busy, cpu_ticks
from planewise.testbed.hosts.host import FinishedProcess, HostProcess

SAMPLE_S = 1.0
_STOPPED = "the client has terminated"
"""What both ends report when the client was stopped."""


@dataclass(frozen=True)
class TcpTrial(Trial):
    """One TCP trial."""

    message_bytes: int
    duration_s: float
    warmup_s: int
    streams: int
    kind: ClassVar[TrialKind] = "tcp"
    rank = 4
    key = "tcp"
    samples = True

    @classmethod
    def requested(cls, request: Request) -> list[Trial]:
        """One for each size of message."""
        part, trials = request.design.part(cls.key, TcpPart), list[Trial]()
        for levels in request.traffic:
            size_bytes = int(levels["message_bytes"])
            name = f"tcp:{request.cell.name},{size_bytes}B#r{request.block}"
            trials.append(cls(name, size_bytes, part.duration_s, part.warmup_s, part.streams))
        return trials

    @classmethod
    def programs(cls, design: Design) -> Sequence[str]:
        """iperf3, at both ends."""
        return (IPERF,)

    @classmethod
    def offered(cls, design: Design) -> Iterator[tuple[str, float | str]]:
        """A stream has no rate of its own."""
        yield "tcp", "sends as much as it can"

    @property
    def expected_s(self) -> float:
        return self.warmup_s + self.duration_s

    def traffic(self) -> dict[str, Level]:
        return {"message_bytes": self.message_bytes}

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        """See `Trial`. UnsupportedError where iperf3 is missing or unknown."""
        client, server = station.ends["sender"], station.ends["responder"]
        argv = [
            *(IPERF, "-c", server.address, "-p", str(IPERF_PORT), "--json"),
            *("-t", f"{self.duration_s:.0f}", "-O", str(self.warmup_s)),
            *("-l", str(self.message_bytes), "-P", str(self.streams)),
        ]
        with (
            iperf_server(server.host, server.netns, server.address),
            client.host.start(argv, netns=client.netns, expected_s=self.expected_s) as sending,
        ):
            _sample(sending, self.warmup_s, lambda: None)
            started = datetime.now(UTC)
            first = previous = _read(client, station.sent)

            def sample() -> None:
                nonlocal previous
                current = _read(client, station.sent)
                if station.sent is not None:
                    kpis = meter.sample(previous, current, place)
                    named = {name: rate for name, rate in kpis.vnfs.items() if name}
                    on_sample(kpis.model_copy(update={"vnfs": named}))
                previous = current

            _sample(sending, self.duration_s, sample)
            last = _read(client)
            finished = sending.wait(self.duration_s + START_S)
        try:
            report = parse_iperf(finished)
        except PlanewiseError:
            check_arrival(station, place, 64)
            raise
        used = busy(first, last)
        return TrialResult(
            TrialRecord(
                **place.fields,
                kind="tcp",
                started=started,
                duration_s=report.end.sum_received.seconds or last.at_s - first.at_s,
                tcp=TcpResult(
                    goodput_bps=report.end.sum_received.bits_per_second,
                    message_bytes=self.message_bytes,
                    retransmits=max(0, report.end.sum_sent.retransmits),
                    cores=tuple(
                        CoreUse(cpu=int(cpu), used=used.get(cpu, 0.0)) for cpu in first.cpus
                    ),
                ),
                limits=("sut",),
            )
        )


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Sum(_Part):
    end: Annotated[float, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0)]
    bytes: Annotated[int, Field(ge=0)]
    bits_per_second: Annotated[float, Field(ge=0)]
    retransmits: int = 0


class _Interval(_Part):
    sum: _Sum


class _End(_Part):
    sum_sent: _Sum
    sum_received: _Sum


class IperfReport(_Part):
    """The part of iperf3's JSON that is used."""

    intervals: Sequence[_Interval] = ()
    end: _End


def _sample(process: HostProcess, seconds: float, sample: Callable[[], None]) -> None:
    """Calls `sample` about every second for `seconds`, or as long as the process runs."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0 and process.running:
        time.sleep(min(SAMPLE_S, left_s))
        sample()


def _read(client: End, sent: Counters | None = None) -> GaugeReading:
    """What every CPU of the client's host did, and what was sent."""
    counted = {} if sent is None else sent()
    stat = client.host.read_text("/proc/stat")
    return GaugeReading(time.monotonic(), counted, cpu_ticks(stat))


def parse_iperf(finished: FinishedProcess, *, stopped: bool = False) -> IperfReport:
    """What iperf3 printed; with `stopped`, an end that we brought about is no failure. Pure.

    Raises:
        UnsupportedError: it is not the JSON that is known of iperf3.
        PlanewiseError: it failed; the sentence is its own, which it says in its JSON.
    """
    if finished.exit_code != 0:
        with suppress(ValueError, TypeError, KeyError):
            error = json.loads(finished.stdout)["error"]
            if not (stopped and _STOPPED in error):
                raise PlanewiseError(f"{IPERF} failed: {error}")
            finished = replace(finished, exit_code=0)
    try:
        return IperfReport.model_validate_json(finished.check().stdout)
    except ValidationError as error:
        raise UnsupportedError(
            f"{IPERF} did not print the JSON that is known of it",
            remedy="install iperf3 3.9 or newer",
        ) from error
