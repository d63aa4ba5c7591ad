"""Reads durations of packets: the time between two stamps of each, or a trial's histogram of it.

A run of a large design has thousands of small Parquet files: they are scanned in batches.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from planewise.store.models import TrialRecord

Ints = NDArray[np.int64]
RttMetric = Literal["rtt_user", "rtt_kernel"]
Durations = Mapping[str, NDArray[np.floating]]
"""By name [ns], in the order of sending; NaN where a stamp is missing."""

_BATCH = 400
"""Files of one scan."""


def rtt_stamps(metric: RttMetric) -> tuple[str, str]:
    """The columns between whose stamps a packet's round trip lies."""
    stage = metric.removeprefix("rtt_")
    return f"{stage}_tx_ns", f"{stage}_rx_ns"


def read_durations(
    run: Path,
    trials: Sequence[TrialRecord],
    wanted: Mapping[str, tuple[str, str]],
    dtype: type[pl.DataType] = pl.Float64,
) -> Iterator[tuple[TrialRecord, Durations | str]]:
    """The durations of each of `trials` whose packets were kept, or why they cannot be read.

    `wanted` are the columns of both stamps by the duration's name. Never raises for a bad file.
    """
    kept = [(str(run / trial.packets), trial) for trial in trials if trial.packets is not None]
    for start in range(0, len(kept), _BATCH):
        batch = kept[start : start + _BATCH]
        table = scan(list(dict.fromkeys(file for file, _ in batch)), wanted, dtype, named=True)
        found: dict[str, Durations] = {}
        if not isinstance(table, str) and "file" in table:
            runs = table["file"].rle().struct.unnest()  # a scan keeps the order of its files
            ends = np.cumsum(runs["len"].to_numpy())[:-1]
            columns = {name: np.split(table[name].to_numpy(), ends) for name in wanted}
            for place, file in enumerate(runs["value"]):
                found[file] = {name: parts[place] for name, parts in columns.items()}
        for file, trial in batch:
            alone = found[file] if file in found else scan([file], wanted, dtype)
            yield trial, alone if not isinstance(alone, pl.DataFrame) else arrays(alone)


def arrays(table: pl.DataFrame) -> Durations:
    """The columns of a table."""
    return {name: table[name].to_numpy() for name in table.columns}


def scan(
    files: Sequence[str],
    wanted: Mapping[str, tuple[str, str]],
    dtype: type[pl.DataType] = pl.Float64,
    *,
    named: bool = False,
) -> pl.DataFrame | str:
    """The durations in files, one after the other; why there are none where one of them is bad.

    `named` adds the names of several in the column `file`. A stamp that no packet of a trial has
    may be of any type in its file, or have no column: alone, such a file can be read.
    """
    stamps = dict.fromkeys((stamp for pair in wanted.values() for stamp in pair), pl.Int64)
    durations = [
        (pl.col(end) - pl.col(begin)).cast(dtype).alias(name)
        for name, (begin, end) in wanted.items()
    ]
    try:
        if len(files) == 1:
            whole = pl.read_parquet(files[0], glob=False)
            none = {name: pl.lit(None) for name in stamps if name not in whole.columns}
            table = whole.with_columns(**none).select(list(stamps))
            return table.cast(pl.Schema(stamps), strict=False).select(durations)
        return (
            pl.scan_parquet(
                list(files),
                schema=stamps,
                missing_columns="insert",
                extra_columns="ignore",
                include_file_paths="file" if named else None,
                glob=False,
            )
            .select(*durations, *(["file"] if named else []))
            .collect()
        )
    except (OSError, pl.exceptions.PolarsError) as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__


@lru_cache(maxsize=4096)
def buckets(hdr: str) -> tuple[Ints, Ints]:
    """Ends of a histogram's buckets [ns], and how many packets took no longer; shapes (B,).

    HdrHistogram V2, 3 significant digits, from 1 ns on. Its own decoder unfolds runs of empty
    buckets, which are one number here: thousands of them.
    """
    packed = np.frombuffer(zlib.decompress(base64.b64decode(hdr)[8:]), np.uint8, offset=40)
    # Numbers of seven bits a byte, the lowest first (ZigZag LEB128).
    starts = np.flatnonzero(np.append(True, packed[:-1] < 128))
    place = np.arange(packed.size) - np.repeat(starts, np.diff(starts, append=packed.size))
    coded = np.add.reduceat((packed & 127).astype(np.int64) << 7 * place, starts)
    numbers = (coded >> 1) ^ -(coded & 1)  # counts; below 0: so many empty buckets
    index = np.cumsum(np.maximum(1, -numbers)) - 1
    octave = np.maximum((index >> 10) - 1, 0)  # each has 1024 buckets
    return ((index - (octave << 10) + 1) << octave) - 1, np.cumsum(np.maximum(numbers, 0))
