"""Reads the packets of a cell's trials: durations as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from planewise.store.models import TrialRecord
from planewise.store.packets import RttMetric

Floats = NDArray[np.float64]

_POINTS = ("sender_nic", "responder_nic", "sender_inside", "responder_inside")
_STAMPS = (
    *(f"{stage}_{way}_ns" for stage in ("user", "kernel") for way in ("tx", "rx")),
    *(f"{point}_{way}_ns" for point in _POINTS for way in ("request", "reply")),
)


@dataclass(frozen=True)
class Packets:
    """Durations of a cell's packets [ns], arrays of one length; NaN where a stamp is missing."""

    rtt_ns: Floats
    """RTT between the stamps of the metric."""
    kernel_ns: Floats
    """RTT between the guest's kernel stamps."""
    nic_ns: Floats
    """RTT at the sender's NIC."""
    response_ns: Floats
    """NIC to NIC inside the responder."""
    sender_inside_ns: Floats
    """RTT at the interface of the sender's guest."""
    responder_inside_ns: Floats
    """From the interface of the responder's guest into the guest and back."""


@dataclass(frozen=True)
class Unread:
    """The packets of a cell that cannot be used, and why."""

    file: str = ""
    """Empty when the packets were never kept."""
    why: str = ""


def read(run: Path, trials: Sequence[TrialRecord], metric: RttMetric) -> Packets | Unread:
    """The packets of a cell's trials."""
    if not trials or any(trial.packets is None for trial in trials):
        return Unread()
    stage = metric.removeprefix("rtt_")
    durations = (
        _between(f"{stage}_tx_ns", f"{stage}_rx_ns").alias("rtt"),
        _between("kernel_tx_ns", "kernel_rx_ns").alias("kernel"),
        *(_between(f"{point}_request_ns", f"{point}_reply_ns").alias(point) for point in _POINTS),
    )
    table = _scanned(run, trials)
    if isinstance(table, Unread):
        return table
    columns = table.select(durations)
    return Packets(*(columns[name].to_numpy() for name in columns.columns))


def _between(start: str, end: str) -> pl.Expr:
    return (pl.col(end) - pl.col(start)).cast(pl.Float64)


def _scanned(run: Path, trials: Sequence[TrialRecord]) -> pl.DataFrame | Unread:
    """The stamps of all trials: in one scan, or file by file, which finds the one that is damaged.

    A stamp that no packet of a trial has may be of any type in its file.
    """
    names = [str(trial.packets) for trial in trials]
    schema = pl.Schema(dict.fromkeys(_STAMPS, pl.Int64))
    try:
        return pl.scan_parquet(
            [run / name for name in names],
            schema=schema,
            missing_columns="insert",
            extra_columns="ignore",
            glob=False,
        ).collect()
    except (OSError, pl.exceptions.PolarsError):
        pass
    frames = []
    for name in names:
        try:
            frame = pl.read_parquet(run / name, glob=False)
        except (OSError, pl.exceptions.PolarsError) as error:
            return Unread(name, f"it cannot be read ({str(error).splitlines()[0]})")
        missing = {column: None for column in _STAMPS if column not in frame.columns}
        stamps = frame.with_columns(**{column: pl.lit(None) for column in missing})
        frames.append(stamps.select(_STAMPS).cast(schema, strict=False))
    return pl.concat(frames)
