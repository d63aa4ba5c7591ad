"""Placement of factors in figures of many cells: pages, rows, columns, bands. Draws nothing.

As in publications K and D: background guests along the axis, a row a load, a column a frequency, a
colour a plane, and a figure for each combination of the remaining factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Generic, TypeVar

from planewise.store.cells import (
    FACTORS,
    LOAD_FACTORS,
    NAMES,
    Factors,
    Naming,
    level_rank,
    level_words,
    short,
)
from planewise.store.models import Level

C = TypeVar("C")

_MOST_COLUMNS = 3
_MOST_ROWS = 4
_ALONG = ("background_guests", "frequency_pps", "size_bytes")
"""Factors for the axis, in order of preference."""
_ACROSS = (
    "frequency_pps",
    "pattern",
    "size_bytes",
    "protocol",
    "rx_usecs",
    "path",
    "guest",
    "load_location",
)
"""Factors for columns, in order of preference."""


@dataclass(frozen=True)
class Item(Generic[C]):
    """Content of a figure at one series and one combination of levels."""

    series: str
    factors: Factors
    content: C


@dataclass(frozen=True)
class Facets:
    """Placement of each factor that varies."""

    along: str | None
    """The factor along the axis; None where only the plane varies."""
    rows: tuple[str, ...]
    columns: str | None
    pages: tuple[str, ...]


@dataclass(frozen=True)
class Band(Generic[C]):
    """One level on the axis, with its items by series."""

    label: str
    items: Mapping[str, Item[C]]


@dataclass(frozen=True)
class Panel(Generic[C]):
    """A small multiple."""

    label: str
    bands: tuple[Band[C], ...]


@dataclass(frozen=True)
class FacetPage(Generic[C]):
    """A figure of small multiples."""

    label: str
    """Levels of this page that differ from other pages; empty for a single page."""
    axis: str
    """Title of the axis of every panel."""
    series: tuple[str, ...]
    panels: tuple[tuple[Panel[C], ...], ...]
    """By row."""
    items: tuple[Item[C], ...]
    """All items of the page, each once."""
    shared_idle: bool
    """Whether a measurement without background guests is shown in several panels."""


def choose(items: Sequence[Item[C]], *, rows: Sequence[str] = ()) -> Facets:
    """Places the factors of `items`; factors in `rows` always become rows."""
    levels = _levels(items)
    varying = [name for name, name_levels in levels.items() if len(name_levels) > 1]
    numeric = [
        name for name in varying if all(isinstance(level, int | float) for level in levels[name])
    ]
    preferred = [name for name in (*_ALONG, *numeric, "load_type", *varying) if name in varying]
    along = next((name for name in preferred if name not in rows), None)
    remaining = [name for name in varying if name != along]
    row_factors = [name for name in rows if name in remaining]
    if "load_type" in remaining and "load_type" not in row_factors:
        row_factors.append("load_type")
    remaining = [name for name in remaining if name not in row_factors]
    few = [name for name in remaining if len(levels[name]) <= _MOST_COLUMNS]
    columns = next((name for name in (*_ACROSS, *few) if name in few), None)
    remaining = [name for name in remaining if name != columns]
    if not row_factors and remaining and len(levels[remaining[0]]) <= _MOST_ROWS:
        row_factors.append(remaining.pop(0))
    return Facets(along, tuple(row_factors), columns, tuple(remaining))


def pages(
    items: Sequence[Item[C]], naming: Naming, *, rows: Sequence[str] = ()
) -> list[FacetPage[C]]:
    """Figures of small multiples, which together show every item."""
    if not items:
        return []
    facets = choose(items, rows=rows)
    levels = _levels(items)
    series = tuple(dict.fromkeys(label for item in items for label in naming.like(item.series)))
    result = []
    # The least important factors vary slowest, so that the first figures are the main ones.
    for page_levels in _combinations(facets.pages[::-1], levels):
        page_levels = {name: page_levels[name] for name in facets.pages}
        page_items = [item for item in items if _shows(item.factors, page_levels)]
        bands = tuple(
            label
            for label in series
            if any(label in naming.like(item.series) for item in page_items)
        )
        grid = []
        shown: list[Item[C]] = []
        for row_levels in _combinations(facets.rows, levels):
            row = []
            for column_levels in _combinations((facets.columns,) if facets.columns else (), levels):
                at = row_levels | column_levels
                panel_items = [item for item in page_items if _shows(item.factors, at)]
                if not any(_requires(item.factors, page_levels | at) for item in panel_items):
                    continue
                row.append(Panel(_label(at), _bands(panel_items, facets.along, bands, naming)))
                shown += panel_items
            if row:
                grid.append(tuple(row))
        if grid:
            unique = tuple({id(item): item for item in shown}.values())
            result.append(
                FacetPage(
                    label=_label(page_levels),
                    axis=NAMES.get(facets.along, facets.along.replace("_", " "))
                    if facets.along
                    else "",
                    series=bands,
                    panels=tuple(grid),
                    items=unique,
                    shared_idle=len(shown) > len(unique),
                )
            )
    return result


def _levels(items: Iterable[Item[C]]) -> dict[str, list[Level]]:
    """Sorted levels of each factor; factors of the load only from cells with background guests."""
    by_factor: dict[str, set[Level]] = {}
    idle: dict[str, set[Level]] = {}
    for item in items:
        for name, level in item.factors:
            aside = _idle(item.factors) and name in LOAD_FACTORS
            (idle if aside else by_factor).setdefault(name, set()).add(level)
    for name, levels in idle.items():
        by_factor.setdefault(name, levels)
    ordered = sorted(
        by_factor, key=lambda name: (FACTORS.index(name) if name in FACTORS else len(FACTORS), name)
    )
    return {name: sorted(by_factor[name], key=level_rank) for name in ordered}


def _idle(factors: Factors) -> bool:
    """Whether the cell has no background guests, so that all loads are alike."""
    return ("background_guests", 0) in factors


def _combinations(
    names: Sequence[str], levels: Mapping[str, Sequence[Level]]
) -> list[dict[str, Level]]:
    return [
        dict(zip(names, combination, strict=True))
        for combination in product(*(levels[name] for name in names))
    ]


def _shows(factors: Factors, panel_levels: Mapping[str, Level]) -> bool:
    """Whether a cell is shown at these levels; a factor that it lacks matches every level."""
    levels = dict(factors)
    idle = _idle(factors)
    return all(
        name not in levels or levels[name] == level or (idle and name in LOAD_FACTORS)
        for name, level in panel_levels.items()
    )


def _requires(factors: Factors, panel_levels: Mapping[str, Level]) -> bool:
    """Whether this cell alone makes a panel of these levels necessary.

    A cell without background guests is shown in every load's panel, and needs none of its own but
    where no cell has background guests.
    """
    levels = dict(factors)
    return all(levels.get(name, level) == level for name, level in panel_levels.items())


def _bands(
    items: Sequence[Item[C]], along: str | None, series: Sequence[str], naming: Naming
) -> tuple[Band[C], ...]:
    groups: dict[Level, dict[str, Item[C]]] = {}
    for item in items:
        level = dict(item.factors).get(along, "") if along else ""
        for label in naming.like(item.series):
            groups.setdefault(level, {}).setdefault(label, item)
    return tuple(
        Band(
            short(along, level) if along else "",
            {label: groups[level][label] for label in series if label in groups[level]},
        )
        for level in sorted(groups, key=level_rank)
    )


def _label(levels: Mapping[str, Level]) -> str:
    return ", ".join(level_words(name, level) for name, level in levels.items())
