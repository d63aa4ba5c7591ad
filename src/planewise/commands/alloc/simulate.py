"""`planewise alloc simulate`: policies on simulated hosts. `planewised simulate` does the work."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import typer

from planewise.errors import BadInputError, PlanewiseError

OWN_WORDS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": list[str](),
}
"""Settings of the command: `planewised` reads its words, `--help` among them."""


def simulate(context: typer.Context) -> None:
    """Play traffic against all policies (--help lists scenarios); nothing here is touched.

    A trace may be Parquet, too.
    """
    from planewise.testbed.vfs.nic import find_planewised

    words = [part for word in context.args for part in _split(word)]
    trace = Path(words[words.index("--trace") + 1]) if "--trace" in words[:-1] else None
    if trace is not None and "--vfs" not in words:
        raise BadInputError(
            "a trace does not say how many VFs its host has", where="--trace", remedy="give --vfs"
        )
    with tempfile.TemporaryDirectory() as folder:
        csv = Path(folder) / "trace.csv"
        is_parquet = trace is not None and trace.suffix == ".parquet"
        if trace is not None and is_parquet:
            _parquet_as_csv(trace, csv)
            words[words.index("--trace") + 1] = str(csv)
        command = [find_planewised(), "simulate", *words]
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
    sys.stdout.write(process.stdout.replace("planewised simulate", "planewise alloc simulate"))


def _split(word: str) -> list[str]:
    """`--trace=FILE` as two words."""
    name, separator, value = word.partition("=")
    return [name, value] if separator and name.startswith("--") else [word]


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
