"""Curves from the store's load trials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from planewise.errors import BadInputError
from planewise.judge.curve import Curve, LoadPoint, by_column
from planewise.store.importers.run import NAME as RUN_FORMAT
from planewise.store.importers.run import by_cell
from planewise.store.loads import MEASURED_RATE_SHARE, Floats, LoadTrials, group_measured_rates
from planewise.store.models import Level, TrialRecord
from planewise.units import percent_text

MANY_LOADS = 500
"""No ladder has so many steps: beyond, the loads are taken for measured rates and grouped."""


def curve_from_trials(trials: LoadTrials) -> Curve:
    """The load-loss curve of `trials`, runs in their real order at each load.

    BadInputError when there are no trials (a file that only reports numbers).
    """
    if not len(trials):
        raise BadInputError(
            "there are no trials to judge",
            where=_title(trials),
            remedy="give a file that holds each trial's load, sent and received packets",
        )
    trials = with_few_loads(trials)
    sent = np.round(trials.sent)
    if (sent < 1).any():
        raise BadInputError(
            "a trial sent less than one packet",
            where=_title(trials),
            remedy="delete that trial, or give its duration",
        )
    loads, at = np.unique(trials.offered_pps, return_inverse=True)
    by_load = np.lexsort((trials.order, at))
    drops = trials.drops
    if drops is not None:
        drops = np.where(np.isfinite(drops), drops, -1)
    runs = by_column(
        sent,
        np.round(trials.received),
        duration_s=trials.duration_s,
        order=trials.order,
        drops=drops,
        limited=trials.limited,
        busy=_busy(trials),
        foreign=trials.foreign,
    )
    ends = np.cumsum(np.bincount(at, minlength=len(loads)))
    points = tuple(
        LoadPoint(float(load), runs[rows])
        for load, rows in zip(loads, np.split(by_load, ends[:-1]), strict=True)
    )
    facts = {"curve": trials.curve, "info": dict(trials.info)}
    named = {"file": trials.name, "format": trials.format} | {k: v for k, v in facts.items() if v}
    return Curve(_title(trials), points, named)


def curves_from_trials(records: Iterable[TrialRecord]) -> list[tuple[dict[str, Level], Curve]]:
    """One curve a cell from a run directory's trials, in order of first appearance.

    Takes finished load trials that sent something; the offered load is the intended one. Trials
    that something other than the SUT limited are kept with `limited` set.
    """
    return [
        (
            cell,
            replace(
                curve_from_trials(trials),
                name=" ".join(str(level) for level in cell.values()) or "curve",
                source={"cell": cell},
            ),
        )
        for cell, trials in by_cell(records, Path("run"))
        if len(trials)
    ]


def with_few_loads(trials: LoadTrials) -> LoadTrials:
    """The same trials, near loads joined into one where there are more than any ladder has."""
    if trials.loads <= MANY_LOADS:
        return trials
    grouped, _ = group_measured_rates(trials.offered_pps)
    note = (
        f"{trials.loads} different loads: those within {percent_text(MEASURED_RATE_SHARE)} of each "
        "other are taken as one"
    )
    return replace(trials, offered_pps=grouped, notes=(*trials.notes, note))


def _busy(trials: LoadTrials) -> Floats | None:
    """Busy share of the host's CPUs, where it tells of other work than the system's own.

    Of our own runs without background load alone: other tools' systems may poll, and then their
    CPUs are always busy.
    """
    idle = trials.info.get("load_type", "none") == "none"
    return trials.cpu if trials.format == RUN_FORMAT and idle else None


def _title(trials: LoadTrials) -> str:
    return f"{trials.name} {trials.curve}" if trials.curve else trials.name
