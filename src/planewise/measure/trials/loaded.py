"""Trials of latency under load: round-trip times while TCP saturates the same path."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from planewise.judge.statistics.metrics import HISTOGRAM_SHARE
from planewise.measure.designs.design import Design, DesignModel
from planewise.measure.station import OnSample, Place, Request, Station, Trial, TrialResult
from planewise.measure.trials.applications import IPERF, IPERF_PORT, iperf_connects, iperf_server
from planewise.measure.trials.ping import ping
from planewise.measure.trials.probe import START_S, PingOutput, result_of, time_figure
from planewise.measure.trials.tcp import parse_iperf
from planewise.store.models import Figure

_RAMP_S = 0.5
"""TCP has reached its rate so long after it connected."""


class LoadedPart(DesignModel):
    """Trials of latency under load: one a cell and block, half of it without load."""

    frequency_pps: Annotated[float, Field(gt=0, le=1e6)] = 500.0
    """ICMP probes a second, open loop."""
    duration_s: Annotated[float, Field(ge=0.2, le=600)] = 1.0
    """Of the probes without load, and again of those under load."""
    streams: Annotated[int, Field(ge=1, le=64)] = 1
    """TCP streams at a time."""


@dataclass(frozen=True)
class LoadedTrial(Trial):
    """One trial of latency under load."""

    part: LoadedPart
    rank = 7
    key = "loaded"
    own_part = LoadedPart

    @classmethod
    def requested(cls, request: Request) -> list[Trial]:
        """One."""
        part = request.design.part(cls.key, LoadedPart)
        return [cls(f"loaded:{request.cell.name}#r{request.block}", part)]

    @classmethod
    def programs(cls, design: Design) -> Sequence[str]:
        """iperf3, at both ends."""
        return (IPERF,)

    @classmethod
    def offered(cls, design: Design) -> Iterator[tuple[str, float | str]]:
        """TCP has no rate of its own."""
        yield "loaded", "sends as much as it can"

    @property
    def expected_s(self) -> float:
        return 2 * self.part.duration_s + _RAMP_S

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        client, server = station.ends["sender"], station.ends["responder"]
        idle = _probe(station, place, self.part)
        # TCP ends when the probes have, however late a busy or emulated guest starts them.
        limit_s = round(self.part.duration_s + station.patience_s + 2 * START_S)
        argv = [
            *(IPERF, "-c", server.address, "-p", str(IPERF_PORT), "--json"),
            *("-t", str(limit_s), "-P", str(self.part.streams)),
        ]
        with (
            iperf_server(server.host, server.netns, server.address) as receiving,
            client.host.start(argv, netns=client.netns) as sending,
        ):
            if not iperf_connects(server.host, server.netns, server.address, sending):
                parse_iperf(sending.stop())  # raises its own error
            time.sleep(_RAMP_S)
            loaded = _probe(station, place, self.part)
            sent = parse_iperf(sending.stop(), stopped=True).end.sum_sent
            received = parse_iperf(receiving.wait(START_S), stopped=True).end.sum_received
        # A server whose client is stopped says what came, but not in how long.
        found = figures(idle, loaded, 8 * received.bytes / sent.seconds)
        return result_of(place, loaded, found, loaded.counts)


def _probe(station: Station, place: Place, part: LoadedPart) -> PingOutput:
    """Probes for the part's duration."""
    seconds = part.duration_s
    options = ("--no-watch", "--duration", f"{seconds:g}")
    return ping(station, place, "icmp", part.frequency_pps, 128, seconds, *options)


def figures(idle: PingOutput, loaded: PingOutput, goodput_bps: float) -> dict[str, Figure]:
    """Times under load, their median against that without, and what TCP carried. Pure."""
    before, under = idle.rtt_user, loaded.rtt_user
    assert before is not None
    assert under is not None

    ratio = under.p50_ns / before.p50_ns
    return {
        "loaded_rtt": time_figure("median RTT while TCP saturates the path", under.p50_ns),
        "loaded_rtt_p99": time_figure(
            "99th percentile of RTT while TCP saturates the path", max(0.0, under.p99_ns)
        ),
        "loaded_increase": Figure(
            title="median RTT under TCP, relative to idle",
            unit="share",
            lower_is_better=True,
            value=ratio,
            resolution=2 * HISTOGRAM_SHARE * ratio,
        ),
        "loaded_goodput": Figure(
            title="goodput of TCP beside the probes",
            unit="bps",
            lower_is_better=False,
            value=goodput_bps,
            resolution=1.0,
        ),
    }
