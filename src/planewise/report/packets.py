"""Reads the packets of many cells quickly: durations by cell as arrays. Knows no figures.

A run of a large design has thousands of small Parquet files; opening them one by one costs more
than reading them. They are scanned in batches of whole cells. A cell that a scan cannot read (a
damaged file, a stamp of another type) is read again file by file, which finds the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from planewise.store.models import TrialRecord
from planewise.store.packets import RttMetric

Floats = NDArray[np.float64]

S = TypeVar("S")

_BATCH_PACKETS = 500_000
"""Packets that one scan reads: about 50 MB."""
_THREADS = 2

_STAMPS: tuple[str, ...] = (
    "user_tx_ns",
    "user_rx_ns",
    "kernel_tx_ns",
    "kernel_rx_ns",
    "sender_nic_request_ns",
    "sender_nic_reply_ns",
    "responder_nic_request_ns",
    "responder_nic_reply_ns",
    "sender_inside_request_ns",
    "sender_inside_reply_ns",
    "responder_inside_request_ns",
    "responder_inside_reply_ns",
)
_COLUMNS = ("rtt", "kernel", "nic", "response", "sender_inside", "responder_inside")
"""The durations, in the order of `Packets`' fields."""
_NEEDED = ("user_tx_ns", "user_rx_ns")


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

    file: str
    """Empty when the packets were never kept."""
    why: str


def summarise(
    run: Path,
    cells: Sequence[Sequence[TrialRecord]],
    metric: RttMetric,
    summary: Callable[[Sequence[TrialRecord], Packets | Unread], S],
) -> list[S]:
    """`summary` of each of `cells` (its trials) and its packets, in their order.

    `summary` runs in two threads, as reading and sorting release the GIL; packets are freed when it
    returns.
    """

    def of_batch(batch: Sequence[Sequence[TrialRecord]]) -> list[S]:
        return [
            summary(trials, packets)
            for trials, packets in zip(batch, _batch(run, batch, metric), strict=True)
        ]

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(chain.from_iterable(pool.map(of_batch, _batches(cells))))


def _batches(cells: Sequence[Sequence[TrialRecord]]) -> Iterator[list[Sequence[TrialRecord]]]:
    batch: list[Sequence[TrialRecord]] = []
    size = 0
    for trials in cells:
        packets = sum(trial.counts.sent if trial.counts else 0 for trial in trials)
        if batch and size + packets > _BATCH_PACKETS:
            yield batch
            batch, size = [], 0
        batch.append(trials)
        size += packets
    if batch:
        yield batch


def _batch(
    run: Path, cells: Sequence[Sequence[TrialRecord]], metric: RttMetric
) -> Iterator[Packets | Unread]:
    readable = [trials for trials in cells if _all_kept(trials)]
    # One scan for all: a file that lacks a needed stamp shows only nulls for it.
    batches = _scan(run, readable, metric) if readable else []
    scanned = iter(batches or [])
    for trials in cells:
        if not _all_kept(trials):
            yield Unread("", "its packets were not kept")
        elif batches is None:
            yield _read_files(run, trials, metric)
        else:
            packets = next(scanned)
            yield packets if packets is not None else _read_files(run, trials, metric)


def _all_kept(trials: Sequence[TrialRecord]) -> bool:
    return bool(trials) and all(trial.packets is not None for trial in trials)


def _durations(metric: RttMetric) -> list[pl.Expr]:
    def between(start: str, end: str) -> pl.Expr:
        return (pl.col(end) - pl.col(start)).cast(pl.Float64)

    stage = metric.removeprefix("rtt_")
    return [
        between(f"{stage}_tx_ns", f"{stage}_rx_ns").alias("rtt"),
        between("kernel_tx_ns", "kernel_rx_ns").alias("kernel"),
        between("sender_nic_request_ns", "sender_nic_reply_ns").alias("nic"),
        between("responder_nic_request_ns", "responder_nic_reply_ns").alias("response"),
        *(
            between(f"{point}_request_ns", f"{point}_reply_ns").alias(point)
            for point in ("sender_inside", "responder_inside")
        ),
    ]


def _scan(
    run: Path, cells: Sequence[Sequence[TrialRecord]], metric: RttMetric
) -> list[Packets | None] | None:
    """The packets by cell; None for a cell, or for all, that must be read file by file."""
    files = [run / str(trial.packets) for trials in cells for trial in trials]
    if len(set(files)) != len(files):
        return None
    try:
        frame = (
            pl.scan_parquet(
                files,
                schema=dict.fromkeys(_STAMPS, pl.Int64),
                missing_columns="insert",
                extra_columns="ignore",
                include_file_paths="file",
                glob=False,
            )
            .select("file", *_durations(metric))
            .collect()
        )
        runs = frame["file"].rle().struct.unnest()
    except (OSError, pl.exceptions.PolarsError):
        return None
    if runs.height != len(files):  # a file without a row
        return None
    lengths = runs["len"].cast(pl.Int64).to_numpy()
    ends = np.cumsum(lengths)
    columns = [frame[name].to_numpy() for name in _COLUMNS]
    answered = np.add.reduceat(~np.isnan(columns[0]), ends - lengths)
    result: list[Packets | None] = []
    place = 0
    for trials in cells:
        last = place + len(trials)
        start, end = int(ends[place] - lengths[place]), int(ends[last - 1])
        silent = any(
            count == 0 and trial.counts is not None and trial.counts.received > 0
            for count, trial in zip(answered[place:last], trials, strict=True)
        )
        result.append(None if silent else Packets(*(column[start:end] for column in columns)))
        place = last
    return result


def _read_files(run: Path, trials: Sequence[TrialRecord], metric: RttMetric) -> Packets | Unread:
    frames = []
    for trial in trials:
        name = str(trial.packets)
        try:
            frame = pl.read_parquet(run / name, glob=False)
        except (OSError, pl.exceptions.PolarsError) as error:
            return Unread(name, f"it cannot be read ({str(error).splitlines()[0]})")
        missing = [column for column in _NEEDED if column not in frame.columns]
        if missing:
            return Unread(name, f"it has no column {', '.join(missing)}")
        # A stamp that no packet of a trial has may be of any type in its file.
        frames.append(
            frame.select(
                pl.col(column).cast(pl.Int64, strict=False)
                if column in frame.columns
                else pl.lit(None, dtype=pl.Int64).alias(column)
                for column in _STAMPS
            )
        )
    table = pl.concat(frames).select(_durations(metric))
    return Packets(*(table[name].to_numpy() for name in _COLUMNS))
