"""Checks claims against runs: held, did not hold, or cannot be told here. Draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planewise.advise.gain import Gain, gain_of
from planewise.errors import BadInputError
from planewise.judge.analysis import SERIES, Question, analyse
from planewise.judge.statistics import Comparison, Family, Outcome, RunSample
from planewise.judge.statistics.comparison import UNDECIDED
from planewise.judge.statistics.sentences import sentence
from planewise.judge.verdict import Verdict
from planewise.publications.claims import Claim, GainOf, Order, Same, Words
from planewise.store.allocations import by_groups
from planewise.store.cells import NAMES, Naming
from planewise.store.models import Level, RunInfo, TrialRecord
from planewise.store.rundir import RunReader
from planewise.units import percent_text, rate_text

Word = Literal["held", "did not hold", "cannot be told here"]

_DEFAULTS: Mapping[str, Level] = {"guest": "namespace", "path": "north-south"}
"""Levels that a cell without the factor has."""


@dataclass(frozen=True)
class AskedRun:
    """A run to check claims against."""

    path: Path
    info: RunInfo
    trials: Sequence[TrialRecord]
    """Finished ones."""

    def has_one_of(self, levels: Mapping[str, Sequence[Level]]) -> bool:
        """Whether some trial has one of these levels."""
        return any(
            trial.cell.get(factor) in allowed
            for trial in self.trials
            for factor, allowed in levels.items()
        )


@dataclass(frozen=True)
class Answer:
    """The result of a claim from one run, or from all recordings."""

    word: Word
    measured: str
    """The measured result with its interval; or why it cannot be told."""
    run: str
    """Name of the run; empty where no run has what the claim needs."""


def read_run(path: Path) -> AskedRun:
    """Reads a run directory.

    Raises:
        BadInputError: it is not a run directory.
    """
    reader = RunReader(path)
    finished = [trial for trial in reader.trials() if trial.status == "done"]
    return AskedRun(path, reader.info, finished)


def answers(claim: Claim, runs: Sequence[AskedRun], verdicts: Sequence[Verdict]) -> list[Answer]:
    """An answer for each run that has what the claim needs; one answer where no run has."""
    if claim.words is not None:
        return [_of_words(claim.words, verdicts)]
    results = []
    for run in runs:
        if claim.order is not None:
            results += _of_order(claim.order, run)
        elif claim.same is not None:
            results += _of_same(claim.same, run)
        elif claim.rates is not None:
            results += _of_gain(claim.rates, run, _rises)
        elif claim.sizes is not None:
            results += _of_gain(claim.sizes, run, _without_size)
    return results or [Answer("cannot be told here", f"no run has {_needs(claim)}", "")]


def _of_order(claim: Order, run: AskedRun) -> list[Answer]:
    where = _where(run, claim.where)
    levels = _levels(run, claim.factor, where)
    claimed = _ends((claim.better, claim.than), levels)
    substitutes = [claim.stand_in.get(str(level), level) for level in claimed]
    replaced = not set(claimed) <= levels and set(substitutes) <= levels
    better, than = substitutes if replaced else claimed
    if better == than or not {better, than} <= levels:
        return []
    question = Question(
        claim.factor, (claim.metric,), where={**where, **_only(claim.factor, better, than)}
    )
    answer = _evaluated(run, question, (better, than), "better")
    if not replaced:
        return [answer]
    return [
        _with_replacements(
            answer, [(a, b) for a, b in zip(claimed, substitutes, strict=True) if a != b]
        )
    ]


def _of_same(claim: Same, run: AskedRun) -> list[Answer]:
    levels = _levels(run, claim.factor, claim.where)
    first, second = _ends(claim.levels, levels)
    if first == second or not {first, second} <= levels:
        return []
    question = Question(
        claim.factor,
        (claim.metric,),
        margin=claim.margin,
        where={**claim.where, **_only(claim.factor, first, second)},
    )
    return [_evaluated(run, question, (first, second), "practically the same")]


def _evaluated(
    run: AskedRun, question: Question, levels: tuple[Level, Level], expected: Outcome
) -> Answer:
    """The answer from the comparison of two levels."""
    try:
        families = analyse([run.path], question).families
    except BadInputError as error:
        return Answer("cannot be told here", error.what, run.info.run)
    pairs = [(family, pair) for family in families if (pair := family.find(*levels)) is not None]
    if not pairs:
        a, b = levels
        apart = f"{a} and {b} were measured in no two cells that are otherwise alike"
        return Answer("cannot be told here", apart, run.info.run)
    outcomes = {pair.outcome for _, pair in pairs}
    if outcomes == {expected}:
        word: Word = "held"
    elif outcomes <= {expected, *UNDECIDED}:
        word = "cannot be told here"
    else:
        word = "did not hold"
    return Answer(
        word,
        " ".join(_comparison_text(family, pair) for family, pair in pairs),
        run.info.run,
    )


def _only(factor: str, a: Level, b: Level) -> dict[str, list[Level]]:
    """Only these two levels, so that no other comparison shares the family's error."""
    return {} if factor == SERIES else {factor: [a, b]}


def _comparison_text(family: Family, pair: Comparison) -> str:
    sending = family.metric.sending
    words = [] if sending is None else [sending.words]
    if not isinstance(pair.a, str):  # a number does not name its factor
        words.append(NAMES.get(pair.factor, pair.factor))
    text = ", ".join(words)
    result = sentence(pair, family)
    if not text:
        return result
    return f"{text[0].upper()}{text[1:]}: {result.replace('Whether', 'whether', 1)}"


def _of_gain(claim: GainOf, run: AskedRun, read: Callable[[Gain, str], Answer]) -> list[Answer]:
    planes = _levels(run, "plane", {})
    fast = next((plane for plane in (claim.fast, claim.stand_in) if plane in planes), None)
    if fast is None or claim.slow not in planes or len(_levels(run, "frequency_pps", {})) < 2:
        return []
    try:
        gain = gain_of(RunSample(run.info.run, run.info, run.trials), claim.slow, fast)
    except BadInputError as error:
        return [Answer("cannot be told here", error.what, run.info.run)]
    if len({row.frequency_pps for row in gain.rows}) < 2:
        reason = f"{gain.fast} and {gain.slow} have pairs of trials at one packet rate alone"
        return [Answer("cannot be told here", reason, run.info.run)]
    answer = read(gain, run.info.run)
    return [_with_replacements(answer, [(claim.fast, fast)]) if fast != claim.fast else answer]


def _rises(gain: Gain, run: str) -> Answer:
    """Whether the boost at the highest rate is above that at the lowest, by frame size."""
    sizes = sorted({row.size_bytes for row in gain.rows})
    parts, rises, falls = [], 0, 0
    for size in sizes:
        rows = sorted(
            (row for row in gain.rows if row.size_bytes == size), key=lambda row: row.frequency_pps
        )
        first, last = rows[0], rows[-1]
        rises += last.boost.low > first.boost.high
        falls += last.boost.high < first.boost.low
        parts.append(
            f"{size} bytes: {_boost(first.boost.value, first.boost.low, first.boost.high)} at "
            f"{rate_text(first.frequency_pps)}, "
            f"{_boost(last.boost.value, last.boost.low, last.boost.high)} at "
            f"{rate_text(last.frequency_pps)}"
        )
    word: Word = (
        "held" if rises == len(sizes) else "did not hold" if falls else "cannot be told here"
    )
    return Answer(word, f"RTT saved by {gain.fast} over {gain.slow}: {'; '.join(parts)}.", run)


def _boost(value: float, low: float, high: float) -> str:
    return f"{percent_text(round(value, 2))} ({percent_text(round(low, 2))} to " + (
        f"{percent_text(round(high, 2))})"
    )


def _without_size(gain: Gain, run: str) -> Answer:
    words: dict[str, Word] = {
        "no": "held",
        "yes": "did not hold",
        "not known": "cannot be told here",
    }
    sizes = sorted({row.size_bytes for row in gain.rows})
    word_of = {
        "no": "save practically the same",
        "yes": "do not save the same",
        "not known": "may or may not save the same: the intervals are too wide",
    }[gain.size_matters]
    return Answer(
        words[gain.size_matters],
        f"Frames of {sizes[0]} and of {sizes[-1]} bytes {word_of} ({gain.fast} over {gain.slow}).",
        run,
    )


def _with_replacements(answer: Answer, replaced: Iterable[tuple[Level, Level]]) -> Answer:
    """The answer of a stand-in: only a hint, as the claim is about another plane."""
    named = " and ".join(f"{substitute} stands in for {plane}" for plane, substitute in replaced)
    return Answer(
        "cannot be told here",
        f"{named}; with it the claim {'would hold' if answer.word == 'held' else answer.word}. "
        f"{answer.measured}",
        answer.run,
    )


def _of_words(claim: Words, verdicts: Sequence[Verdict]) -> Answer:
    """Shares with exact intervals (Clopper and Pearson 1934)."""
    from scipy.stats import binomtest

    if not verdicts:
        return Answer("cannot be told here", "no recorded experiments were named", "")
    counts = {word: sum(v.verdict == word for v in verdicts) for word in ("GOOD", "BAD")}
    shares = []
    for word, count in counts.items():
        low, high = binomtest(count, len(verdicts)).proportion_ci(0.95, method="exact")
        ends = f"{percent_text(round(low, 3))} to {percent_text(round(high, 3))}"
        shares.append(f"{count} {word} (95 %: {ends})")
    undecided = len(verdicts) - sum(counts.values())
    all_given = all(counts[word] for word in claim.some)
    return Answer(
        "held" if all_given else "cannot be told here" if undecided else "did not hold",
        f"Of {len(verdicts)} recorded experiments {', '.join(shares)}, {undecided} UNDECIDED.",
        "recordings",
    )


def _where(run: AskedRun, where: Mapping[str, Sequence[Level]]) -> dict[str, list[Level]]:
    """`where` with `fewest` and `most` replaced by the run's levels."""
    return {
        name: [_ends((level, level), _levels(run, name, {}))[0] for level in levels]
        for name, levels in where.items()
    }


def _levels(run: AskedRun, factor: str, where: Mapping[str, Sequence[Level]]) -> set[Level]:
    """Levels of a factor in cells that `where` allows; an allocator's trial counts as one for each
    of its groups."""
    naming = Naming(trial.cell for trial in run.trials)
    varied: set[Level] = set()
    for trial in by_groups(run.trials):
        if all(_level(trial, name) in (None, *levels) for name, levels in where.items()):
            if factor == SERIES:
                varied.update(naming.like(naming.series(trial.cell)))
            elif (level := _level(trial, factor)) is not None:
                varied.add(level)
    return varied


def _level(trial: TrialRecord, factor: str) -> Level | None:
    return trial.cell.get(factor, _DEFAULTS.get(factor))


def _ends(names: tuple[Level, Level], levels: set[Level]) -> tuple[Level, Level]:
    """The two names, with `fewest` and `most` replaced by levels."""
    numbers = [level for level in levels if not isinstance(level, str)]
    ends = {"fewest": min(numbers, default="fewest"), "most": max(numbers, default="most")}
    first, second = (ends.get(str(level), level) for level in names)
    return first, second


def _needs(claim: Claim) -> str:
    """The needs of a claim, in words."""
    if claim.rates or claim.sizes:
        gain = claim.rates or claim.sizes
        assert gain is not None
        return f"{gain.slow} and {gain.fast} at several packet rates and frame sizes"
    check = claim.order or claim.same
    assert check is not None
    pair = (check.better, check.than) if isinstance(check, Order) else check.levels
    where = ", ".join(
        f"{name} {' or '.join(map(str, levels))}"
        for name, levels in check.where.items()
        if name != check.factor
    )
    return f"{check.factor} {pair[0]} and {pair[1]}{f' ({where})' if where else ''}"
