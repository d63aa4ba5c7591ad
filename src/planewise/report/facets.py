"""Placement of the factors of many cells: one along the axis, a panel for each of the others.

As in publications K and D: background guests lie along the axis, planes are colours, and loads,
frequencies and further factors make panels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from planewise.store.cells import (
    FACTORS,
    LOAD_FACTORS,
    NAMES,
    Factors,
    Naming,
    level_rank,
    level_words,
    rank,
    short,
)
from planewise.store.models import Level

C = TypeVar("C")

_FEW_CONTEXTS, _MOST_CONTEXTS = 3, 6
"""So few conditions always get a panel each; so many at most, where guests and rates are fixed."""
_ALONG = ("background_guests", "frequency_pps", "size_bytes")
"""Factors for the axis, in order of preference."""


@dataclass(frozen=True)
class Item(Generic[C]):
    """Content of a figure at one series and one combination of levels."""

    series: str
    factors: Factors
    content: C


@dataclass(frozen=True)
class Row(Generic[C]):
    """An item in a panel."""

    series: str
    band: str
    """Its level along the axis; empty without one."""
    item: Item[C]

    @property
    def label(self) -> str:
        """The name of the row: `veth`, or `veth, 8` at a level."""
        return f"{self.series}, {self.band}" if self.band else self.series


@dataclass(frozen=True)
class Panel(Generic[C]):
    """One combination of levels, with its items by level along the axis, then by series."""

    label: str
    rows: tuple[Row[C], ...]


def contents(panels: Sequence[Panel[C]]) -> list[C]:
    """What the panels hold, each once."""
    return list({id(row.item.content): row.item.content for p in panels for row in p.rows}.values())


@dataclass(frozen=True)
class Facets(Generic[C]):
    """All items of a figure in panels."""

    axis: str
    """Name of the factor along the axis; empty where each condition has a panel."""
    panels: tuple[Panel[C], ...]
    shared_idle: bool
    """Whether a measurement without background guests is shown in several panels."""


def split(items: Sequence[Item[C]], naming: Naming, along: str | None = None) -> Facets[C]:
    """The items in panels, which together show every one; `along` sets the factor of the axis."""
    levels = _levels(items)
    varying = [name for name, of_name in levels.items() if len(of_name) > 1]
    along = along or _along(items, varying, levels)
    others = [name for name in varying if name != along]
    keys = {id(item): _key(item, others) for item in items}
    distinct = set(keys.values())
    # A cell that lacks a factor, as one without background guests its load, is shown at each level.
    whole = [key for key in distinct if not any(set(key) < set(other) for other in distinct)]
    panels = []
    for key in sorted(whole, key=rank):
        shown = [item for item in items if set(keys[id(item)]) <= set(key)]
        label = ", ".join(level_words(name, level) for name, level in key)
        panels.append(Panel(label, tuple(_rows(shown, along, naming))))
    axis = NAMES.get(along, along.replace("_", " ")) if along else ""
    return Facets(axis, tuple(panels), len(distinct) > len(whole))


def _rows(items: Sequence[Item[C]], along: str | None, naming: Naming) -> Iterator[Row[C]]:
    def level(item: Item[C]) -> Level:
        return dict(item.factors).get(along or "", "")

    for item in sorted(items, key=lambda item: level_rank(level(item))):
        for series in naming.like(item.series):
            yield Row(series, short(along, level(item)) if along else "", item)


def _along(
    items: Sequence[Item[C]], varying: Sequence[str], levels: dict[str, set[Level]]
) -> str | None:
    numeric = [n for n in varying if all(isinstance(level, int | float) for level in levels[n])]
    preferred = [n for n in (*_ALONG, *numeric, "load_type", *varying) if n in varying]
    contexts = len({item.factors for item in items})
    if contexts <= _FEW_CONTEXTS or not preferred:
        return None
    if contexts <= _MOST_CONTEXTS and preferred[0] not in _ALONG[:2]:
        return None
    return preferred[0]


def _key(item: Item[C], names: Sequence[str]) -> Factors:
    idle = ("background_guests", 0) in item.factors
    return tuple(
        pair for pair in item.factors if pair[0] in names and not (idle and pair[0] in LOAD_FACTORS)
    )


def _levels(items: Iterable[Item[C]]) -> dict[str, set[Level]]:
    """Levels of each factor; those of the load only from cells with background guests, if any."""
    by_factor: dict[str, set[Level]] = {}
    idle: dict[str, set[Level]] = {}
    for item in items:
        for name, level in item.factors:
            aside = ("background_guests", 0) in item.factors and name in LOAD_FACTORS
            (idle if aside else by_factor).setdefault(name, set()).add(level)
    for name, of_name in idle.items():
        by_factor.setdefault(name, of_name)
    order = [name for name in FACTORS if name in by_factor]
    return {name: by_factor[name] for name in (*order, *sorted(set(by_factor) - set(order)))}
