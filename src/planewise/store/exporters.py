"""Writes load trials as CSV, to be read back without loss (docs/reference/formats.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planewise.errors import BadInputError
from planewise.store.files import write_file
from planewise.store.importers import csv as csv_format
from planewise.store.loads import LoadTrials

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
    rows = [csv_format.MARK + json.dumps({"curves": about}, allow_nan=False)]
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
