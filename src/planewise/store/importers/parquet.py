"""Our own Parquet of load trials, as `planewise judge --export FILE.parquet` writes it.

Any Parquet file with the columns of the documented CSV is read too: each trial a row.

Damaged Parquet makes polars panic or even abort the whole process (a corrupt length becomes an
allocation of exabytes), which no `except` can catch. So a child process decodes the file:
`python -m planewise.store.importers.parquet` reads it from stdin and writes arrays to stdout.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from planewise.errors import BadInputError, PlanewiseError
from planewise.store.importers.exported import COLUMNS, described, from_columns
from planewise.store.importers.text import read_bytes
from planewise.store.loads import Floats, LoadTrials

if TYPE_CHECKING:
    import polars as pl

NAME = "parquet"
MARK = "planewise"
NEEDED = ("offered_pps", "sent", "received")

_MAGIC = b"PAR1"
_SMALLEST_BYTES = 12
_PATIENCE_S = 120.0
_MEMORY_BYTES = 16 << 30
_REFUSED = 3
"""Exit code of the child for a bad file; its stdout is the reason."""


def recognise(head: bytes, path: Path) -> float:
    """Parquet's magic bytes."""
    return 1.0 if head.startswith(_MAGIC) else 0.0


def read(path: Path) -> list[LoadTrials]:
    """Every curve of the file. BadInputError for what is not of this format."""
    return parse(read_bytes(path), path)


def parse(data: bytes, path: Path) -> list[LoadTrials]:
    """The curves from the file's bytes; `path` is for errors."""
    where = str(path)
    complete = data.startswith(_MAGIC) and data.endswith(_MAGIC) and len(data) >= _SMALLEST_BYTES
    if not complete:
        raise _damaged("it does not begin and end as one", where)
    columns, names, about = _decoded(data, where)
    about_curves = described(about)
    by_curve: dict[str, list[int]] = {name: [] for name in about_curves}
    for index, name in enumerate(names):
        by_curve.setdefault(name, []).append(index)
    if not by_curve:
        raise BadInputError("there are no trials in it", where=where)
    return [
        from_columns(
            about_curves.get(name, {"curve": name, "format": NAME}),
            {column: values[rows] for column, values in columns.items()},
            number,
            path,
        )
        for number, (name, rows) in enumerate(by_curve.items(), start=1)
    ]


def _decoded(data: bytes, where: str) -> tuple[dict[str, Floats], list[str], str]:
    """Columns, each row's curve, and the exporter's metadata, read by a child process."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", __name__],
            input=data,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _damaged(f"it was not read within {_PATIENCE_S:.0f} s", where) from error
    except OSError as error:
        raise PlanewiseError(
            f"cannot start a Python process to read {where}: {error.strerror or error}"
        ) from error
    if child.returncode == _REFUSED:
        raise _damaged(child.stdout.decode(errors="replace").strip(), where)
    if child.returncode != 0:
        raise _damaged("its inner structure is broken", where)
    with np.load(io.BytesIO(child.stdout), allow_pickle=False) as arrays:
        texts = json.loads(bytes(arrays["texts"]))
        columns = {name: arrays[name] for name in COLUMNS if name in arrays.files}
    return columns, texts["curves"], texts["about"]


def _damaged(reason: str, where: str) -> BadInputError:
    return BadInputError(
        f"not a Parquet file with load trials: {reason}",
        where=where,
        remedy="copy it again, or export it again; the columns are those of the documented CSV "
        "(docs/reference/formats.md)",
    )


def _decode() -> int:
    """The child process: Parquet on stdin, .npz on stdout. Returns its exit code."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import polars as pl

    data = sys.stdin.buffer.read()
    try:
        frame = pl.read_parquet(io.BytesIO(data))
        about = pl.read_parquet_metadata(io.BytesIO(data)).get(MARK, "")
        arrays = _arrays(frame)
    except (OSError, ValueError, TypeError, pl.exceptions.PolarsError) as error:
        sys.stdout.write((str(error).strip() or "it cannot be read").splitlines()[0][:200])
        return _REFUSED
    curves = [""] * len(frame)
    if "curve" in frame.columns:
        curves = [str(name or "") for name in frame["curve"].to_list()]
    texts = json.dumps({"curves": curves, "about": about}).encode()
    np.savez(
        sys.stdout.buffer, allow_pickle=False, texts=np.frombuffer(texts, dtype=np.uint8), **arrays
    )
    return 0


def _arrays(frame: pl.DataFrame) -> dict[str, Floats]:
    import polars as pl

    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise ValueError(f"there is no column {missing[0]}")
    return {
        name: frame[name].cast(pl.Float64, strict=True).fill_null(np.nan).to_numpy()
        for name in COLUMNS
        if name in frame.columns
    }


if __name__ == "__main__":
    sys.exit(_decode())
