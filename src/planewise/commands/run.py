"""`planewise run`: measure a design, or continue a run that was cut short."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from planewise.commands.console import Verbosity, err, print_json
from planewise.commands.options import JsonOption, RunOption, WideOption
from planewise.commands.progress import ProgressLine
from planewise.commands.result import print_result
from planewise.commands.sut import NicOption, ResponderOption, SenderOption
from planewise.errors import BadInputError

if TYPE_CHECKING:
    from planewise.measure.designs.campaign import CampaignDesign


def run(
    context: typer.Context,
    design_file: Annotated[
        Path | None, Argument(metavar="DESIGN.yaml", help="What to measure.")
    ] = None,
    out_directory: RunOption = None,
    resume: Annotated[
        Path | None, Option(metavar="RUN", help="Continue this run directory.")
    ] = None,
    blocks: Annotated[
        int | None, Option(help="With --resume: add so many blocks to a finished run.")
    ] = None,
    sender: SenderOption = None,
    responder: ResponderOption = None,
    nic: NicOption = "",
    lab: Annotated[bool, Option("--lab", help="Bring up a lab for this run.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print what would be done; do nothing.")
    ] = False,
    schema: Annotated[
        bool, Option("--schema", help="Print the JSON Schema of a design; do nothing.")
    ] = False,
    live: Annotated[
        bool,
        Option(
            "--live", help="Show guests' rates and CPU use each second, here and on a local page."
        ),
    ] = False,
    live_port: Annotated[int, Option(help="--live with this port (0: any).", min=0, max=65535)] = 0,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Measure a design (as experiments/my-first.yaml), or resume.

    Ctrl-Z pauses between two trials, Ctrl-C stops; --resume continues, and retries what failed.
    With --blocks, it adds blocks to a finished run.
    """
    if schema:
        from planewise.measure.designs.design_file import design_schema

        print_json(design_schema())
        return
    if (design_file is None) == (resume is None):
        raise BadInputError(
            "give either a design or --resume RUN",
            where="planewise run",
            remedy="planewise run experiments/my-first.yaml",
        )
    if blocks is not None and (resume is None or blocks < 1):
        raise BadInputError(
            "it adds one block or more to a finished run",
            where="--blocks",
            remedy="planewise run --resume RUN --blocks 4",
        )
    if dry_run and design_file is None:
        raise BadInputError("it lists a design's trials", where="--dry-run", remedy="name a design")
    from planewise.measure.designs.campaign import CampaignDesign
    from planewise.measure.designs.design_file import load_any

    design = None if design_file is None else load_any(design_file)
    if isinstance(design, CampaignDesign):
        if sender or responder or lab or live:
            raise BadInputError(
                "a router under test is measured on this machine, without a live view",
                where="planewise run",
                remedy="leave --sender, --responder, --lab and --live out",
            )
        _run_campaign(context, design, out_directory, dry_run, json)
        return
    from planewise import targets

    verbosity: Verbosity = context.obj
    other_hosts = targets.chosen(sender, responder, nic, lab, resume)
    # Before a user namespace is entered: the page must be reachable from outside.
    listening = None
    if (live or live_port) and not dry_run:
        from planewise.live.server import listen

        listening = listen(live_port)
    host = targets.examined(other_hosts)
    from planewise import pipeline
    from planewise.commands.dry_run import print_schedule
    from planewise.commands.live import LiveView
    from planewise.measure.runs.experiment import default_directory
    from planewise.store.rundir import check_free

    out = resume or out_directory or default_directory()
    if design is not None and not dry_run:
        check_free(out)  # before a lab is brought up for nothing
    title = design.title if design is not None else ""
    shown: ProgressLine | LiveView = ProgressLine(verbosity)
    on_sample = None
    if listening is not None:
        shown = LiveView(verbosity, title or f"Run {out}", listening)
        on_sample = shown.sample
    # A lab takes minutes to come up.
    later = dry_run and other_hosts is not None and bool(other_hosts.fresh_lab)
    with shown as progress, targets.opened(None if later else other_hosts, progress) as remote:
        if design is not None and dry_run:
            schedule = pipeline.dry_run(design, remote, on_later_hosts=later)
        elif design is not None:
            finished = pipeline.start(design, out, host, progress, remote, on_sample=on_sample)
        else:
            assert resume is not None
            finished = pipeline.resume(
                resume, host, progress, remote, on_sample=on_sample, blocks=blocks or 0
            )
        if isinstance(progress, LiveView) and not dry_run:
            progress.set_outcome(finished.outcome.info.status)
    if design is not None and dry_run:
        nic = "" if other_hosts is None else other_hosts.targets.interface
        print_schedule(design, schedule, json, nic)
        if later and not verbosity.quiet:
            err().print("The lab is not up, so cells that its hosts can't run are listed, too.")
    else:
        print_result(finished, json, wide=wide)


def _run_campaign(
    context: typer.Context, design: CampaignDesign, out: Path | None, dry_run: bool, json: bool
) -> None:
    """One curve a configuration and repetition, then their summary."""
    from planewise import campaigns
    from planewise.commands.campaign import summarise
    from planewise.commands.console import out as console
    from planewise.measure.designs.campaign import curves_of, estimate_text
    from planewise.measure.designs.schedule import TRIAL_OVERHEAD_S
    from planewise.targets import examined

    campaigns.check(design)
    if dry_run:
        names = [curve.name for curve in curves_of(design)]
        duration = estimate_text(design, TRIAL_OVERHEAD_S)
        if json:
            print_json({"title": design.title, "curves": names, "estimate": duration})
        else:
            console().print("\n".join((f"{duration}.", *(f"  {name}" for name in names))))
        return
    host = examined(None)
    from planewise.measure.runs.experiment import default_directory

    verbosity: Verbosity = context.obj
    folder = out or default_directory()
    with ProgressLine(verbosity) as progress:
        runs = campaigns.run_campaign(design, folder, host, progress)
    summarise(list(runs), json=json)
    if not json:
        console().print(f"Curves: {folder}; `planewise campaign {folder}/*` summarises them again.")
