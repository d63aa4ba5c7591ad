"""Our own Parquet of load trials, as `planewise judge --export FILE.parquet` writes it.

Any Parquet file with the columns of the documented CSV is read too: each trial a row.
"""

from __future__ import annotations

import json
from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.exported import COLUMNS, from_description
from planewise.store.importers.text import read_bytes
from planewise.store.loads import LoadTrials

NAME = "parquet"
TITLE = "Parquet: a trial a row, columns offered_pps, sent, received, …"
MARK = "planewise"


def recognise(head: bytes, path: Path) -> float:
    """Parquet's magic bytes."""
    return 1.0 if head.startswith(b"PAR1") else 0.0


def read(path: Path) -> list[LoadTrials]:
    """Every curve of the file. BadInputError for what is not of this format."""
    return parse(read_bytes(path), path)


def parse(data: bytes, path: Path) -> list[LoadTrials]:
    """The same from the file's bytes; `path` only names it."""
    import io

    import polars as pl

    where = str(path)
    try:
        frame = pl.read_parquet(io.BytesIO(data))
        metadata = pl.read_parquet_metadata(io.BytesIO(data))
    except (OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise BadInputError(
            f"not a Parquet file that can be read: {str(error).splitlines()[0][:200]}"
            if str(error)
            else "not a Parquet file that can be read",
            where=where,
            remedy="copy it again, or export it again",
        ) from error
    described = _described(metadata.get(MARK, ""))
    for name in ("offered_pps", "sent", "received"):
        if name not in frame.columns:
            raise BadInputError(
                f"there is no column {name}",
                where=where,
                remedy="the columns are those of the documented CSV (docs/formats.md)",
            )
    names = [""] * len(frame)
    if "curve" in frame.columns:
        names = [str(name or "") for name in frame["curve"].to_list()]
    by_curve: dict[str, list[int]] = {name: [] for name in described}
    for index, name in enumerate(names):
        by_curve.setdefault(name, []).append(index)
    curves = []
    for number, (name, rows) in enumerate(by_curve.items(), start=1):
        part = frame[rows]
        trials: dict[str, object] = {}
        for column in COLUMNS:
            if column not in part.columns:
                continue
            values = part[column].to_list()
            if column in ("offered_pps", "sent", "received") or any(
                value is not None for value in values
            ):
                trials[column] = values
        about = described.get(name, {"curve": name, "format": NAME})
        curves.append(from_description({**about, "trials": trials}, number, path))
    if not curves:
        raise BadInputError("there are no trials in it", where=where)
    return curves


def _described(text: str) -> dict[str, dict[str, object]]:
    try:
        about = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    curves = about.get("curves") if isinstance(about, dict) else None
    return {
        str(curve.get("curve", "")): curve
        for curve in (curves if isinstance(curves, list) else [])
        if isinstance(curve, dict)
    }
