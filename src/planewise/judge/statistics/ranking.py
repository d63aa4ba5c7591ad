"""Whether the ranking of a factor's levels changes with load, and where."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planewise.judge.statistics.comparison import (
    MARGIN,
    Comparison,
    Family,
    LevelValue,
    compare_levels,
)
from planewise.judge.statistics.flips import ALPHA
from planewise.judge.statistics.metrics import Observed
from planewise.judge.statistics.pairing import LOAD_FACTORS, OVERALL, stratum_of
from planewise.store.models import Level

LOAD = "load"
"""As `by`: type, location and number of guests of the background load together."""


@dataclass(frozen=True)
class LoadRanking:
    """The levels under one load, best first by their typical values."""

    load: str
    order: tuple[Level, ...]


@dataclass(frozen=True)
class RankingChange:
    """Two levels of which each is surely better somewhere."""

    a: Level
    b: Level
    better_at: tuple[str, ...]
    """Loads under which a is better."""
    worse_at: tuple[str, ...]
    """Loads under which b is better."""


@dataclass(frozen=True)
class RankingCheck:
    """Does the ranking change with load? Every claim is corrected for all loads and pairs."""

    metric: str
    factor: str
    loads: tuple[LoadRanking, ...]
    changes: tuple[RankingChange, ...]
    decided: int
    """Comparisons, one a pair and load, with a claim."""
    comparisons: int
    sentence: str


def check_ranking(
    observed: Observed, factor: str, *, margin: float = MARGIN, alpha: float = ALPHA
) -> RankingCheck | None:
    """None where there is but one load, or the factor is a part of the load itself."""
    measured = (one for one in observed.observations if math.isfinite(one.value))
    cells = [one.cell for one in measured if factor in one.cell]
    loads, levels = {stratum_of(cell, LOAD) for cell in cells}, {cell[factor] for cell in cells}
    if factor in LOAD_FACTORS or len(loads) < 2 or len(levels) < 2:
        return None
    family = compare_levels(observed, factor, by=LOAD, margin=margin, alpha=alpha)
    single = [comparison for comparison in family.comparisons if comparison.stratum != OVERALL]
    changes = []
    for a, b in dict.fromkeys((comparison.a, comparison.b) for comparison in single):
        pair = [comparison for comparison in single if (comparison.a, comparison.b) == (a, b)]
        better = tuple(comparison.stratum for comparison in pair if comparison.outcome == "better")
        worse = tuple(comparison.stratum for comparison in pair if comparison.outcome == "worse")
        if better and worse:
            changes.append(RankingChange(a, b, better, worse))
    decided = sum(comparison.decided for comparison in single)
    return RankingCheck(
        metric=family.metric.name,
        factor=factor,
        loads=tuple(
            LoadRanking(load, _order(family, load)) for load in family.strata if load != OVERALL
        ),
        changes=tuple(changes),
        decided=decided,
        comparisons=len(single),
        sentence=_sentence(family, tuple(changes), decided, len(single), len(loads)),
    )


def _order(family: Family, load: str) -> tuple[Level, ...]:
    return tuple(value.level for value in best_first(family, load))


def best_first(family: Family, stratum: str) -> list[LevelValue]:
    """The levels by their comparisons: first by how many they are worse than, then by the mean of
    their changes against the others. So the ranking cannot contradict a comparison."""

    def place(value: LevelValue) -> tuple[int, float]:
        comparisons = [
            comparison
            for other in family.levels
            if (comparison := family.find(value.level, other, stratum)) is not None
        ]
        changes = [
            math.log1p(max(comparison.change, -1 + 1e-12))
            if comparison.scale == "ratio"
            else comparison.change
            for comparison in comparisons
        ]
        mean = math.fsum(changes) / (len(changes) + 1)
        return (
            sum(comparison.outcome == "worse" for comparison in comparisons),
            mean if family.metric.lower_is_better else -mean,
        )

    return sorted((value for value in family.values if value.stratum == stratum), key=place)


def first_two(family: Family, stratum: str = OVERALL) -> tuple[list[LevelValue], Comparison | None]:
    """The levels, the best first, and how it compares with the second; None without a pair."""
    values = best_first(family, stratum)
    pair = [value.level for value in values[:2]]
    return values, family.find(pair[0], pair[1], stratum) if len(pair) > 1 else None


def _sentence(
    family: Family, changes: tuple[RankingChange, ...], decided: int, of: int, loads: int
) -> str:
    if changes:
        words = "; ".join(
            f"{change.a} is better than {change.b} at {_loads_text(change.better_at)}, and worse "
            f"at {_loads_text(change.worse_at)}"
            for change in changes
        )
        return f"By {family.metric.title} the ranking changes with load: {words}."
    undecided = "" if decided == of else f" ({of - decided} of {of} comparisons undecided)"
    return (
        f"No change of the ranking by {family.metric.title} was found among {loads} loads"
        f"{undecided}."
    )


def _loads_text(loads: tuple[str, ...]) -> str:
    if len(loads) <= 3:
        return ", ".join(loads)
    return f"{', '.join(loads[:2])} and {len(loads) - 2} more loads"
