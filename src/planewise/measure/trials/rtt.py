"""RTT trials: round-trip times at one frequency and size (`round_trips` measures them)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, cast, runtime_checkable

from planewise.measure.designs.cells import combinations
from planewise.measure.designs.design import AS_IS, Design
from planewise.measure.designs.design import Protocol as RttProtocol
from planewise.measure.designs.pattern import STEADY, bursts_of
from planewise.measure.designs.problem import Problem
from planewise.measure.runs.stage import OnSample, Place, Station, Trial, TrialResult
from planewise.measure.trials.applications import REDIS
from planewise.measure.trials.kind import Kind, Levels, TrialRequest, unsupported
from planewise.store.models import Level, TrialKind
from planewise.units import rate_text, time_text


@runtime_checkable
class RttStation(Protocol):
    """A station on which round-trip times can be measured."""

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Runs one RTT trial."""


@dataclass(frozen=True)
class RttTrial:
    """One RTT trial to run."""

    name: str
    frequency_pps: float
    size_bytes: int
    packets: int
    protocol: RttProtocol = "icmp"
    steady_s: float = 0.0
    """How long its traffic goes on afterwards for CPU time."""
    pattern: str = ""
    """How packets follow one another; empty where the design has but steady ones."""
    rx_usecs: int | None = None
    """What the hosts' NICs wait before they interrupt; None: as they are."""
    guest_stamps: bool = False
    """Whether packets are stamped at the guests' own interfaces, too."""
    kind: ClassVar[TrialKind] = "rtt"
    samples: ClassVar[bool] = False

    @property
    def expected_s(self) -> float:
        """See `Trial.expected_s`."""
        return self.sending_s + self.steady_s

    @property
    def sending_s(self) -> float:
        """How long it takes to send its packets [s]."""
        bursts = bursts_of(self.pattern)
        return self.packets / self.frequency_pps if not bursts else bursts.duration_s(self.packets)

    @property
    def mean_pps(self) -> float:
        """Packets a second, the pauses between bursts included."""
        bursts = bursts_of(self.pattern)
        return self.frequency_pps if bursts is None else bursts.mean_pps

    def traffic(self) -> dict[str, Level]:
        """See `Trial.traffic`."""
        return {
            "size_bytes": self.size_bytes,
            "frequency_pps": self.frequency_pps,
            "protocol": self.protocol,
            **({"pattern": self.pattern} if self.pattern else {}),
            **({} if self.rx_usecs is None else {"rx_usecs": self.rx_usecs}),
        }

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        """See `Trial.measure_on`."""
        if not isinstance(station, RttStation):
            raise unsupported(self.name)
        return station.rtt(self, place)


class Rtt(Kind):
    """See `kind.Kind`."""

    rank = 1
    part = "rtt"

    def trials(self, request: TrialRequest) -> list[Trial]:
        """One for each frequency, size, protocol, pattern and setting of the NICs."""
        return [_trial(request, levels) for levels in request.traffic]

    def warmup(self, design: Design, trials: Sequence[Trial]) -> Trial | None:
        """A few packets, with the traffic of the first trial."""
        assert design.rtt is not None
        packets = design.rtt.warmup_packets
        if not packets or not trials:
            return None
        return replace(cast("RttTrial", trials[0]), name="warm-up", packets=packets, steady_s=0.0)

    def programs(self, design: Design) -> Sequence[str]:
        """A Redis server, where that is what answers."""
        return (REDIS,) if "redis" in design.factors.protocol else ()

    def problem(self, design: Design) -> Problem | None:
        """A burst that takes longer than until the next one, or that no trial holds whole."""
        assert design.rtt is not None
        for levels in combinations(design):
            bursts = bursts_of(str(levels.get("pattern", "")))
            if bursts is None:
                continue
            rate, pattern = float(levels["frequency_pps"]), str(levels["pattern"])
            place = ("factors", "pattern", design.factors.pattern.index(pattern))
            if bursts.packets > rate * bursts.every_s:
                return Problem(
                    place,
                    f"{bursts.packets} packets at {rate_text(rate)} take "
                    f"{time_text(1e9 * bursts.packets / rate)}, longer than until the next burst",
                    "give `factors.frequency_pps` more, or leave such cells out: `constraints: "
                    f"[{{when: {{pattern: {pattern}}}, exclude: {{frequency_pps: {rate:g}}}}}]`",
                )
            if design.rtt.packets % bursts.packets:
                return Problem(
                    place,
                    f"a trial of {design.rtt.packets} packets holds no whole number of {pattern}",
                    f"set `rtt.packets` to a multiple of {bursts.packets}",
                )
        return None

    def offered(self, design: Design) -> Iterator[tuple[str, float | str]]:
        """Each frequency."""
        for rate in design.factors.frequency_pps:
            yield "factors.frequency_pps", rate


def _trial(request: TrialRequest, levels: Levels) -> RttTrial:
    design = request.design
    assert design.rtt is not None
    # Cells of designs that are all steady stay comparable with those of runs from before bursts.
    varied = design.factors.pattern != (STEADY,)
    frequency_pps, size_bytes = float(levels["frequency_pps"]), int(levels["size_bytes"])
    protocol = cast("RttProtocol", levels["protocol"])
    pattern = str(levels["pattern"]) if varied else ""
    rx_usecs = None if levels["rx_usecs"] == AS_IS else int(levels["rx_usecs"])
    return RttTrial(
        name=f"rtt:{request.cell.name},{frequency_pps:g}pps,{size_bytes}B,{protocol}"
        f"{f',{pattern}' if pattern else ''}"
        f"{'' if rx_usecs is None else f',{rx_usecs}us'}#r{request.block}",
        frequency_pps=frequency_pps,
        size_bytes=size_bytes,
        packets=design.rtt.packets,
        protocol=protocol,
        steady_s=design.rtt.steady_s,
        guest_stamps=design.rtt.guest_stamps,
        pattern=pattern,
        rx_usecs=rx_usecs,
    )


KIND = Rtt()
