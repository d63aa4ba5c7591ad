"""Reads the round-trip times of many trials quickly, trial by trial.

A run of a large design has thousands of small Parquet files: they are scanned in batches, two
columns of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from planewise.store.models import TrialRecord

Floats = NDArray[np.float32]
RttMetric = Literal["rtt_user", "rtt_kernel"]

_BATCH = 400
"""Files of one scan."""


@dataclass(frozen=True)
class TrialTimes:
    """The round-trip times of one trial's packets."""

    trial: TrialRecord
    rtt_ns: Floats
    """In the order of sending, without packets that were lost; empty where there is a `why`."""
    why: str = ""
    """Why there are no times."""


def read_rtts(run: Path, trials: Sequence[TrialRecord], metric: RttMetric) -> Iterator[TrialTimes]:
    """The times of each of `trials`, in their order. Never raises for a bad file."""
    stage = metric.removeprefix("rtt_")
    rtt = (pl.col(f"{stage}_rx_ns") - pl.col(f"{stage}_tx_ns")).cast(pl.Float32).alias("rtt")
    for start in range(0, len(trials), _BATCH):
        batch = trials[start : start + _BATCH]
        scanned = _scan(run, batch, rtt)
        for place, trial in enumerate(batch):
            if trial.packets is None:
                yield TrialTimes(trial, _NONE, "its packets were not kept")
            elif scanned is not None:
                yield TrialTimes(trial, scanned[place])
            else:
                yield _times_of_trial(run, trial, rtt)


_NONE: Floats = np.empty(0, dtype=np.float32)


def _scan(run: Path, trials: Sequence[TrialRecord], rtt: pl.Expr) -> list[Floats] | None:
    """The times of all trials in one scan; None where the scan fails."""
    names = [trial.packets for trial in trials if trial.packets is not None]
    if not names or len(set(names)) != len(names):
        return None
    files = [str(run / name) for name in names]
    try:
        scan = pl.scan_parquet(files, include_file_paths="file", glob=False)
        table = scan.select(rtt, "file").collect()
    except (OSError, pl.exceptions.PolarsError):
        return None
    sizes = table.group_by("file", maintain_order=True).len()
    by_file = dict(zip(sizes["file"], sizes["len"], strict=True))
    values = table["rtt"].to_numpy()
    result, at = [], 0
    for trial in trials:
        size = 0 if trial.packets is None else int(by_file.get(str(run / trial.packets), 0))
        part = values[at : at + size]
        result.append(part[~np.isnan(part)])
        at += size
    return result


def _times_of_trial(run: Path, trial: TrialRecord, rtt: pl.Expr) -> TrialTimes:
    try:
        table = pl.scan_parquet(run / str(trial.packets), glob=False).select(rtt).collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return TrialTimes(trial, _NONE, f"{trial.packets} cannot be read ({reason})")
    return TrialTimes(trial, table["rtt"].drop_nulls().to_numpy())
