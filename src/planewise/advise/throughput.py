"""Reads measured throughput of chains from CSV, as the publication tabulates it. Knows no model."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from planewise.errors import BadInputError, PlanewiseError, first_fault

MOST_ROWS = 100_000
_PLANES = {
    "sriov": "vf-passthrough",
    "vf": "vf-passthrough",
    "vf-passthrough": "vf-passthrough",
    "vhost": "vhost-user",
    "vhost-user": "vhost-user",
    "virtio": "virtio-bridge",
    "virtio-bridge": "virtio-bridge",
}


class ThroughputRow(BaseModel):
    """One line: what all functions of a chain sent."""

    interface: str
    pattern: Literal["north-south", "east-west"]
    vnfs: Annotated[int, Field(ge=1, le=64)]
    packet_bytes: Annotated[int, Field(ge=64, le=9216)]
    """Frame size with FCS."""
    tx_mpps: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @property
    def plane(self) -> str:
        """The plane's name in Planewise; that of the file where there is none."""
        return _PLANES.get(self.interface, self.interface)


def read_throughput(path: Path) -> list[ThroughputRow]:
    """All rows of a CSV with the columns interface, pattern, vnfs, packet_bytes, tx_mpps.

    Other columns are left aside.

    Raises:
        BadInputError: it holds something else; file and line.
        PlanewiseError: it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(_rows(path, csv.DictReader(file)))
    except OSError as error:
        raise PlanewiseError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(f"this is not CSV: {error}", where=str(path)) from error
    if not rows:
        raise BadInputError(
            "there is no row of measurements", where=str(path), remedy=f"columns: {_columns()}"
        )
    return rows


def _columns() -> str:
    return ", ".join(ThroughputRow.model_fields)


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterator[ThroughputRow]:
    missing = set(ThroughputRow.model_fields) - set(reader.fieldnames or ())
    if missing:
        raise BadInputError(
            f"the column {', '.join(sorted(missing))} is missing",
            where=f"{path}:1",
            remedy=f"columns: {_columns()}",
        )
    for line in reader:
        if reader.line_num > MOST_ROWS:
            raise BadInputError(f"more than {MOST_ROWS} lines", where=str(path))
        try:
            yield ThroughputRow.model_validate(line)
        except ValidationError as error:
            place, fault = first_fault(error)
            raise BadInputError(
                f"{place}: {fault}",
                where=f"{path}:{reader.line_num}",
            ) from error
