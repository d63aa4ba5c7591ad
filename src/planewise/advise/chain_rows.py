"""Measured chains as rows that a profile is fitted to: from a table (CSV), or from a run.

A trial says something about its plane only if the plane was the limit. Trials that the generator or
shared cores limited are left out and counted.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from planewise.advise.evidence import chains_of, one_kind
from planewise.advise.model.capacity import ChainWorkload, Pattern
from planewise.advise.model.fit import Measured
from planewise.advise.model.profile import PLANES
from planewise.errors import BadInputError, PlanewiseError, first_fault
from planewise.store.models import OUTSIDE, TrialRecord

MOST_ROWS = 100_000
_ALIASES = {"sriov": "vf-passthrough", "vf": "vf-passthrough", "vhost": "vhost-user"}
_Count = Annotated[int, Field(ge=1, le=64)]


class _Line(BaseModel):
    """One line of a table; other columns are ignored."""

    interface: str
    pattern: Pattern
    vnfs: _Count
    packet_bytes: Annotated[int, Field(ge=64, le=9216)]
    """Frame size with FCS."""
    tx_mpps: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """What all functions of all chains sent."""
    chains: _Count = 1
    switch_cores: _Count = 1
    vnf_cores: _Count = 1
    switch_threads: _Count | None = None

    def measured(self) -> Measured | None:
        """The chain; None where the model does not know its plane. BadInputError: it cannot be."""
        name = _ALIASES.get(self.interface, self.interface)
        plane = next((plane for plane in PLANES if plane == name), None)
        values = self.model_dump(exclude={"interface", "packet_bytes", "tx_mpps"})
        chain = ChainWorkload(frame_bytes=self.packet_bytes, **values)
        return plane and Measured(plane, chain, self.tx_mpps * 1e6)


_REQUIRED = [name for name, field in _Line.model_fields.items() if field.is_required()]


def read_table(path: Path) -> list[Measured]:
    """The rows of a CSV, those of unknown planes left out; an empty field has its default.

    Raises:
        BadInputError: it holds something else; file and line.
        PlanewiseError: it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(_lines(path, csv.DictReader(file)))
    except OSError as error:
        raise PlanewiseError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(f"this is not CSV: {error}", where=str(path)) from error
    if not lines:
        remedy = f"columns: {', '.join(_REQUIRED)}"
        raise BadInputError("there is no row of measurements", where=str(path), remedy=remedy)
    return [row for line in lines if (row := line.measured()) is not None]


def _lines(path: Path, reader: csv.DictReader[str]) -> Iterator[_Line]:
    missing = set(_REQUIRED) - set(reader.fieldnames or ())
    if missing:
        raise BadInputError(
            f"the column {', '.join(sorted(missing))} is missing",
            where=f"{path}:1",
            remedy=f"columns: {', '.join(_REQUIRED)}",
        )
    for line in reader:
        if reader.line_num > MOST_ROWS:
            raise BadInputError(f"more than {MOST_ROWS} lines", where=str(path))
        try:
            yield _Line.model_validate({k: v for k, v in line.items() if v != ""})
        except ValidationError as error:
            place, fault = first_fault(error)
            where = f"{path}:{reader.line_num}"
            raise BadInputError(f"{place}: {fault}", where=where) from error


def csv_text(rows: Iterable[Measured]) -> str:
    """The rows as a table that `read_table` reads."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(_Line.model_fields), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        chain = asdict(row.chain)
        size = chain.pop("frame_bytes")
        rate = row.pps / 1e6
        writer.writerow({"interface": row.plane, "packet_bytes": size, "tx_mpps": rate, **chain})
    return out.getvalue()


def rows_of(run: str, trials: Iterable[TrialRecord]) -> tuple[list[Measured], list[str]]:
    """A run's chains, the median of a cell's replicates each; why trials do not count, and how
    many, in sentences. `run` is its name.

    Raises:
        BadInputError: it measured no chain, or none that was limited by its plane.
    """
    done = [one for one in trials if one.kind == "chain" and one.status == "done" and one.chain]
    if not done:
        raise BadInputError(
            "this run measured no chain of network functions",
            where=run,
            remedy="experiments/nfv-chains.yaml is a design that does",
        )
    reasons = Counter[str]()
    rows: list[Measured] = []
    counting: list[TrialRecord] = []
    for trial in done:
        if reason := _why_not(trial):
            reasons[reason] += 1
        else:
            counting.append(trial)
    for plane in PLANES:
        of_plane = [trial for trial in counting if trial.cell["plane"] == plane]
        alike = one_kind(of_plane)
        if others := len(of_plane) - len(alike):
            reasons["functions of another kind were measured on the same plane"] += others
        for found in chains_of(alike):
            chain = ChainWorkload(found.pattern, found.vnfs, found.frame_bytes)  # type: ignore[arg-type]
            rows.append(Measured(plane, chain, found.pps))
    left_out = [
        f"{count} of {len(done)} trials do not count: {reason}" for reason, count in reasons.items()
    ]
    if not rows:
        raise BadInputError(
            f"none of its {len(done)} chain trials was limited by a plane ({'; '.join(left_out)})",
            where=run,
            remedy="give generator, switch and functions a core each, and measure "
            f"{' or '.join(PLANES)}, with frames of one size a trial",
        )
    return rows, left_out


def _why_not(trial: TrialRecord) -> str:
    """Why a trial says nothing about its plane; empty where it does."""
    assert trial.chain is not None
    limit = trial.chain.limit
    if trial.cell.get("plane") not in PLANES:
        return "the model does not know their planes"
    if not isinstance(trial.cell.get("size_bytes"), int):
        return "their frames are of mixed sizes"
    if limit in OUTSIDE:
        known = "not known" if limit == "unknown" else f"the {limit}"
        return f"the limit was {known}, not the plane"
    return "" if trial.chain.tx_pps > 0 else "they sent nothing"
