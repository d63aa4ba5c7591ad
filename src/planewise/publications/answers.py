"""Checks claims against evidence: held, did not hold, or what is needed. Draws nothing."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from planewise.errors import BadInputError
from planewise.judge.bounded import CLUMP, count_interval, exact, median_interval
from planewise.judge.statistics.comparison import UNDECIDED, Comparison, Family, compare_levels
from planewise.judge.statistics.metrics import Metric, Observation, Observed, by_sending
from planewise.judge.statistics.sentences import sentence, value_text
from planewise.publications.claims import Check, Claim, Publication
from planewise.publications.evidence import Counted, Evidence
from planewise.store.cells import NAMES
from planewise.store.files import write_file
from planewise.store.models import Level
from planewise.units import count_text

Word = Literal["held", "did not hold", "not decided", "needs hardware"]
DECIDED: tuple[Word, ...] = ("held", "did not hold")
ANSWERS_FILE = "answers.json"


@dataclass(frozen=True)
class Answer:
    """The result of a claim from one piece of evidence."""

    claim: str
    word: Word
    measured: str
    """The measured result with its interval; or what is missing."""
    source: str = ""
    """The run, or the published data; empty where there is none."""
    emulated: bool = False
    asked: str = ""
    """The check as JSON: an answer to another question counts no more."""


def answers(claim: Claim, evidence: Sequence[Evidence]) -> list[Answer]:
    """An answer from each piece of evidence that has what the claim needs."""
    found = []
    for one in evidence:
        if one.emulated and not claim.trust:
            continue
        try:
            result = _asked(claim.check, one)
        except BadInputError as error:
            result = ("not decided", error.what)
        if result is not None:
            word, measured = result
            if one.emulated and claim.only_held and word == "did not hold":
                word, measured = "not decided", f"{measured} Emulation favours this outcome."
            found.append(
                Answer(claim.id, word, measured, one.name, bool(one.emulated), _question(claim))
            )
    return found


def best(claim: Claim, found: Iterable[Answer]) -> Answer:
    """The answer that a page shows: a decided one first, of hardware before emulated hosts.

    Runs of one kind that contradict each other decide nothing.
    """
    mine = [one for one in found if one.claim == claim.id and one.asked == _question(claim)]
    mine = [one for one in mine if claim.trust or not one.emulated]
    decided = [one for one in mine if one.word in DECIDED]
    real = [one for one in decided if not one.emulated] or decided
    if len({one.word for one in real}) > 1:
        texts = " and ".join(f"{one.word} in {one.source}" for one in real)
        return replace(
            real[0], word="not decided", measured=f"The runs contradict each other: {texts}."
        )
    if real:
        return real[-1]
    last = mine[-1] if mine else Answer(claim.id, "not decided", "")
    if claim.needs:
        said = f"{last.measured} Needed: {claim.needs}." if mine else f"{claim.needs}."
        return replace(last, word="needs hardware", measured=said)
    if mine:
        return last
    way = f"No run has what it compares: `planewise run {claim.design} --out RUN`."
    if not claim.design:
        way = "Name the published data: --tables or --recordings."
    return replace(last, measured=way)


def load(folder: Path) -> list[Answer]:
    """The answers that a folder of pages keeps; none where it has no file."""
    file = folder / ANSWERS_FILE
    try:
        return [Answer(**one) for one in json.loads(file.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise BadInputError(
            f"the kept answers cannot be read: {getattr(error, 'strerror', None) or error}",
            where=str(file),
            remedy="restore the file, or delete it and name all runs",
        ) from error


def save(folder: Path, found: Sequence[Answer]) -> Path:
    """Writes them, an answer a line."""
    file = folder / ANSWERS_FILE
    lines = ",\n".join(json.dumps(asdict(one), ensure_ascii=False) for one in found)
    write_file(file, f"[\n{lines}\n]\n".encode())
    return file


def merged(kept: Iterable[Answer], fresh: Iterable[Answer]) -> list[Answer]:
    """Kept and fresh answers; of one claim and source the fresh one."""
    by_key = {(one.claim, one.source): one for one in (*kept, *fresh)}
    return sorted(by_key.values(), key=lambda one: (one.claim[0], int(one.claim[1:]), one.source))


def evidence_of(publication: Publication, evidence: Sequence[Evidence]) -> list[Evidence]:
    """Runs, and the data that this publication published."""
    own = {"nfv-brief": "published tables", "pastrami": "published recordings"}
    return [
        one
        for one in evidence
        if not one.name.startswith("published") or own.get(publication.key) == one.name
    ]


# --- one question of one piece of evidence -------------------------------------------------------


def _question(claim: Claim) -> str:
    return claim.check.model_dump_json(exclude_defaults=True)


def _asked(check: Check, evidence: Evidence) -> tuple[Word, str] | None:
    """Word and sentence; None where the evidence has not what the check asks for."""
    try:
        observed = evidence.observed(check.metric, check.factor)
    except BadInputError:
        return None
    where = {
        name: [_end(level, _levels(observed.observations, name)) for level in levels]
        for name, levels in check.where.items()
    }
    of_cells = [
        one
        for one in observed.observations
        if all(one.cell.get(name) in (None, *levels) for name, levels in where.items())
    ]
    if check.at_least is not None or check.at_most is not None:
        return _limit(check, of_cells, observed.metric, evidence.unit) if of_cells else None
    a, b = (check.better, check.than) if check.same is None else check.same
    levels = _levels(of_cells, check.factor)
    first, second = _end(a, levels), _end(b, levels)
    if first == second or not {first, second} <= levels:
        return None
    if evidence.unit == "experiment":
        others = replace(observed, observations=tuple(of_cells))
        if contrary := _contrary(check, others, first, second):
            return "did not hold", contrary
    pair = tuple(one for one in of_cells if one.cell.get(check.factor) in (first, second))
    return _compared(check, replace(observed, observations=pair), (first, second), evidence.unit)


def _contrary(check: Check, observed: Observed, first: Level, second: Level) -> str:
    """Configurations whose order is the other way round by more than repetitions of one differ;
    empty where there are none, or where nothing was repeated."""
    values: dict[int, dict[Level, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in observed.observations:
        values[one.block][one.cell[check.factor]].append(one.value)
    chance = [max(two) / min(two) for by in values.values() for two in by.values() if two[1:]]
    more, less = (first, second) if observed.metric.lower_is_better else (second, first)
    both = [by for by in values.values() if {first, second} <= by.keys()]
    times = [statistics.median(by[more]) / statistics.median(by[less]) for by in both]
    beyond = [one for one in times if chance and check.same is None and one > max(chance)]
    if not beyond:
        return ""
    return (
        f"In {len(beyond)} of {len(both)} configurations, {observed.metric.title} is up to "
        f"{max(beyond):.3g} times as high with {more} as with {less}; repetitions of one "
        f"configuration differ by at most {max(chance):.3g} times."
    )


def _levels(observations: Iterable[Observation], factor: str) -> set[Level]:
    return {one.cell[factor] for one in observations if factor in one.cell}


def _end(name: Level | None, levels: set[Level]) -> Level:
    """The level; `fewest` and `most` are the least and the greatest number."""
    numbers = [level for level in levels if not isinstance(level, str)]
    if name == "fewest" and numbers:
        return min(numbers)
    return max(numbers) if name == "most" and numbers else name or ""


def _compared(
    check: Check, observed: Observed, levels: tuple[Level, Level], unit: Counted
) -> tuple[Word, str]:
    words, texts = set[Word](), []
    for part in by_sending(observed, check.factor):
        family = compare_levels(part, check.factor, by="", margin=check.margin)
        pair = family.find(*levels)
        if pair is None:
            continue
        of_pair = _of_range if unit == "setting" else _of_interval
        words.add(of_pair(check, pair, family.metric))
        texts.append(_sentence(pair, family, unit))
    if not words:
        a, b = levels
        return "not decided", f"{a} and {b} were measured in no two cells that are otherwise alike."
    word: Word = "not decided"
    if words == {"held"}:
        word = "held"
    elif "did not hold" in words:
        word = "did not hold"
    return word, " ".join(texts)


def _of_interval(check: Check, pair: Comparison, metric: Metric) -> Word:
    """Of a sample: what the joint test says; of a factor `times` what the interval says."""
    if pair.outcome in UNDECIDED and (check.times == 1 or not math.isfinite(pair.low)):
        return "not decided"
    if check.same is not None:
        return "held" if pair.outcome == "practically the same" else "did not hold"
    if check.times == 1:
        return "held" if pair.outcome == "better" else "did not hold"
    return _within(_wanted(check, metric), pair.low, pair.high)


def _of_range(check: Check, pair: Comparison, metric: Metric) -> Word:
    """Of a whole table: whether every setting is as claimed."""
    wanted = _wanted(check, metric)
    return "held" if wanted[0] <= pair.least and pair.most <= wanted[1] else "did not hold"


def _wanted(check: Check, metric: Metric) -> tuple[float, float]:
    """Changes of the first level against the second that bear the claim out."""
    if check.same is not None:
        return -check.margin, check.margin
    if metric.lower_is_better:
        return -math.inf, 1 / check.times - 1
    return check.times - 1, math.inf


def _within(wanted: tuple[float, float], low: float, high: float) -> Word:
    if wanted[0] <= low and high <= wanted[1]:
        return "held"
    return "did not hold" if high < wanted[0] or low > wanted[1] else "not decided"


def _sentence(pair: Comparison, family: Family, unit: Counted) -> str:
    metric = family.metric
    if unit == "setting":
        levels = f"{pair.a} against {pair.b}"
        if not isinstance(pair.a, str):
            levels = f"{NAMES.get(family.factor, family.factor).lower()} {levels}"
        least, most = (f"{1 + end:.3g}" for end in (pair.least, pair.most))
        times = least if least == most else f"{least} to {most}"
        counted = count_text(pair.blocks, unit)
        return f"{_first(metric.title)}, {levels}: {times} times in {counted}."
    words = [] if metric.sending is None else [metric.sending.words]
    if not isinstance(pair.a, str):  # a number does not name its factor
        words.append(NAMES.get(family.factor, family.factor))
        pair = replace(pair, a=f"{pair.a:g}", b=f"{pair.b:g}")
    text, result = ", ".join(words), sentence(pair, family, hint=False)
    result = f"{_first(text)}: {result}" if text else result
    return result.replace(" block", f" {unit}")


def _first(text: str) -> str:
    return text[0].upper() + text[1:]


def _limit(
    check: Check, observations: Sequence[Observation], metric: Metric, unit: Counted
) -> tuple[Word, str]:
    """Whether a quantity keeps a limit: its median over blocks, the share of yes or no, in a table
    every value; of lost packets their counts, in clumps."""
    blocks: dict[int, list[float]] = defaultdict(list)
    for one in observations:
        blocks[one.block].append(one.value)
    values = [statistics.fmean(group) for group in blocks.values()]
    counts = [one.counts for one in observations if one.counts is not None]
    if counts:
        lost, sent = (sum(part) for part in zip(*counts, strict=True))
        middle, (low, high) = lost / sent, count_interval(lost, sent, CLUMP)
    elif unit == "experiment" and set(values) <= {0.0, 1.0}:
        from scipy.stats import binomtest

        middle = statistics.fmean(values)
        exact_ends = binomtest(round(sum(values)), len(values)).proportion_ci(0.95, method="exact")
        low, high = float(exact_ends.low), float(exact_ends.high)
    else:
        middle = statistics.median(values)
        ends = (min(values), max(values))
        low, high = ends if unit == "setting" else median_interval([exact(one) for one in values])
    least = -math.inf if check.at_least is None else check.at_least
    most = math.inf if check.at_most is None else check.at_most
    centre, first, last = (_shown(value, check, metric) for value in (middle, low, high))
    counted = count_text(len(values), unit)
    basis = f"95 %: {first} to {last}; {counted}"
    if unit == "setting":
        basis = f"{first} to {last} in {counted}"
    elif not math.isfinite(low):
        basis = f"{counted}, 6 are needed"
    word = _within((least, most), low, high)
    return word, f"{_first(metric.title)}: {centre} ({basis})."


def _shown(value: float, check: Check, metric: Metric) -> str:
    if not math.isfinite(value):
        return "unbounded"
    return f"{value:.3g} {check.unit}" if check.unit else value_text(round(value, 4), metric.unit)
