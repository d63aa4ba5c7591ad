"""Reads the round-trip times of many trials quickly, trial by trial.

A run of a large design has thousands of small Parquet files: they are scanned in batches, two
columns of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    """The times of each of `trials`, those without packets first. Never raises for a bad file."""
    stage = metric.removeprefix("rtt_")
    rtt = (pl.col(f"{stage}_rx_ns") - pl.col(f"{stage}_tx_ns")).cast(pl.Float32).alias("rtt")
    kept = [(str(run / trial.packets), trial) for trial in trials if trial.packets is not None]
    for trial in trials:
        if trial.packets is None:
            yield TrialTimes(trial, _NONE, "its packets were not kept")
    for start in range(0, len(kept), _BATCH):
        batch = kept[start : start + _BATCH]
        together = _read(dict.fromkeys(file for file, _ in batch), rtt)
        for file, trial in batch:
            found = _read([file], rtt) if isinstance(together, str) else together
            if isinstance(found, str):
                yield TrialTimes(trial, _NONE, f"{trial.packets} cannot be read ({found})")
            else:
                yield TrialTimes(trial, found.get(file, _NONE))


_NONE: Floats = np.empty(0, dtype=np.float32)


def _read(files: Iterable[str], rtt: pl.Expr) -> dict[str, Floats] | str:
    """The times by file, in one scan; why there are none where one of the files is bad."""
    try:
        scan = pl.scan_parquet(list(files), include_file_paths="file", glob=False)
        table = scan.select(rtt, "file").drop_nulls().collect()
    except (OSError, pl.exceptions.PolarsError) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    runs = table["file"].rle().struct.unnest()  # a scan keeps the order of its files
    parts = np.split(table["rtt"].to_numpy(), np.cumsum(runs["len"].to_numpy())[:-1])
    return dict(zip(runs["value"], parts, strict=False))  # no row at all is one empty part
