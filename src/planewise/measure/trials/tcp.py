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
from planewise.measure.applications import IPERF, Listening
from planewise.measure.design import Design
from planewise.measure.ends import Counters, End, PairStation
from planewise.measure.stage import OnSample, Place, Station, Trial, TrialResult
from planewise.measure.trials.kind import Asked, Kind, unsupported
from planewise.store.models import (
    CoreUse,
    KpiSample,
    Level,
    TcpResult,
    Throughput,
    TrialKind,
    TrialRecord,
)
from planewise.testbed.chains.reading import CpuTime, cpu_times, now_s
from planewise.testbed.host import FinishedProcess, HostProcess

_PORT = 5201
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

    def trials(self, asked: Asked) -> list[Trial]:
        """One for each size of message."""
        tcp = asked.design.tcp
        assert tcp is not None
        return [
            TcpTrial(
                name=f"tcp:{asked.cell.name},{levels['message_bytes']}B#r{asked.block}",
                message_bytes=int(levels["message_bytes"]),
                duration_s=tcp.duration_s,
                warmup_s=tcp.warmup_s,
                streams=tcp.streams,
            )
            for levels in asked.traffic
        ]

    def programs(self, design: Design) -> Sequence[str]:
        """What sends and receives."""
        return (IPERF,)

    def offered(self, design: Design) -> Iterator[tuple[str, float | str]]:
        """A stream has no rate of its own."""
        yield "tcp", "sends as much as it can"


class _Sum(BaseModel):
    model_config = ConfigDict(extra="ignore")
    bits_per_second: Annotated[float, Field(ge=0)] = 0.0
    retransmits: int = 0
    seconds: float = 0.0


class _End(BaseModel):
    model_config = ConfigDict(extra="ignore")
    sum_sent: _Sum
    sum_received: _Sum


class _Report(BaseModel):
    """The part of iperf3's JSON that is used."""

    model_config = ConfigDict(extra="ignore")
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
    with server.host.start(
        [IPERF, "-s", "-1", "-4", "-B", server.address, "-p", str(_PORT)], netns=server.netns
    ) as listening:
        Listening(server.host, server.netns, IPERF, _PORT).wait(listening)
        with client.host.start(
            _command(server, trial), netns=client.netns, expected_s=trial.expected_s
        ) as sending:
            _sample(sending, trial.warmup_s, _nothing)
            started = datetime.now(UTC)
            begin_s, before = now_s(), _cpu_times(client)
            look = _nothing if sent is None else _Watch(place, on_sample, sent, client).look
            _sample(sending, trial.duration_s, look)
            spent_s, after = now_s() - begin_s, _cpu_times(client)
            finished = sending.wait(trial.duration_s + _SLACK_S)
    report = _report(finished)
    return TrialResult(
        TrialRecord(
            **place.fields,
            kind="tcp",
            started=started,
            duration_s=report.end.sum_received.seconds or spent_s,
            tcp=TcpResult(
                goodput_bps=report.end.sum_received.bits_per_second,
                message_bytes=trial.message_bytes,
                retransmits=max(0, report.end.sum_sent.retransmits),
                cores=tuple(
                    CoreUse(cpu=cpu, used=_used(before[cpu], after[cpu])) for cpu in before
                ),
            ),
            limits=("sut",),
        )
    )


def _command(server: End, trial: TcpTrial) -> list[str]:
    return [
        *(IPERF, "-c", server.address, "-4", "-p", str(_PORT), "--json"),
        *("-t", f"{trial.duration_s:.0f}", "-O", str(trial.warmup_s)),
        *("-l", str(trial.message_bytes), "-P", str(trial.streams)),
    ]


def _sample(process: HostProcess, seconds: float, look: Callable[[], None]) -> None:
    """Calls `look` about every second for `seconds`, or as long as the process runs."""
    end_s = now_s() + seconds
    while (left_s := end_s - now_s()) > 0 and process.running:
        time.sleep(min(SAMPLE_S, left_s))
        look()


def _nothing() -> None:
    """Looks at nothing."""


def _cpu_times(end: End) -> dict[int, CpuTime]:
    """Of every CPU of the end's host."""
    return cpu_times(end.host.read_text("/proc/stat"))


class _Watch:
    """Samples what was sent since the last sample."""

    def __init__(
        self,
        place: Place,
        on_sample: OnSample,
        sent: Counters,
        client: End,
    ) -> None:
        self._place, self._on_sample, self._sent, self._client = place, on_sample, sent, client
        self._last = now_s(), sent(), _cpu_times(client)

    def look(self) -> None:
        before_s, before, cpus_before = self._last
        self._last = after_s, after, cpus_after = (
            now_s(),
            self._sent(),
            _cpu_times(self._client),
        )
        seconds = max(after_s - before_s, 1e-9)
        rates = {
            name: Throughput(
                tx_pps=max(0, after[name].packets - before[name].packets) / seconds,
                tx_bps=8 * max(0, after[name].bytes - before[name].bytes) / seconds,
            )
            for name in after
        }
        self._on_sample(
            KpiSample(
                at=datetime.now(UTC),
                trial=self._place.trial,
                cell=self._place.cell,
                interval_s=seconds,
                vnfs={name: rate for name, rate in rates.items() if name},
                total=Throughput(
                    tx_pps=sum(rate.tx_pps for rate in rates.values()),
                    tx_bps=sum(rate.tx_bps for rate in rates.values()),
                ),
                cpu={str(cpu): _used(cpus_before[cpu], cpus_after[cpu]) for cpu in cpus_after},
            )
        )


def _used(before: CpuTime, after: CpuTime) -> float:
    total = after.total_s - before.total_s
    return min(1.0, max(0.0, 1 - (after.idle_s - before.idle_s) / total)) if total > 0 else 0.0


def check_iperf(finished: FinishedProcess) -> FinishedProcess:
    """With what iperf3 says in its JSON, and not on stderr, when it fails."""
    if finished.exit_code != 0:
        with suppress(ValueError, TypeError, KeyError):
            raise PlanewiseError(f"{IPERF} failed: {json.loads(finished.stdout)['error']}")
    return finished.check()


def _report(finished: FinishedProcess) -> _Report:
    check_iperf(finished)
    try:
        return _Report.model_validate_json(finished.stdout)
    except ValidationError as error:
        raise UnsupportedError(
            f"{IPERF} did not print the JSON that is known of it",
            remedy="install iperf3 3.9 or newer",
        ) from error


KIND = Tcp()
