"""Kinds of trials: how a design asks for one. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design, DesignModel, Problem
from planewise.measure.station import Trial
from planewise.store.models import Level


@dataclass(frozen=True)
class TrialRequest:
    """A design's request to a kind of trial in one cell and block."""

    design: Design
    cell: Cell
    block: int
    traffic: Sequence[Mapping[str, Level]]
    """Levels of the factors of the kind's own (`Design.kinds`), one set a trial."""
    ladder: Sequence[float]
    """The cell's offered loads [packet/s]; empty without a sweep."""


class Kind(ABC):
    """A kind of trial; each file of this package that defines `KIND` has one."""

    rank: ClassVar[int]
    """Position in a visit; unique."""
    part: ClassVar[str]
    """The part of a design that asks for its trials."""
    own_part: ClassVar[type[DesignModel] | None] = None
    """Model of that part, where `Design` has no field for it: it is in `Design.others`."""

    @abstractmethod
    def trials(self, request: TrialRequest) -> list[Trial]:
        """The trials of a cell in a block, for a design that asks for this kind."""

    def warmup(self, design: Design, trials: Sequence[Trial]) -> Trial | None:
        """A trial to be discarded before `trials`, all of a visit's trials of this kind."""
        return None

    def programs(self, design: Design) -> Sequence[str]:
        """Other programs that its trials start in guests."""
        return ()

    def problem(self, design: Design) -> Problem | None:
        """What is impossible in a design, beyond what holds for all kinds."""
        return None

    @abstractmethod
    def offered(self, design: Design) -> Iterator[tuple[str, float | str]]:
        """What its trials offer: the design's key, with the packets a second, or why there is no
        bound."""
