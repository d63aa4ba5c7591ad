"""Pktgen-DPDK's console: the rates on each copy of its main page, and the share lost.

Followed: pktgen/Pktgen-DPDK, app/pktgen-stats.c (2.x to 24): `Pkts/s Max/Rx` and `Max/Tx`, later
`Pkts/s Rx` and `Tx`, a column a port and one for their total.
"""

from __future__ import annotations

import re
from pathlib import Path

from planewise.store.readings import Collected, Readings, number_of

NAME = "pktgen"
MARKS = ((0.9, "Pkts/s", "Link State|Rx Pkts"),)

_MOVED = re.compile(r"\x1b\[\d+;1H")
_ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\x1b[78=>]")
_ROW = re.compile(r"^\s*([A-Za-z/ ]*?)\s*:\s+([\d/, ]+)$")


def parse(text: str, path: Path) -> list[Readings]:
    """Received and transmitted rate of all ports, a value each page, and the last page's loss."""
    found = Collected(path, NAME)
    text = _ESCAPE.sub(" ", _MOVED.sub("\n", text))
    rates: dict[str, list[float]] = {"received rate": [], "transmitted rate": []}
    highest: dict[str, float] = {}
    counts: dict[str, float] = {}
    rate_rows = False
    for line in text.split("\n"):
        match = _ROW.match(line.replace("Sizes ", ""))
        if match is None:
            continue
        title, cells = match[1].strip(), match[2].split()
        rate_rows = title.startswith("Pkts/s") or (
            rate_rows and title in ("Max/Tx", "Tx", "Tx Max")
        )
        if rate_rows and cells and "Rx/Tx" not in title:
            name = "received rate" if "Rx" in title else "transmitted rate"
            most, _, now = cells[-1].rpartition("/")
            rates[name].append(number_of(now))
            highest[name] = max(highest.get(name, 0.0), number_of(most) if most else 0.0)
        elif title.endswith(("Rx Pkts", "Tx Pkts")) and "ARP" not in title:
            counts[title[-7:]] = sum(number_of(cell.split("/")[-1]) for cell in cells)
    for name, values in rates.items():
        running = [value for value in values if value > 0]
        if running:
            found.add(name, "pps", "interval", running)
        elif highest.get(name):
            found.add(f"highest {name}", "pps", "run", [highest[name]])
    sent, received = counts.get("Tx Pkts", 0.0), counts.get("Rx Pkts", 0.0)
    if 0 < received <= sent:
        found.add("loss", "share", "run", [1 - received / sent])
    return found.finish("Pktgen's counters are all zero: no packet passed")
