"""PASTRAMI's result files: one offered load a line, one triple a run. Knows that format alone.

    [[rate_pps, start_rx_discards], [tx, rx, cumulative_rx_discards], …]

Some files have four values a run, the last being the CPU load in percent. Lines may be in any
order. The experiment is described by the file's name (`exp_t_10`, `raw_50`, `k6.8`, `nic_buf_4096`,
`irq_pf0-4_pf1-6`, …). Source: the data published with arXiv 2410.18644.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from planewise.errors import BadInputError
from planewise.store.importers.text import lines, number, parse_json
from planewise.store.loads import MAX_NUMBER, Floats, LoadTrials, TrialColumns

NAME = "pastrami"

_HEAD = re.compile(rb"\s*\[\s*\[\s*-?[\d.eE+]+\s*,\s*-?[\d.eE+]+\s*\]")
_MAY_BE = re.compile(rb"\s*\[\s*\[\s*[-\dNI]")

_NAME_PARTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("duration_s", re.compile(r"(?:^|_)exp_t_(\d+)(?=_|$)")),
    ("runs", re.compile(r"(?:^|_)raw_(\d+)(?=_|$)")),
    ("class", re.compile(r"(?:^|_)class_([A-Za-z0-9]+)(?=_|$)")),
    ("kernel", re.compile(r"(?:^|_)k(\d+(?:\.\d+)+)(?=_|$)")),
    ("platform", re.compile(r"_intel_(bare-metal|vm|ns|container|docker)(?=_|$)")),
    ("testbed", re.compile(r"(?:^|_)([A-Za-z]+(?:_tb\d+)?)_(?:class_[A-Za-z0-9]+_)?raw_\d")),
    ("nic_ring", re.compile(r"(?:^|_)nic_buf_(\d+)(?=_|$)")),
    ("irq_pinning", re.compile(r"(?:^|_)irq_([a-z]+\d+-\d+(?:_[a-z]+\d+-\d+)*)(?=_|$)")),
    ("repetition", re.compile(r"(?:^|_)(\d+(?:st|nd|rd|th)_exec)(?=_|$)")),
    ("date", re.compile(r"(?:^|_)date_(\d{4}-\d{2}-\d{2})(?=_|$)")),
)


def recognise(head: bytes, path: Path) -> float:
    """Two opening brackets and two numbers, which no other format here begins with."""
    if _HEAD.match(head):
        return 0.95
    return 0.6 if _MAY_BE.match(head) else 0.0


def parse(text: str, path: Path) -> list[LoadTrials]:
    """One curve. BadInputError with file and line for what is not of this format."""
    heads: list[tuple[int, float, float, int]] = []
    rows: list[list[float]] = []
    for line, content in lines(text):
        rate, start_discards, runs = _load(parse_json(content, path, line), f"{path}:{line}")
        heads.append((line, rate, start_discards, len(runs)))
        rows += runs
    info = info_from_name(path)
    columns = TrialColumns(path)
    if rows:
        _fill(columns, np.array(heads, dtype=np.float64), _rectangle(rows), info.get("duration_s"))
    return [columns.finish(format_name=NAME, info=info, notes=_notes(heads))]


def _fill(
    columns: TrialColumns, heads: Floats, runs: Floats, named_s: str | int | float | None
) -> None:
    """Adds all runs at once. `heads`: line, rate, discards at the start, number of runs."""
    line, rate, start, count = heads[heads[:, 3] > 0].T
    sizes = count.astype(np.int64)
    begins = np.cumsum(sizes) - sizes
    sent, received, discards = runs[:, 0], runs[:, 1], runs[:, 2]
    with np.errstate(all="ignore"):
        previous = np.concatenate(([np.nan], discards[:-1]))
        previous[begins] = start
        drops = discards - previous
        drops[drops < 0] = np.nan  # the counter was reset during this run
        duration_s = _durations_s(named_s, np.add.reduceat(sent, begins) / sizes / rate)
    columns.add_columns(
        line=np.repeat(line, sizes),
        offered_pps=np.repeat(rate, sizes),
        sent=sent,
        received=received,
        duration_s=np.repeat(duration_s, sizes),
        drops=drops,
        cpu=runs[:, 3] / 100 if runs.shape[1] == 4 else None,
    )


def _notes(heads: list[tuple[int, float, float, int]]) -> list[str]:
    notes = []
    first_line: dict[float, int] = {}
    repeats: dict[float, int] = {}
    for line, rate, _, _ in heads:
        if rate in first_line:
            repeats.setdefault(rate, line)
        first_line.setdefault(rate, line)
    if repeats:
        rate, line = next(iter(repeats.items()))
        notes.append(
            f"{len(repeats)} loads appear on more than one line (the first, {rate:.0f} pps, on "
            f"lines {first_line[rate]} and {line}): their runs are merged"
        )
    empty = [(line, rate) for line, rate, _, count in heads if not count]
    if empty:
        line, rate = empty[0]
        notes.append(f"{len(empty)} loads have no runs (the first: {rate:.0f} pps, line {line})")
    return notes


def info_from_name(path: Path) -> dict[str, str | int | float]:
    """Facts from the file's name: duration_s, runs, kernel, platform, nic_ring, irq_pinning, …"""
    stem = path.name.removesuffix(".gz").removesuffix(".txt")
    info: dict[str, str | int | float] = {}
    for key, pattern in _NAME_PARTS:
        if match := pattern.search(stem):
            value = match[1]
            info[key] = int(value) if key in ("duration_s", "runs", "nic_ring") else value
    return info


def _durations_s(named_s: str | int | float | None, sent_over_rate_s: Floats) -> Floats:
    """Each line's trial duration: from the file's name, or what the counts imply.

    The generator keeps its rate within a percent, so sent / rate is the duration; where the name
    differs by more, the counts decide.
    """
    seconds = np.where((sent_over_rate_s > 0) & (sent_over_rate_s < 1e6), sent_over_rate_s, np.nan)
    whole_s = np.round(seconds)
    seconds = np.where((whole_s > 0) & (np.abs(seconds / whole_s - 1) < 0.01), whole_s, seconds)
    if isinstance(named_s, int | float) and named_s > 0:
        seconds = np.where(np.abs(seconds / named_s - 1) < 0.05, float(named_s), seconds)
    return seconds


def _load(value: object, where: str) -> tuple[float, float, list[list[float]]]:
    """Rate, discards at the start, and the runs, each of three or four numbers."""
    if not isinstance(value, list) or not value or not isinstance(value[0], list):
        raise _not_a_line("a line is a list of lists", where)
    head, runs = value[0], value[1:]
    if len(head) not in (1, 2):
        raise _not_a_line("the line's first list holds the rate and the discard counter", where)
    rate = number(head[0], "the offered load", where)
    start = number(head[1], "the discard counter", where) if len(head) == 2 else np.nan
    for index, run in enumerate(runs, start=1):
        if not isinstance(run, list) or len(run) not in (3, 4):
            raise _not_a_line(f"run {index} is not a list of three or four numbers", where)
        for item in run:
            if type(item) is not int or abs(item) > MAX_NUMBER:
                value = number(item, f"a value of run {index}", where)
                if abs(value) > MAX_NUMBER:
                    raise BadInputError(
                        f"a value of run {index} has too many digits",
                        where=where,
                        remedy="the line is damaged: restore it, or delete it",
                    )
    return rate, start, runs


def _rectangle(rows: list[list[float]]) -> Floats:
    """The runs as an array of shape (K, 3) or, when some have a CPU load, (K, 4)."""
    width = max(map(len, rows))
    if any(len(row) != width for row in rows):
        rows = [[*row, np.nan][:width] for row in rows]
    return np.array(rows, dtype=np.float64)


def _not_a_line(what: str, where: str) -> BadInputError:
    return BadInputError(
        f"not a PASTRAMI line: {what}",
        where=where,
        remedy="[[rate_pps, discards], [tx, rx, discards], …]; try another format with --from",
    )
