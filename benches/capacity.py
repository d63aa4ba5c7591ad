"""Does the capacity model predict another publication's table? Frame sizes that a fit has not seen.

    python benches/capacity.py

The table is that of tests/data/README.md: Open vSwitch with DPDK between a 10 Gbit/s port and one
virtual machine, at six frame sizes and five numbers of flows. A number of flows decides what a
packet costs the switch, and the model knows none: each is fitted as a host of its own, from the
profile of documents with that line. Each frame size is left out in turn and predicted by a fit to
the other five. Figures only: nothing passes or fails.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from planewise.advise.model.capacity import ChainWorkload
from planewise.advise.model.fit import HeldOut, Measured, fit
from planewise.advise.profiles import find_profile

TABLE = Path(__file__).parents[1] / "tests" / "data" / "ovs_perf_pvp.csv"
LINE_GBPS = 10.0


def series() -> dict[int, list[Measured]]:
    """The table's rows by number of flows."""
    found: dict[int, list[Measured]] = defaultdict(list)
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            chain = ChainWorkload("north-south", int(row["vnfs"]), int(row["packet_bytes"]))
            measured = Measured("vhost-user", chain, float(row["tx_mpps"]) * 1e6)
            found[int(row["flows"])].append(measured)
    return found


def left_out(rows: list[Measured]) -> HeldOut:
    """Each frame size predicted by the others."""
    start = find_profile("xl710-documents")
    nic = start.nic.model_copy(update={"line_gbps": LINE_GBPS})
    found = fit(start.model_copy(update={"nic": nic}), rows, "ovs_perf")
    (frames,) = (part for part in found.left_out if part.kind == "frame size")
    return frames


def main() -> None:
    """Prints a line a number of flows, and all."""
    print("| flows | frames | median | mean | worst | in the interval that the others give |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    errors: list[float] = []
    inside = 0.0
    for flows, rows in series().items():
        held = left_out(rows)
        errors += held.errors
        inside += held.inside * len(held.errors)
        print(f"| {flows} | {len(held.errors)} | {_row(held.errors)} | {held.inside:.0%} |")
    print(f"| all | {len(errors)} | {_row(errors)} | {inside / len(errors):.0%} |")


def _row(errors: list[float]) -> str:
    parts = (statistics.median(errors), statistics.fmean(errors), max(errors))
    return " | ".join(f"{part:.1%}" for part in parts)


if __name__ == "__main__":
    main()
