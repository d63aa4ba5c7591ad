"""From a design to an ordered list of visits: pure, the same for the same seed.

A *visit* is one cell in one block: its background load is started once, then its RTT and load
trials are run, each kind in random order. Within a block the cells come in a random order, and
every block holds every cell, so that drift of the machine hits all planes alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, ClassVar, Protocol, runtime_checkable

from planewise.errors import UnsupportedError
from planewise.measure.cells import Cell, CellTestbed, Traffic, expand
from planewise.measure.design import AS_IS, AllocPart, Design, Imix, Policy, Randomise
from planewise.measure.design import Protocol as RttProtocol
from planewise.measure.pattern import STEADY, bursts_of
from planewise.measure.stage import OnSample, Place, Station, Trial, TrialResult
from planewise.store.models import Level, TrialKind


@runtime_checkable
class RttStation(Protocol):
    """A station on which round-trip times can be measured."""

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Runs one RTT trial."""


@runtime_checkable
class LoadStation(Protocol):
    """A station that frames can be sent through."""

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Runs one load trial."""


@runtime_checkable
class ChainMeasurer(Protocol):
    """A station that is a chain of network functions."""

    def chain(self, trial: ChainTrial, place: Place, on_sample: OnSample, /) -> TrialResult:
        """Runs one throughput trial."""


@runtime_checkable
class TcpStation(Protocol):
    """A station on which TCP streams can be measured."""

    def tcp(self, trial: TcpTrial, place: Place, on_sample: OnSample, /) -> TrialResult:
        """Runs one TCP trial."""


@runtime_checkable
class AllocStation(Protocol):
    """A station whose guests an allocator can manage."""

    def alloc(self, trial: AllocTrial, place: Place) -> TrialResult:
        """Runs one trial of the allocator."""


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
            raise _unsupported(self.name)
        return station.rtt(self, place)


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
            raise _unsupported(self.name)
        return station.load(self, place)


@dataclass(frozen=True)
class ChainTrial:
    """One throughput trial of a chain."""

    name: str
    size_bytes: int | Imix
    duration_s: float
    warmup_s: float
    kind: ClassVar[TrialKind] = "chain"
    samples: ClassVar[bool] = True

    @property
    def expected_s(self) -> float:
        """See `Trial.expected_s`."""
        return self.warmup_s + self.duration_s

    def traffic(self) -> dict[str, Level]:
        """See `Trial.traffic`."""
        return {"size_bytes": self.size_bytes}

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        """See `Trial.measure_on`."""
        if not isinstance(station, ChainMeasurer):
            raise _unsupported(self.name)
        return station.chain(self, place, on_sample)


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
            raise _unsupported(self.name)
        return station.tcp(self, place, on_sample)


@dataclass(frozen=True)
class AllocTrial:
    """One trial of the allocator."""

    name: str
    policy: Policy
    size_bytes: int
    protocol: RttProtocol
    part: AllocPart
    draw: int
    """Seed of what is drawn at random."""
    kind: ClassVar[TrialKind] = "alloc"
    samples: ClassVar[bool] = False

    @property
    def expected_s(self) -> float:
        """See `Trial.expected_s`."""
        return self.part.warmup_s + self.part.duration_s + self.part.change_s

    def traffic(self) -> dict[str, Level]:
        """See `Trial.traffic`."""
        return {
            "policy": self.policy,
            "size_bytes": self.size_bytes,
            "protocol": self.protocol,
        }

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        """See `Trial.measure_on`."""
        if not isinstance(station, AllocStation):
            raise _unsupported(self.name)
        return station.alloc(self, place)


def _unsupported(trial: str) -> UnsupportedError:
    return UnsupportedError(f"{trial} cannot be measured on this testbed")


@dataclass(frozen=True)
class Visit:
    """One cell in one block, with its trials in the order in which they are run."""

    block: int
    cell: Cell
    trials: tuple[Trial, ...]
    warmup: tuple[Trial, ...] = ()
    """Run before the trials, and thrown away."""


@dataclass(frozen=True)
class Skipped:
    """A cell that cannot be run here, and why."""

    cell: Cell
    reason: str


@dataclass(frozen=True)
class Schedule:
    """Everything that a run will do, in order."""

    visits: tuple[Visit, ...]
    skipped: tuple[Skipped, ...]
    blocks: int
    """Blocks of the design; those that a time budget has no room for among them."""

    @property
    def trials(self) -> int:
        """How many trials there are."""
        return sum(len(visit.trials) for visit in self.visits)

    def by_block(self) -> Iterator[tuple[int, tuple[Visit, ...]]]:
        """Each block's number, from 0, and its visits in order."""
        for block, visits in groupby(self.visits, key=lambda visit: visit.block):
            yield block, tuple(visits)


def make_schedule(
    design: Design,
    ladders: Mapping[Cell, Sequence[float]],
    unavailable: Mapping[Cell, str],
) -> Schedule:
    """Expands `design` into visits.

    `ladders` has the offered loads [pps] of each cell (only read when the design has a sweep);
    `unavailable` maps a cell that cannot be run here to the reason.
    """
    cells = expand(design)
    runnable = [cell for cell in cells if cell not in unavailable]
    skipped = tuple(Skipped(cell, unavailable[cell]) for cell in cells if cell in unavailable)
    shuffler = random.Random(design.seed)
    visits = []
    for block in range(design.blocks):
        for cell in _order(runnable, design.randomise, shuffler):
            traffic = cells[cell]
            rtt_trials = _rtt_trials(design, cell, block, traffic)
            load_trials = _load_trials(design, cell, block, traffic, ladders.get(cell, ()))
            by_kind: tuple[list[Any], ...] = (
                rtt_trials,
                load_trials,
                _chain_trials(design, cell, block, traffic),
                _tcp_trials(design, cell, block, traffic),
                _alloc_trials(design, cell, block, traffic),
            )
            for trials_of_kind in by_kind:
                shuffler.shuffle(trials_of_kind)
            trials: tuple[Trial, ...] = tuple(chain.from_iterable(by_kind))
            visits.append(Visit(block, cell, trials, _warmup(design, rtt_trials, load_trials)))
    return Schedule(tuple(visits), skipped, design.blocks)


def _order(cells: Sequence[Cell], randomise: Randomise, shuffler: random.Random) -> list[Cell]:
    """A random order of the cells; with `testbeds`, those of one testbed stay together."""
    if randomise == "cells":
        order = list(cells)
        shuffler.shuffle(order)
        return order
    groups: dict[CellTestbed, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.testbed, []).append(cell)
    together = list(groups.values())
    shuffler.shuffle(together)
    for own in together:
        shuffler.shuffle(own)
    return [cell for own in together for cell in own]


def _warmup(
    design: Design, rtt_trials: Sequence[RttTrial], load_trials: Sequence[LoadTrial]
) -> tuple[RttTrial | LoadTrial, ...]:
    """One throw-away trial of each kind, with the traffic of the first."""
    warmup: list[RttTrial | LoadTrial] = []
    if design.rtt is not None and design.rtt.warmup_packets and rtt_trials:
        packets = design.rtt.warmup_packets
        warmup.append(replace(rtt_trials[0], name="warm-up", packets=packets, steady_s=0.0))
    if design.sweep is not None and design.sweep.warmup_s and load_trials:
        seconds = design.sweep.warmup_s
        warmup.append(replace(load_trials[0], name="warm-up", duration_s=seconds))
    return tuple(warmup)


def _rtt_trials(design: Design, cell: Cell, block: int, traffic: Traffic) -> list[RttTrial]:
    if design.rtt is None:
        return []
    # Cells of designs that are all steady stay comparable with those of runs from before bursts.
    varied = design.factors.pattern != (STEADY,)
    return [
        RttTrial(
            name=f"rtt:{cell.name},{one.frequency_pps:g}pps,{one.size_bytes}B,{one.protocol}"
            f"{f',{one.pattern}' if varied else ''}"
            f"{'' if one.rx_usecs == AS_IS else f',{one.rx_usecs}us'}#r{block}",
            frequency_pps=one.frequency_pps,
            size_bytes=one.size_bytes,
            packets=design.rtt.packets,
            protocol=one.protocol,
            steady_s=design.rtt.steady_s,
            guest_stamps=design.rtt.guest_stamps,
            pattern=one.pattern if varied else "",
            rx_usecs=None if one.rx_usecs == AS_IS else int(one.rx_usecs),
        )
        for one in traffic.rtt
    ]


def _load_trials(
    design: Design, cell: Cell, block: int, traffic: Traffic, ladder: Sequence[float]
) -> list[LoadTrial]:
    if design.sweep is None:
        return []
    if design.sweep.load_types and cell.load_type not in design.sweep.load_types:
        return []
    return [
        LoadTrial(
            name=f"load:{cell.name},{size}B#r{block}@{offered:.0f}",
            offered_pps=offered,
            size_bytes=size,
            duration_s=design.sweep.duration_s,
        )
        for size in traffic.load_sizes_bytes
        for offered in loads_of_block(ladder, block, design.sweep.loads_per_block)
    ]


def loads_of_block(ladder: Sequence[float], block: int, per_block: int | None) -> tuple[float, ...]:
    """The loads of a rising `ladder` that a block, counted from 0, measures: see `SweepPart`."""
    if per_block is None or len(ladder) <= per_block:
        return tuple(ladder)
    lower = len(ladder) - per_block + 1
    return (ladder[block % lower], *ladder[lower:])


def _chain_trials(design: Design, cell: Cell, block: int, traffic: Traffic) -> list[ChainTrial]:
    if design.chain is None:
        return []
    return [
        ChainTrial(
            name=f"chain:{cell.name},{size}{'' if size == 'imix' else 'B'}#r{block}",
            size_bytes=size,
            duration_s=design.chain.duration_s,
            warmup_s=design.chain.warmup_s,
        )
        for size in traffic.chain_sizes_bytes
    ]


def _tcp_trials(design: Design, cell: Cell, block: int, traffic: Traffic) -> list[TcpTrial]:
    if design.tcp is None:
        return []
    return [
        TcpTrial(
            name=f"tcp:{cell.name},{message}B#r{block}",
            message_bytes=message,
            duration_s=design.tcp.duration_s,
            warmup_s=design.tcp.warmup_s,
            streams=design.tcp.streams,
        )
        for message in traffic.tcp_messages_bytes
    ]


def _alloc_trials(design: Design, cell: Cell, block: int, traffic: Traffic) -> list[AllocTrial]:
    if design.alloc is None:
        return []
    return [
        AllocTrial(
            name=f"alloc:{cell.name},{one.policy},{one.size_bytes}B,{one.protocol}#r{block}",
            policy=one.policy,
            size_bytes=one.size_bytes,
            protocol=one.protocol,
            part=design.alloc,
            draw=design.seed + block,
        )
        for one in traffic.alloc
    ]


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
