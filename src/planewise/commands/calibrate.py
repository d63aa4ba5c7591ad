"""`planewise calibrate`: fit a host's profile to measured throughput of chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from planewise.commands import console
from planewise.commands.options import JsonOption, ProfileOutOption
from planewise.store.files import write_file

if TYPE_CHECKING:
    from planewise.advise.calibration import PredictedChain
    from planewise.advise.model.fit import Measured


def calibrate(
    measured: Annotated[
        Path,
        Argument(
            help="A run directory with chains, or CSV: interface, pattern, vnfs, packet_bytes, "
            "tx_mpps; chains, switch_cores, vnf_cores, switch_threads.",
            metavar="RUN|FILE",
        ),
    ],
    start: Annotated[
        str,
        Option(
            "--profile",
            help="Profile to start from, which also gives what is not fitted: a file or a name.",
        ),
    ] = "no-nic",
    line_gbps: Annotated[
        float | None, Option(help="Line rate of the NIC's port [Gbit/s].", min=0.001)
    ] = None,
    name: Annotated[str | None, Option(help="Name of the new profile.")] = None,
    against: Annotated[
        Path | None,
        Option(
            help="Another run, or CSV: predict each of its chains, and report the errors.",
            metavar="RUN|FILE",
        ),
    ] = None,
    markdown: Annotated[
        bool, Option("--markdown", help="Print a table of every row and its prediction.")
    ] = False,
    out: ProfileOutOption = None,
    json_: JsonOption = False,
) -> None:
    """Fit a host profile to measured chains, for `advise`.

    Reports how well it predicts. What only an unmeasured plane or chain would show, and the line
    rate, stay those of the starting profile.
    """
    from planewise.advise.calibration import errors, lines, predicted, predicted_lines, table
    from planewise.advise.model.fit import fit
    from planewise.advise.model.profile import find_profile
    from planewise.advise.toml_text import toml_text

    rows, left_out, emulated = _rows(measured)
    for line in left_out:
        console.err().print(line, style="yellow")
    profile = find_profile(start)
    if line_gbps is not None:
        profile = profile.model_copy(update={"line_gbps": line_gbps})
    source = measured.resolve().name
    found = fit(profile, rows, source)
    # What is fitted to an emulated host is emulated.
    update = {"name": name or source, "emulated": bool(emulated) or profile.emulated}
    profile = found.profile.model_copy(update=update)
    chains = predicted(profile, rows, rows)
    checked: Sequence[PredictedChain] = ()
    if against is not None:
        check_rows, notes, check_emulated = _rows(against)
        for line in (*notes, *((f"emulated: {check_emulated}",) if check_emulated else ())):
            console.err().print(f"{against}: {line}", style="yellow")
        checked = predicted(profile, check_rows, rows)
    if out is not None:
        write_file(out, toml_text(profile, defaults=False).encode())
    if json_:
        console.print_json(
            {
                "profile": profile.model_dump(),
                "fitted": asdict(errors(chains)),
                "rows": [chain.as_json() for chain in chains],
                "unseen": [
                    {"plane": part.plane, "left_out": part.dimension, "errors": part.errors}
                    for part in found.left_out
                ],
                "not_known": found.open,
                "left_out": left_out,
                "against": [chain.as_json() for chain in checked],
            }
        )
        return
    for line in lines(chains, found.left_out, found.open):
        print(line)
    if emulated:
        print(f"emulated: {emulated}; `planewise advise` will give no figures from this profile")
    for line in predicted_lines(checked):
        print(f"{against}: {line}")
    if checked:
        print(table(checked))
    if markdown:
        print(table(chains))
    if out is None:
        print()
        print(toml_text(profile, defaults=False), end="")
    else:
        print(out)


def _rows(measured: Path) -> tuple[Sequence[Measured], Sequence[str], str]:
    """Rows to fit; why others are left out; why times are emulated, empty if they are not."""
    from planewise.advise.chain_rows import read_table, rows_of
    from planewise.store.rundir import RunReader

    if not measured.is_dir():
        return read_table(measured), (), ""
    reader = RunReader(measured)
    return *rows_of(str(measured), reader.trials()), reader.info.emulated
