"""TCP trials: throughput of streams by message size, as `measure.tcp` measures it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from planewise.measure.applications import IPERF
from planewise.measure.design import Design
from planewise.measure.stage import OnSample, Place, Station, Trial, TrialResult
from planewise.measure.trials.kind import Asked, Kind, unsupported
from planewise.store.models import Level, TrialKind


@runtime_checkable
class TcpStation(Protocol):
    """A station on which TCP streams can be measured."""

    def tcp(self, trial: TcpTrial, place: Place, on_sample: OnSample, /) -> TrialResult:
        """Runs one TCP trial."""


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
        if not isinstance(station, TcpStation):
            raise unsupported(self.name)
        return station.tcp(self, place, on_sample)


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


KIND = Tcp()
