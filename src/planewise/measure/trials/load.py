"""Load trials: loss at one offered load and frame size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

from planewise.measure.designs.design import Design, SweepPart
from planewise.measure.station import OnSample, Place, Request, Station, Trial, TrialResult
from planewise.measure.trials import load_one_process, load_two_ended
from planewise.measure.trials.silence import along, counters, nothing_arrived
from planewise.store.models import Level, TrialKind


@dataclass(frozen=True)
class LoadTrial(Trial):
    """One load trial."""

    offered_pps: float
    size_bytes: int
    duration_s: float
    kind: ClassVar[TrialKind] = "load"
    rank = 2
    key = "sweep"

    @classmethod
    def requested(cls, request: Request) -> list[Trial]:
        """One for each frame size and each load of the ladder."""
        sweep = request.design.part(cls.key, SweepPart)
        if sweep.load_types and request.cell.load_type not in sweep.load_types:
            return []
        return [
            cls(
                f"load:{request.cell.name},{levels['size_bytes']}B#r{request.block}@{offered:.0f}",
                offered,
                int(levels["size_bytes"]),
                sweep.duration_s,
            )
            for levels in request.traffic
            for offered in request.ladder
        ]

    @classmethod
    def warmup(cls, design: Design, trials: Sequence[Trial]) -> Trial | None:
        """A shorter trial with the load of the first."""
        seconds = design.part(cls.key, SweepPart).warmup_s
        if not seconds or not trials:
            return None
        return replace(cast("LoadTrial", trials[0]), name="warm-up", duration_s=seconds)

    @classmethod
    def offered(cls, design: Design) -> Iterator[tuple[str, float | str]]:
        """The ladder; an automatic one begins with an overload."""
        ladder = design.part(cls.key, SweepPart).offered_pps
        if ladder == "auto":
            yield "sweep.offered_pps: auto", "begins with a short trial in overload"
        else:
            for rate in ladder:
                yield "sweep.offered_pps", rate

    @property
    def expected_s(self) -> float:
        return self.duration_s

    def traffic(self) -> dict[str, Level]:
        return {"size_bytes": self.size_bytes}

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        """See `Trial`; fails where nothing arrives at a low load either."""
        result = self._send(station, place)
        if (counts := result.record.counts) and counts.sent and not counts.received:
            check_arrival(station, place, self.size_bytes)
        return result

    def _send(self, station: Station, place: Place) -> TrialResult:
        """Two machines, and virtual machines, each need a process of their own."""
        if station.separate or any(end.machine for end in station.ends.values()):
            return load_two_ended.measure(station, self, place)
        return load_one_process.measure(station, self, place)


SMALLEST_BYTES = {4: 64, 6: 84}
"""Of frames that hold the generator's stamps, by version of IP."""
_PROBING_PPS, _PROBING_S = 1700.0, 0.3
"""Load and duration of the trial that tells a loss of everything from a path that is broken."""


def check_arrival(station: Station, place: Place, size_bytes: int) -> None:
    """Sends a few frames of a size to the other end, where there is a path for that.

    Raises:
        PlanewiseError: none arrived; says where they were counted and how to investigate.
    """
    path = station.path
    if path is None:
        return
    size_bytes = max(size_bytes, SMALLEST_BYTES[station.ip_version])
    before = counters(station)
    probing = LoadTrial("arrival", _PROBING_PPS, size_bytes, _PROBING_S)
    counts = probing._send(station, place).record.counts
    if counts and counts.sent and not counts.received:
        destination, after = path.destination(station.ip_version), counters(station)
        raise nothing_arrived(path, destination, counts.sent, before, after, along(station))
