"""PASTRAMI's result files: one offered load a line, one triple a run.

    [[rate_pps, start_rx_discards], [tx, rx, cumulative_rx_discards], …]

Some files have four values a run, the last being the CPU load in percent. Lines may be in any
order. The experiment is described by the file's name (`exp_t_10`, `raw_50`, `k6.8`, `nic_buf_4096`,
`irq_pf0-4_pf1-6`, …). Source: the data published with arXiv 2410.18644.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.fields import number
from planewise.store.importers.text import lines, parse_json
from planewise.store.loads import LoadTrials, Trial, load_trials

NAME = "pastrami"
MARKS = (
    (0.95, r"\A\s*\[\s*\[\s*-?[\d.eE+]+\s*,\s*-?[\d.eE+]+\s*\]"),
    (0.6, r"\A\s*\[\s*\[\s*[-\dNI]"),
)

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


def parse(text: str, path: Path) -> list[LoadTrials]:
    """One curve. BadInputError with file and line for what is not of this format."""
    info = info_from_name(path)
    trials: list[Trial] = []
    lines_of: dict[float, list[int]] = {}
    empty: list[tuple[int, float]] = []
    for line, content in lines(text):
        rate, discards, runs = _load(parse_json(content, path, line), f"{path}:{line}")
        lines_of.setdefault(rate, []).append(line)
        if not runs:
            empty.append((line, rate))
            continue
        duration_s = _duration_s(
            info.get("duration_s"), sum(run[0] for run in runs), len(runs), rate
        )
        for run in runs:
            drops, discards = run[2] - discards, run[2]
            # A negative one: the counter was reset during this run.
            drops = drops if drops >= 0 else math.nan
            cpu = run[3] / 100 if len(run) == 4 else math.nan
            trials.append(Trial(line, rate, run[0], run[1], duration_s, drops, cpu))
    notes = []
    if repeated := [(rate, places) for rate, places in lines_of.items() if len(places) > 1]:
        rate, (first, second, *_) = repeated[0]
        notes.append(
            f"{len(repeated)} loads appear on more than one line (the first, {rate:.0f} pps, on "
            f"lines {first} and {second}): their runs are merged"
        )
    if empty:
        line, rate = empty[0]
        notes.append(f"{len(empty)} loads have no runs (the first: {rate:.0f} pps, line {line})")
    return [load_trials(path, trials, format_name=NAME, info=info, notes=notes)]


def info_from_name(path: Path) -> dict[str, str | int | float]:
    """Facts from the file's name: duration_s, runs, kernel, platform, nic_ring, irq_pinning, …"""
    stem = path.name.removesuffix(".gz").removesuffix(".txt")
    info: dict[str, str | int | float] = {}
    for key, pattern in _NAME_PARTS:
        if match := pattern.search(stem):
            value = match[1]
            info[key] = int(value) if key in ("duration_s", "runs", "nic_ring") else value
    return info


def _duration_s(named_s: object, sent: float, runs: int, rate: float) -> float:
    """Duration of a line's trials: from the file's name, or what the counts imply.

    The generator keeps its rate within a percent, so sent / rate is the duration; where the name
    differs by more, the counts decide.
    """
    seconds = sent / runs / rate if rate else math.nan
    if not 0 < seconds < 1e6:
        return math.nan
    if isinstance(named_s, int) and named_s > 0 and abs(seconds / named_s - 1) < 0.05:
        return named_s
    whole_s = round(seconds)
    return whole_s if whole_s and abs(seconds / whole_s - 1) < 0.01 else seconds


def _load(value: object, where: str) -> tuple[float, float, list[list[float]]]:
    """Rate, discards at the start, and the runs, each of three or four numbers."""
    if not isinstance(value, list) or not value or not isinstance(value[0], list):
        raise _not_a_line("a line is a list of lists", where)
    head, runs = value[0], value[1:]
    if len(head) not in (1, 2):
        raise _not_a_line("the line's first list holds the rate and the discard counter", where)
    rate = number(head[0], "the offered load", where)
    start = number(head[1], "the discard counter", where) if len(head) == 2 else math.nan
    for index, run in enumerate(runs, start=1):
        if not isinstance(run, list) or len(run) not in (3, 4):
            raise _not_a_line(f"run {index} is not a list of three or four numbers", where)
        run[:] = (number(item, f"a value of run {index}", where) for item in run)
    return rate, start, runs


def _not_a_line(what: str, where: str) -> BadInputError:
    return BadInputError(
        f"not a PASTRAMI line: {what}",
        where=where,
        remedy="[[rate_pps, discards], [tx, rx, discards], …]; try another format with --from",
    )
