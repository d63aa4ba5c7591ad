"""PASTRAMI's result files: one offered load a line, one triple a run. Knows that format alone.

    [[rate_pps, start_rx_discards], [tx, rx, cumulative_rx_discards], …]

Some files have four values a run, the last being the CPU load in percent. Lines may stand in any
order. What the experiment was is in the file's name (`exp_t_10`, `raw_50`, `k6.8`, `nic_buf_4096`,
`irq_pf0-4_pf1-6`, …). Source: the data published with arXiv 2410.18644.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from planewise.errors import BadInputError
from planewise.store.importers.text import lines, number, parse_json, read_text
from planewise.store.loads import Floats, LoadTrials, TrialColumns

NAME = "pastrami"
TITLE = "PASTRAMI: a line a load, [[rate, discards], [tx, rx, discards], …]"

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
    """Two opening brackets with two numbers in them: no other format here begins so."""
    if _HEAD.match(head):
        return 0.95
    return 0.6 if _MAY_BE.match(head) else 0.0


def read(path: Path) -> list[LoadTrials]:
    """One curve. BadInputError with file and line for what is not of this format."""
    return parse(read_text(path), path)


def parse(text: str, path: Path) -> list[LoadTrials]:
    """The same from the file's text; `path` only names it."""
    columns = TrialColumns(path)
    seen: dict[float, int] = {}
    notes = []
    info = info_from_name(path)
    named_s = info.get("duration_s")
    for line, content in lines(text):
        where = f"{path}:{line}"
        rate, start_discards, runs = _load(parse_json(content, path, line), where)
        if rate in seen:
            notes.append(
                f"the load {rate:.0f} pps stands on lines {seen[rate]} and {line}: "
                "their runs are taken together"
            )
        seen.setdefault(rate, line)
        if not len(runs):
            notes.append(f"the load {rate:.0f} pps (line {line}) has no runs")
            continue
        with np.errstate(all="ignore"):
            before = np.concatenate(([start_discards], runs[:-1, 2]))
            drops = runs[:, 2] - before
            drops[drops < 0] = np.nan  # the counter was reset: nothing is known of this run
            duration_s = _duration_s(named_s, float(np.median(runs[:, 0])) / rate if rate else 0.0)
            cpu = runs[:, 3] / 100 if runs.shape[1] == 4 else None
        columns.add_columns(
            line=np.full(len(runs), float(line)),
            offered_pps=np.full(len(runs), rate),
            sent=runs[:, 0],
            received=runs[:, 1],
            duration_s=np.full(len(runs), duration_s),
            drops=drops,
            cpu=cpu,
        )
    return [columns.finish(format_name=NAME, info=info, notes=notes)]


def info_from_name(path: Path) -> dict[str, str | int | float]:
    """What the file's name says: duration_s, runs, kernel, platform, nic_ring, irq_pinning, …"""
    stem = path.name.removesuffix(".gz").removesuffix(".txt")
    info: dict[str, str | int | float] = {}
    for key, pattern in _NAME_PARTS:
        if match := pattern.search(stem):
            value = match[1]
            info[key] = int(value) if key in ("duration_s", "runs", "nic_ring") else value
    return info


def _duration_s(named_s: str | int | float | None, sent_over_rate_s: float) -> float:
    """A line's trial duration: from the file's name, or what the counts imply.

    The generator keeps its rate within a percent, so sent / rate tells the duration; where the
    name says otherwise by more, the counts are believed.
    """
    if not 0 < sent_over_rate_s < 1e6:
        return float("nan")
    whole_s = float(round(sent_over_rate_s))
    if isinstance(named_s, int | float) and abs(sent_over_rate_s / named_s - 1) < 0.05:
        return float(named_s)
    if whole_s and abs(sent_over_rate_s / whole_s - 1) < 0.01:
        return whole_s
    return sent_over_rate_s


def _load(value: object, where: str) -> tuple[float, float, Floats]:
    """Rate, discards at the start, and the runs as an array of shape (K, 3) or (K, 4)."""
    if not isinstance(value, list) or not value or not isinstance(value[0], list):
        raise _wrong("a line is a list of lists", where)
    head, runs = value[0], value[1:]
    if len(head) not in (1, 2):
        raise _wrong("the line's first list holds the rate and the discard counter", where)
    rate = number(head[0], "the offered load", where)
    start = number(head[1], "the discard counter", where) if len(head) == 2 else np.nan
    width = 0
    for index, run in enumerate(runs, start=1):
        if not isinstance(run, list) or len(run) not in (3, 4):
            raise _wrong(f"run {index} is not a list of three or four numbers", where)
        width = max(width, len(run))
        for item in run:
            if type(item) is not int:
                number(item, f"a value of run {index}", where)
    if not runs:
        return rate, start, np.empty((0, 3))
    rows = [run if len(run) == width else [*run, np.nan] for run in runs]
    try:
        return rate, start, np.array(rows, dtype=np.float64)
    except OverflowError:
        raise BadInputError(
            "a count has too many digits",
            where=where,
            remedy="the line is damaged: restore it, or delete it",
        ) from None


def _wrong(what: str, where: str) -> BadInputError:
    return BadInputError(
        f"not a PASTRAMI line: {what}",
        where=where,
        remedy="[[rate_pps, discards], [tx, rx, discards], …]; try another format with --from",
    )
