"""Trials of chains: throughput of all functions at overload, by frame size."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from planewise.errors import PlanewiseError
from planewise.measure.designs.design import ChainPart, Design, Imix
from planewise.measure.station import OnSample, Place, Request, Station, Trial, TrialResult
from planewise.measure.trials.chain_readings import ReadingDelta, counts, kpi, result
from planewise.store.models import FrameAccount, Level, Limit, OfferedLoad, TrialKind, TrialRecord
from planewise.testbed.chains.model import mean_bytes

if TYPE_CHECKING:
    from planewise.testbed.chains.built import BuiltChain

SAMPLE_S = 1.0
"""Time between two readings of the counters."""

_MIX_OFF = 0.1
"""Relative error of the mean frame size from which a mix gets a warning."""
_POLL_S = 0.02
_SHARE = 0.1
"""Largest share of time that goes into reading counters: a slow host is read less often."""

_LIMITS: Mapping[Limit, tuple[Limit, ...]] = MappingProxyType(
    {
        "generator": ("generator",),
        "PMD core": ("sut",),
        "VNF core": ("sut",),
        "kernel": ("sut",),
        "NIC": ("sut",),
        "uplink": ("generator",),
    }
)
"""`limits` of the trial record. A shared core is a limit of the machine, not of the chain."""


@dataclass(frozen=True)
class ChainTrial(Trial):
    """One throughput trial of a chain."""

    size_bytes: int | Imix
    duration_s: float
    warmup_s: float
    kind: ClassVar[TrialKind] = "chain"
    rank = 3
    key = "chain"
    samples = True

    @classmethod
    def requested(cls, request: Request) -> list[Trial]:
        """One for each frame size."""
        part, trials = request.design.part(cls.key, ChainPart), list[Trial]()
        for levels in request.traffic:
            size = levels["size_bytes"]
            imix = size == "imix"
            name = f"chain:{request.cell.name},{size}{'' if imix else 'B'}#r{request.block}"
            size_bytes: int | Imix = "imix" if imix else int(size)
            trials.append(cls(name, size_bytes, part.duration_s, part.warmup_s))
        return trials

    @classmethod
    def offered(cls, design: Design) -> Iterator[tuple[str, float | str]]:
        """The rate that the generator is given, if any."""
        rate = design.part(cls.key, ChainPart).offered_pps
        if rate is None:
            yield "chain", "is offered all that its generator can send"
        else:
            yield "chain.offered_pps", rate

    @property
    def expected_s(self) -> float:
        return self.warmup_s + self.duration_s

    def traffic(self) -> dict[str, Level]:
        return {"size_bytes": self.size_bytes}

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        testbed = station.chain
        assert testbed is not None
        testbed.start(self.size_bytes, self.warmup_s + self.duration_s + 2 * station.slack_s)
        try:
            _await_traffic(testbed, station.slack_s)
            _wait(self.warmup_s)
            started = datetime.now(UTC)
            began_s = time.monotonic()
            first = previous = testbed.read()
            # The trial lasts from one reading to another, whose clock may be another host's.
            now_s = time.monotonic()
            pause_s = max(SAMPLE_S, (now_s - began_s) / _SHARE)
            end_s = now_s + self.duration_s
            last = False
            while not last:
                left_s = end_s - time.monotonic()
                _wait(min(pause_s, left_s))
                last = left_s <= pause_s
                reading = testbed.read(busy=last)
                interval = ReadingDelta.of(previous, reading)
                on_sample(kpi(interval, datetime.now(UTC), place.trial, place.cell))
                previous = reading
        finally:
            frames = testbed.stop()
        record = _record(ReadingDelta.of(first, reading), self, place, testbed, started, frames)
        return TrialResult(record)


def _await_traffic(testbed: BuiltChain, slack_s: float) -> None:
    """Waits until every function has transmitted: starting may take long on a busy machine."""
    initial = testbed.read(busy=False).vnfs
    deadline = time.monotonic() + slack_s
    while True:
        current = testbed.read(busy=False).vnfs
        silent = [name for name in current if current[name].packets == initial[name].packets]
        if not silent:
            return
        if time.monotonic() > deadline:
            raise PlanewiseError(
                f"{silent[0]} transmitted nothing within {slack_s:g} s",
                remedy="stop other work on the machine, and try again",
            )
        time.sleep(_POLL_S)


def _wait(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


def _record(
    delta: ReadingDelta,
    trial: ChainTrial,
    place: Place,
    testbed: BuiltChain,
    started: datetime,
    frames: FrameAccount | None,
) -> TrialRecord:
    size = mean_bytes(trial.size_bytes)
    chain = result(delta, testbed.placement, size, frames)
    if not chain.tx_pps:
        raise PlanewiseError(
            "no function of the chain transmitted a packet",
            remedy="stop other work on the machine, and try again",
        )
    warnings = list(testbed.remarks)
    if trial.size_bytes == "imix" and abs(chain.frame_bytes / size - 1) > _MIX_OFF:
        warnings.append(
            f"functions sent frames of {chain.frame_bytes:.0f} bytes on average, and the mix has "
            f"{size:.0f}: not all sizes got through equally"
        )
    return TrialRecord(
        warnings=tuple(warnings),
        **place.fields,
        kind="chain",
        started=started,
        duration_s=delta.seconds,
        load=OfferedLoad(
            intended_pps=chain.offered_pps,
            achieved_pps=chain.offered_pps,
            size_bytes=round(size),
        ),
        counts=counts(delta),
        chain=chain,
        limits=_LIMITS.get(chain.limit, ()),
    )
