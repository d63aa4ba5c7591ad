"""The `planewise` commands: parses arguments, calls one function, prints. Nothing is decided here.

Modules that are slow to import (polars, scipy, altair) are imported by the command that needs
them, so that `planewise --help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from planewise import __version__
from planewise.errors import PlanewiseError

app = typer.Typer(
    name="planewise",
    help="Which network data plane should each guest on this host use?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Measure, judge, advise, allocate."""
    if version:
        print(f"planewise {__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command line; every error a user may meet becomes a sentence and an exit code."""
    try:
        app()
    except PlanewiseError as error:
        print(f"error: {error.what}", file=sys.stderr)
        if error.remedy:
            print(f"hint: {error.remedy}", file=sys.stderr)
        sys.exit(error.exit_code)
