"""sockperf: full logs (`--full-log`), every packet a row, and the summary on the console.

Followed: Mellanox/sockperf, src/client.cpp: `packet, txTime(sec), rxTime(sec), rtt(usec)` (or
`latency(usec)`, half of it; older versions `txTime, rxTime`), and the summary's percentiles, of
half the round trip unless --full-rtt was given. All become round-trip times.
"""

from __future__ import annotations

import re
from pathlib import Path

from planewise.store.importers.text import lines
from planewise.store.readings import Collected, Readings, number_of

NAME = "sockperf"
MARKS = (
    (0.9, r"sockperf:|txTime\(sec\), rxTime\(sec\)"),
    (0.9, "using the following parameters: --", "--msg-size"),
)

_PERCENTILE = re.compile(r"---> percentile +([\d.]+) *= *([\d.]+)")
_RATE = re.compile(r"Summary: Message Rate is ([\d.]+)")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def parse(text: str, path: Path) -> list[Readings]:
    """Round-trip times of packets, or the summary's percentiles."""
    found = Collected(path, NAME)
    rtts_ns: list[float] = []
    percentiles: list[tuple[str, float]] = []
    factor, columns = 2e3, 0
    for _, line in lines(text):
        line = _COLOUR.sub("", line)
        if "txTime" in line:
            columns = line.count(",") + 1
        elif columns and (cells := [number_of(cell) for cell in line.split(",")]):
            if len(cells) == columns > 1 and all(cell == cell for cell in cells):
                sent_s, received_s = cells[:2] if columns == 2 else cells[1:3]
                rtts_ns.append((received_s - sent_s) * 1e9)
        elif "avg-rtt" in line or "Round trip is" in line or "--full-rtt" in line:
            factor = 1e3
        elif match := _PERCENTILE.search(line):
            percentiles.append((match[1], number_of(match[2])))
        elif match := _RATE.search(line):
            found.add("messages", "1/s", "run", [number_of(match[1])])
    if rtts_ns:
        found.add("RTT", "ns", "packet", rtts_ns)
    else:
        for name, value in percentiles:
            if float(name) in (50, 99):
                title = "RTT, median" if float(name) == 50 else "RTT, 99th percentile"
                found.add(title, "ns", "run", [value * factor])
    return found.finish("sockperf received no answer in this run")
