"""A campaign: the same question asked of many configurations. Knows verdicts; reads no file.

PASTRAMI (arXiv 2410.18644, table I) varies an experiment by aspects: kernel, NIC ring, IRQ pinning,
platform, duration and number of runs. Here a curve's aspects are what is recorded about it, and a
configuration is all of them but those that tell one repetition from another.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np

from planewise.judge.verdict import Open, Verdict, Word
from planewise.store.loads import LoadTrials
from planewise.store.models import Level
from planewise.units import count_text, rate_text

REPETITION = frozenset({"repetition", "date", "run", "seed"})
"""What tells one repetition of a configuration from another."""
NOT_SAID = "not said"
"""Level of an aspect of which nothing was recorded."""
_NOT_ASPECTS = frozenset({"emulated"})
_OF_TRIALS = frozenset({"duration_s"})
"""Aspects that any file's trials have: they identify no configuration."""


@dataclass(frozen=True)
class CampaignCurve:
    """One curve of a campaign."""

    name: str
    aspects: Mapping[str, Level]
    """Without what tells repetitions apart."""
    repetition: tuple[tuple[str, Level], ...]
    verdict: Verdict


@dataclass(frozen=True)
class Figures:
    """A figure over curves [packet/s]."""

    known: int
    """Curves that have it."""
    median_pps: float
    low_pps: float
    """The least and the greatest of the curves; no interval."""
    high_pps: float


@dataclass(frozen=True)
class LevelRow:
    """All curves of one level of one aspect."""

    aspect: str
    level: Level
    words: Mapping[Word, int]
    open: Mapping[Open, int]
    """Of UNDECIDED: the kinds that have a name."""
    pastrami_good: int
    """GOOD by PASTRAMI's conditions as the paper writes them."""
    pdr: Figures | None
    """Of the curves whose PDR the ladder bounds; None where it bounds none."""
    saturation: Figures | None

    @property
    def curves(self) -> int:
        """Number of curves."""
        return sum(self.words.values())


@dataclass(frozen=True)
class Agreement:
    """How often two repetitions of one configuration get the same word."""

    configurations: int
    """That were repeated."""
    pairs: int
    agree: int
    """Pairs with the same word, UNDECIDED with UNDECIDED included."""
    opposite: int
    """Pairs of GOOD and BAD."""
    agree_pastrami: int
    """Pairs with the same word by PASTRAMI's conditions."""
    pdr_ratio: float | None
    """Median over pairs of the greater PDR divided by the lesser; None where no pair has both."""

    @property
    def sentence(self) -> str:
        """The agreement in a sentence."""
        if not self.pairs:
            return "No configuration is known to be repeated: how well runs agree is unknown."
        ratio = ""
        if self.pdr_ratio is not None:
            ratio = f"; their PDRs are {self.pdr_ratio:.3g} times apart"
        were = "was" if self.configurations == 1 else "were"
        return (
            f"{count_text(self.configurations, 'configuration')} {were} repeated, "
            f"{count_text(self.pairs, 'pair')}: {self.agree} have the same word, {self.opposite} "
            f"opposite ones (by PASTRAMI's conditions {self.agree_pastrami} the same){ratio}."
        )


@dataclass(frozen=True)
class Campaign:
    """All curves by aspect."""

    members: tuple[CampaignCurve, ...]
    rows: tuple[LevelRow, ...]
    """Aspects that vary, in the order of their names; levels by rising number, then name."""
    agreement: Agreement


def member(trials: LoadTrials, verdict: Verdict, repetition: Collection[str] = ()) -> CampaignCurve:
    """A curve with what its file or run says of the experiment.

    The duration of a trial is an aspect also where only the trials tell it. `repetition` names
    further aspects that tell one repetition from another, such as testbeds of one make.
    """
    of_repetition = REPETITION | set(repetition)
    info: dict[str, Level] = {
        name: level for name, level in trials.info.items() if name not in _NOT_ASPECTS
    }
    if "duration_s" not in info and trials.duration_s is not None:
        seconds = np.unique(np.round(trials.duration_s[np.isfinite(trials.duration_s)], 1))
        if seconds.size == 1:
            whole_s = int(seconds[0])
            info["duration_s"] = whole_s if whole_s == seconds[0] else float(seconds[0])
    return CampaignCurve(
        f"{trials.name} {trials.curve}".strip(),
        {name: level for name, level in info.items() if name not in of_repetition},
        tuple(sorted((name, level) for name, level in info.items() if name in of_repetition)),
        verdict,
    )


def campaign(members: Sequence[CampaignCurve], aspects: Sequence[str] = ()) -> Campaign:
    """Counts words and figures by aspect; `aspects`: these alone, default all that vary."""
    names = sorted({name for curve in members for name in curve.aspects})
    rows = []
    for name in aspects or names:
        by_level: dict[Level, list[CampaignCurve]] = defaultdict(list)
        for curve in members:
            by_level[curve.aspects.get(name, NOT_SAID)].append(curve)
        if len(by_level) > 1 or aspects:
            rows += [_row(name, level, by_level[level]) for level in sorted(by_level, key=_natural)]
    return Campaign(tuple(members), tuple(rows), _agreement(members))


def _natural(level: Level) -> list[tuple[bool, float, str]]:
    """Sorts 5.6 before 5.18 as kernels are, and what was not recorded last."""
    if level == NOT_SAID:
        return [(True, math.inf, "")]
    parts = re.findall(r"\d+|\D+", str(level))
    return [(not part.isdigit(), float(part) if part.isdigit() else 0.0, part) for part in parts]


def _row(aspect: str, level: Level, members: Sequence[CampaignCurve]) -> LevelRow:
    verdicts = [member.verdict for member in members]
    return LevelRow(
        aspect,
        level,
        dict(Counter(verdict.verdict for verdict in verdicts)),
        dict(Counter(verdict.open for verdict in verdicts if verdict.open)),
        sum(verdict.pastrami.word == "GOOD" for verdict in verdicts),
        _figures([verdict.pdr.pps for verdict in verdicts if verdict.pdr and verdict.pdr.bounded]),
        _figures([verdict.saturation.throughput_pps for verdict in verdicts if verdict.saturation]),
    )


def figures_text(figures: Figures | None) -> str:
    """The median over curves, the least and the greatest, and how many have it."""
    if figures is None:
        return "not known"
    low, high = rate_text(figures.low_pps), rate_text(figures.high_pps)
    return f"{rate_text(figures.median_pps)} ({low} to {high}; {figures.known})"


def _figures(values: Sequence[float]) -> Figures | None:
    if not values:
        return None
    return Figures(len(values), median(values), min(values), max(values))


def _agreement(members: Sequence[CampaignCurve]) -> Agreement:
    """Of curves that say what they measured: all alike may be of anything where they don't."""
    repeated: dict[tuple[tuple[str, Level], ...], list[Verdict]] = defaultdict(list)
    for curve in members:
        if not curve.aspects.keys() - _OF_TRIALS:
            continue
        repeated[tuple(sorted(curve.aspects.items()))].append(curve.verdict)
    several = [verdicts for verdicts in repeated.values() if len(verdicts) > 1]
    pairs = [pair for verdicts in several for pair in combinations(verdicts, 2)]
    ratios = [
        max(a.pdr.pps, b.pdr.pps) / min(a.pdr.pps, b.pdr.pps)
        for a, b in pairs
        if a.pdr and b.pdr and a.pdr.bounded and b.pdr.bounded
    ]
    return Agreement(
        len(several),
        len(pairs),
        sum(a.verdict == b.verdict for a, b in pairs),
        sum({a.verdict, b.verdict} == {"GOOD", "BAD"} for a, b in pairs),
        sum(a.pastrami.word == b.pastrami.word for a, b in pairs),
        median(ratios) if ratios else None,
    )
