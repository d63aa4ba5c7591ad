"""One stage for all kinds of guest: each kind's own is made when a cell first needs it.

To add a kind of guest, write a stage for it and name it in `FACTORIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import MappingProxyType
from typing import Self

from planewise.measure.cells import Cell
from planewise.measure.chains.stage import ChainStage
from planewise.measure.design import Design
from planewise.measure.hosts import local_stage
from planewise.measure.namespaces import NamespaceStage
from planewise.measure.stage import FactualStage, Stage, StageFacts, Station
from planewise.measure.vms import local_vms
from planewise.testbed.planes.kinds import GUEST_WORDS, GuestKind

FACTORIES: Mapping[GuestKind, Callable[[Design], Stage]] = MappingProxyType(
    {"namespace": NamespaceStage, "container": local_stage, "vm": local_vms, "process": ChainStage}
)


def _kind(cell: Cell) -> GuestKind:
    """Whose stage a cell is sent to: chains have one, whatever their functions are."""
    return "process" if cell.vnfs else cell.guest


class Stages:
    """Sends each cell to the stage of its kind of guest, or to that of chains."""

    def __init__(
        self,
        design: Design,
        factories: Mapping[GuestKind, Callable[[Design], Stage]] = FACTORIES,
    ) -> None:
        self._design = design
        self._factories = factories
        self._stages: dict[GuestKind, Stage] = {}
        self._built = ExitStack()

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""
        kinds: dict[GuestKind, list[Cell]] = {}
        for cell in cells:
            kinds.setdefault(_kind(cell), []).append(cell)
        reasons: dict[Cell, str] = {}
        for kind, own in kinds.items():
            if kind in self._factories:
                reasons |= self._stage(kind).unavailable(own)
            else:
                why = f"guests that are {GUEST_WORDS[kind][1]} cannot be started on this testbed"
                reasons |= dict.fromkeys(own, why)
        return reasons

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """The generator's own maximum [packet/s]."""
        return self._stage(_kind(cell)).max_pps(cell, size_bytes)

    def station(self, cell: Cell) -> AbstractContextManager[Station]:
        """Sets `cell` up and starts its background load."""
        return self._stage(_kind(cell)).station(cell)

    def facts(self) -> StageFacts:
        """What there is to know of the stages in use."""
        facts = [one.facts() for one in self._stages.values() if isinstance(one, FactualStage)]
        return StageFacts(
            emulated="; ".join(dict.fromkeys(one.emulated for one in facts if one.emulated)),
            differences={plane: words for one in facts for plane, words in one.differences.items()},
        )

    def _stage(self, kind: GuestKind) -> Stage:
        if kind not in self._stages:
            self._stages[kind] = self._built.enter_context(self._factories[kind](self._design))
        return self._stages[kind]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stages.clear()
        self._built.close()
