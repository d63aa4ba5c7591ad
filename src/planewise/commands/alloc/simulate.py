"""`planewise alloc simulate`: policies on simulated hosts. `planewised simulate` does the work."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from planewise.commands.options import JsonOption
from planewise.errors import BadInputError, PlanewiseError

PARQUET_ROWS = 1_000_000
"""Rows of a Parquet trace that are in memory at once."""


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
    table = None
    if trace is not None and trace.suffix == ".parquet":
        table, trace = trace, Path("-")
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
    if "--trace" in options and vfs is None:
        raise BadInputError(
            "a trace does not say how many VFs its host has", where="--trace", remedy="give --vfs"
        )
    command = [str(find_planewised()), "simulate", *options]
    process = _run(command, table)
    if process.returncode:
        what, _, remedy = process.stderr.decode().strip().partition("\n")
        what = re.sub("^(planewised|error): ", "", what)
        if table is not None:
            # planewised reads the table on standard input, with a header line.
            what = re.sub(r"^-:(\d+):", lambda line: f"{table}: row {int(line[1]) - 1}:", what)
            what = re.sub("^-:", f"{table}:", what)
        kind = BadInputError if process.returncode == 2 else PlanewiseError
        raise kind(what, remedy=remedy.strip())
    sys.stdout.write(process.stdout.decode())


def _run(command: list[str], table: Path | None) -> subprocess.CompletedProcess[bytes]:
    """The finished process; a Parquet `table` is its standard input, as CSV."""
    if table is None:
        return subprocess.run(command, capture_output=True, check=False)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Files, as a child that fills an unread pipe stops reading its input.
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err) as child:
            assert child.stdin is not None
            try:
                for part in _parquet_as_csv(table):
                    child.stdin.write(part)
                child.stdin.flush()
            except BrokenPipeError:
                pass  # The child has ended; its stderr has the reason.
            except BaseException:
                child.kill()
                raise
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, child.returncode, out.read(), err.read())


def _parquet_as_csv(path: Path) -> Iterator[bytes]:
    """The table as CSV with a header, part by part: it may be larger than memory."""
    import polars

    try:
        lazy = polars.scan_parquet(path)
        offset = 0
        while True:
            rows = lazy.slice(offset, PARQUET_ROWS).collect()
            if offset and not rows.height:
                return
            yield rows.write_csv(include_header=offset == 0).encode()
            offset += PARQUET_ROWS
    except (OSError, polars.exceptions.PolarsError) as error:
        raise BadInputError(
            f"cannot be read as Parquet: {error}",
            where=str(path),
            remedy="give a table with the columns time_s, guest, and pps or bytes_per_s",
        ) from error
