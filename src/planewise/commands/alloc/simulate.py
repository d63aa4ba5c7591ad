"""`planewise alloc simulate`: policies on a made-up host. Knows no daemon: `planewised` plays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from planewise.errors import BadInputError, PlanewiseError


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="flexvf, flexvf-ftp-quiet, flexvf-ftp-busy, flapping or bursts.",
            show_default="flexvf",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read the scenario from this TOML file.")
    ] = None,
    duration: Annotated[
        int | None, typer.Option("--duration", help="How long to play [s].", min=1)
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="For what is random.", min=0)] = None,
    unbounded: Annotated[
        bool, typer.Option("--unbounded", help="As FlexVF: all moves at once, no residency.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play traffic against all policies; nothing on this machine is touched."""
    from planewise.testbed.vfs import find_planewised

    if scenario is not None and file is not None:
        raise BadInputError(
            "a scenario was named and a file given", where="--file", remedy="give one of them"
        )
    options = [] if scenario is None else [scenario]
    for flag, value in (("--file", file), ("--duration", duration), ("--seed", seed)):
        if value is not None:
            options += [flag, str(value)]
    options += ["--unbounded"] * unbounded + ["--json"] * json_
    command = [str(find_planewised()), "simulate", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        what, _, remedy = done.stderr.strip().partition("\n")
        kind = BadInputError if done.returncode == 2 else PlanewiseError
        raise kind(what.removeprefix("planewised: "), remedy=remedy.strip())
    sys.stdout.write(done.stdout)
