"""Compares the levels of a factor, block by block.

The unit of inference is the block: the shifts of all replicates of two levels that have everything
but the factor alike are averaged within it. docs/concepts/statistics.md has the reasons.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np

from planewise.errors import BadInputError
from planewise.judge.bounded import (
    Bound,
    Bounded,
    bound_of,
    mapped,
    mean_of,
    median_of,
    minus,
    opposite,
)
from planewise.judge.statistics import flips
from planewise.judge.statistics.estimates import (
    count_interval,
    dispersion,
    exp,
    median_interval,
    rank_biserial,
)
from planewise.judge.statistics.flips import Floats
from planewise.judge.statistics.kendall import KendallBar, bars
from planewise.judge.statistics.looks import ALPHA, Found, Mask, least_blocks, over_looks
from planewise.judge.statistics.metrics import Metric, Observation, Observed, by_sending
from planewise.judge.statistics.pairing import (
    OVERALL,
    Key,
    Pairing,
    default_by,
    is_idle,
    level_order,
)
from planewise.store.models import Level

MARGIN = 0.05
"""Two levels that surely differ by less than this share are practically the same."""
LAG_P = 0.01
"""Of the correlation of neighbouring blocks, up to which it is reported."""
Outcome = Literal[
    "better", "worse", "practically the same", "not distinguishable", "too few blocks", "not known"
]
UNDECIDED: tuple[Outcome, ...] = ("not distinguishable", "too few blocks", "not known")
"""Of these, *not known* is for values of which only a bound was measured, or too rare events."""
Scale = Literal["ratio", "difference"]


@dataclass(frozen=True)
class LevelValue:
    """One level's typical value in one stratum."""

    level: Level
    stratum: str
    value: float
    """Median over blocks; of a block the mean over its replicates, geometric where ratios are
    compared."""
    low: float | None
    high: float | None
    """95 % interval: order statistics over blocks, of loss by counts in clumps; None where it is
    open, with too few blocks or bounds."""
    replicates: int
    blocks: int
    bound: Bound
    """Whether at least half of the blocks have but a bound."""


@dataclass(frozen=True)
class Comparison:
    """Level `a` against level `b` of a factor, in one stratum, by one metric."""

    metric: str
    factor: str
    a: Level
    b: Level
    stratum: str
    """`overall`, or the level of the factor by which results are told apart (`idle` without
    load)."""
    blocks: int
    """Units of inference."""
    scale: Scale
    change: float
    """Of a against b: with `ratio` a/b − 1 (−0.2: a is 20 % less), else a − b in the metric's
    unit. Hodges-Lehmann estimate over blocks."""
    bound: Bound
    """Whether the change is but a bound."""
    low: float
    high: float
    """95 % interval of the change, by the test that decides. Infinite with too few blocks, and on
    the open side of a bound."""
    least: float
    most: float
    """The change in the block in which it is least, and in which it is greatest."""
    rank_biserial: float
    """Matched-pairs rank-biserial correlation: −1 a is less in every block, +1 more in every."""
    p_family: float
    """Of no difference, for all comparisons of the family and all ends of the run together."""
    margin: float
    """Change up to which the two are practically the same, in the unit of `change`."""
    outcome: Outcome
    """Of a, against b."""
    why: str
    """Of an undecided outcome: what stands in the way; else empty."""

    @property
    def decided(self) -> bool:
        """Whether the outcome is a claim."""
        return self.outcome not in UNDECIDED


@dataclass(frozen=True)
class Family:
    """All comparisons of one metric: their errors are counted together."""

    metric: Metric
    factor: str
    by: str
    """Factor whose levels are the strata; empty when there is only `overall`."""
    levels: tuple[Level, ...]
    strata: tuple[str, ...]
    """`overall` last."""
    scale: Scale
    values: tuple[LevelValue, ...]
    comparisons: tuple[Comparison, ...]
    not_measurable: Mapping[Level, str]
    """Levels for which the metric does not exist, with the reason."""
    notes: tuple[str, ...]
    """What a reader should know of these comparisons, sentences."""
    replicates: Callable[[str], Sequence[tuple[Level, float, Key]]]
    """Level, value and block of each replicate of a stratum."""
    block_s: float = 0.0
    """How long a block took; 0 where it is not recorded."""

    @cached_property
    def kendall(self) -> tuple[KendallBar, ...]:
        """Correlation of each level's indicator with the metric, by stratum."""
        return tuple(
            bar
            for stratum in self.strata
            for bar in bars(self.levels, stratum, self.replicates(stratum))
        )

    def find(self, a: Level, b: Level, stratum: str = OVERALL) -> Comparison | None:
        """The comparison of `a` against `b`, turned round where it was made the other way."""
        for comparison in self.comparisons:
            if comparison.stratum == stratum and {comparison.a, comparison.b} == {a, b}:
                return comparison if comparison.a == a else turned(comparison)
        return None

    def value(self, level: Level, stratum: str = OVERALL) -> LevelValue | None:
        """The typical value of a level in a stratum; None where it was not measured."""
        return next((v for v in self.values if v.level == level and v.stratum == stratum), None)


def turned(comparison: Comparison) -> Comparison:
    """The same comparison, b against a."""
    outcomes: Mapping[Outcome, Outcome] = {"better": "worse", "worse": "better"}
    flip: Callable[[float], float] = _inverse if comparison.scale == "ratio" else operator.neg
    return replace(
        comparison,
        a=comparison.b,
        b=comparison.a,
        change=flip(comparison.change),
        bound=opposite(comparison.bound),
        low=flip(comparison.high),
        high=flip(comparison.low),
        least=flip(comparison.most),
        most=flip(comparison.least),
        rank_biserial=-comparison.rank_biserial,
        outcome=outcomes.get(comparison.outcome, comparison.outcome),
    )


def _inverse(change: float) -> float:
    """The ratio turned round; an open end is then open on the other side."""
    if change <= -1:
        return math.inf
    return -math.inf if change == math.inf else 1 / (1 + change) - 1


def compare_levels(
    observed: Observed,
    factor: str,
    *,
    by: str | None = None,
    baseline: Level | None = None,
    margin: float = MARGIN,
    alpha: float = ALPHA,
) -> Family:
    """Compares every two levels of `factor` (with `baseline`, every level with that one).

    `by` is the factor whose levels are compared apart, beside all together; None takes the load's
    location where it has several, else the load's type.

    Raises:
        BadInputError: no observation has the factor, or no level is called `baseline`.
        ValueError: probes were sent in several ways: take them apart (`by_sending`).
    """
    if len(by_sending(observed, factor)) > 1:
        raise ValueError("several ways of sending are no pair: compare them apart, with by_sending")
    observations = [
        observation
        for observation in observed.observations
        if factor in observation.cell
        and math.isfinite(observation.value)
        and not (factor == "load_location" and is_idle(observation.cell))
    ]
    levels = level_order(observation.cell[factor] for observation in observations)
    missing: dict[Level, str] = {}
    for cell, reason in observed.missing:
        if factor in cell and cell[factor] not in levels:
            missing.setdefault(cell[factor], reason)
    if not observations and not missing:
        factors = {name for observation in observed.observations for name in observation.cell}
        raise BadInputError(
            f"no trial has {observed.metric.title} and the factor {factor}",
            where="--factor",
            remedy=f"available factors: {', '.join(sorted(factors))}",
        )
    base = _level_named(baseline, (*levels, *missing)) if baseline is not None else None
    by = default_by(observations, factor) if by is None else by
    table = _Table(observed, factor, by, observations, levels)
    pairs = [(a, b) for a, b in combinations(levels, 2) if base is None or base in (a, b)]
    if base is not None:  # a against the baseline, never the other way
        pairs = [(b, a) if a == base else (a, b) for a, b in pairs]
    raws = [
        raw
        for stratum in table.strata
        for a, b in pairs
        if (raw := table.shifts(a, b, stratum)) is not None
    ]
    comparisons, notes = _decided(raws, table, observed, margin, alpha) if raws else ([], ())
    return Family(
        metric=observed.metric,
        factor=factor,
        by=by,
        levels=levels,
        strata=table.strata,
        scale=table.scale,
        values=tuple(table.level_values()),
        comparisons=tuple(comparisons),
        not_measurable=missing,
        notes=(*table.notes(pairs), *notes),
        replicates=table.replicates,
        block_s=observed.block_s,
    )


def _level_named(text: Level, levels: Sequence[Level]) -> Level:
    for level in levels:
        if str(level) == str(text):
            return level
    raise BadInputError(
        f"there is no level {text}",
        where="--baseline",
        remedy=f"available levels: {', '.join(str(level) for level in levels)}",
    )


@dataclass(frozen=True)
class _Raw:
    """The shifts of one comparison, before the family decides."""

    a: Level
    b: Level
    stratum: str
    shifts: Mapping[Key, Bounded]
    """By block."""
    resolution: float
    """On the scale of the shifts."""
    reference: float
    """Median of the values of b."""
    extra: tuple[float, float]
    """Least and greatest shift that counts leave open; infinite inwards where there are none."""


class _Table:
    """Replicates by level and by all that a pair has alike."""

    def __init__(
        self,
        observed: Observed,
        factor: str,
        by: str,
        observations: Sequence[Observation],
        levels: tuple[Level, ...],
    ) -> None:
        self.metric, self.factor, self.by, self.levels = observed.metric, factor, by, levels
        positive = all(observation.value > 0 for observation in observations)
        self.scale: Scale = "ratio" if self.metric.as_ratio and positive else "difference"
        self._pairing = Pairing(observations, factor, by, observed.run_factors)
        self.strata = self._pairing.strata
        values: dict[Level, dict[Key, list[Observation]]] = defaultdict(lambda: defaultdict(list))
        for observation in observations:
            for key in self._pairing.keys[id(observation)]:
                values[observation.cell[factor]][key].append(observation)
        self._values = {
            level: {key: _merged(group, self.scale) for key, group in by_key.items()}
            for level, by_key in values.items()
        }
        self._keys: dict[tuple[Level, str], list[Key]] = defaultdict(list)
        for level, by_key in self._values.items():
            for key in by_key:
                for stratum in {self._pairing.stratum[key], OVERALL}:
                    self._keys[level, stratum].append(key)
        self.blocks = self._pairing.blocks
        self._counted = all(observation.counts is not None for observation in observations)
        cells: dict[object, list[tuple[int, int]]] = defaultdict(list)
        for observation in observations if self._counted else ():
            if observation.counts is not None:
                cells[frozenset(observation.cell.items())].append(observation.counts)
        self._dispersion = dispersion(cells.values())

    def shifts(self, a: Level, b: Level, stratum: str) -> _Raw | None:
        """The shifts of a against b, one a block; None where there is no pair."""
        of_a, of_b = self._values[a], self._values[b]
        common = [key for key in self._keys[a, stratum] if key in of_b]
        if not common:
            return None
        common = self._telling(common, of_a, of_b) or common
        by_block: dict[Key, list[Bounded]] = defaultdict(list)
        resolutions, references = [], []
        for key in common:
            x, y = of_a[key], of_b[key]
            fine = max(x.resolution, y.resolution)
            if self.scale == "ratio":
                fine /= y.value.value
            by_block[self._pairing.block[key]].append(minus(x.scaled, y.scaled))
            resolutions.append(fine)
            references.append(y.value.value)
        extra = (math.inf, -math.inf)
        if self._counted:
            (low_a, high_a), (low_b, high_b) = (
                self._count_interval([values[key] for key in common]) for values in (of_a, of_b)
            )
            extra = (low_a - high_b, high_a - low_b)
        return _Raw(
            a,
            b,
            stratum,
            {block: mean_of(shifts) for block, shifts in by_block.items()},
            statistics.median(resolutions),
            statistics.median(references),
            extra,
        )

    def looks(self, ends: Mapping[str, Sequence[int]]) -> list[Mask]:
        """The blocks that were there at each end of the runs, planned and extended.

        An end with too few blocks to decide anything is no look.
        """
        stages = np.array([self._pairing.stage(block, ends) for block in self.blocks])
        looks = [stages <= stage for stage in np.unique(stages)]
        return [look for look in looks if look.sum() >= least_blocks() or look.all()]

    def _telling(
        self, keys: Sequence[Key], of_a: Mapping[Key, _Value], of_b: Mapping[Key, _Value]
    ) -> list[Key]:
        """The keys without contexts in which, in every block, both levels are bounds of one kind:
        there something else was measured (a generator, a shared core). Exchanging the levels
        leaves this choice alone, so that it favours neither."""
        context = self._pairing.context
        telling = {
            context[key]
            for key in keys
            if of_a[key].value.bound == "exact" or of_a[key].value.bound != of_b[key].value.bound
        }
        return [key for key in keys if context[key] in telling]

    def _count_interval(self, values: Iterable[_Value]) -> tuple[float, float]:
        lost, sent = (sum(part) for part in zip(*(value.counts for value in values), strict=True))
        return count_interval(lost, sent, self._dispersion)

    def level_values(self) -> Iterable[LevelValue]:
        """The typical value of each level in each stratum, with an interval over blocks."""
        contexts = [
            {self._pairing.context[key] for key in by_key} for by_key in self._values.values()
        ]
        shared = set.intersection(*contexts) if contexts else set()
        for stratum in self.strata:
            for level in self.levels:
                keys = self._keys[level, stratum]
                # A level's mean over more or other contexts than another's tells nothing of them.
                keys = [key for key in keys if self._pairing.context[key] in shared] or keys
                if keys:
                    yield self._level_value(level, stratum, keys)

    def _level_value(self, level: Level, stratum: str, keys: Sequence[Key]) -> LevelValue:
        values = self._values[level]
        blocks: dict[Key, list[Bounded]] = defaultdict(list)
        for key in keys:
            blocks[self._pairing.block[key]].append(values[key].scaled)
        # A block that lacks a context would shift the mean: only whole ones count.
        size = max(len(group) for group in blocks.values())
        unscaled = exp if self.scale == "ratio" else float
        complete = [
            mapped(mean_of(group), unscaled) for group in blocks.values() if len(group) == size
        ]
        centre = median_of(complete)
        ends = median_interval(complete)
        if self._counted:
            ends = self._count_interval([values[key] for key in keys])
        return LevelValue(
            level=level,
            stratum=stratum,
            value=centre.value,
            low=_finite(min(ends[0], centre.value), ends[0]),
            high=_finite(max(ends[1], centre.value), ends[1]),
            replicates=len(keys),
            blocks=len(blocks),
            bound=bound_of(centre.low, centre.high),
        )

    def replicates(self, stratum: str) -> list[tuple[Level, float, Key]]:
        """Level, value and block of each replicate of a stratum."""
        return [
            (level, self._values[level][key].value.value, self._pairing.block[key])
            for level in self.levels
            for key in self._keys[level, stratum]
        ]

    def notes(self, pairs: Sequence[tuple[Level, Level]]) -> Iterable[str]:
        """What cannot be compared, and, in one sentence, replicates that have no partner."""
        alone = []
        for a, b in pairs:
            only = {
                level: sum(key not in self._values[other] for key in self._values[level])
                for level, other in ((a, b), (b, a))
            }
            counts = {level: len(self._values[level]) for level in (a, b)}
            if all(only[level] == counts[level] for level in (a, b)):
                yield (
                    f"{a} and {b} were never measured in the same block with all else alike: they "
                    "cannot be compared"
                )
                continue
            for level, other in ((a, b), (b, a)):
                if only[level]:
                    alone.append(
                        f"{only[level]} of {counts[level]} replicates of {level} have no partner "
                        f"of {other}"
                    )
        if alone:
            yield f"left out of these comparisons, in their block: {'; '.join(alone)}"


def _finite(value: float, end: float) -> float | None:
    return value if math.isfinite(end) else None


@dataclass(frozen=True, slots=True)
class _Value:
    value: Bounded
    scaled: Bounded
    """The value, its logarithm where ratios are compared."""
    resolution: float
    counts: tuple[int, int]


def _merged(group: Sequence[Observation], scale: Scale) -> _Value:
    counts = [observation.counts or (0, 0) for observation in group]
    value = median_of([observation.bounded for observation in group])
    return _Value(
        value,
        mapped(value, math.log) if scale == "ratio" else value,
        statistics.median(observation.resolution for observation in group),
        (sum(lost for lost, _ in counts), sum(sent for _, sent in counts)),
    )


def _decided(
    raws: Sequence[_Raw], table: _Table, observed: Observed, margin: float, alpha: float
) -> tuple[list[Comparison], tuple[str, ...]]:
    """The comparisons with their outcomes, errors counted over all of them; and notes."""
    low, high, centre = (
        np.array(
            [
                [getattr(raw.shifts.get(block), name, math.nan) for raw in raws]
                for block in table.blocks
            ]
        )
        for name in ("low", "high", "value")
    )
    margins = np.array([_margin(raw, table.scale, margin) for raw in raws])
    looks = table.looks(observed.ends)
    strata = [raw.stratum for raw in raws]
    found = over_looks(low, high, margins, strata, looks, seed=observed.seed, alpha=alpha)
    correlation, p = flips.lag_correlation(centre, observed.seed)
    note = (
        f"differences of neighbouring blocks resemble each other (lag-1 correlation "
        f"{correlation:+.2f}, p = {p:.3f}): something outlasts a block, such as a build that is "
        "kept, so intervals may be too narrow"
    )
    return [
        _comparison(raw, table, margins[i], found, i, (low[:, i], high[:, i], centre[:, i]), alpha)
        for i, raw in enumerate(raws)
    ], (note,) if p <= LAG_P else ()


def _margin(raw: _Raw, scale: Scale, margin: float) -> float:
    """The margin on the scale of the shifts, never finer than the instrument."""
    if scale == "ratio":
        return math.log1p(max(margin, raw.resolution))
    return max(margin * abs(raw.reference), raw.resolution)


def _comparison(
    raw: _Raw,
    table: _Table,
    margin: float,
    found: Found,
    place: int,
    shifts: tuple[Floats, Floats, Floats],
    alpha: float,
) -> Comparison:
    below, above, centre = (values[~np.isnan(values)] for values in shifts)
    low = min(float(found.low[place]), raw.extra[0])
    high = max(float(found.high[place]), raw.extra[1])
    p, p_same = float(found.p[place]), float(found.p_same[place])
    claims = (abs(p) <= alpha, p_same <= alpha)
    outcome, why = _outcome(raw, (below, above, centre), (low, high), margin, claims)
    if outcome == "better":  # so far only that a is greater or less
        outcome = "worse" if (p > 0) == table.metric.lower_is_better else "better"
    middle = flips.centres(np.stack([below, above, centre], axis=1))
    figures = [middle[2], low, high, centre.min(), centre.max(), margin]
    if table.scale == "ratio":
        figures = [exp(v) - 1 if math.isfinite(v) else v for v in figures]
    change, low, high, least, most, margin = (float(figure) for figure in figures)
    return Comparison(
        metric=table.metric.name,
        factor=table.factor,
        a=raw.a,
        b=raw.b,
        stratum=raw.stratum,
        blocks=len(centre),
        scale=table.scale,
        change=change,
        bound=bound_of(middle[0], middle[1]),
        low=low,
        high=high,
        least=least,
        most=most,
        rank_biserial=rank_biserial(centre),
        p_family=min(abs(p), 1.0),
        margin=margin,
        outcome=outcome,
        why=why,
    )


def _outcome(
    raw: _Raw,
    shifts: tuple[Floats, Floats, Floats],
    interval: tuple[float, float],
    margin: float,
    claims: tuple[bool, bool],
) -> tuple[Outcome, str]:
    """The word, *better* standing for a difference either way; of no claim the reason."""
    below, above, centre = shifts
    differ, alike = claims
    counts_allow = raw.extra[0] >= -margin and raw.extra[1] <= margin
    finite = bool(np.isfinite(below).all() and np.isfinite(above).all())
    # What earlier blocks showed stays shown, but a bound leaves open what a later one was.
    if alike and counts_allow and finite:
        return "practically the same", ""
    if differ:
        return "better", ""
    if not finite:
        return "not known", "at least one is only a bound"
    least = least_blocks()
    one_way = bool((below > 0).all() or (above < 0).all())
    if len(centre) < least and (one_way or not centre.any()):
        return "too few blocks", f"{least} blocks are needed to put a confidence on it"
    if not counts_allow and not centre.any():
        return "not known", "too few packets were sent to tell so rare events apart"
    if one_way:
        return "not distinguishable", "among so many comparisons this may be chance"
    if len(centre) < least:
        return "not distinguishable", "the difference changes sign between blocks"
    if interval[0] >= -margin and interval[1] <= margin:
        return "not distinguishable", "among so many comparisons their likeness may be chance"
    return "not distinguishable", "the interval includes both no change and a meaningful one"
