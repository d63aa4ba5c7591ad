"""Readings of other tools' files: how far they can be told apart, and compared pair by pair."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, takewhile
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from planewise.judge.interval import lag1
from planewise.store.loads import Floats
from planewise.store.readings import Readings
from planewise.units import BITS, RATES, TIMES, count_text, percent_text, unit_of

ALPHA = 0.05
LONG_NAME = 24
"""Names of files beyond this lose the beginning that all of them have."""
BATCHES = 20
"""Packets, and long series, are taken in so many consecutive batches: neighbours are alike."""


@dataclass(frozen=True)
class Estimate:
    """The mean of some readings (of packets, the median), and how well it is known."""

    value: float
    error: float
    """Standard error; not-a-number where nothing in the file tells."""
    freedom: float
    """Degrees of freedom of `error`."""
    low: float | None
    high: float | None
    """95 % interval; None where nothing in the file tells."""

    @property
    def least_difference(self) -> float | None:
        """Least relative difference from another file like it that can be told; None: unknown."""
        if not self.value or not math.isfinite(self.error):
            return None
        return float(
            stdtrit(2 * self.freedom, 1 - ALPHA / 2) * math.sqrt(2) * self.error / self.value
        )


@dataclass(frozen=True)
class Level:
    """One side of a comparison: a file, or a folder of files that repeat the same."""

    name: str
    readings: Readings
    estimate: Estimate


@dataclass(frozen=True)
class Pair:
    """Level `a` against level `b`; `low` and `high` bound the change, None where nothing tells."""

    a: str
    b: str
    change: float
    """a/b − 1; of shares a − b."""
    low: float | None
    high: float | None
    outcome: str
    """Of a: better, worse, practically the same, not distinguishable, or not known."""


@dataclass(frozen=True)
class Compared:
    """A quantity under one condition, level by level and pair by pair."""

    quantity: str
    condition: str
    levels: Sequence[Level]
    pairs: Sequence[Pair]


def estimate(readings: Readings) -> Estimate:
    """The mean and its error, neighbouring values' correlation counted in."""
    values, runs = readings.values, readings.runs
    if readings.of == "packet" or len(values) > 2 * BATCHES:
        middle = np.median if readings.of == "packet" else np.mean
        parts = min(BATCHES, len(values))
        values = np.array([float(middle(part)) for part in np.array_split(values, parts)])
    value = float(np.mean(values))
    if readings.of == "packet":
        value = float(np.median(readings.values))
    if readings.low is not None and readings.high is not None and runs > 1:
        freedom = runs - 1.0
        error = (readings.high - readings.low) / 2 / float(stdtrit(freedom, 1 - ALPHA / 2))
        return Estimate(value, error, freedom, readings.low, readings.high)
    if len(values) < 2:
        return Estimate(value, math.nan, math.nan, readings.low, readings.high)
    number = len(values) if readings.of == "run" else _independent(values)
    error = float(np.std(values, ddof=1)) / math.sqrt(number)
    freedom = max(number - 1, 1.0)
    half = float(stdtrit(freedom, 1 - ALPHA / 2)) * error
    return Estimate(value, error, freedom, max(value - half, 0.0), value + half)


def _independent(values: Floats) -> float:
    """How many independent values say as much as these, by their lag-1 correlation."""
    lag = min(max(lag1(values), 0.0), 0.99)
    return max(len(values) * (1 - lag) / (1 + lag), 2.0)


def can_tell(readings: Sequence[Readings]) -> list[str]:
    """What a file's readings can and cannot answer, a sentence for each sort of them."""
    sorts: dict[tuple[str, int, bool], list[Readings]] = defaultdict(list)
    for one in readings:
        single = one.of != "number" and len(one.values) == 1
        sorts[one.of, one.runs, single].append(one)
    sentences = []
    for members in sorts.values():
        known = _known(members)
        if len(sorts) > 1 and len(members) == 1:
            known = f"{members[0].quantity}, {known}"
        sentences.append(f"{known}: {_limit(members)}")
    return sentences


def _known(members: Sequence[Readings]) -> str:
    one = members[0]
    if one.of == "number":
        return f"a mean of {one.runs} runs" if one.runs > 1 else "a single number"
    counts = sorted({len(member.values) for member in members})
    known = count_text(counts[-1], one.of)
    if len(counts) > 1:
        known = f"{counts[0]:,} to {known}"
    return known if one.of == "run" else f"{known} of one run"


def _limit(members: Sequence[Readings]) -> str:
    known = [share for one in members if (share := estimate(one).least_difference) is not None]
    if not known:
        bounds = members[0].of == "number" and members[0].low is not None
        return (
            "a search's lower bound, its trials are not in the file"
            if bounds
            else "nothing in the file shows how much it varies"
        )
    least = sorted(max(round(share, 3), 0.001) for share in known if share)
    if not least:
        what = "the medians of all parts" if members[0].of == "packet" else "all values"
        return f"{what} are equal, so how much they vary is unknown"
    shares = " to ".join(percent_text(share) for share in dict.fromkeys((least[0], least[-1])))
    text = f"differences below {shares} can't be told"
    return text if members[0].of in ("run", "number") else f"{text}, nor how much runs differ"


def compare(readings: Sequence[Readings], margin: float) -> list[Compared]:
    """Every quantity that several levels have under the same condition, or one file under several.

    Files in several folders, with several in one of them, are runs of their folder.
    """
    named = list(_levels(readings))
    several = len({name for name, _ in named}) > 1
    groups: dict[tuple[str, str], list[tuple[str, Readings]]] = defaultdict(list)
    for name, one in named:
        key = (one.quantity, one.condition if several else "")
        groups[key].append((name if several else one.condition, one))
    compared = []
    for (quantity, condition), members in groups.items():
        if len(members) < 2:
            continue
        names = told_apart([name for name, _ in members])
        levels = [
            Level(name, one, estimate(one)) for name, (_, one) in zip(names, members, strict=True)
        ]
        pairs = list(combinations(levels, 2))
        decided = [_pair(a, b, margin, ALPHA / len(pairs)) for a, b in pairs]
        compared.append(Compared(quantity, condition, levels, decided))
    return compared


def _levels(readings: Sequence[Readings]) -> Iterator[tuple[str, Readings]]:
    """The readings by level: of files in folders, each file's mean becomes a run."""
    files = list(dict.fromkeys(one.file for one in readings))
    folders = list(dict.fromkeys(file.parent for file in files))
    names = _names(files)
    if not 1 < len(folders) < len(files):
        yield from ((names[one.file], one) for one in readings)
        return
    labels = _names(folders)
    runs: dict[tuple[Path, str, str], list[Readings]] = defaultdict(list)
    for one in readings:
        runs[one.file.parent, one.quantity, one.condition].append(one)
    for (folder, _, condition), members in runs.items():
        first = members[0]
        values = np.array([estimate(member).value for member in members])
        kept = members if len(members) == 1 else [
            Readings(first.file, first.format, first.quantity, first.unit, values, "run", condition)
        ]  # fmt: skip
        yield from ((labels[folder], one) for one in kept)


def told_apart(names: Sequence[str]) -> list[str]:
    """The names without the parts between commas that all of them have."""
    parts = [name.split(", ") for name in names]
    common = set(parts[0]).intersection(*parts[1:])
    short = [", ".join(part for part in one if part not in common) for one in parts]
    return short if all(short) else list(names)


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """Each path's name without ending where that tells them apart, else the path."""
    short = [path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name for path in paths]
    if len(set(short)) == len(short) > 1 and max(map(len, short)) > LONG_NAME:
        words = [re.split(r"(?<=[-_. ])", name) for name in short]
        common = takewhile(lambda alike: len(set(alike)) == 1, zip(*words, strict=False))
        start = sum(len(alike[0]) for alike in common)
        short = [name[start:] or name for name in short]
    for longer in ([path.name for path in paths], list(map(str, paths))):
        if len(set(short)) < len(short):
            short = longer
    return dict(zip(paths, short, strict=True))


def _pair(a: Level, b: Level, margin: float, alpha: float) -> Pair:
    x, y = a.estimate, b.estimate
    shares = a.readings.unit == "share" or not x.value or not y.value
    change = x.value - y.value if shares else x.value / y.value - 1
    low: float | None = None
    high: float | None = None
    if math.isfinite(x.error) and math.isfinite(y.error):
        parts = [(one.error / (1.0 if shares else one.value), one.freedom) for one in (x, y)]
        error = math.hypot(*(part for part, _ in parts))
        spread = sum(part**4 / freedom for part, freedom in parts)
        freedom = error**4 / spread if spread else 1e9  # Welch and Satterthwaite
        half = float(stdtrit(freedom, 1 - alpha / 2)) * error
        if shares:
            low, high = change - half, change + half
        else:
            low, high = (math.expm1(min(math.log1p(change) + end, 700.0)) for end in (-half, half))
    elif None not in (x.low, x.high, y.low, y.high) and not shares:
        low = (x.low or 0.0) / (y.high or math.inf) - 1
        high = (x.high or 0.0) / y.low - 1 if y.low else math.inf
    return Pair(a.name, b.name, change, low, high, _outcome(a, low, high, margin, shares=shares))


def _outcome(
    level: Level, low: float | None, high: float | None, margin: float, *, shares: bool
) -> str:
    if low is None or high is None:
        return "not known"
    if not shares and -margin < low and high < margin:
        return "practically the same"
    if low > 0 or high < 0:
        return "better" if (high < 0) == level.readings.lower_is_better else "worse"
    return "not distinguishable"


_UNITS: Mapping[str, tuple[tuple[float, str], ...]] = {
    "ns": TIMES,
    "bit/s": BITS,
    "pps": RATES,
    "1/s": ((1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")),
    "share": ((0.01, "%"),),
}


def value_text(readings: Readings, *values: float) -> str:
    """A value in the readings' unit, or the two ends of an interval."""
    scale, unit = unit_of(values, _UNITS[readings.unit])
    return f"{' to '.join(f'{value / scale:.4g}' for value in values)} {unit}"


def change_text(pair: Pair, level: Level) -> str:
    """The change, of shares in points."""
    text = percent_text(pair.change, signed=True)
    return text.removesuffix(" %") + " points" if level.readings.unit == "share" else text
