"""testpmd's console: rates between two `show port stats`, and the share of packets dropped.

Followed: DPDK app/test-pmd/config.c (`nic_stats_display`: Rx-pps and Tx-pps since the last show,
DPDK 2.0 and later) and testpmd.c (`fwd_stats_display`).
"""

from __future__ import annotations

import re
from pathlib import Path

from planewise.store.importers.text import lines
from planewise.store.readings import Collected, Readings, number_of

NAME = "testpmd"
MARKS = ((0.9, "NIC statistics for port|orward statistics for ", "X-packets:"),)

_PORT = re.compile(r"NIC statistics for port (\d+)")
_RATE = re.compile(r"([RT]x)-pps: *(\d+)")
_MISSED = re.compile(r"RX-packets: *(\d+) *RX-missed: *(\d+)")
_COUNT = re.compile(r"([RT]X-(?:packets|dropped|total)): *(\d+)")


def parse(text: str, path: Path) -> list[Readings]:
    """Rates of all ports together, a value each round of `show port stats`, and drops."""
    found = Collected(path, NAME)
    rounds: dict[tuple[str, str], list[float]] = {}
    counts: dict[str, float] = {}
    missed: dict[str, tuple[float, float]] = {}
    port = ""
    for _, line in lines(text):
        if match := _PORT.search(line):
            port = match[1]
        elif "orward statistics for" in line or "Forward Stats" in line:
            port, counts = "", {}
        for way, value in _RATE.findall(line) if port else ():
            rounds.setdefault((way, port), []).append(number_of(value))
        if port and (match := _MISSED.search(line)):
            missed[port] = number_of(match[1]), number_of(match[2])
        if not port:
            counts |= {name: number_of(value) for name, value in _COUNT.findall(line)}
    for way, name in (("Rx", "received rate"), ("Tx", "transmitted rate")):
        series = [values for (direction, _), values in rounds.items() if direction == way]
        totals = [sum(at_once) for at_once in zip(*series, strict=False)]
        if any(totals):
            found.add(name, "pps", "interval", [total for total in totals if total > 0])
    total = max(counts.get("RX-total", 0), counts.get("TX-total", 0))
    if total > 0:
        dropped = counts.get("RX-dropped", 0) + counts.get("TX-dropped", 0)
        found.add("dropped", "share", "run", [min(dropped / total, 1.0)])
    total = sum(map(sum, missed.values()))
    if total > 0:
        share = sum(lost for _, lost in missed.values()) / total
        found.add("missed by the NICs", "share", "run", [share])
    return found.finish("testpmd's counters are all zero: no packet passed")
