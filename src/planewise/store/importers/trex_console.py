"""The port statistics that TRex's console prints (`stats`): rates, and the share lost.

Followed: cisco-system-traffic-generator/trex-core, stl/trex_stl_lib/trex_stl_stats.py and its
successor in trex/stl: a column a port and, with several, their total. The stateful t-rex-64 prints
a table of ports without one.
"""

from __future__ import annotations

import re
from pathlib import Path

from planewise.store.importers.text import lines
from planewise.store.readings import SCALES, Collected, Readings, number_of

NAME = "trex-console"
MARKS = ((0.9, r"opackets\s*\|", "ipackets"),)

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_RATE = re.compile(r"([\d.]+) *([KMGT]?)pps", re.IGNORECASE)


def parse(text: str, path: Path) -> list[Readings]:
    """Rates of all ports, a value each table, and the share lost until the last one."""
    found = Collected(path, NAME)
    counts: dict[str, float] = {}
    totals = False
    for _, line in lines(text):
        title, *cells = (cell.strip() for cell in _COLOUR.sub("", line).split("|"))
        cells = [cell for cell in cells if cell]
        if not cells:
            continue
        if title in ("port", "ports"):
            totals = cells[-1] == "total"
        elif title in ("opackets", "ipackets"):
            counts[title] = sum(map(number_of, cells[-1:] if totals else cells))
        elif title in ("Tx pps", "Rx pps") and (match := _RATE.match(cells[-1])):
            rate = number_of(match[1]) * SCALES[match[2].lower()]
            if rate > 0:
                name = "transmitted rate" if title == "Tx pps" else "received rate"
                found.add(name, "pps", "interval", [rate])
    sent, received = counts.get("opackets", 0.0), counts.get("ipackets", 0.0)
    if 0 < received <= sent:
        found.add("loss", "share", "run", [1 - received / sent])
    return found.finish("TRex's counters are all zero: no packet passed")
