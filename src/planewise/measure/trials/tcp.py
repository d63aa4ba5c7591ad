"""TCP trials: throughput of one iperf3 stream or several by message size. Knows no plane."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.measure.designs.design import Design
from planewise.measure.runs import meter
from planewise.measure.runs.stage import OnSample, Place, Station, Trial, TrialResult
from planewise.measure.trials.applications import IPERF, IPERF_PORT, iperf_server
from planewise.measure.trials.ends import Counters, End, PairStation
from planewise.measure.trials.kind import Kind, TrialRequest, unsupported
from planewise.store.models import CoreUse, Level, TcpResult, TrialKind, TrialRecord
from planewise.testbed.hosts.gauges import GaugeReading, busy, cpu_ticks
from planewise.testbed.hosts.host import FinishedProcess, HostProcess

_SLACK_S = 120.0
"""Starting iperf3 takes an emulated guest as long as a trial."""
SAMPLE_S = 1.0


@dataclass(frozen=True)
class TcpTrial:
    """One TCP trial."""

    name: str
    message_bytes: int
    duration_s: float
    warmup_s: int
    streams: int
    kind: ClassVar[TrialKind] = "tcp"
    samples: ClassVar[bool] = True

    @property
    def expected_s(self) -> float:
        """See `Trial.expected_s`."""
        return self.warmup_s + self.duration_s

    def traffic(self) -> dict[str, Level]:
        """See `Trial.traffic`."""
        return {"message_bytes": self.message_bytes}

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        """See `Trial.measure_on`."""
        if not isinstance(station, PairStation):
            raise unsupported(self.name)
        ends, sent = station.ends(), station.sent()
        client, server = ends["sender"], ends["responder"]
        return station.beside_load(
            lambda: measure_tcp(client, server, self, place, on_sample, sent)
        )


class Tcp(Kind):
    """See `kind.Kind`."""

    rank = 4
    part = "tcp"

    def trials(self, request: TrialRequest) -> list[Trial]:
        """One for each size of message."""
        tcp = request.design.tcp
        assert tcp is not None
        return [
            TcpTrial(
                name=f"tcp:{request.cell.name},{levels['message_bytes']}B#r{request.block}",
                message_bytes=int(levels["message_bytes"]),
                duration_s=tcp.duration_s,
                warmup_s=tcp.warmup_s,
                streams=tcp.streams,
            )
            for levels in request.traffic
        ]

    def programs(self, design: Design) -> Sequence[str]:
        """iperf3, at both ends."""
        return (IPERF,)

    def offered(self, design: Design) -> Iterator[tuple[str, float | str]]:
        """A stream has no rate of its own."""
        yield "tcp", "sends as much as it can"


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


def measure_tcp(
    client: End,
    server: End,
    trial: TcpTrial,
    place: Place,
    on_sample: OnSample,
    sent: Counters | None,
) -> TrialResult:
    """Runs one TCP trial from `client` to `server`.

    `sent` is read about once a second for `on_sample`; None where nothing outside the guests counts
    what they send: then there are no samples.

    Raises:
        UnsupportedError: there is no iperf3.
        PlanewiseError: it failed.
    """
    with (
        iperf_server(server.host, server.netns, server.address),
        client.host.start(
            _command(server, trial), netns=client.netns, expected_s=trial.expected_s
        ) as sending,
    ):
        _sample(sending, trial.warmup_s, _nothing)
        started = datetime.now(UTC)
        first = _read(client)
        sample = _nothing if sent is None else _Sampler(place, on_sample, sent, client).sample
        _sample(sending, trial.duration_s, sample)
        last = _read(client)
        finished = sending.wait(trial.duration_s + _SLACK_S)
    report = parse_iperf(finished)
    used = busy(first, last)
    return TrialResult(
        TrialRecord(
            **place.fields,
            kind="tcp",
            started=started,
            duration_s=report.end.sum_received.seconds or last.at_s - first.at_s,
            tcp=TcpResult(
                goodput_bps=report.end.sum_received.bits_per_second,
                message_bytes=trial.message_bytes,
                retransmits=max(0, report.end.sum_sent.retransmits),
                cores=tuple(CoreUse(cpu=int(cpu), used=used.get(cpu, 0.0)) for cpu in first.cpus),
            ),
            limits=("sut",),
        )
    )


def _command(server: End, trial: TcpTrial) -> list[str]:
    return [
        *(IPERF, "-c", server.address, "-4", "-p", str(IPERF_PORT), "--json"),
        *("-t", f"{trial.duration_s:.0f}", "-O", str(trial.warmup_s)),
        *("-l", str(trial.message_bytes), "-P", str(trial.streams)),
    ]


def _sample(process: HostProcess, seconds: float, sample: Callable[[], None]) -> None:
    """Calls `sample` about every second for `seconds`, or as long as the process runs."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0 and process.running:
        time.sleep(min(SAMPLE_S, left_s))
        sample()


def _nothing() -> None:
    """Samples nothing."""


def _read(client: End, sent: Counters | None = None) -> GaugeReading:
    """What every CPU of the client's host did, and what was sent."""
    counted = {} if sent is None else sent()
    stat = client.host.read_text("/proc/stat")
    return GaugeReading(time.monotonic(), counted, cpu_ticks(stat))


class _Sampler:
    """Samples what was sent since the last sample."""

    def __init__(self, place: Place, on_sample: OnSample, sent: Counters, client: End) -> None:
        self._place, self._on_sample, self._sent, self._client = place, on_sample, sent, client
        self._last = _read(client, sent)

    def sample(self) -> None:
        previous, self._last = self._last, _read(self._client, self._sent)
        kpis = meter.sample(previous, self._last, self._place)
        named = {name: rate for name, rate in kpis.vnfs.items() if name}
        self._on_sample(kpis.model_copy(update={"vnfs": named}))


def parse_iperf(finished: FinishedProcess) -> IperfReport:
    """What an iperf3 client printed. Pure.

    Raises:
        UnsupportedError: it is not the JSON that is known of iperf3.
        PlanewiseError: it failed; the sentence is its own, which it says in its JSON.
    """
    if finished.exit_code != 0:
        with suppress(ValueError, TypeError, KeyError):
            raise PlanewiseError(f"{IPERF} failed: {json.loads(finished.stdout)['error']}")
    try:
        return IperfReport.model_validate_json(finished.check().stdout)
    except ValidationError as error:
        raise UnsupportedError(
            f"{IPERF} did not print the JSON that is known of it",
            remedy="install iperf3 3.9 or newer",
        ) from error


KIND = Tcp()
