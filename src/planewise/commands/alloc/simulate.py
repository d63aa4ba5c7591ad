"""`planewise alloc simulate`: policies on simulated hosts. `planewised simulate` does the work."""

from __future__ import annotations

import re
import subprocess
import sys

import typer

from planewise.errors import BadInputError, PlanewiseError

OWN_WORDS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": list[str](),
}
"""Settings of the command: `planewised` reads its words, `--help` among them."""


def simulate(context: typer.Context) -> None:
    """Play traffic against all policies (--help lists scenarios); nothing here is touched."""
    from planewise.testbed.vfs.nic import find_planewised

    options = {word.partition("=")[0] for word in context.args}
    if "--trace" in options and "--vfs" not in options:
        raise BadInputError(
            "a trace does not say how many VFs its host has", where="--trace", remedy="give --vfs"
        )
    command = [find_planewised(), "simulate", *context.args]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        what, _, remedy = process.stderr.strip().partition("\n")
        what = re.sub("^(planewised|error): ", "", what)
        kind = BadInputError if process.returncode == 2 else PlanewiseError
        raise kind(what, remedy=remedy.strip())
    sys.stdout.write(process.stdout.replace("planewised simulate", "planewise alloc simulate"))
