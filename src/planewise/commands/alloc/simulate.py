"""`planewise alloc simulate`: policies on simulated hosts. `planewised simulate` does the work."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from planewise.commands.options import JsonOption
from planewise.errors import BadInputError, PlanewiseError


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="flexvf, flexvf-ftp-quiet, flexvf-ftp-busy, flapping, crossing, bursts, "
            "heavy-tail, diurnal or download.",
            show_default="flexvf",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read the scenario from this TOML file.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Play this trace (CSV or Parquet) on a host of --vfs VFs."),
    ] = None,
    mix: Annotated[
        str | None,
        typer.Option("--mix", help="Frame sizes, where the trace has bytes: 64:7,594:4,1518:1."),
    ] = None,
    vfs: Annotated[int | None, typer.Option("--vfs", help="VFs of the host.", min=0)] = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", help="Gain profile that gives gain and price of a switch."),
    ] = None,
    duration: Annotated[
        int | None, typer.Option("--duration", help="How long to play [s].", min=1)
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of all that is random.", min=0)
    ] = None,
    hosts: Annotated[
        int | None, typer.Option("--hosts", help="Number of such hosts.", min=1)
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="Play only this policy; may be repeated.")
    ] = None,
    unbounded: Annotated[
        bool, typer.Option("--unbounded", help="As FlexVF: all moves at once, no residency.")
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option("--shard", help="I/N: play every N-th host only, and print JSON for --merge."),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option("--merge", help="Add up the output of shards; may be repeated."),
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option("--recording", help="Replay a daemon's recording, and check each decision."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Play traffic against all policies; nothing on this machine is touched."""
    from planewise.testbed.vfs.nic import find_planewised

    if scenario is not None and file is not None:
        raise BadInputError(
            "both a scenario and a file are given", where="--file", remedy="give one of them"
        )
    options = [] if scenario is None else [scenario]
    values = {
        "--file": file,
        "--trace": trace,
        "--mix": mix,
        "--vfs": vfs,
        "--profile": profile,
        "--duration": duration,
        "--seed": seed,
        "--hosts": hosts,
        "--shard": shard,
        "--recording": recording,
    }
    for flag, value in values.items():
        if value is not None:
            options += [flag, str(value)]
    for name in policy or ():
        options += ["--policy", name]
    options += ["--unbounded"] * unbounded + ["--json"] * json_
    if merge:
        options += ["--merge", *map(str, merge)]
    if trace is not None and vfs is None:
        raise BadInputError(
            "a trace does not say how many VFs its host has", where="--trace", remedy="give --vfs"
        )
    command = [str(find_planewised()), "simulate", *options]
    with tempfile.TemporaryDirectory() as folder:
        csv = Path(folder) / "trace.csv"
        is_parquet = trace is not None and trace.suffix == ".parquet"
        if trace is not None and is_parquet:
            _parquet_as_csv(trace, csv)
            command[command.index(str(trace))] = str(csv)
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        what, _, remedy = process.stderr.strip().partition("\n")
        what = re.sub("^(planewised|error): ", "", what)
        if is_parquet:  # the CSV has a header line
            line = rf"{re.escape(str(csv))}:(\d+)"
            what = re.sub(line, lambda found: f"{trace}: row {int(found[1]) - 1}", what)
            what = what.replace(str(csv), str(trace))
        kind = BadInputError if process.returncode == 2 else PlanewiseError
        raise kind(what, remedy=remedy.strip())
    sys.stdout.write(process.stdout)


def _parquet_as_csv(path: Path, csv: Path) -> None:
    """Writes the table as CSV with a header; it may be larger than memory."""
    import polars

    try:
        polars.scan_parquet(path).sink_csv(csv)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise BadInputError(
            f"cannot be read as Parquet: {error}",
            where=str(path),
            remedy="give a table with the columns time_s, guest, and pps or bytes_per_s",
        ) from error
