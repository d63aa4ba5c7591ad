"""Which replicates belong together: the same block, and everything but one factor alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from planewise.judge.statistics.metrics import Observation
from planewise.store.models import Level

LOAD_FACTORS = frozenset({"load_type", "load_location", "background_guests"})
"""Factors that together make the background load; without load the others have no meaning."""
SAME = "same"
"""Level of `background_plane`: the plane of the main guests, whichever that is."""
OVERALL = "overall"
IDLE = "idle"


Key = int
"""Stands for factor levels, a block or both: equal within a `Pairing` where those are alike. It is
a number because tables of thousands of replicates look it up at every step."""

_Parts = tuple[tuple[str, Level], ...]


def level_order(levels: Iterable[Level]) -> tuple[Level, ...]:
    """Different levels: numbers by size, then names of loads and places, then other names."""
    unique = set(levels)
    numbers = sorted(level for level in unique if not isinstance(level, str))
    names = sorted(level for level in unique if isinstance(level, str))
    return (*numbers, *sorted(names, key=lambda name: _USUAL.get(name, len(_USUAL))))


_USUAL = {
    name: place
    for place, name in enumerate(
        (IDLE, "none", "cpu", "network", "cache", "memory", "sender", "responder")
    )
}
"""Names that have a usual order."""


def is_idle(cell: Mapping[str, Level]) -> bool:
    """Whether no load is put on the hosts; its location has then no meaning."""
    return cell.get("load_type", "none") == "none"


def stratum_of(cell: Mapping[str, Level], by: str) -> str:
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
    for name in ("load_location", "load_type"):
        loaded = {
            observation.cell[name]
            for observation in observations
            if name in observation.cell and not is_idle(observation.cell)
        }
        if name != factor and len(loaded) > 1:
            return name
    if (
        factor != "load_type"
        and len({stratum_of(observation.cell, "load_type") for observation in observations}) > 1
    ):
        return "load_type"
    return ""


class Pairing:
    """The keys of replicates: equal keys, different levels of the factor make a pair."""

    def __init__(
        self,
        observations: Collection[Observation],
        factor: str,
        by: str,
        run_factors: Collection[str] = (),
    ) -> None:
        """`by`: the factor whose levels are the strata; empty for none."""
        self.factor, self.by = factor, by
        self._across_runs = factor in run_factors
        self._left_out = {factor, *(run_factors if self._across_runs else ())}
        self._loads = {
            _load_of(observation.cell)
            for observation in observations
            if not is_idle(observation.cell)
        }
        self._backgrounds = _Backgrounds(observation.cell for observation in observations)
        self.stratum: dict[Key, str] = {}
        self.context: dict[Key, Key] = {}
        """By key: what a pair has alike beside its block."""
        self.block: dict[Key, Key] = {}
        """By key: run and block."""
        self._numbers: dict[_Parts, Key] = {}
        self._contexts: dict[_Parts, _Parts] = {}
        self._places: dict[tuple[Key, str, int], Key] = {}
        self.keys = {id(observation): self._keys(observation) for observation in observations}
        """By identity of the observation: its keys (several where it stands for several cells)."""
        runs: dict[str, int] = {}
        places: dict[Key, tuple[int, int]] = {}
        self._members: dict[Key, set[tuple[str, int]]] = defaultdict(set)
        for observation in observations:
            run = runs.setdefault(observation.run, len(runs))
            for key in self.keys[id(observation)]:
                places[self.block[key]] = (run, observation.block)
                self._members[self.block[key]].add((observation.run, observation.block))
        self.blocks = tuple(sorted(places, key=lambda block: places[block]))
        """In the order in which they were run: run by run as given, then by number."""
        present = level_order(_number(name) for name in set(self.stratum.values()) if by)
        names = tuple(str(part) for part in present)
        self.strata = (*names, OVERALL) if len(names) > 1 else (OVERALL,)
        """`overall` last."""

    def stage(self, block: Key, ends: Mapping[str, Sequence[int]]) -> int:
        """How often its run had come to an end, by the numbers of blocks in `ends`, before it."""
        return max(
            sum(end <= number for end in ends.get(run, ())) for run, number in self._members[block]
        )

    def is_in(self, key: Key, stratum: str) -> bool:
        """Whether the replicates of this key count in the stratum."""
        return stratum == OVERALL or self.stratum[key] == stratum

    def _keys(self, observation: Observation) -> tuple[Key, ...]:
        cells = _standing_for(observation.cell, self.factor, self._loads)
        return tuple(
            self._key(observation, alike)
            for cell in cells
            for alike in self._backgrounds.standing_for(cell, self.factor)
        )

    def _key(self, observation: Observation, cell: Mapping[str, Level]) -> Key:
        """Everything but the factor; also notes the key's unit and stratum."""
        items = tuple(cell.items())
        context = self._contexts.get(items)
        if context is None:
            context = self._contexts[items] = self._context(cell)
        number = self._number(context)
        run = "" if self._across_runs else observation.run
        key = self._places.get((number, run, observation.block))
        if key is None:
            block: _Parts = (("#block", observation.block),)
            if not self._across_runs:
                block = (("#run", run), *block)
            parts = (*context, *block)
            key = self._places[number, run, observation.block] = self._number(parts)
            self.stratum[key] = self._stratum_of(cell)
            self.context[key] = number
            self.block[key] = self._number(block)
        return key

    def _number(self, parts: _Parts) -> Key:
        return self._numbers.setdefault(parts, len(self._numbers))

    def _context(self, cell: Mapping[str, Level]) -> _Parts:
        placeless = is_idle(cell) and self.factor != "load_type"
        left_out = self._left_out | ({"load_location"} if placeless else set())
        return tuple(sorted((n, v) for n, v in cell.items() if n not in left_out))

    def _stratum_of(self, cell: Mapping[str, Level]) -> str:
        if not self.by:
            return OVERALL
        if self.factor == "load_type":  # the cell without load stands at every location
            return str(cell.get(self.by, "none"))
        return stratum_of(cell, self.by)


def _number(name: str) -> Level:
    """A stratum's name as a number where it is one, so that 8 comes before 32."""
    try:
        return int(name)
    except ValueError:
        return name


class _Backgrounds:
    """The plane of the background guests: `same`, or by name, which may be the same one."""

    def __init__(self, cells: Iterable[Mapping[str, Level]]) -> None:
        self._alone: set[Level] = set()
        """Planes on which all guests are in some cell."""
        self._beside: set[Level] = set()
        """Planes on which background guests are beside main guests on another."""
        for cell in cells:
            if "background_plane" in cell and "plane" in cell:
                if _all_on_one(cell):
                    self._alone.add(cell["plane"])
                else:
                    self._beside.add(cell["background_plane"])

    def standing_for(self, cell: Mapping[str, Level], factor: str) -> list[Mapping[str, Level]]:
        """The cells whose partner it can be when `factor` is compared.

        With all guests on `bridge` it is the partner of all guests on `vf`, and of main guests on
        `vf` with the others on `bridge`.
        """
        if factor == "background_plane" or not _all_on_one(cell):
            return [cell]
        plane = cell["plane"]
        levels = [SAME]
        if factor == "plane" and plane in self._beside:
            levels = [SAME, str(plane)] if len(self._alone) > 1 else [str(plane)]
        return [{**cell, "background_plane": level} for level in levels]


def _all_on_one(cell: Mapping[str, Level]) -> bool:
    return "plane" in cell and cell.get("background_plane") in (SAME, cell["plane"])


Load = tuple[Level, Level, Level]
"""Load type, its location, number of background guests."""


def _load_of(cell: Mapping[str, Level]) -> Load:
    return (
        cell.get("load_type", "none"),
        cell.get("load_location", "none"),
        cell.get("background_guests", 0),
    )


def _standing_for(
    cell: Mapping[str, Level], factor: str, loads: Collection[Load]
) -> list[Mapping[str, Level]]:
    """The cells whose partner a replicate can be: itself, and without load more than that.

    Where the parts of a load are compared, the cell without load is the zero of each of them: a
    design has it once, whatever the location and, without guests, whatever type and number.
    """
    if factor not in ("load_type", "background_guests") or not is_idle(cell):
        return [cell]
    guests = cell.get("background_guests", 0)
    cell_of: dict[Load, Mapping[str, Level]] = {}
    for load_type, location, number in loads:
        if factor == "load_type" and guests in (0, number):
            cell_of[load_type, location, number] = {
                **cell,
                "load_location": location,
                "background_guests": number,
            }
        elif factor == "background_guests" and guests == 0:
            cell_of[load_type, location, 0] = {
                **cell,
                "load_type": load_type,
                "load_location": location,
            }
    if factor == "load_type":
        return list(cell_of.values()) or [cell]
    return [cell, *cell_of.values()]
