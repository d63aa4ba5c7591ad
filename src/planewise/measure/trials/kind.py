"""Kinds of trials: everything about one that a design decides. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from planewise.errors import UnsupportedError
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design, DesignModel
from planewise.measure.designs.problem import Problem
from planewise.measure.runs.stage import Trial
from planewise.store.models import Level

Levels = Mapping[str, Level]
"""Of the factors that a kind's trials alone have (`Design.kinds`), one each."""


@dataclass(frozen=True)
class TrialRequest:
    """What a design asks of a kind of trial in one cell and block."""

    design: Design
    cell: Cell
    block: int
    traffic: Sequence[Levels]
    ladder: Sequence[float]
    """The cell's offered loads [packet/s]; empty without a sweep."""


class Kind(ABC):
    """A kind of trial; each file of this package that defines `KIND` has one."""

    rank: ClassVar[int]
    """In which order the kinds are measured in a visit; no two have the same."""
    part: ClassVar[str]
    """The part of a design that asks for its trials."""
    own_part: ClassVar[type[DesignModel] | None] = None
    """What that part may hold, where `Design` has no field for it: it is in `Design.others`."""

    @abstractmethod
    def trials(self, request: TrialRequest) -> list[Trial]:
        """The trials of a cell in a block, of a design that asks for this kind."""

    def warmup(self, design: Design, trials: Sequence[Trial]) -> Trial | None:
        """A trial to be thrown away before `trials`, which are all that a visit has of the kind."""
        return None

    def programs(self, design: Design) -> Sequence[str]:
        """Others' programs that its trials start in guests, for a design that asks for it."""
        return ()

    def problem(self, design: Design) -> Problem | None:
        """What is impossible in a design that asks for it, beyond what holds for all kinds."""
        return None

    @abstractmethod
    def offered(self, design: Design) -> Iterator[tuple[str, float | str]]:
        """What its trials offer, for a design that asks for it: the key of the design that says so,
        with the packets a second, or why these have no bound."""


def unsupported(trial: str) -> UnsupportedError:
    """What a trial raises on a station that cannot measure it."""
    return UnsupportedError(f"{trial} cannot be measured on this testbed")
