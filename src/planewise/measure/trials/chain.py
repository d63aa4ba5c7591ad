"""Trials of chains: throughput at overload by frame size, as `measure.chains` measures it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from planewise.measure.designs.design import Design, Imix
from planewise.measure.runs.stage import OnSample, Place, Station, Trial, TrialResult
from planewise.measure.trials.kind import Kind, TrialRequest, unsupported
from planewise.store.models import Level, TrialKind


@runtime_checkable
class ChainMeasurer(Protocol):
    """A station that is a chain of network functions."""

    def chain(self, trial: ChainTrial, place: Place, on_sample: OnSample, /) -> TrialResult:
        """Runs one throughput trial."""


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
            raise unsupported(self.name)
        return station.chain(self, place, on_sample)


class Chain(Kind):
    """See `kind.Kind`."""

    rank = 3
    part = "chain"

    def trials(self, request: TrialRequest) -> list[Trial]:
        """One for each frame size."""
        chain = request.design.chain
        assert chain is not None
        sizes = [levels["size_bytes"] for levels in request.traffic]
        name, block = request.cell.name, request.block
        return [
            ChainTrial(
                name=f"chain:{name},{size}{'' if size == 'imix' else 'B'}#r{block}",
                size_bytes="imix" if size == "imix" else int(size),
                duration_s=chain.duration_s,
                warmup_s=chain.warmup_s,
            )
            for size in sizes
        ]

    def offered(self, design: Design) -> Iterator[tuple[str, float | str]]:
        """The rate that the generator is given, if any."""
        assert design.chain is not None
        rate = design.chain.offered_pps
        if rate is None:
            yield "chain", "is offered as much as its generator can"
        else:
            yield "chain.offered_pps", rate


KIND = Chain()
