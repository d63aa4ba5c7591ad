"""The documented CSV: one trial a row, named columns with their units.

docs/reference/formats.md, “Importing results”, lists the columns. A header names them, in any
order; separator comma, semicolon or tab; lines that begin with `#` are comments, of which
`#planewise {…}` (written by our exporter) carries what is not a column.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planewise.errors import BadInputError
from planewise.store.files import write_file
from planewise.store.importers.fields import Fields
from planewise.store.importers.text import lines
from planewise.store.loads import LoadTrials, Trial, load_trials

NAME = "csv"

MARK = "#planewise "

_ALIASES = {
    "offered": ("offered", "rate", "load", "offered_load", "intended", "intended_load", "target"),
    "sent": ("sent", "tx", "tx_packets", "tx_pkts", "opackets", "offered_count", "packets_sent"),
    "received": (
        "received", "rx", "rx_packets", "rx_pkts", "ipackets", "forwarded", "forwarding_count",
        "packets_received",
    ),
    "lost": ("lost", "loss", "loss_count", "packets_lost"),
    "sent_rate": (),
    "received_rate": ("throughput",),
    "loss_ratio": ("plr", "loss_ratio", "lossratio"),
    "duration": ("duration", "time", "trial_duration"),
    "order": ("order", "sequence"),
    "drops": ("drops", "rx_discards", "dropped"),
    "cpu": ("cpu", "cpu_load", "cpu_busy"),
    "limited": ("limited",),
    "curve": ("curve", "experiment"),
}  # fmt: skip
_NAMES = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
_UNITS = {
    "pps": ("rate", 1.0),
    "kpps": ("rate", 1e3),
    "mpps": ("rate", 1e6),
    "s": ("time", 1.0),
    "sec": ("time", 1.0),
    "seconds": ("time", 1.0),
    "ms": ("time", 1e-3),
    "percent": ("share", 0.01),
    "share": ("share", 1.0),
    "packets": ("count", 1.0),
}
_KINDS = {
    "offered": "rate",
    "received_rate": "rate",
    "duration": "time",
    "cpu": "share",
    "loss_ratio": "share",
}
_AS_RATES = {
    ("sent", "rate"): "sent_rate",
    ("received", "rate"): "received_rate",
    ("lost", "share"): "loss_ratio",
}
"""A count's name with a rate's unit means the rate."""
MAX_CURVES = 1000
"""Most curves of a file: a column `curve` with more values is something else."""
_HEADER_WORD = re.compile(r"[^a-z0-9]+")
_TRUE = {"1", "1.0", "true", "yes"}
_MAY_BE_EMPTY = frozenset({"duration", "order", "drops", "cpu", "limited"})


class _Column(NamedTuple):
    """A quantity's place in a row, and the factor to its base unit."""

    place: int
    scale: float
    title: str


def recognise(head: bytes) -> float:
    """1 where our exporter wrote it, 0.9 where the first row names an offered load and counts."""
    if head.startswith(MARK.encode()):
        return 1.0
    try:
        header = next(_rows(head.decode("utf-8-sig", errors="ignore")), (0, list[str]()))[1]
    except BadInputError:
        return 0.0
    columns = _columns(header)
    return 0.9 if "offered" in columns and _is_enough(columns) else 0.0


def parse(text: str, path: Path) -> list[LoadTrials]:
    """A curve for each value of the column `curve`. BadInputError with file and line otherwise."""
    rows = _rows(text, path)
    line, header = next(rows, (1, []))
    columns = _columns(header)
    if "offered" not in columns or not _is_enough(columns):
        raise BadInputError(
            "the header names no offered load" if "offered" not in columns else
            "the header names neither two of sent, received and lost, nor received_pps or plr",
            where=f"{path}:{line}",
            remedy="the columns are offered_pps, sent, received and, as you have them, "
            "duration_s, order, drops, cpu, curve (docs/reference/formats.md)",
        )  # fmt: skip
    described = _described(text, path)
    trials: dict[str, list[Trial]] = {curve: [] for curve in described}
    orders: dict[str, list[float]] = {}
    curve_at = columns.pop("curve", None)
    width = max(column.place for column in (*columns.values(), *filter(None, [curve_at]))) + 1
    for line, row in rows:
        if len(row) < width:
            raise BadInputError(
                f"{len(row)} columns where the header has {len(header)}",
                where=f"{path}:{line}",
                remedy="the row may have been cut short: complete it, or delete it",
            )
        curve = row[curve_at.place].strip() if curve_at else ""
        values = _values(row, columns, path, line)
        trials.setdefault(curve, []).append(_trial(line, values))
        orders.setdefault(curve, []).append(values.get("order", math.nan))
        if curve_at and len(trials) > MAX_CURVES:
            raise BadInputError(
                f"the column {curve_at.title} has more than {MAX_CURVES} different values: it does "
                "not name curves",
                where=f"{path}:{line}",
                remedy="give that column another name",
            )
    if not trials:
        raise BadInputError(
            "a header and no trials", where=str(path), remedy="add a row for each trial"
        )
    notes = []
    if "duration" not in columns and not _counts_packets(columns):
        notes.append(
            "there are neither packet counts nor durations: every trial is taken to last one second"
        )
    nothing = Fields({}, "", "")
    return [
        _finish(path, curve, of_curve, orders.get(curve, ()), described.get(curve, nothing), notes)
        for curve, of_curve in sorted(trials.items(), key=lambda item: not item[1])
    ]


def _finish(
    path: Path,
    curve: str,
    trials: Sequence[Trial],
    order: Sequence[float],
    about: Fields,
    notes: Sequence[str],
) -> LoadTrials:
    info, said, reported = (about.get(name) for name in ("info", "notes", "reported"))
    numbers = reported if isinstance(reported, dict) else {}
    return load_trials(
        path,
        trials,
        format_name=str(about.get("format") or NAME),
        name=str(about.get("name") or ""),
        curve=curve,
        order=None if any(map(math.isnan, order)) else order,
        info={name: value for name, value in info.items() if isinstance(value, str | int | float)}
        if isinstance(info, dict)
        else None,
        notes=[*(map(str, said) if isinstance(said, list) else ()), *(notes if trials else ())],
        reported={k: float(v) for k, v in numbers.items() if isinstance(v, int | float)},
    )


def _described(text: str, path: Path) -> dict[str, Fields]:
    """Name, format, info, notes and reported values by curve: our exporter's first line."""
    if not text.startswith(MARK):
        return {}
    try:
        about = json.loads(text[len(MARK) :].split("\n", 1)[0])
        curves = Fields(about, "the description", str(path)).each("curves")
    except (ValueError, RecursionError, BadInputError):
        return {}
    return {str(curve.get("curve") or ""): curve for curve in curves}


def _counts_packets(columns: Mapping[str, object]) -> bool:
    return sum(name in columns for name in ("sent", "received", "lost")) >= 2


def _is_enough(columns: Mapping[str, object]) -> bool:
    """Whether packets sent and received follow from these columns."""
    if _counts_packets(columns) or "loss_ratio" in columns:
        return True
    return "received_rate" in columns and ("sent" not in columns or "duration" in columns)


def _trial(line: int, values: Mapping[str, float]) -> Trial:
    """A row's trial, its packets from the quantities that it has."""
    duration_s = values.get("duration", math.nan)
    seconds = 1.0 if math.isnan(duration_s) else duration_s
    if _counts_packets(values):
        lost = values.get("lost", math.nan)
        sent = values["sent"] if "sent" in values else values["received"] + lost
        received = values.get("received", sent - lost)
    else:
        sent = values.get("sent", values.get("sent_rate", values["offered"]) * seconds)
        if "received_rate" in values:
            received = values["received_rate"] * seconds
        else:
            received = sent * (1 - values["loss_ratio"])
    drops, cpu = values.get("drops", math.nan), values.get("cpu", math.nan)
    limited = values.get("limited") == 1.0
    return Trial(line, values["offered"], sent, received, duration_s, drops, cpu, limited)


def _rows(text: str, path: Path | None = None) -> Iterator[tuple[int, list[str]]]:
    """The rows with their line numbers; the separator is the header's most frequent one."""
    separator = None
    for number, content in lines(text):
        if content.startswith("#"):
            continue
        if separator is None:
            separator = max(",;\t", key=content.count)
        if '"' not in content:
            yield number, content.split(separator)
            continue
        try:
            yield number, next(csv.reader([content], delimiter=separator, strict=True), [])
        except csv.Error as error:
            raise BadInputError(
                f"not a row of CSV: {error}",
                where=f"{path}:{number}",
                remedy="quotes must be closed on their own line",
            ) from error


def _columns(header: Sequence[str]) -> dict[str, _Column]:
    """The quantities that the header names. A unit is the name's last word, as in offered_mpps."""
    columns: dict[str, _Column] = {}
    for index, title in enumerate(header):
        lower = title.strip().lower().replace("%", " percent ")
        words = [word for word in _HEADER_WORD.split(lower) if word]
        name = _NAMES.get("_".join(words))
        scale = 1.0
        if name is None and len(words) > 1 and words[-1] in _UNITS:
            name = _NAMES.get("_".join(words[:-1]))
            kind, scale = _UNITS[words[-1]]
            name = _AS_RATES.get((name or "", kind), name)
            if name is not None and _KINDS.get(name, "count") != kind:
                name = None
        if name is not None and name not in columns:
            columns[name] = _Column(index, scale, title.strip()[:40])
    return columns


def _values(
    row: Sequence[str], columns: dict[str, _Column], path: Path, line: int
) -> dict[str, float]:
    values = {}
    for name, column in columns.items():
        text = row[column.place]
        try:
            values[name] = float(text) * column.scale
        except ValueError:
            text = text.strip()
            if not text and name in _MAY_BE_EMPTY:
                values[name] = math.nan
            elif name == "limited":
                values[name] = 1.0 if text.lower() in _TRUE else 0.0
            else:
                raise BadInputError(
                    f"{column.title} is {text[:40]!r}, not a number"
                    if text
                    else f"{column.title} is empty",
                    where=f"{path}:{line}",
                    remedy="numbers have a decimal point and no thousands separator; or delete "
                    "the row",
                ) from None
    return values


# --- written -------------------------------------------------------------------------------------

_COLUMNS = ("offered_pps", "sent", "received", "duration_s", "drops", "cpu", "limited", "order")


def write(curves: Sequence[LoadTrials], path: Path) -> None:
    """Writes `curves` to the CSV file `path`: a trial a row, after a line that describes them.

    Curves of one file or of several may be written together: each gets a name of its own.
    BadInputError for another ending; PlanewiseError when the file cannot be written.
    """
    if path.suffix.lower() != ".csv":
        raise BadInputError(
            f"{path.suffix or 'a file without an ending'} is not CSV",
            where=f"--export {path}",
            remedy="name a file that ends in .csv",
        )
    labels = _labels(curves)
    about = [
        {
            "name": trials.name,
            "format": trials.format,
            "curve": label,
            "info": dict(trials.info),
            "notes": list(trials.notes),
            "reported": dict(trials.reported),
        }
        for label, trials in zip(labels, curves, strict=True)
    ]
    rows = [MARK + json.dumps({"curves": about}, allow_nan=False)]
    rows.append(",".join(("curve", *_COLUMNS)))
    for label, trials in zip(labels, curves, strict=True):
        quoted = '"' + label.replace('"', '""') + '"' if label else ""
        columns = (_cells(getattr(trials, name), len(trials)) for name in _COLUMNS)
        rows += [",".join((quoted, *row)) for row in zip(*columns, strict=True)]
    write_file(path, ("\n".join(rows) + "\n").encode())


def _labels(curves: Sequence[LoadTrials]) -> list[str]:
    """A name for each curve, no two alike; a single curve keeps its own, even an empty one."""
    if len(curves) == 1:
        return [curves[0].curve]
    labels: list[str] = []
    for trials in curves:
        unique = label = " ".join(f"{trials.name} {trials.curve}".split())
        place = 2
        while unique in labels:
            unique = f"{label} ({place})"
            place += 1
        labels.append(unique)
    return labels


def _cells(column: NDArray[Any] | None, size: int) -> list[str]:
    """Numbers as text, whole ones without a point; empty where they are not known."""
    values = np.full(size, np.nan) if column is None else column
    return [
        ""
        if not math.isfinite(value)
        else repr(int(value) if value == int(value) and abs(value) < 2**53 else value)
        for value in values.tolist()
    ]
