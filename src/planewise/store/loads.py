"""Load trials as columns: the result of importers and the input of `judge`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planewise.errors import BadInputError
from planewise.units import percent_text, rate_text

if TYPE_CHECKING:
    from planewise.store.models import TrialRecord

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


class Trial(NamedTuple):
    """One trial as a file has it; not-a-number where it says nothing."""

    line: int
    """0 where the file has no lines."""
    offered_pps: float
    sent: float
    received: float
    duration_s: float = math.nan
    drops: float = math.nan
    cpu: float = math.nan
    limited: bool = False
    foreign: float = math.nan


def load_trials(
    path: Path,
    trials: Sequence[Trial],
    *,
    format_name: str,
    name: str = "",
    curve: str = "",
    order: Sequence[float] | None = None,
    info: Mapping[str, str | int | float] | None = None,
    notes: Sequence[str] = (),
    reported: Mapping[str, float] | None = None,
    group_measured: bool = False,
) -> LoadTrials:
    """Checks every trial of a file and returns the curve.

    `order` defaults to that of `trials`. `group_measured` says that the loads are measured rates:
    near ones become one load. BadInputError with file and line for an impossible rate or count.
    Trials that sent nothing, or received far more than they sent, are left out with a note; if most
    received more, the columns are taken to be swapped.
    """
    table = np.array(trials, dtype=np.float64).reshape(-1, len(Trial._fields))
    line, offered, sent, received, duration, drops, cpu, limited, foreign = table.T

    def where(row: int) -> str:
        return f"{path}:{line[row]:.0f}" if line[row] > 0 else str(path)

    def refuse(invalid: Bools, values: Floats, sentence: str, remedy: str = "") -> None:
        if invalid.any():
            row = int(np.argmax(invalid))
            remedy = remedy or "correct the line, or delete it (its trials are lost)"
            raise BadInputError(
                sentence.format(f"{values[row]:g}"), where=where(row), remedy=remedy
            )

    with np.errstate(invalid="ignore"):
        refuse(
            ~((offered > 0) & (offered <= MAX_NUMBER)),
            offered,
            "the offered load is {} pps: it must be a possible number above zero",
        )
        for counts, way in ((sent, "sent"), (received, "received")):
            refuse(
                ~((counts >= 0) & (counts <= MAX_NUMBER)),
                counts,
                f"the count of {way} packets is {{}}: it must be zero or more",
            )
        refuse(
            (duration <= 0) | np.isinf(duration),
            duration,
            "the duration is {} s: it must be above zero",
            "correct the line, or leave the duration empty",
        )
        most = sent * (1 + RECEIVED_SLACK_SHARE) + RECEIVED_SLACK_PACKETS
        silent, flooded = sent == 0, (sent > 0) & (received > most)
        refuse(
            flooded & (2 * flooded.sum() > len(line)),
            received,
            "{} packets received, far more than were sent",
            "check that sent and received are not swapped; duplicated frames cannot be judged as "
            "loss",
        )
    notes = list(notes)
    for left_out, what in (
        (silent, "sent nothing"),
        (flooded, "received far more than they sent, as flooded or duplicated frames do,"),
    ):
        if left_out.any():
            first = int(np.argmax(left_out))
            notes.append(
                f"{int(left_out.sum())} of {len(line)} trials {what} and are left out (first: "
                f"{where(first)}, trial {first + 1}, {rate_text(offered[first])}, "
                f"{received[first]:.0f} received of {sent[first]:.0f})"
            )
    keep = ~(silent | flooded)
    places = np.arange(len(line)) if order is None else np.asarray(order, dtype=np.float64)
    places = places[keep]
    offered, sent, received, duration, drops, cpu, limited, foreign = table[keep].T[1:].copy()
    if group_measured and len(offered):
        offered, merged = group_measured_rates(offered)
        if merged:
            notes.append(
                "the file does not hold the intended loads: measured rates within "
                f"{percent_text(MEASURED_RATE_SHARE)} of each other are taken as one load"
            )
    return LoadTrials(
        name=name or path.name,
        format=format_name,
        offered_pps=offered,
        sent=sent,
        received=received,
        order=np.argsort(np.argsort(places, kind="stable"), kind="stable").astype(np.int64),
        duration_s=_known(duration),
        drops=_known(drops),
        cpu=_known(cpu),
        foreign=_known(foreign),
        limited=limited > 0 if (limited > 0).any() else None,
        curve=curve,
        info=dict(info or {}),
        notes=tuple(dict.fromkeys(notes)),
        reported=dict(reported or {}),
    )


def group_measured_rates(rates: Floats) -> tuple[Floats, bool]:
    """Replaces measured rates [pps] that lie near each other by one load, their median.

    Returns the loads and whether any two different rates were joined. Near: within
    MEASURED_RATE_SHARE of the group's lowest.
    """
    loads = np.array(rates)
    start, ordered = 0, np.sort(rates)
    while start < len(ordered):
        low = ordered[start]
        end = np.searchsorted(ordered, low * (1 + MEASURED_RATE_SHARE), "right")
        near = (rates >= low) & (rates <= ordered[end - 1])
        loads[near] = np.median(ordered[start:end])
        start = int(end)
    return loads, bool((loads != rates).any())


def mixed_backends(trials: Iterable[tuple[str, TrialRecord]]) -> str:
    """A sentence where finished load trials, each with a name, have different backends; else empty.

    Trials that recorded none are left out.
    """
    mixed: dict[str, set[str]] = {}
    for name, trial in trials:
        if trial.kind == "load" and trial.status == "done" and trial.generator and trial.sink:
            mixed.setdefault(f"{trial.generator} to {trial.sink}", set()).add(name)
    if len(mixed) < 2:
        return ""
    parts = "; ".join(f"{pair} ({', '.join(sorted(mixed[pair]))})" for pair in sorted(mixed))
    return f"load trials were measured by different generators or sinks: {parts}"


def _known(column: Floats) -> Floats | None:
    return column if np.isfinite(column).any() else None
