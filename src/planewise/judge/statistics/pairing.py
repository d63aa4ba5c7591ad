"""Which replicates belong together: the same block, and everything but one factor alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from planewise.judge.statistics.flips import Mask
from planewise.judge.statistics.metrics import Observation
from planewise.store.cells import SAME
from planewise.store.models import Level

LOAD_FACTORS = frozenset({"load_type", "load_location", "background_guests"})
"""Factors that together make the background load; without load the others have no meaning."""
OVERALL = "overall"
IDLE = "idle"

Cell = Mapping[str, Level]
Place = tuple[int, int]
"""Numbers of a block, and of a context: what replicates have alike beside their block."""

_USUAL = {
    name: place
    for place, name in enumerate(
        (IDLE, "none", "cpu", "network", "cache", "memory", "sender", "responder")
    )
}
"""Names that have a usual order."""


def level_order(levels: Iterable[Level]) -> tuple[Level, ...]:
    """Different levels: numbers by size, then names of loads and places, then other names."""
    unique = set(levels)
    numbers = sorted(level for level in unique if not isinstance(level, str))
    names = sorted(level for level in unique if isinstance(level, str))
    return (*numbers, *sorted(names, key=lambda name: _USUAL.get(name, len(_USUAL))))


def is_idle(cell: Cell) -> bool:
    """Whether no load is put on the hosts; its location has then no meaning."""
    return cell.get("load_type", "none") == "none"


def stratum_of(cell: Cell, by: str) -> str:
    """The name of the cell's level of `by`, `idle` where a load factor has no meaning.

    `load` stands for all that makes the background load.
    """
    if by in ("load", "load_location", "load_type") and is_idle(cell):
        return IDLE
    if by == "load":
        guests = cell.get("background_guests")
        return f"{cell['load_type']} load at {cell.get('load_location', 'its host')}" + (
            f" by {guests} guests" if guests is not None else ""
        )
    return str(cell.get(by, "none"))


def default_by(observations: Collection[Observation], factor: str) -> str:
    """The load's location where there are several, else its type where there are several."""
    cells = [observation.cell for observation in observations]
    for name in ("load_location", "load_type"):
        loaded = {cell[name] for cell in cells if name in cell and not is_idle(cell)}
        if name != factor and len(loaded) > 1:
            return name
    types = {stratum_of(cell, "load_type") for cell in cells}
    return "load_type" if factor != "load_type" and len(types) > 1 else ""


class Pairing:
    """Where replicates stand: those of one place, at different levels of the factor, are a pair."""

    def __init__(
        self,
        observations: Collection[Observation],
        factor: str,
        by: str,
        run_factors: Collection[str] = (),
    ) -> None:
        """`by`: the factor whose levels are the strata; empty for none. Where one of `run_factors`
        is compared, a block holds what several runs measured in it."""
        across = factor in run_factors
        members: dict[tuple[str, int], set[str]] = defaultdict(set)
        for one in observations:
            members["" if across else one.run, one.block].add(one.run)
        runs = list(dict.fromkeys(["", *(one.run for one in observations)]))
        self._members = sorted(members.items(), key=lambda item: (runs.index(item[0][0]), item[0]))
        numbers = {block: number for number, (block, _) in enumerate(self._members)}
        left_out = {factor, *(run_factors if across else ())}
        stand_ins = _stand_ins([one.cell for one in observations], factor)
        contexts: dict[tuple[tuple[str, Level], ...], int] = {}
        strata: list[str] = []

        def context(cell: Cell) -> int:
            placeless = is_idle(cell) and factor != "load_type"
            parts = tuple(
                sorted(
                    (name, level)
                    for name, level in cell.items()
                    if name not in left_out and not (placeless and name == "load_location")
                )
            )
            if parts not in contexts:
                # Where loads are compared, the cell without load stands at every location.
                of = str(cell.get(by, "none")) if factor == "load_type" else stratum_of(cell, by)
                strata.append(of if by else OVERALL)
            return contexts.setdefault(parts, len(contexts))

        of_cell: dict[tuple[tuple[str, Level], ...], list[int]] = {}
        self.places: dict[int, list[Place]] = {}
        """By identity of the observation; several places where it stands for several cells."""
        for one in observations:
            items = tuple(one.cell.items())
            if items not in of_cell:
                of_cell[items] = [context(cell) for cell in stand_ins(one.cell)]
            block = numbers["" if across else one.run, one.block]
            self.places[id(one)] = [(block, number) for number in of_cell[items]]
        present = level_order(_number(name) for name in set(strata) if by)
        names = [str(part) for part in present] if len(present) > 1 else []
        self.within: dict[str, Mask] = {
            **{name: np.array(strata, dtype=str) == name for name in names},
            OVERALL: np.ones(len(strata), dtype=np.bool_),
        }
        """Which contexts count in a stratum, shape (contexts,); `overall` last."""
        self.shape = len(self._members), len(strata)
        """Numbers of blocks, in the order in which they were run, and of contexts."""

    def stages(self, ends: Mapping[str, Sequence[int]]) -> NDArray[np.intp]:
        """How often the run of each block had ended before it, by the numbers of blocks in `ends`.

        Shape (blocks,).
        """
        return np.array(
            [
                max(sum(end <= number for end in ends.get(run, ())) for run in members)
                for (_, number), members in self._members
            ],
            dtype=np.intp,
        )


def _number(name: str) -> Level:
    """A stratum's name as a number where it is one, so that 8 comes before 32."""
    try:
        return int(name)
    except ValueError:
        return name


def _stand_ins(cells: Collection[Cell], factor: str) -> Callable[[Cell], list[Cell]]:
    """The cells whose partner a replicate of a cell can be when `factor` is compared.

    Without load it is the zero of each part of a load: a design has it once, whatever the location
    and, without guests, whatever type and number. With all guests on `bridge` it is the partner of
    all guests on `vf`, and of main guests on `vf` with the others on `bridge`.
    """
    loads = _different(
        {name: cell.get(name, default) for name, default in _PARTS.items()}
        for cell in cells
        if not is_idle(cell)
    )
    mixed = {
        cell["background_plane"]
        for cell in cells
        if "background_plane" in cell and "plane" in cell and not _all_on_one(cell)
    }
    several = len({cell["plane"] for cell in cells if _all_on_one(cell)}) > 1

    def of_load(cell: Cell) -> list[Cell]:
        guests = cell.get("background_guests", 0)
        if not loads or not is_idle(cell):
            return [cell]
        if factor == "load_type":
            fitting = [
                {**cell, **load, "load_type": cell.get("load_type", "none")}
                for load in loads
                if guests in (0, load["background_guests"])
            ]
            return _different(fitting) or [cell]
        if factor == "background_guests" and guests == 0:
            return [cell, *_different([{**cell, **load, factor: 0} for load in loads])]
        return [cell]

    def of_background(cell: Cell) -> list[Cell]:
        if factor == "background_plane" or not _all_on_one(cell):
            return [cell]
        levels: list[Level] = [SAME]
        if factor == "plane" and cell["plane"] in mixed:
            levels = [SAME, cell["plane"]] if several else [cell["plane"]]
        return [{**cell, "background_plane": level} for level in levels]

    return lambda cell: [alike for one in of_load(cell) for alike in of_background(one)]


_PARTS: Mapping[str, Level] = {"load_type": "none", "load_location": "none", "background_guests": 0}
"""What makes a load, with the level of a cell that does not say it."""


def _different(cells: Iterable[Cell]) -> list[Cell]:
    return list({tuple(sorted(cell.items())): cell for cell in cells}.values())


def _all_on_one(cell: Cell) -> bool:
    return "plane" in cell and cell.get("background_plane") in (SAME, cell["plane"])
