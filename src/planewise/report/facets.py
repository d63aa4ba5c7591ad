"""Which factor lies where in a figure of many cells: pages, rows, columns, bands. Draws nothing.

As in publications K and D: background guests along the axis, a row a load, a column a frequency, a
colour a plane, and a figure for each combination of what is left.
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
"""What rather lies along the axis than in panels of its own, first choice first."""
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
"""What columns are made of, first choice first."""


@dataclass(frozen=True)
class Item(Generic[C]):
    """Something to be shown in a figure: of one series, at one combination of levels."""

    series: str
    factors: Factors
    content: C


@dataclass(frozen=True)
class Facets:
    """Where each factor that varies lies."""

    along: str | None
    """On the axis; None where nothing but the plane varies."""
    rows: tuple[str, ...]
    columns: str | None
    pages: tuple[str, ...]


@dataclass(frozen=True)
class Band(Generic[C]):
    """One level on the axis, with what is shown there by series."""

    label: str
    items: Mapping[str, Item[C]]


@dataclass(frozen=True)
class Panel(Generic[C]):
    """One small multiple."""

    label: str
    bands: tuple[Band[C], ...]


@dataclass(frozen=True)
class FacetPage(Generic[C]):
    """One figure."""

    label: str
    """The levels that all of it shares and other pages do not; empty for a single page."""
    axis: str
    """What lies along the axis of every panel."""
    series: tuple[str, ...]
    panels: tuple[tuple[Panel[C], ...], ...]
    """By row."""
    items: tuple[Item[C], ...]
    """All that it shows, each once."""
    shared_idle: bool
    """Whether a measurement without background guests is shown in several panels."""


def choose(items: Sequence[Item[C]], *, rows: Sequence[str] = ()) -> Facets:
    """Where the factors of `items` lie; `rows` names those that become rows in any case."""
    levels = _levels(items)
    varying = [name for name, found in levels.items() if len(found) > 1]
    numeric = [
        name for name in varying if all(isinstance(level, int | float) for level in levels[name])
    ]
    preferred = [name for name in (*_ALONG, *numeric, "load_type", *varying) if name in varying]
    along = next((name for name in preferred if name not in rows), None)
    rest = [name for name in varying if name != along]
    lying = [name for name in rows if name in rest]
    if "load_type" in rest and "load_type" not in lying:
        lying.append("load_type")
    rest = [name for name in rest if name not in lying]
    columns = next(
        (name for name in (*_ACROSS, *rest) if name in rest and len(levels[name]) <= _MOST_COLUMNS),
        None,
    )
    rest = [name for name in rest if name != columns]
    if not lying and rest and len(levels[rest[0]]) <= _MOST_ROWS:
        lying.append(rest.pop(0))
    return Facets(along, tuple(lying), columns, tuple(rest))


def pages(
    items: Sequence[Item[C]], naming: Naming, *, rows: Sequence[str] = ()
) -> list[FacetPage[C]]:
    """`items` as figures of small multiples; every item is in one at least."""
    if not items:
        return []
    facets = choose(items, rows=rows)
    levels = _levels(items)
    series = tuple(dict.fromkeys(label for item in items for label in naming.like(item.series)))
    result = []
    # The factors that a reader cares for least vary slowest: the first figures are the main ones.
    for of_page in _combinations(facets.pages[::-1], levels):
        of_page = {name: of_page[name] for name in facets.pages}
        on_page = [item for item in items if _shows(item.factors, of_page)]
        bands = tuple(
            label for label in series if any(label in naming.like(item.series) for item in on_page)
        )
        grid = []
        shown: list[Item[C]] = []
        for of_row in _combinations(facets.rows, levels):
            row = []
            for of_column in _combinations((facets.columns,) if facets.columns else (), levels):
                wanted = of_row | of_column
                here = [item for item in on_page if _shows(item.factors, wanted)]
                if not any(_meant(item.factors, of_page | wanted) for item in here):
                    continue
                row.append(Panel(_label(wanted), _bands(here, facets.along, bands, naming)))
                shown += here
            if row:
                grid.append(tuple(row))
        if grid:
            once = tuple({id(item): item for item in shown}.values())
            result.append(
                FacetPage(
                    label=_label(of_page),
                    axis=NAMES.get(facets.along, facets.along.replace("_", " "))
                    if facets.along
                    else "",
                    series=bands,
                    panels=tuple(grid),
                    items=once,
                    shared_idle=len(shown) > len(once),
                )
            )
    return result


def _levels(items: Iterable[Item[C]]) -> dict[str, list[Level]]:
    """All levels of each factor in the order of a reader, loads only where there are guests."""
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
    """Whether there are no background guests, so that no load can be told from another."""
    return ("background_guests", 0) in factors


def _combinations(
    names: Sequence[str], levels: Mapping[str, Sequence[Level]]
) -> list[dict[str, Level]]:
    return [
        dict(zip(names, combination, strict=True))
        for combination in product(*(levels[name] for name in names))
    ]


def _shows(factors: Factors, wanted: Mapping[str, Level]) -> bool:
    """Whether a cell belongs where these levels are shown: a factor that it lacks says nothing."""
    levels = dict(factors)
    idle = _idle(factors)
    return all(
        name not in levels or levels[name] == level or (idle and name in LOAD_FACTORS)
        for name, level in wanted.items()
    )


def _meant(factors: Factors, wanted: Mapping[str, Level]) -> bool:
    """Whether a panel of these levels is there for this cell's sake.

    A cell without background guests fills a band of every load's panel; it needs one of its own
    only where all cells are so, and then no factor of the load is wanted but what it has.
    """
    levels = dict(factors)
    return all(levels.get(name, level) == level for name, level in wanted.items())


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
