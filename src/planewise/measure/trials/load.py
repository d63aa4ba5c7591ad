"""Load trials: loss at one offered load and frame size, as `measure.trials.frames` measures it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, cast, runtime_checkable

from planewise.measure.designs.design import Design
from planewise.measure.runs.stage import OnSample, Place, Station, Trial, TrialResult
from planewise.measure.trials.kind import Kind, TrialRequest, unsupported
from planewise.store.models import Level, TrialKind


@runtime_checkable
class LoadStation(Protocol):
    """A station that frames can be sent through."""

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Runs one load trial."""


@dataclass(frozen=True)
class LoadTrial:
    """One load trial to run."""

    name: str
    offered_pps: float
    size_bytes: int
    duration_s: float
    kind: ClassVar[TrialKind] = "load"
    samples: ClassVar[bool] = False

    @property
    def expected_s(self) -> float:
        """See `Trial.expected_s`."""
        return self.duration_s

    def traffic(self) -> dict[str, Level]:
        """See `Trial.traffic`."""
        return {"size_bytes": self.size_bytes}

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        """See `Trial.measure_on`."""
        if not isinstance(station, LoadStation):
            raise unsupported(self.name)
        return station.load(self, place)


class Load(Kind):
    """See `kind.Kind`."""

    rank = 2
    part = "sweep"

    def trials(self, request: TrialRequest) -> list[Trial]:
        """One for each frame size and load of the ladder that is the block's."""
        sweep, name, block = request.design.sweep, request.cell.name, request.block
        assert sweep is not None
        if sweep.load_types and request.cell.load_type not in sweep.load_types:
            return []
        return [
            LoadTrial(
                name=f"load:{name},{levels['size_bytes']}B#r{block}@{offered:.0f}",
                offered_pps=offered,
                size_bytes=int(levels["size_bytes"]),
                duration_s=sweep.duration_s,
            )
            for levels in request.traffic
            for offered in loads_of_block(request.ladder, block, sweep.loads_per_block)
        ]

    def warmup(self, design: Design, trials: Sequence[Trial]) -> Trial | None:
        """A shorter trial, with the load of the first."""
        assert design.sweep is not None
        seconds = design.sweep.warmup_s
        if not seconds or not trials:
            return None
        return replace(cast("LoadTrial", trials[0]), name="warm-up", duration_s=seconds)

    def offered(self, design: Design) -> Iterator[tuple[str, float | str]]:
        """The ladder; one that is sought begins with an overload."""
        assert design.sweep is not None
        ladder = design.sweep.offered_pps
        if ladder == "auto":
            yield "sweep.offered_pps: auto", "begins with a short trial in overload"
        else:
            for rate in ladder:
                yield "sweep.offered_pps", rate


def loads_of_block(ladder: Sequence[float], block: int, per_block: int | None) -> tuple[float, ...]:
    """The loads of a rising `ladder` that a block, counted from 0, measures: see `SweepPart`."""
    if per_block is None or len(ladder) <= per_block:
        return tuple(ladder)
    lower = len(ladder) - per_block + 1
    return (ladder[block % lower], *ladder[lower:])


# Where a ladder's steps lie, as shares of the rate that an overload trial forwarded: the low ones
# show loss that begins early, the dense ones find the knee, the high ones tell whether throughput
# then stays (GOOD), creeps on, or falls (PASTRAMI, section 4).
_LADDER_LOW, _LADDER_HIGH = 0.3, 1.6


def ladder_around(forwarded_pps: float, loads: int, max_pps: float) -> tuple[float, ...]:
    """`loads` offered loads [pps] around the rate that an overload trial forwarded.

    Evenly spaced, so that no TIR is taken between loads that are almost the same; none above
    `max_pps`. Cut to two digits (three where they would meet), so that a person can read them.
    """
    low = min(_LADDER_LOW * forwarded_pps, max_pps)
    high = min(_LADDER_HIGH * forwarded_pps, max_pps)
    steps = [low + (high - low) * place / (loads - 1) for place in range(loads)]
    for digits in (2, 3):
        ladder = {max(1.0, _cut(step, digits)) for step in steps}
        if len(ladder) == loads:
            break
    return tuple(sorted(ladder))


# A verdict needs the two loads around PDR to be 10 % apart at most, one far beyond it, and loads
# from a third of PDR on, no further apart than a fifth of it (docs/concepts/verdict.md).
_STEP_AT_PDR = 1.09
_BEYOND_PDR = 1.7


def ladder_at_pdr(pdr_pps: float, loads: int, per_block: int, max_pps: float) -> tuple[float, ...]:
    """`loads` offered loads [pps] by which headroom is decided, where pilots put PDR at `pdr_pps`.

    `per_block` - 2 of them are dense around PDR, one lies far beyond it, and the others show that
    nothing is lost below. None is above `max_pps`. Cut to three digits.
    """
    near = per_block - 2
    around = [pdr_pps * _STEP_AT_PDR ** (step - near / 2 + 0.3) for step in range(near)]
    lower = loads - near - 1
    lowest = around[0] / 3
    below = [lowest + (around[0] - lowest) * step / lower for step in range(lower)]
    steps = (*below, *around, _BEYOND_PDR * pdr_pps)
    return tuple(sorted({max(1.0, _cut(min(step, max_pps), 3)) for step in steps}))


def _cut(value: float, digits: int) -> float:
    """`value` with all but its first `digits` digits made zero; never more than `value`."""
    size = 10.0 ** (math.floor(math.log10(value)) - digits + 1) if value > 0 else 1.0
    return math.floor(value / size + 1e-9) * size


KIND = Load()
