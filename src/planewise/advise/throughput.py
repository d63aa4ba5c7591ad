"""Reads a table of measured chains (CSV)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from planewise.advise.model.capacity import ChainWorkload, Pattern
from planewise.errors import BadInputError, PlanewiseError, first_fault

MOST_ROWS = 100_000
_PLANES = {
    "sriov": "vf-passthrough",
    "vf": "vf-passthrough",
    "vf-passthrough": "vf-passthrough",
    "vhost": "vhost-user",
    "vhost-user": "vhost-user",
    "memif": "memif",
    "virtio": "virtio-bridge",
    "virtio-bridge": "virtio-bridge",
}


_Count = Annotated[int, Field(ge=1, le=64)]


class ThroughputRow(BaseModel):
    """One line: what all functions of a chain sent."""

    interface: str
    pattern: Pattern
    vnfs: Annotated[int, Field(ge=1, le=64)]
    packet_bytes: Annotated[int, Field(ge=64, le=9216)]
    """Frame size with FCS."""
    tx_mpps: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    chains: _Count = 1
    """Such chains side by side; `tx_mpps` is of all together."""
    switch_cores: _Count = 1
    vnf_cores: _Count = 1
    """Cores of each function."""
    switch_threads: _Count | None = None
    """Threads of the switch together; None where that is not known."""

    @property
    def plane(self) -> str:
        """The plane's name in Planewise; that of the file where there is none."""
        return _PLANES.get(self.interface, self.interface)

    def chain(self) -> ChainWorkload:
        """The chain that was measured. BadInputError for one that cannot be."""
        return ChainWorkload(
            self.pattern,
            self.vnfs,
            self.packet_bytes,
            self.chains,
            self.switch_cores,
            self.vnf_cores,
            self.switch_threads,
        )


def read_throughput(path: Path) -> list[ThroughputRow]:
    """All rows of a CSV with at least the columns interface, pattern, vnfs, packet_bytes, tx_mpps.

    Columns that aren't fields of `ThroughputRow` are ignored; an empty field has its default.

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
    return ", ".join(_required())


def _required() -> list[str]:
    return [name for name, field in ThroughputRow.model_fields.items() if field.is_required()]


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterator[ThroughputRow]:
    missing = set(_required()) - set(reader.fieldnames or ())
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
            yield ThroughputRow.model_validate({k: v for k, v in line.items() if v != ""})
        except ValidationError as error:
            place, fault = first_fault(error)
            raise BadInputError(
                f"{place}: {fault}",
                where=f"{path}:{reader.line_num}",
            ) from error
