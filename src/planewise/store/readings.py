"""Readings of one quantity from another tool's file: compared with others like it, never judged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from planewise.errors import BadInputError
from planewise.store.loads import MAX_NUMBER, Floats

Unit = Literal["bit/s", "pps", "ns", "1/s", "share"]
Kind = Literal["run", "interval", "packet", "number"]


@dataclass(frozen=True, eq=False)
class Readings:
    """What a file says of one quantity under one condition."""

    file: Path
    format: str
    """The importer's name."""
    quantity: str
    """As `TCP throughput`; equal quantities under equal conditions are compared."""
    unit: Unit
    values: Floats
    """At least one, finite and ≥ 0, in the order of time."""
    of: Kind
    """What each value is: a whole run, an interval or a packet of one run, or a bare number."""
    condition: str = ""
    """What else was set, as `TCP_STREAM, 1024 B, pod network`."""
    runs: int = 1
    """Runs behind a bare number, where it is their mean."""
    low: float | None = None
    high: float | None = None
    """The interval that the file itself gives for a bare number."""

    @property
    def lower_is_better(self) -> bool:
        """Whether less of it is better: times and shares lost."""
        return self.unit in ("ns", "share")


class Collected:
    """Collects a file's readings while it is read, checking each number."""

    def __init__(self, file: Path, format_name: str) -> None:
        self.file, self._format = file, format_name
        self._values: dict[tuple[str, Unit, Kind, str], list[float]] = {}
        self._more: list[Readings] = []

    def add(
        self, quantity: str, unit: Unit, of: Kind, values: Sequence[float], condition: str = ""
    ) -> None:
        """Adds values of a quantity, behind those it has already.

        Raises:
            BadInputError: a value is no possible number.
        """
        if len(values):
            self._check(quantity, values)
            self._values.setdefault((quantity, unit, of, condition), []).extend(values)

    def _check(self, quantity: str, values: Sequence[float]) -> None:
        wrong = [value for value in values if not 0 <= value <= MAX_NUMBER]
        if wrong:
            raise BadInputError(
                f"{quantity} is {wrong[0]:g}: it must be a possible number, zero or more",
                where=str(self.file),
                remedy="the file is damaged: copy it again, or delete that result",
            )

    def add_number(
        self,
        quantity: str,
        unit: Unit,
        value: float,
        condition: str = "",
        *,
        runs: int = 1,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        """Adds a number whose runs the file does not hold, with the interval that it gives."""
        known = [end for end in (low, value, high) if end is not None]
        self._check(quantity, known)
        if known != sorted(known):
            low = high = None
        self._more.append(
            Readings(
                self.file, self._format, quantity, unit, np.array([value]), "number", condition,
                runs, low, high,
            )
        )  # fmt: skip

    def finish(self, nothing: str) -> list[Readings]:
        """The readings. BadInputError with the sentence `nothing` when there are none."""
        found = [
            Readings(
                self.file, self._format, quantity, unit, np.array(values, dtype=np.float64),
                of, condition,
            )
            for (quantity, unit, of, condition), values in self._values.items()
            if values
        ]  # fmt: skip
        if not found + self._more:
            raise BadInputError(
                nothing, where=str(self.file), remedy="give the output of a run that finished"
            )
        return found + self._more


SCALES: Mapping[str, float] = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
"""Of the prefixes with which tools write rates."""


def number_of(text: str) -> float:
    """A number in a tool's text; NaN for anything else. Never raises."""
    try:
        return float(text.replace(",", "")) if len(text) < 40 else math.nan
    except ValueError:
        return math.nan
