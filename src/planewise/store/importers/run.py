"""Our own run directories: the load trials of `planewise sweep`, `search`, `quick`, `run`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from planewise.errors import BadInputError
from planewise.store.levels import keeps_levels
from planewise.store.loads import LoadTrials, Trial, load_trials, mixed_backends
from planewise.units import count_text

if TYPE_CHECKING:
    from planewise.store.models import Level, TrialRecord

NAME = "run"

_LOAD_FACTORS = frozenset({"offered_pps", "load_pps", "rate_pps", "intended_pps"})
"""Factors that are the load itself: trials of one curve differ in them."""


def read(path: Path) -> list[LoadTrials]:
    """A curve for each cell. BadInputError for other directories and runs without load trials."""
    from planewise.store.rundir import RUN_FILE, RunReader

    directory = path if path.is_dir() else path.parent
    if not (directory / RUN_FILE).exists():
        raise BadInputError(
            f"not a run directory: it has no {RUN_FILE}",
            where=str(path),
            remedy="name the result files in it, or a directory that planewise wrote",
        )
    reader = RunReader(directory)
    notes = []
    if reader.is_cut():
        notes.append("the last line of trials.jsonl was cut short and is left out")
    info: dict[str, str | int | float] = {"run": reader.info.run, "seed": reader.info.seed}
    if reader.info.emulated:
        info["emulated"] = reader.info.emulated
    records = reader.trials()
    curves = from_records(records, path, info, notes)
    if not curves:
        raise BadInputError(
            f"a run with {len(records)} trials, none of them a finished load trial",
            where=str(path),
            remedy="measure loads with `planewise sweep` or `planewise search`; round-trip times "
            "are for `planewise compare`",
        )
    return curves


def from_records(
    records: list[TrialRecord],
    path: Path,
    info: dict[str, str | int | float] | None = None,
    notes: list[str] | None = None,
) -> list[LoadTrials]:
    """The load trials among `records`, a curve a cell, in the order of first appearance."""
    failed = sum(record.kind == "load" and not _usable(record) for record in records)
    common = [*(notes or [])]
    if failed:
        common.append(f"{count_text(failed, 'load trial')} failed and left out")
    named = ((str(record.cell.get("plane", "all")), record) for record in records)
    if mixed := mixed_backends(named):
        common.append(mixed)
    cells = by_cell(records, path)
    varying = _differing([cell for cell, _ in cells])
    return [
        replace(
            trials,
            curve=" ".join(f"{key}={value}" for key, value in cell.items() if key in varying),
            info={**(info or {}), **cell},
            notes=(*common, *trials.notes),
        )
        for cell, trials in cells
    ]


def by_cell(
    records: Iterable[TrialRecord], path: Path
) -> list[tuple[dict[str, Level], LoadTrials]]:
    """The finished load trials by cell, factors by name, in the order of first appearance.

    A cell whose every trial sent nothing has no rows. `path` is named in errors.
    """
    cells: dict[tuple[tuple[str, Level], ...], list[tuple[int, Trial]]] = {}
    for line, record in enumerate(records, start=1):
        if record.kind != "load" or not _usable(record):
            continue
        assert record.load is not None
        assert record.counts is not None
        cell = tuple(
            sorted((key, value) for key, value in record.cell.items() if key not in _LOAD_FACTORS)
        )
        trial = Trial(
            line,
            record.load.intended_pps,
            record.counts.sent,
            record.counts.received,
            record.duration_s or math.nan,
            drops=sum(part.count for part in record.loss) if record.loss else math.nan,
            cpu=math.nan if (busy := record.busy) is None else busy,
            foreign=math.nan if (foreign := record.foreign_cpu) is None else foreign,
            limited=record.is_bound,
        )
        cells.setdefault(cell, []).append((record.order, trial))
    return [
        (
            dict(cell),
            load_trials(
                path / "trials.jsonl",
                [trial for _, trial in trials],
                format_name=NAME,
                name=path.name or str(path),
                order=[order for order, _ in trials],
                info=dict(cell),
            ),
        )
        for cell, trials in cells.items()
    ]


def _usable(record: TrialRecord) -> bool:
    return keeps_levels(record) and record.load is not None and record.counts is not None


def _differing(cells: list[dict[str, Level]]) -> set[str]:
    """The factors in which the cells differ."""
    keys = {key for cell in cells for key in cell}
    return {key for key in keys if len({repr(cell.get(key)) for cell in cells}) > 1}
