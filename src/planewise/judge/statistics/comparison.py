"""Compares the levels of a factor on replicates, in pairs within blocks. Knows no file.

A *pair* is two levels of the factor in the same block with every other factor alike. Trials that
differ in their traffic alone (frequency, size, protocol) are run within one visit to a cell and see
the same state of the host: their shifts are averaged and count as one pair. The reasons, and what
the figures mean, are in docs/concepts/statistics.md.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from planewise.errors import BadInputError
from planewise.judge.statistics.kendall import KendallBar, tau_b
from planewise.judge.statistics.metrics import Metric, Observation, Observed
from planewise.judge.statistics.paired import (
    Interval,
    Method,
    exp,
    geometric_mean,
    holm,
    least_signed_rank_p,
    mean,
    shift_of,
)
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
ALPHA = 0.05
"""False *better* or *worse* that are accepted in a family of comparisons."""

Outcome = Literal["better", "worse", "practically the same", "not known"]
Scale = Literal["ratio", "difference"]


@dataclass(frozen=True)
class LevelValue:
    """One level's typical value in one stratum."""

    level: Level
    stratum: str
    value: float
    """Geometric mean over replicates where ratios are compared, else the mean."""
    low: float | None
    high: float | None
    """95 % interval over blocks (Student's t), and what lies between two loads of a ladder; None
    where there is one block."""
    replicates: int
    blocks: int
    at_least: bool
    """A lower bound: the generator, or the end of the ladder, was the limit in a replicate."""


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
    pairs: int
    blocks: int
    scale: Scale
    change: float
    """Of a against b: with `ratio` a/b − 1 (−0.2: a is 20 % less), else a − b in the metric's
    unit. Hodges–Lehmann estimate, or by `student` the mean."""
    low: float
    high: float
    """95 % interval of the change, of this comparison alone; infinite with too few pairs."""
    rank_biserial: float
    """Matched-pairs rank-biserial correlation: −1 a is less in every pair, +1 more in every."""
    p: float
    p_holm: float
    """Corrected for all comparisons of the family (Holm)."""
    method: Method
    margin: float
    """Change up to which the two are practically the same, in the unit of `change`."""
    outcome: Outcome
    """Of a, against b."""
    why: str
    """Of *not known*: what stands in the way; else empty."""


@dataclass(frozen=True)
class Family:
    """All comparisons of one metric: one family for Holm's correction."""

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
    kendall: tuple[KendallBar, ...]
    """Correlation of each level's indicator with the metric, by stratum."""
    notes: tuple[str, ...]
    """What a reader should know of these comparisons, sentences."""

    def find(self, a: Level, b: Level, stratum: str = OVERALL) -> Comparison | None:
        """The comparison of `a` against `b`, turned round where it was made the other way."""
        for one in self.comparisons:
            if one.stratum == stratum and {one.a, one.b} == {a, b}:
                return one if one.a == a else turned(one)
        return None

    def value(self, level: Level, stratum: str = OVERALL) -> LevelValue | None:
        """The typical value of a level in a stratum; None where it was not measured."""
        return next((v for v in self.values if v.level == level and v.stratum == stratum), None)


def turned(comparison: Comparison) -> Comparison:
    """The same comparison, b against a."""
    outcomes: Mapping[Outcome, Outcome] = {"better": "worse", "worse": "better"}
    if comparison.scale == "ratio":
        change, low, high = (
            _inverse(value) for value in (comparison.change, comparison.high, comparison.low)
        )
    else:
        change, low, high = -comparison.change, -comparison.high, -comparison.low
    return replace(
        comparison,
        a=comparison.b,
        b=comparison.a,
        change=change,
        low=low,
        high=high,
        rank_biserial=-comparison.rank_biserial,
        outcome=outcomes.get(comparison.outcome, comparison.outcome),
    )


def _inverse(change: float) -> float:
    """b/a − 1 of a/b − 1."""
    if math.isinf(change):
        return -1.0
    return 1 / (1 + change) - 1 if change > -1 else math.inf


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
    """
    seen = [
        one
        for one in observed.observations
        if factor in one.cell
        and math.isfinite(one.value)
        and not (factor == "load_location" and is_idle(one.cell))
    ]
    levels = level_order(one.cell[factor] for one in seen)
    missing: dict[Level, str] = {}
    for cell, reason in observed.missing:
        if factor in cell and cell[factor] not in levels:
            missing.setdefault(cell[factor], reason)
    if not seen and not missing:
        raise BadInputError(
            f"no trial has {observed.metric.title} and the factor {factor}",
            where="--factor",
            remedy="factors that there are: "
            + ", ".join(sorted({name for one in observed.observations for name in one.cell})),
        )
    wanted = _level_named(baseline, (*levels, *missing)) if baseline is not None else None
    by = default_by(seen, factor) if by is None else by
    table = _Table(observed, factor, by, seen, levels)
    pairs = [(a, b) for a, b in combinations(levels, 2) if wanted is None or wanted in (a, b)]
    if wanted is not None:  # a against the baseline, never the other way
        pairs = [(b, a) if a == wanted else (a, b) for a, b in pairs]
    found = [
        raw
        for stratum in table.strata
        for a, b in pairs
        if (raw := table.shifts(a, b, stratum)) is not None
    ]
    comparisons = _decided(found, table, margin, alpha)
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
        kendall=tuple(table.bars()),
        notes=tuple(table.notes(pairs)),
    )


def _level_named(text: Level, levels: Sequence[Level]) -> Level:
    for level in levels:
        if str(level) == str(text):
            return level
    raise BadInputError(
        f"there is no level {text}",
        where="--baseline",
        remedy=f"levels that there are: {', '.join(str(level) for level in levels)}",
    )


@dataclass(frozen=True)
class _Raw:
    """The shifts of one comparison, before the family decides."""

    a: Level
    b: Level
    stratum: str
    shifts: list[float]
    blocks: int
    resolution: float
    """On the scale of the shifts."""
    reference: float
    """Median of the values of b."""
    a_bounds: bool
    b_bounds: bool


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
        positive = all(one.value > 0 for one in observations)
        self.scale: Scale = "ratio" if self.metric.as_ratio and positive else "difference"
        self._pairing = Pairing(observations, factor, by, observed.run_factors)
        self.strata = self._pairing.strata
        values: dict[Level, dict[Key, list[Observation]]] = defaultdict(lambda: defaultdict(list))
        for one in observations:
            for key in self._pairing.keys[id(one)]:
                values[one.cell[factor]][key].append(one)
        self._values = {
            level: {key: _merged(group) for key, group in by_key.items()}
            for level, by_key in values.items()
        }
        self._keys: dict[tuple[Level, str], list[Key]] = defaultdict(list)
        for level, by_key in self._values.items():
            for key in by_key:
                for stratum in {self._pairing.stratum[key], OVERALL}:
                    self._keys[level, stratum].append(key)

    def shifts(self, a: Level, b: Level, stratum: str) -> _Raw | None:
        """The shifts of a against b, one a pair; None where there is no pair."""
        of_a, of_b = self._values[a], self._values[b]
        common = [key for key in self._keys[a, stratum] if key in of_b]
        if not common:
            return None
        units: dict[Key, list[float]] = defaultdict(list)
        resolutions, references = [], []
        bounds = [False, False]
        for key in common:
            x, y = of_a[key], of_b[key]
            fine = max(x.resolution, y.resolution)
            if self.scale == "ratio":
                shift = math.log(x.value) - math.log(y.value)
                fine /= y.value
            else:
                shift = x.value - y.value
            units[self._pairing.unit[key]].append(shift)
            resolutions.append(fine)
            references.append(y.value)
            bounds = [bounds[0] or x.at_least, bounds[1] or y.at_least]
        return _Raw(
            a,
            b,
            stratum,
            [math.fsum(shifts) / len(shifts) for shifts in units.values()],
            len({self._pairing.block[key] for key in common}),
            statistics.median(resolutions),
            statistics.median(references),
            *bounds,
        )

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
        found = self._values[level]
        centre = geometric_mean if self.scale == "ratio" else mean
        whole = centre([found[key].value for key in keys])
        blocks: dict[Key, list[float]] = defaultdict(list)
        for key in keys:
            blocks[self._pairing.block[key]].append(found[key].value)
        # A block that lacks a context would shift the mean: only whole ones make the interval.
        size = max(len(values) for values in blocks.values())
        full = [centre(values).estimate for values in blocks.values() if len(values) == size]
        over: Interval | None = centre(full) if len(full) > 1 else None
        headroom = statistics.median(found[key].headroom for key in keys)
        return LevelValue(
            level=level,
            stratum=stratum,
            value=whole.estimate,
            low=over.low if over else None,
            high=max(over.high, whole.estimate + headroom) if over else None,
            replicates=len(keys),
            blocks=len(blocks),
            at_least=any(found[key].at_least for key in keys),
        )

    def bars(self) -> Iterable[KendallBar]:
        """Each level's correlation with the metric in each stratum, over all replicates."""
        for stratum in self.strata:
            cells = [
                (level, key, self._values[level][key].value)
                for level in self.levels
                for key in self._keys[level, stratum]
            ]
            values = [value for _, _, value in cells]
            clusters = [self._pairing.unit[key] for _, key, _ in cells]
            for level in self.levels:
                correlation = tau_b([one == level for one, _, _ in cells], values, clusters)
                yield KendallBar(self.metric.name, self.factor, level, stratum, correlation)

    def notes(self, pairs: Sequence[tuple[Level, Level]]) -> Iterable[str]:
        """Replicates that have no partner."""
        for a, b in pairs:
            only = {
                level: sum(key not in self._values[other] for key in self._values[level])
                for level, other in ((a, b), (b, a))
            }
            whole = {level: len(self._values[level]) for level in (a, b)}
            if all(only[level] == whole[level] for level in (a, b)):
                yield (
                    f"{a} and {b} were never measured in the same block with all else alike: they "
                    "cannot be compared"
                )
                continue
            for level, other in ((a, b), (b, a)):
                if only[level]:
                    yield (
                        f"{only[level]} of {whole[level]} replicates of {level} have no partner "
                        f"of {other} in their block and are left out of that comparison"
                    )


@dataclass(frozen=True, slots=True)
class _Value:
    value: float
    resolution: float
    at_least: bool
    headroom: float


def _merged(group: Sequence[Observation]) -> _Value:
    if len(group) == 1:
        one = group[0]
        return _Value(one.value, one.resolution, one.at_least, one.headroom)
    return _Value(
        statistics.median(one.value for one in group),
        statistics.median(one.resolution for one in group),
        any(one.at_least for one in group),
        statistics.median(one.headroom for one in group),
    )


def _decided(found: Sequence[_Raw], table: _Table, margin: float, alpha: float) -> list[Comparison]:
    """The comparisons with Holm's correction over all of them, and their outcomes."""
    strictest = alpha / max(1, len(found))
    methods: list[Method] = [
        "signed-rank" if least_signed_rank_p(len(raw.shifts)) <= strictest else "student"
        for raw in found
    ]
    tested = [shift_of(raw.shifts, method) for raw, method in zip(found, methods, strict=True)]
    adjusted = holm([shift.p for shift in tested])
    result = []
    for raw, shift, p_holm in zip(found, tested, adjusted, strict=True):
        if table.scale == "ratio":
            same = math.log1p(max(margin, raw.resolution))
            change, low, high = (exp(v) - 1 for v in (shift.estimate, shift.low, shift.high))
            shown = math.expm1(same)
        else:
            same = shown = max(margin * abs(raw.reference), raw.resolution)
            change, low, high = shift.estimate, shift.low, shift.high
        outcome, why = _outcome(raw, shift.low, shift.high, p_holm, same, alpha, table.metric)
        result.append(
            Comparison(
                metric=table.metric.name,
                factor=table.factor,
                a=raw.a,
                b=raw.b,
                stratum=raw.stratum,
                pairs=shift.n,
                blocks=raw.blocks,
                scale=table.scale,
                change=change,
                low=low,
                high=high,
                rank_biserial=shift.rank_biserial,
                p=shift.p,
                p_holm=p_holm,
                method=shift.method,
                margin=shown,
                outcome=outcome,
                why=why,
            )
        )
    return result


def _outcome(
    raw: _Raw,
    low: float,
    high: float,
    p_holm: float,
    same: float,
    alpha: float,
    metric: Metric,
) -> tuple[Outcome, str]:
    """The word, and of *not known* the reason. All on the scale of the shifts."""
    if -same <= low and high <= same and not (raw.a_bounds or raw.b_bounds):
        return "practically the same", ""
    if p_holm <= alpha and (low > 0 or high < 0):
        # A value that is a lower bound may be called greater, never less.
        less_is_bound = raw.a_bounds if high < 0 else raw.b_bounds
        if less_is_bound:
            return "not known", "the lesser one is only a lower bound"
        return ("better" if (high < 0) == metric.lower_is_better else "worse"), ""
    if raw.a_bounds or raw.b_bounds:
        return "not known", "at least one is only a lower bound"
    if len(raw.shifts) < 2:
        return "not known", "a single pair cannot tell"
    if low > 0 or high < 0:
        return "not known", "among so many comparisons this may be chance"
    return "not known", "the interval holds no change as well as one that matters"
