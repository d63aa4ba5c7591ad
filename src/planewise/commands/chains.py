"""`planewise chains`: NFVbench results as a table that `planewise calibrate` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from planewise.commands import console
from planewise.store.files import write_file
from planewise.units import count_text


def chains(
    files: Annotated[list[Path], Argument(help="NFVbench results (JSON).", metavar="FILE")],
    names: Annotated[
        str,
        Option(
            help="Part of the path that says what was measured: {kind}, {vnfs}, {chains}, "
            "{switch_cores}, {switch_threads}, {vnf_cores}; * is any text.",
            metavar="PATTERN",
        ),
    ] = "{kind}_{chains}c{vnfs}n",
    kind: Annotated[
        list[str] | None,
        Option(
            help="Plane and pattern of a kind (csc=memif,east-west; csp=memif,pipeline; "
            "vsc=vhost-user,east-west). Repeatable.",
            metavar="KIND=PLANE,PATTERN",
        ),
    ] = None,
    switch_cores: Annotated[
        int | None, Option(help="Cores of the switch, if names don't say.")
    ] = None,
    switch_threads: Annotated[
        int | None, Option(help="Threads of the switch on them together.")
    ] = None,
    out: Annotated[
        Path | None, Option("-o", "--out", help="Write the table here.", metavar="FILE")
    ] = None,
) -> None:
    """Make a table of chains (CSV) from NFVbench's results."""
    from planewise.advise.chain_rows import csv_text
    from planewise.advise.chain_table import chain_table, kinds_of

    given = {"switch_cores": switch_cores, "switch_threads": switch_threads}
    hardware = {name: value for name, value in given.items() if value is not None}
    rows, left_out = chain_table(files, names, kinds_of(kind or ()), hardware)
    for reason in left_out:
        console.err().print(f"left out: {reason}", style="yellow")
    if out is None:
        print(csv_text(rows), end="")
    else:
        write_file(out, csv_text(rows).encode())
        print(f"{out}: {count_text(len(rows), 'chain')}")
