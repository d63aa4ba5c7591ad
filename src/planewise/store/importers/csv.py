"""The documented CSV: one trial a row, named columns with their units. Knows that alone.

docs/formats.md, “Importing results”, lists the columns. A header names them, in any order;
separator comma, semicolon or tab; lines that begin with `#` are comments, of which
`#planewise {…}` (written by our exporter) carries what is not a column.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from planewise.errors import BadInputError
from planewise.store.importers.text import lines, read_text
from planewise.store.loads import LoadTrials, TrialColumns

NAME = "csv"
TITLE = "CSV: a trial a row, columns offered_pps, sent, received, …"

MARK = "#planewise "
MAX_CELL_CHARS = 200

_ALIASES = {
    "offered": ("offered", "rate", "load", "offered_load", "intended", "intended_load", "target"),
    "sent": ("sent", "tx", "tx_packets", "tx_pkts", "opackets", "offered_count", "packets_sent"),
    "received": (
        "received", "rx", "rx_packets", "rx_pkts", "ipackets", "forwarded", "forwarding_count",
        "packets_received",
    ),
    "lost": ("lost", "loss", "loss_count", "packets_lost"),
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
_KINDS = {"offered": "rate", "duration": "time", "cpu": "share"}
_DEFAULT_SCALE = {"cpu": 1.0, "offered": 1.0, "duration": 1.0}
_HEADER_WORD = re.compile(r"[^a-z0-9]+")
_TRUE = {"1", "1.0", "true", "yes"}


class _Column:
    """Where a quantity stands in a row, and by what it is multiplied."""

    def __init__(self, index: int, scale: float, title: str) -> None:
        self.index = index
        self.scale = scale
        self.title = title


def recognise(head: bytes, path: Path) -> float:
    """A first row that names an offered load and counts."""
    if head.startswith(MARK.encode()):
        return 1.0
    try:
        text = head.decode("utf-8-sig", errors="ignore")
        header = next((row for _, row in _rows(text) if row), None)
    except BadInputError:
        return 0.0
    found = _columns(header or [])
    if "offered" in found and ("sent" in found or "received" in found or "lost" in found):
        return 0.9
    return 0.3 if path.name.endswith((".csv", ".tsv", ".csv.gz")) else 0.0


def read(path: Path) -> list[LoadTrials]:
    """A curve a value of the column `curve`. BadInputError with file and line otherwise."""
    return parse(read_text(path), path)


def parse(text: str, path: Path) -> list[LoadTrials]:
    """The same from the file's text; `path` only names it."""
    rows = _rows(text, path)
    line, header = next(rows, (1, []))
    columns = _columns(header)
    where = f"{path}:{line}"
    counted = sum(name in columns for name in ("sent", "received", "lost"))
    if "offered" not in columns or counted < 2:
        raise BadInputError(
            "the header names no offered load" if "offered" not in columns else
            "the header names fewer than two of sent, received and lost",
            where=where,
            remedy="the columns are offered_pps, sent, received and, as you have them, "
            "duration_s, order, drops, cpu, curve (docs/formats.md)",
        )  # fmt: skip
    by_curve: dict[str, tuple[TrialColumns, list[float]]] = {}
    described = _described(text)
    curve_at = columns.get("curve")
    numeric = {name: column for name, column in columns.items() if name != "curve"}
    width = max(column.index for column in columns.values()) + 1
    for line, row in rows:
        if len(row) < width:
            raise BadInputError(
                f"{len(row)} columns where the header has {len(header)}",
                where=f"{path}:{line}",
                remedy="the row may have been cut short: complete it, or delete it",
            )
        curve = row[curve_at.index].strip() if curve_at else ""
        if curve not in by_curve:
            by_curve[curve] = (TrialColumns(path), [])
        trials, order = by_curve[curve]
        values = _values(row, numeric, path, line)
        sent = values.get("sent")
        received = values.get("received")
        if sent is None:
            sent = values["received"] + values["lost"]
        if received is None:
            received = sent - values["lost"]
        trials.add(
            line=line,
            offered_pps=values["offered"],
            sent=sent,
            received=received,
            duration_s=values.get("duration", np.nan),
            drops=values.get("drops", np.nan),
            cpu=values.get("cpu", np.nan),
            limited=values.get("limited", 0.0) == 1.0,
        )
        order.append(values.get("order", np.nan))
    if not by_curve and not described:
        raise BadInputError(
            "a header and no trials", where=str(path), remedy="add a row for each trial"
        )
    curves = []
    for curve, (trials, order) in by_curve.items():
        about = described.pop(curve, {})
        curves.append(_finish(trials, curve, about, order))
    for curve, about in described.items():
        curves.append(_finish(TrialColumns(path), curve, about, []))
    return curves


def _finish(
    trials: TrialColumns, curve: str, about: dict[str, object], order: list[float]
) -> LoadTrials:
    places = np.array(order)
    info = about.get("info")
    notes = about.get("notes")
    reported = about.get("reported")
    return trials.finish(
        format_name=str(about.get("format", NAME)),
        name=str(about.get("name", "")),
        curve=curve,
        order=None if np.isnan(places).any() else places,
        info={k: v for k, v in info.items() if isinstance(v, str | int | float)}
        if isinstance(info, dict)
        else None,
        notes=[str(note) for note in notes] if isinstance(notes, list) else (),
        reported={k: float(v) for k, v in reported.items() if isinstance(v, int | float)}
        if isinstance(reported, dict)
        else None,
    )


def _described(text: str) -> dict[str, dict[str, object]]:
    """What our exporter wrote in its first line: by curve, name, format, info, notes, reported."""
    if not text.startswith(MARK):
        return {}
    try:
        about = json.loads(text[len(MARK) :].split("\n", 1)[0])
    except (ValueError, RecursionError):
        return {}
    curves = about.get("curves") if isinstance(about, dict) else None
    return {
        str(curve.get("curve", "")): curve
        for curve in (curves if isinstance(curves, list) else [])
        if isinstance(curve, dict)
    }


def _rows(text: str, path: Path | None = None) -> Iterator[tuple[int, list[str]]]:
    """The rows with their lines; the separator is what the header uses most."""
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
        words = [word for word in _HEADER_WORD.split(title.strip().lower()) if word]
        name = _NAMES.get("_".join(words))
        scale = _DEFAULT_SCALE.get(name or "", 1.0)
        if name is None and len(words) > 1 and words[-1] in _UNITS:
            name = _NAMES.get("_".join(words[:-1]))
            kind, scale = _UNITS[words[-1]]
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
        text = row[column.index]
        try:
            values[name] = float(text) * column.scale
        except ValueError:
            text = text.strip()
            if not text and name not in ("offered", "sent", "received", "lost"):
                values[name] = np.nan
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
