"""`planewise run`: measure a design, or continue a run that was cut short."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planewise.commands.console import Verbosity, print_json
from planewise.commands.progress import ProgressLine
from planewise.commands.result import print_result
from planewise.errors import BadInputError


def run(
    context: typer.Context,
    design_file: Annotated[
        Path | None, typer.Argument(metavar="DESIGN.yaml", help="What to measure.")
    ] = None,
    out_directory: Annotated[
        Path | None, typer.Option("--out", help="Run directory (default: runs/<time>).")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Continue this run directory.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done; do nothing.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a design; do nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure a design (experiments/my-first.yaml is a commented one), or resume a run.

    Ctrl-Z pauses between two trials, Ctrl-C stops; --resume goes on without repeating what is
    finished, and tries again what failed.
    """
    if schema:
        from planewise.measure.schema import design_schema

        print_json(design_schema())
        return
    if (design_file is None) == (resume is None):
        raise BadInputError(
            "give either a design or --resume RUN",
            where="planewise run",
            remedy="planewise run experiments/my-first.yaml",
        )
    if dry_run and design_file is None:
        raise BadInputError("--dry-run shows a design", where="--dry-run", remedy="name one")
    from planewise.measure.design import load_design

    design = None if design_file is None else load_design(design_file)
    from planewise import doctor
    from planewise.testbed import privilege

    verbosity: Verbosity = context.obj
    host = doctor.diagnose()
    privilege.ensure()
    # Not before: these start threads, and a user namespace is entered without.
    from planewise import pipeline
    from planewise.commands.dry_run import print_schedule
    from planewise.measure.experiment import default_directory

    if design is not None and dry_run:
        print_schedule(design, pipeline.dry_run(design), json)
        return
    with ProgressLine(verbosity) as progress:
        if design is not None:
            out = out_directory or default_directory()
            finished = pipeline.start(design, out, host, progress)
        else:
            assert resume is not None
            finished = pipeline.resume(resume, host, progress)
    print_result(finished, json)
