"""`planewise run`: measure a design, or continue a run that was cut short."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planewise.commands.console import Verbosity, print_json
from planewise.commands.console import out as stdout
from planewise.commands.progress import ProgressLine, duration
from planewise.commands.result import print_result
from planewise.errors import BadInputError

if TYPE_CHECKING:
    from planewise.measure.design import Design
    from planewise.measure.schedule import Schedule


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
    sender: Annotated[
        str | None,
        typer.Option("--sender", metavar="HOST", help="ssh://server or lab:a, not this machine."),
    ] = None,
    responder: Annotated[
        str | None, typer.Option("--responder", metavar="HOST", help="The same for the responder.")
    ] = None,
    nic: Annotated[
        str, typer.Option("--nic", help="The interface to use on both (a lab's: pf0).")
    ] = "",
    lab: Annotated[
        bool, typer.Option("--lab", help="On a lab that is brought up for this run.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done; do nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure a design (experiments/my-first.yaml is a commented one), or resume a run."""
    if (design_file is None) == (resume is None):
        raise BadInputError(
            "give either a design or --resume RUN",
            where="planewise run",
            remedy="planewise run experiments/my-first.yaml",
        )
    from planewise.measure.design import load_design

    design = None if design_file is None else load_design(design_file)
    from planewise import doctor
    from planewise.commands import targets
    from planewise.testbed import privilege

    verbosity: Verbosity = context.obj
    where = targets.chosen(sender, responder, nic, lab, resume)
    if where is None:
        host = doctor.diagnose()
        privilege.ensure()
    else:
        host = doctor.examine(sample_s=0)
    # Not before: these start threads, and a user namespace is entered without.
    from planewise import pipeline
    from planewise.measure.experiment import default_directory
    from planewise.store.rundir import check_free

    out = out_directory or default_directory()
    if design is not None and not dry_run:
        check_free(out)  # before a lab is brought up for nothing
    with ProgressLine(verbosity) as progress, targets.opened(where, progress) as elsewhere:
        if design is not None and dry_run:
            schedule = pipeline.dry_run(design, elsewhere)
        elif design is not None:
            finished = pipeline.start(design, out, host, progress, elsewhere)
        else:
            assert resume is not None
            finished = pipeline.resume(resume, progress, elsewhere)
    if design is not None and dry_run:
        _print_plan(design, schedule, json)
    else:
        print_result(finished, json)


def _print_plan(design: Design, schedule: Schedule, json: bool) -> None:
    from planewise.measure.experiment import estimate_s

    seconds = estimate_s(schedule)
    if json:
        print_json(
            {
                "trials": schedule.trials,
                "estimated_s": seconds,
                "visits": [
                    {
                        "block": visit.block,
                        "cell": visit.cell.levels(),
                        "trials": [trial.name for trial in visit.trials],
                    }
                    for visit in schedule.visits
                ],
                "skipped": [
                    {"cell": skipped.cell.levels(), "reason": skipped.reason}
                    for skipped in schedule.skipped
                ],
            }
        )
        return
    from rich.table import Table

    console = stdout()
    console.print(
        f"{schedule.trials} trials in {len(schedule.visits)} visits of {design.blocks} blocks, "
        f"about {duration(seconds)}.",
        markup=False,
    )
    table = Table(
        "order", "block", "path", "guest", "plane", "load", "at", "background", "trials", box=None
    )
    for order, visit in enumerate(schedule.visits):
        cell = visit.cell
        table.add_row(
            str(order),
            str(visit.block),
            cell.path,
            cell.guest,
            cell.plane,
            cell.load_type,
            cell.load_location if cell.load_type != "none" else "",
            f"{cell.background_guests} on {cell.background}" if cell.background_guests else "0",
            str(len(visit.trials)),
        )
    console.print(table)
    for skipped in schedule.skipped:
        console.print(f"cannot run here: {skipped.cell.name}: {skipped.reason}", markup=False)
