"""How well does the capacity model predict rows of publications that a fit has not seen?

    python benches/capacity.py

Open vSwitch with DPDK (tests/data/ovs_perf_pvp.csv: one virtual machine, a 10 Gbit/s port, each
number of flows fitted as a host of its own) and, where PLANEWISE_SHARED names their folder,
cnf-testbed's chains. Each value of a dimension is left out in turn. Figures only: nothing passes or
fails.
"""

from __future__ import annotations

import csv
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from planewise.advise.model.capacity import ChainWorkload, predict
from planewise.advise.model.fit import Fit, Measured, fit
from planewise.advise.model.profile import shipped

OVS_PERF = Path(__file__).parents[1] / "tests" / "data" / "ovs_perf_pvp.csv"
SHARED = Path(os.environ.get("PLANEWISE_SHARED", "."))
CNF_TESTBED = SHARED / "data" / "cnf_testbed" / "ndr_single_chains_64B.csv"


def ovs_perf() -> Mapping[str, list[Measured]]:
    """The rows of ovs_perf by number of flows."""
    found = defaultdict[str, list[Measured]](list)
    with OVS_PERF.open(newline="") as file:
        for row in csv.DictReader(file):
            chain = ChainWorkload("north-south", int(row["vnfs"]), int(row["packet_bytes"]))
            measured = Measured("vhost-user", chain, float(row["tx_mpps"]) * 1e6)
            found[f"{row['flows']} flows"].append(measured)
    return found


def cnf_testbed() -> Mapping[str, list[Measured]]:
    """The rows of cnf-testbed by kind of chain and number of switch cores."""
    found = defaultdict[str, list[Measured]](list)
    if not CNF_TESTBED.exists():
        return found
    with CNF_TESTBED.open(newline="") as file:
        for row in csv.DictReader(file):
            cores = {"2t1c": 1, "4t2c": 2}[row["switch_threads_cores"]]
            chain = ChainWorkload(
                "pipeline" if row["kind"] == "csp" else "east-west",
                int(row["functions_a_chain"]),
                int(row["frame_bytes"]),
                chains=int(row["chains"]),
                switch_cores=cores,
                switch_threads=2 * cores,
            )
            plane = "vhost-user" if row["kind"] == "vsc" else "memif"
            pps = chain.length * float(row["ndr_pps"])
            found[f"{row['kind']}, {cores} switch cores"].append(
                Measured("vhost-user" if plane == "vhost-user" else "memif", chain, pps)
            )
    return found


def main() -> None:
    """Prints a line for each fit and dimension."""
    print("| rows | left out | rows | median | mean | worst |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    line = shipped("no-nic").model_copy(update={"line_gbps": 10.0})
    fits = {name: fit(line, rows, "ovs_perf") for name, rows in ovs_perf().items()}
    for name, found in fits.items():
        _print_held_out(name, [found])
    _print_held_out("all flows", list(fits.values()))
    rows_of = cnf_testbed()
    for name, rows in rows_of.items():
        _print_held_out(name, [fit(shipped("no-nic"), rows, "cnf_testbed")])
    for kind in ("csc", "csp", "vsc"):
        one, two = (rows_of.get(f"{kind}, {cores} switch cores") for cores in (1, 2))
        if one and two:
            profile = fit(shipped("no-nic"), one, "cnf_testbed").profile
            predictions = ((row, predict(profile, row.plane, row.chain)) for row in two)
            errors = [found.pps / row.pps - 1 for row, found in predictions if found]
            print(f"| {kind}, from 1 switch core | 2 switch cores | {_figures(errors)} |")


def _print_held_out(name: str, fits: Sequence[Fit]) -> None:
    errors = defaultdict[str, list[float]](list)
    for found in fits:
        for part in found.left_out:
            errors[part.dimension] += map(math.expm1, part.errors)
    for dimension, values in errors.items():
        print(f"| {name} | {dimension} | {_figures(values)} |")


def _figures(errors: Iterable[float]) -> str:
    sizes = [abs(error) for error in errors]
    figures = (statistics.median(sizes), statistics.fmean(sizes), max(sizes))
    return " | ".join([str(len(sizes)), *(f"{figure:.1%}" for figure in figures)])


if __name__ == "__main__":
    main()
