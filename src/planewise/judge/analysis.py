"""Runs compared with one another and within: what `planewise compare` prints, as a value.

Reads run directories; prints nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from planewise.errors import BadInputError
from planewise.judge.statistics.comparison import MARGIN, Family, compare_levels
from planewise.judge.statistics.metrics import (
    Observation,
    RunSample,
    by_sending,
    cpu_metrics,
    metrics_in,
    observe,
    rtt_source,
)
from planewise.judge.statistics.pooled import PooledTest, pooled_tests
from planewise.judge.statistics.ranking import RankingCheck, check_ranking
from planewise.judge.statistics.runs import RunDifference, differences, join
from planewise.store.cells import Naming, by_series
from planewise.store.levels import keeps_levels, missed_levels
from planewise.store.loads import mixed_backends
from planewise.store.models import Level
from planewise.store.packets import read_durations, rtt_stamps
from planewise.store.rundir import RunReader
from planewise.units import count_text

ALL = "all"
SERIES = "series"
"""The factor that joins the planes of main and background guests."""


@dataclass(frozen=True)
class Question:
    """What is compared in runs."""

    factor: str = "plane"
    """Whose levels are compared; `run` compares runs, `series` planes with their backgrounds'."""
    metrics: tuple[str, ...] = ()
    """Empty: the first usual one that was measured; `all` and `cpu` stand for several."""
    by: str | None = None
    """Factor whose levels are looked at apart; None: the load's location."""
    baseline: str | None = None
    """Compare every level with this one only."""
    margin: float = MARGIN
    where: Mapping[str, Collection[Level]] | None = None
    """Levels that a cell must have to count, by factor; a cell without the factor counts."""


@dataclass(frozen=True)
class Analysis:
    """The results of a comparison."""

    samples: tuple[RunSample, ...]
    paths: tuple[Path, ...]
    differences: tuple[RunDifference, ...]
    """In which the runs differ, as far as it was recorded."""
    families: tuple[Family, ...]
    rankings: tuple[RankingCheck | None, ...]
    """One a family."""
    pooled: tuple[PooledTest, ...] | None
    """The publications' tests by stratum; None unless asked for."""
    notes: tuple[str, ...]


def analyse(paths: Sequence[Path], question: Question, *, as_published: bool = False) -> Analysis:
    """Compares the levels of a factor in the run directories `paths`.

    Raises:
        BadInputError: a run is named twice or is none; a factor or metric does not exist; there is
            nothing to compare.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise BadInputError(
            "a run is named twice", where="planewise compare", remedy="name each run once"
        )
    readers = [RunReader(path) for path in paths]
    samples = join([(reader.path, reader.info, reader.trials()) for reader in readers])
    factor, where = question.factor, question.where or {}
    if where:
        samples = tuple(
            replace(
                sample,
                trials=[
                    trial
                    for trial in sample.trials
                    if all(trial.cell[name] in where[name] for name in where if name in trial.cell)
                ],
            )
            for sample in samples
        )
    if factor == SERIES:
        # As publications K and D name them: a plane for all guests, or for the main ones beside
        # background guests on another.
        namings = [Naming(trial.cell for trial in sample.trials) for sample in samples]
        samples = tuple(
            replace(sample, trials=by_series(sample.trials, naming, SERIES))
            for sample, naming in zip(samples, namings, strict=True)
        )
    labels, present = ", ".join(sample.label for sample in samples), metrics_in(samples)
    families, rankings = [], []
    names = _metric_names(question.metrics, samples, present)
    for name in names:
        observed = observe(samples, name)
        if not observed.observations:
            if len(names) > 1:
                continue
            raise BadInputError(
                f"no trial has {observed.metric.title}",
                where=labels,
                remedy=f"available metrics: {', '.join(present)}",
            )
        _check_factors(question, samples)
        for part in by_sending(observed, factor):
            families.append(
                compare_levels(
                    part,
                    factor,
                    by=question.by,
                    baseline=question.baseline,
                    margin=question.margin,
                )
            )
            rankings.append(check_ranking(part, factor, margin=question.margin))
    if not families:
        raise BadInputError(
            "none of these metrics was measured",
            where="--metric",
            remedy=f"available metrics: {', '.join(present)}",
        )
    _check_levels(families, factor, samples)
    notes, pooled = _notes(samples), None
    if as_published:
        pooled, unread = _pooled(paths, samples, question)
        notes += unread
    return Analysis(
        samples,
        tuple(paths),
        differences({sample.label: sample.info for sample in samples}),
        tuple(families),
        tuple(rankings),
        pooled,
        notes,
    )


def _pooled(
    paths: Sequence[Path], samples: Sequence[RunSample], question: Question
) -> tuple[tuple[PooledTest, ...], tuple[str, ...]]:
    """The publications' tests on single readings, and why readings are missing."""
    packets, unread = [], Counter[str]()
    source = rtt_source(trial for sample in samples for trial in sample.trials)
    for path, sample in zip(paths, samples, strict=True):
        trials = [trial for trial in sample.trials if trial.kind == "rtt" and keeps_levels(trial)]
        if without := sum(trial.packets is None for trial in trials):
            unread["its packets were not kept"] += without
        for trial, found in read_durations(path, trials, {"rtt": rtt_stamps(source)}, pl.Float32):
            if isinstance(found, str):
                unread[f"{trial.packets} cannot be read ({found})"] += 1
                continue
            cell = sample.cell(trial)
            observation = Observation(0.0, 0.0, run=sample.label, block=trial.block, cell=cell)
            packets.append((observation, found["rtt"][found["rtt"] > 0]))
    if not packets:
        raise BadInputError(
            "no packets were kept: pooled tests need them",
            where=", ".join(str(path) for path in paths),
            remedy="omit --as-published; the comparison needs none",
        )
    run_factors = {name for sample in samples for name in sample.extra}
    tests = pooled_tests(packets, "rtt", question.factor, question.by, run_factors)
    for name in cpu_metrics(samples, modes=False):
        cpu = observe(samples, name)
        readings = [(one, np.array([one.value])) for one in cpu.observations]
        tests += pooled_tests(
            readings, cpu.metric.name, question.factor, question.by, cpu.run_factors
        )
    return tests, tuple(
        f"{count_text(times, 'trial')} without packets: {reason}"
        for reason, times in unread.items()
    )


def _metric_names(
    requested: Sequence[str], samples: Sequence[RunSample], present: Sequence[str]
) -> tuple[str, ...]:
    if not present:
        raise BadInputError(
            "no trial reached its target: there is nothing to compare",
            where=", ".join(sample.label for sample in samples),
            remedy="`planewise report` says why trials failed, and what they achieved",
        )
    usual = ("rtt", "throughput", "transmitted", "goodput")
    requested = requested or [next((name for name in usual if name in present), present[0])]
    several = {ALL: present, "cpu": cpu_metrics(samples, modes=False)}
    names = (name for asked in requested for name in several.get(asked, (asked,)))
    return tuple(dict.fromkeys(names))


def _factors(samples: Sequence[RunSample]) -> dict[str, set[str]]:
    """Levels, as text, by factor."""
    values: dict[str, set[str]] = {}
    for sample in samples:
        for trial in sample.trials:
            for name, level in sample.cell(trial).items():
                values.setdefault(name, set()).add(str(level))
    return values


def _check_factors(question: Question, samples: Sequence[RunSample]) -> None:
    factors = _factors(samples)
    for flag, name in (("--factor", question.factor), ("--by", question.by)):
        if name and name not in factors and not (flag == "--by" and name == "load"):
            one_run = name == "run" and len(samples) == 1
            available = f"available factors: {', '.join(sorted(factors))}"
            raise BadInputError(
                "one run alone has no factor run" if one_run else f"there is no factor '{name}'",
                where=flag,
                remedy="name two runs or more" if one_run else available,
            )


def _check_levels(families: Sequence[Family], factor: str, samples: Sequence[RunSample]) -> None:
    """BadInputError where no family has two levels, and why another one does not count."""
    if any(len(family.levels) + len(family.not_measurable) > 1 for family in families):
        return
    levels, title = families[0].levels, families[0].metric.title
    for sample in samples:
        for trial in sample.trials:
            level = sample.cell(trial).get(factor)
            if level is None or level in levels or keeps_levels(trial):
                continue
            missed = missed_levels(trial)
            why = (
                f"missed its target by more than 1 % ({missed[0].sentence})"
                if missed
                else f"failed ({trial.reason})"
            )
            raise BadInputError(
                f"every trial of {level} with {title} {why}: nothing is left to compare",
                where=sample.label,
                remedy="lower that level or free the CPUs, and measure again; `planewise report` "
                "shows what was achieved",
            )
    several = sorted(name for name, of_name in _factors(samples).items() if len(of_name) > 1)
    only = ", ".join(str(level) for level in levels)
    names = f"factors with several levels: {', '.join(several)}"
    raise BadInputError(
        f"{factor} has a single level ({only}): there is nothing to compare it with",
        where="--factor",
        remedy=names if several else "name several runs",
    )


def _notes(samples: Sequence[RunSample]) -> tuple[str, ...]:
    notes = []
    for sample in samples:
        missed = sum(bool(missed_levels(trial)) for trial in sample.trials)
        failed = sum(trial.status == "failed" for trial in sample.trials)
        prefix, of = f"{sample.label}: " if len(samples) > 1 else "", len(sample.trials)
        own = {
            f"left out: {failed} of {of} trials, which failed": failed,
            f"left out: {missed} of {of} trials, which missed their target by more than 1 %; "
            "`planewise report` shows what they achieved": missed,
            f"the run is {sample.info.status}: more trials may follow": sample.info.status
            in ("running", "interrupted", "failed"),
            f"times are not those of hardware: {sample.info.emulated}": sample.info.emulated,
        }
        notes += [f"{prefix}{note}" for note, holds in own.items() if holds]
    named = (
        (f"{sample.label} {trial.cell.get('plane', '')}".strip(), trial)
        for sample in samples
        for trial in sample.trials
    )
    mixed = mixed_backends(named)
    return (*notes, mixed) if mixed else tuple(notes)
