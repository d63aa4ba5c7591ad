"""Reads the latency histograms of trials."""

from __future__ import annotations

import base64
import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


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
