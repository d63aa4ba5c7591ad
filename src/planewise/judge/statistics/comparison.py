"""Compares the levels of a factor, block by block.

The unit of inference is the block: the shifts of all replicates of two levels that have everything
but the factor alike are averaged within it. docs/concepts/statistics.md has the reasons.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Literal

import numpy as np

from planewise.errors import BadInputError
from planewise.judge.bounded import (
    Bound,
    Bounded,
    bound_of,
    count_interval,
    dispersion,
    median_interval,
    median_of,
    opposite,
    rank_biserial,
)
from planewise.judge.statistics import flips
from planewise.judge.statistics.flips import ALPHA, Floats, Mask, least_blocks, over_looks
from planewise.judge.statistics.kendall import KendallBar, tau_b
from planewise.judge.statistics.metrics import Metric, Observation, Observed, by_sending
from planewise.judge.statistics.pairing import (
    OVERALL,
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
    kendall: tuple[KendallBar, ...]
    """Correlation of each level's indicator with the metric, by stratum."""
    block_s: float = 0.0
    """How long a block took; 0 where it is not recorded."""

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
    pairs = list(combinations(levels, 2))
    if baseline is not None:  # a against the baseline, never the other way
        base = _level_named(baseline, (*levels, *missing))
        pairs = [(b, a) if a == base else (a, b) for a, b in pairs if base in (a, b)]
    by = default_by(observations, factor) if by is None else by
    pairing = Pairing(observations, factor, by, observed.run_factors)
    grid = _Grid(observed.metric, factor, levels, observations, pairing)
    found = [grid.shifts(a, b, stratum, margin) for stratum in pairing.within for a, b in pairs]
    shifts = [one for one in found if one is not None]
    comparisons, notes = _decided(shifts, grid, observed, alpha) if shifts else ([], [])
    return Family(
        metric=observed.metric,
        factor=factor,
        by=by,
        levels=levels,
        strata=tuple(pairing.within),
        scale=grid.scale,
        values=tuple(grid.level_values()),
        comparisons=tuple(comparisons),
        not_measurable=missing,
        notes=(*grid.notes(pairs), *notes),
        kendall=tuple(grid.kendall()),
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
class _Shifts:
    """Level `a` less level `b` in each block, before the family decides."""

    a: Level
    b: Level
    stratum: str
    ends: Floats
    """Shape (3, blocks): value, low and high; NaN where a block has no pair."""
    margin: float
    """On the scale of the shifts, never finer than the instrument."""
    counted: tuple[float, float]
    """Least and greatest shift that counts leave open; infinite inwards where there are none."""


class _Grid:
    """Replicates by block and by context, with what a pair has alike in one place."""

    def __init__(
        self,
        metric: Metric,
        factor: str,
        levels: tuple[Level, ...],
        observations: Sequence[Observation],
        pairing: Pairing,
    ) -> None:
        self.metric, self.factor, self.levels, self.pairing = metric, factor, levels, pairing
        positive = all(observation.value > 0 for observation in observations)
        self.scale: Scale = "ratio" if metric.as_ratio and positive else "difference"
        self._counted = all(one.counts is not None for one in observations)
        groups: dict[tuple[Level, int, int], list[Observation]] = defaultdict(list)
        for one in observations:
            for block, context in pairing.places[id(one)]:
                groups[one.cell[factor], block, context].append(one)
        self._values = {level: np.full((4, *pairing.shape), np.nan) for level in levels}
        """By level, of shape (4, blocks, contexts): value, low and high, and resolution."""
        self._counts = {level: np.zeros((2, *pairing.shape)) for level in levels}
        """Packets lost and sent."""
        for (level, block, context), group in groups.items():
            merged = median_of([one.bounded for one in group])
            fine = median(one.resolution for one in group)
            at = np.s_[:, block, context]
            self._values[level][at] = merged.value, merged.low, merged.high, fine
            for one in group if self._counted else ():
                self._counts[level][at] += one.counts or 0
        self._there = {level: ~np.isnan(values[0]) for level, values in self._values.items()}
        self._ends = {level: self._scaled(values[:3]) for level, values in self._values.items()}
        cells: dict[object, list[tuple[int, int]]] = defaultdict(list)
        for one in observations if self._counted else ():
            cells[frozenset(one.cell.items())].append(one.counts or (0, 0))
        self._dispersion = dispersion(cells.values())

    def _scaled(self, ends: Floats) -> Floats:
        """Value, low and high; their logarithms where ratios are compared."""
        if self.scale == "difference":
            return ends
        return np.asarray(np.log(ends, out=ends.copy(), where=np.isfinite(ends)))

    def shifts(self, a: Level, b: Level, stratum: str, margin: float) -> _Shifts | None:
        """The shifts of a against b; None where there is no pair. `margin` is a share."""
        part = np.s_[..., self.pairing.within[stratum]]
        both = self._there[a][part] & self._there[b][part]
        if not both.any():
            return None
        x, y = self._ends[a][part], self._ends[b][part]
        # Where, in every block, both levels are bounds of one kind, something else was measured (a
        # generator, a shared core). Exchanging the levels leaves this choice alone, so that it
        # favours neither.
        of_x, of_y = np.isinf(x[1:]), np.isinf(y[1:])
        telling = (both & (~of_x.any(axis=0) | (of_x != of_y).any(axis=0))).any(axis=0)
        if telling.any():
            both &= telling
        values_a, values_b = (self._values[level][part][:, both] for level in (a, b))
        reference, fine = values_b[0], np.maximum(values_a[3], values_b[3])
        if self.scale == "ratio":
            within = math.log1p(max(margin, float(np.median(fine / reference))))
        else:
            within = max(margin * abs(float(np.median(reference))), float(np.median(fine)))
        counted = (math.inf, -math.inf)
        if self._counted:
            (low_a, high_a), (low_b, high_b) = (
                self._count_interval(level, stratum, both) for level in (a, b)
            )
            counted = (low_a - high_b, high_a - low_b)
        return _Shifts(a, b, stratum, _means(x - y[[0, 2, 1]], both), within, counted)

    def _count_interval(self, level: Level, stratum: str, at: Mask) -> tuple[float, float]:
        within = self.pairing.within[stratum]
        lost, sent = self._counts[level][..., within][:, at].sum(axis=1)
        return count_interval(int(lost), int(sent), self._dispersion)

    def level_values(self) -> Iterator[LevelValue]:
        """The typical value of each level in each stratum, with an interval over blocks."""
        measured = [there.any(axis=0) for there in self._there.values()]
        shared = np.logical_and.reduce(measured) if measured else np.zeros(0, dtype=np.bool_)
        for stratum, within in self.pairing.within.items():
            for level in self.levels:
                # A level's mean over more or other contexts than another's tells nothing of them.
                there = self._there[level][:, within]
                at = there & shared[within] if (there & shared[within]).any() else there
                if at.any():
                    yield self._level_value(level, stratum, at)

    def _level_value(self, level: Level, stratum: str, at: Mask) -> LevelValue:
        contexts = at.sum(axis=1)
        # A block that lacks a context would shift the mean: only whole ones count.
        ends = self._ends[level][..., self.pairing.within[stratum]]
        means = _means(ends, at)[:, contexts == contexts.max()]
        if self.scale == "ratio":
            means = _exp(means)
        blocks = [Bounded(*map(float, block)) for block in means.T]
        centre = median_of(blocks)
        low, high = (
            self._count_interval(level, stratum, at) if self._counted else median_interval(blocks)
        )
        return LevelValue(
            level=level,
            stratum=stratum,
            value=centre.value,
            low=min(low, centre.value) if math.isfinite(low) else None,
            high=max(high, centre.value) if math.isfinite(high) else None,
            replicates=int(contexts.sum()),
            blocks=int((contexts > 0).sum()),
            bound=bound_of(centre.low, centre.high),
        )

    def kendall(self) -> Iterator[KendallBar]:
        """The correlations of replicates, those of a block being a cluster."""
        for stratum, within in self.pairing.within.items():
            of_level = [values[0][:, within] for values in self._values.values()]
            values = np.stack(of_level) if of_level else np.zeros((0, 0, 0))
            number, block, _ = at = np.nonzero(~np.isnan(values))
            for index, level in enumerate(self.levels if number.size else ()):
                yield KendallBar(level, stratum, tau_b(number == index, values[at], block))

    def notes(self, pairs: Sequence[tuple[Level, Level]]) -> Iterator[str]:
        """What cannot be compared, and, in one sentence, replicates that have no partner."""
        alone = []
        for a, b in pairs:
            if not (self._there[a] & self._there[b]).any():
                yield (
                    f"{a} and {b} were never measured in the same block with all else alike: they "
                    "cannot be compared"
                )
                continue
            for level, other in ((a, b), (b, a)):
                there = self._there[level]
                if only := int((there & ~self._there[other]).sum()):
                    alone.append(f"{only} of {there.sum()} of {level} against {other}")
        if alone:
            yield f"replicates left out, as their block has no counterpart: {'; '.join(alone)}"


def _means(ends: Floats, at: Mask) -> Floats:
    """Mean of each block over the contexts that count: a bound as soon as one value is.

    `ends` are value, low and high, shape (3, blocks, contexts), the result of shape (3, blocks). A
    bound is shown by its finite end.
    """
    with np.errstate(invalid="ignore"):
        value, low, high = np.where(at, ends, 0.0).sum(axis=2) / at.sum(axis=1)
    open_low, open_high = np.isinf(low), np.isinf(high)
    value = np.where(open_high & ~open_low, low, np.where(open_low & ~open_high, high, value))
    return np.stack([np.clip(value, low, high), low, high])


def _exp(values: Floats) -> Floats:
    """e to the values where they are finite; infinite beyond floating point."""
    with np.errstate(over="ignore"):
        return np.exp(values, out=values.copy(), where=np.isfinite(values))


def _decided(
    all_shifts: Sequence[_Shifts], grid: _Grid, observed: Observed, alpha: float
) -> tuple[list[Comparison], list[str]]:
    """The comparisons with their outcomes, errors counted over all of them; and notes."""
    centre, low, high = np.stack([shifts.ends for shifts in all_shifts], axis=2)
    margins = np.array([shifts.margin for shifts in all_shifts])
    stages = grid.pairing.stages(observed.ends)
    # An end with too few blocks to decide anything is no look.
    ends = (stages <= stage for stage in np.unique(stages))
    looks = [end for end in ends if end.sum() >= least_blocks() or end.all()]
    strata = [shifts.stratum for shifts in all_shifts]
    found = over_looks((low, high), margins, strata, looks, seed=observed.seed, alpha=alpha)
    comparisons = [
        _comparison(shifts, grid, tuple(map(float, column)), alpha)
        for shifts, column in zip(all_shifts, found.T, strict=True)
    ]
    correlation, p = flips.lag_correlation(centre, observed.seed)
    note = (
        f"differences of neighbouring blocks resemble each other (lag-1 correlation "
        f"{correlation:+.2f}, p = {p:.3f}): something outlasts a block, such as a build that is "
        "kept, so intervals may be too narrow"
    )
    return comparisons, [note] if p <= LAG_P else []


def _comparison(shifts: _Shifts, grid: _Grid, found: tuple[float, ...], alpha: float) -> Comparison:
    centre, below, above = shifts.ends[:, ~np.isnan(shifts.ends[0])]
    p, p_same, low, high = found
    low, high = min(low, shifts.counted[0]), max(high, shifts.counted[1])
    outcome, why = _outcome(
        shifts, (centre, below, above), (low, high), (abs(p) <= alpha, p_same <= alpha)
    )
    if outcome == "better":  # so far only that a is greater or less
        outcome = "worse" if (p > 0) == grid.metric.lower_is_better else "better"
    middle = flips.centres(np.stack([centre, below, above], axis=1))
    figures = np.array([middle[0], low, high, centre.min(), centre.max(), shifts.margin])
    if grid.scale == "ratio":
        figures = _exp(figures) - np.isfinite(figures)
    change, low, high, least, most, margin = map(float, figures)
    return Comparison(
        metric=grid.metric.name,
        factor=grid.factor,
        a=shifts.a,
        b=shifts.b,
        stratum=shifts.stratum,
        blocks=len(centre),
        scale=grid.scale,
        change=change,
        bound=bound_of(middle[1], middle[2]),
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
    shifts: _Shifts,
    ends: tuple[Floats, Floats, Floats],
    interval: tuple[float, float],
    claims: tuple[bool, bool],
) -> tuple[Outcome, str]:
    """The word, *better* standing for a difference either way; of no claim the reason."""
    centre, below, above = ends
    differ, alike = claims
    margin = shifts.margin
    counts_allow = shifts.counted[0] >= -margin and shifts.counted[1] <= margin
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
    why = "the interval includes both no change and a meaningful one"
    if one_way:
        why = "among so many comparisons this may be chance"
    elif len(centre) < least:
        why = "the difference changes sign between blocks"
    elif interval[0] >= -margin and interval[1] <= margin:
        why = "among so many comparisons their likeness may be chance"
    return "not distinguishable", why
