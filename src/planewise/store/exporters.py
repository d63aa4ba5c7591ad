"""Writes load trials as CSV, to be read back without loss (docs/reference/formats.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from planewise.errors import BadInputError
from planewise.store.files import write_file
from planewise.store.importers import csv as csv_format
from planewise.store.loads import Floats, LoadTrials

CSV_COLUMNS = (
    "curve", "offered_pps", "sent", "received", "duration_s", "drops", "cpu", "limited", "order",
)  # fmt: skip


def write(curves: Sequence[LoadTrials], path: Path) -> None:
    """Writes `curves` to the CSV file `path`.

    Curves of one file or of several may be written together: each gets a name of its own.
    BadInputError for another ending; PlanewiseError when the file cannot be written.
    """
    if path.suffix.lower() != ".csv":
        raise BadInputError(
            f"{path.suffix or 'a file without an ending'} is not CSV",
            where=f"--export {path}",
            remedy="name a file that ends in .csv",
        )
    write_file(path, to_csv(_labelled(curves)))


Labelled = list[tuple[str, LoadTrials]]


def _labelled(curves: Sequence[LoadTrials]) -> Labelled:
    """Each curve with a unique label; a single unnamed curve keeps an empty one."""
    if len(curves) == 1:
        return [(curves[0].curve, curves[0])]
    labels: dict[str, LoadTrials] = {}
    for trials in curves:
        label = " ".join(part for part in (trials.name, trials.curve) if part)
        label = " ".join(label.split())
        place, unique = 2, label
        while unique in labels:
            unique = f"{label} ({place})"
            place += 1
        labels[unique] = trials
    return list(labels.items())


def _about(label: str, trials: LoadTrials) -> dict[str, object]:
    return {
        "name": trials.name,
        "format": trials.format,
        "curve": label,
        "info": dict(trials.info),
        "notes": list(trials.notes),
        "reported": dict(trials.reported),
    }


def _columns(trials: LoadTrials) -> dict[str, list[float | int | None]]:
    return {
        "offered_pps": _numbers(trials.offered_pps),
        "sent": _numbers(trials.sent),
        "received": _numbers(trials.received),
        "duration_s": _optional(trials.duration_s, len(trials)),
        "drops": _optional(trials.drops, len(trials)),
        "cpu": _optional(trials.cpu, len(trials)),
        "limited": [0] * len(trials)
        if trials.limited is None
        else [int(value) for value in trials.limited],
        "order": [int(value) for value in trials.order],
    }


def _optional(column: Floats | None, size: int) -> list[float | int | None]:
    return [None] * size if column is None else _numbers(column)


def _numbers(column: Floats) -> list[float | int | None]:
    """Whole numbers as integers, unknown ones as None."""
    return [
        None
        if not np.isfinite(value)
        else int(value)
        if value == int(value) and abs(value) < 2**53
        else value
        for value in column.tolist()
    ]


def to_csv(curves: Labelled) -> bytes:
    """A trial a row, after a comment line with the descriptions of the curves."""
    about = {"curves": [_about(label, trials) for label, trials in curves]}
    rows = [csv_format.MARK + json.dumps(about, allow_nan=False), ",".join(CSV_COLUMNS)]
    for label, trials in curves:
        quoted = '"' + label.replace('"', '""') + '"' if label else ""
        for row in zip(*_columns(trials).values(), strict=True):
            rows.append(
                ",".join([quoted, *("" if value is None else repr(value) for value in row)])
            )
    return ("\n".join(rows) + "\n").encode()
