"""Load trials as columns: the result of importers and the input of `judge`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planewise.errors import BadInputError
from planewise.units import percent_text, rate_text

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_NUMBER = 1e18
"""Beyond this, a count or a rate is a damaged number: 400 Gbit/s for a year is 2e16 packets."""

RECEIVED_SLACK_SHARE = 0.01
RECEIVED_SLACK_PACKETS = 100
"""A receiver may count a few frames of others (neighbour discovery, the trial before): more than
this above what was sent means that the columns are mixed up or that frames are duplicated."""

MEASURED_RATE_SHARE = 0.01
"""Measured rates this near to each other are trials of one intended load."""


@dataclass(frozen=True, eq=False)
class LoadTrials:
    """The trials of one load-loss curve, one trial an index of every column.

    All columns have the same length n; n = 0 is allowed only where the file reports numbers
    without its trials (`reported`). A value that is not known is not-a-number in a column, and a
    column of which nothing is known is None: never a zero instead.
    """

    name: str
    """The file's name, for people."""
    format: str
    """The format it was read from: one of `planewise.store.importers.MODULES`."""
    offered_pps: Floats
    """Intended load of each trial; trials of one load have the very same number."""
    sent: Floats
    """Packets sent, > 0."""
    received: Floats
    """Packets received, ≥ 0; may exceed `sent` by a few."""
    order: Ints
    """Place in the real order of trials, from 0."""
    duration_s: Floats | None = None
    drops: Floats | None = None
    """Packets counted by drop counters of the system under test."""
    cpu: Floats | None = None
    """Busy share of the system under test's CPUs, 0 to 1."""
    foreign: Floats | None = None
    """Share of their time that other programs took, 0 to 1."""
    limited: Bools | None = None
    """Trials that something other than the system under test limited (generator, sink, clock)."""
    curve: str = ""
    """Name of the curve, where the file has several; else empty."""
    info: Mapping[str, str | int | float] = field(default_factory=dict)
    """Facts on the experiment, from the file or its name."""
    notes: tuple[str, ...] = ()
    """Remarks on what was left out or inferred while reading, a sentence each."""
    reported: Mapping[str, float] = field(default_factory=dict)
    """Results of the other tool: `ndr_pps`, `pdr_pps`. Not checked."""

    def __len__(self) -> int:
        """The number of trials."""
        return len(self.offered_pps)

    @property
    def loads(self) -> int:
        """The number of different offered loads."""
        return len(np.unique(self.offered_pps))


class TrialColumns:
    """Collects trials with their lines while a file is read, then checks them all.

    Rows are appended as Python numbers or as whole arrays, so that a million lines stay quick.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts: list[tuple[Floats, ...]] = []
        self._rows: list[tuple[float, ...]] = []

    def add(
        self,
        *,
        line: int,
        offered_pps: float,
        sent: float,
        received: float,
        duration_s: float = np.nan,
        drops: float = np.nan,
        cpu: float = np.nan,
        foreign: float = np.nan,
        limited: bool = False,
    ) -> None:
        """Adds one trial. `line` is 0 where the file has no lines."""
        self._rows.append(
            (line, offered_pps, sent, received, duration_s, drops, cpu, foreign, limited)
        )

    def add_columns(
        self,
        *,
        line: Floats,
        offered_pps: Floats,
        sent: Floats,
        received: Floats,
        duration_s: Floats | None = None,
        drops: Floats | None = None,
        cpu: Floats | None = None,
        limited: Bools | None = None,
    ) -> None:
        """Adds many trials at once, arrays of one length."""
        self._flush()
        unknown = np.full(len(line), np.nan)
        optional = (duration_s, drops, cpu, None, limited)
        filled = [unknown if column is None else column.astype(np.float64) for column in optional]
        self._parts.append((line, offered_pps, sent, received, *filled))

    def _flush(self) -> None:
        if self._rows:
            block = np.array(self._rows, dtype=np.float64)
            self._parts.append(tuple(block.T))
            self._rows = []

    def finish(
        self,
        *,
        format_name: str,
        name: str = "",
        curve: str = "",
        order: Sequence[float] | Floats | None = None,
        info: Mapping[str, str | int | float] | None = None,
        notes: Sequence[str] = (),
        reported: Mapping[str, float] | None = None,
        group_measured: bool = False,
    ) -> LoadTrials:
        """Checks every trial and returns the curve.

        `order` defaults to the order of adding. `group_measured` says that the loads are measured
        rates: near ones become one load. BadInputError with file and line for an
        impossible rate or count. Trials that sent nothing, or received far more than they sent,
        are left out with a note; if most received more, the columns are taken to be swapped.
        """
        self._flush()
        if self._parts:
            columns = tuple(np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        else:
            columns = tuple(np.empty(0) for _ in range(9))
        line, offered, sent, received, duration, drops, cpu, foreign, limited = columns
        self._check(line, offered, sent, received, duration)
        places = np.arange(len(line)) if order is None else np.asarray(order, dtype=np.float64)
        notes = list(notes)
        silent, flooded = sent == 0, _received_too_many(sent, received)
        for left_out, what in (
            (silent, "sent nothing"),
            (flooded, "received far more than they sent, as flooded or duplicated frames do,"),
        ):
            if left_out.any():
                first = int(np.argmax(left_out))
                notes.append(
                    f"{int(left_out.sum())} of {len(line)} trials {what} and are left out (first: "
                    f"{self._where(int(line[first]))}, trial {first + 1}, "
                    f"{rate_text(offered[first])}, {received[first]:.0f} received of "
                    f"{sent[first]:.0f})"
                )
        if (keep := ~(silent | flooded)).sum() < len(line):
            places = places[keep]
            offered, sent, received, duration, drops, cpu, foreign, limited = (
                column[keep] for column in columns[1:]
            )
        if group_measured and len(offered):
            offered, merged = group_measured_rates(offered)
            if merged:
                notes.append(
                    "the file does not hold the intended loads: measured rates within "
                    f"{percent_text(MEASURED_RATE_SHARE)} of each other are taken as one load"
                )
        return LoadTrials(
            name=name or self.path.name,
            format=format_name,
            offered_pps=offered,
            sent=sent,
            received=received,
            order=np.argsort(np.argsort(places, kind="stable"), kind="stable").astype(np.int64),
            duration_s=_complete(duration),
            drops=_complete(drops),
            cpu=_complete(cpu),
            foreign=_complete(foreign),
            limited=limited > 0 if (limited > 0).any() else None,
            curve=curve,
            info=dict(info or {}),
            notes=tuple(dict.fromkeys(notes)),
            reported=dict(reported or {}),
        )

    def _where(self, line: int) -> str:
        return f"{self.path}:{line}" if line > 0 else str(self.path)

    def _check(
        self, line: Floats, offered: Floats, sent: Floats, received: Floats, duration: Floats
    ) -> None:
        with np.errstate(invalid="ignore"):
            too_many = _received_too_many(sent, received)
            tests = (
                (
                    ~((offered > 0) & (offered <= MAX_NUMBER)),
                    offered,
                    "the offered load is {} pps: it must be a possible number above zero",
                    "correct the line, or delete it (its trials are lost)",
                ),
                (
                    ~((sent >= 0) & (sent <= MAX_NUMBER)),
                    sent,
                    "the count of sent packets is {}: it must be zero or more",
                    "correct the line, or delete it",
                ),
                (
                    ~((received >= 0) & (received <= MAX_NUMBER)),
                    received,
                    "the count of received packets is {}: it must be zero or more",
                    "correct the line, or delete it",
                ),
                (
                    (duration <= 0) | np.isinf(duration),
                    duration,
                    "the duration is {} s: it must be above zero",
                    "correct the line, or leave the duration empty",
                ),
                (
                    too_many & (2 * too_many.sum() > len(line)),
                    received,
                    "{} packets received, far more than were sent",
                    "check that sent and received are not swapped; duplicated frames cannot be "
                    "judged as loss",
                ),
            )
            for invalid, values, sentence, remedy in tests:
                if invalid.any():
                    index = int(np.argmax(invalid))
                    raise BadInputError(
                        sentence.format(f"{values[index]:g}"),
                        where=self._where(int(line[index])),
                        remedy=remedy,
                    )


def _received_too_many(sent: Floats, received: Floats) -> Bools:
    most = sent * (1 + RECEIVED_SLACK_SHARE) + RECEIVED_SLACK_PACKETS
    return np.asarray((sent > 0) & (received > most))


def group_measured_rates(rates: Floats) -> tuple[Floats, bool]:
    """Replaces measured rates [pps] that lie near each other by one load, their median.

    Returns the loads and whether any two different rates were joined. Near: within
    MEASURED_RATE_SHARE of the group's lowest.
    """
    order = np.argsort(rates, kind="stable")
    loads = rates.copy()
    merged = False
    start = 0
    ordered = rates[order]
    while start < len(ordered):
        end = int(np.searchsorted(ordered, ordered[start] * (1 + MEASURED_RATE_SHARE), "right"))
        end = max(end, start + 1)
        group = ordered[start:end]
        if group[-1] > group[0]:
            merged = True
            loads[order[start:end]] = np.median(group)
        start = end
    return loads, merged


def _complete(column: Floats) -> Floats | None:
    return column if np.isfinite(column).any() else None
