"""The `planewise` command line: gathers the commands and turns errors into sentences.

Each command is a module of `planewise.commands`. Nothing is decided here.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from planewise import __version__
from planewise.commands import (
    advise,
    alloc,
    boost,
    calibrate,
    campaign,
    chains,
    clean,
    compare,
    console,
    doctor,
    fleet,
    judge,
    lab,
    publications,
    quick,
    report,
    run,
    search,
    start,
    sweep,
    trend,
)
from planewise.commands.console import Verbosity, print_error
from planewise.errors import BadInputError, PlanewiseError


class AllCommands(console.Commands):
    """The commands in the order in which a user meets them."""

    groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Measure": ("doctor", "quick", "run", "sweep", "search", "clean"),
        "Judge and advise": (
            *("judge", "compare", "trend", "campaign", "report", "publications"),
            *("advise", "chains", "calibrate", "boost"),
        ),
        "Allocate": ("alloc",),
        "Lab and fleet": ("lab", "fleet"),
    }


app = typer.Typer(
    name="planewise",
    help="Which network data plane should each guest on this host use?",
    invoke_without_command=True,
    cls=AllCommands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"planewise {__version__}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress and no hints.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print every step on stderr.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Which network data plane should each guest on this host use?"""
    context.obj = Verbosity(quiet=quiet, verbose=verbose)
    if context.invoked_subcommand is None and not context.resilient_parsing:
        start.start()


app.add_typer(alloc.app, name="alloc")
app.add_typer(lab.app, name="lab")
app.add_typer(fleet.app, name="fleet")


for command in (
    *(doctor.doctor, quick.quick, run.run, sweep.sweep, search.search, clean.clean),
    *(judge.judge, compare.compare, trend.trend, campaign.campaign, report.report),
    *(publications.publications, advise.advise, chains.chains, calibrate.calibrate, boost.boost),
):
    app.command()(command)


def _stop(_number: int, _frame: object) -> None:
    """Says at once that Ctrl-C arrived: what was built is removed first, which takes a moment."""
    print("stopping…", file=sys.stderr, flush=True)
    raise KeyboardInterrupt


def main() -> None:
    """Runs the command line; every error a user may meet becomes a sentence and an exit code."""
    console.open_streams()
    console.show_warnings()
    signal.signal(signal.SIGINT, _stop)
    try:
        sys.exit(_exit_code())
    except OSError as error:  # stderr cannot be written either: the code says what is left to say
        console.close(sys.stderr)
        told: BaseException | None = error
        while told is not None and not hasattr(told, "exit_code"):
            told = told.__context__
        sys.exit(getattr(told, "exit_code", 1))


def _exit_code() -> int:
    """Runs the command line and says what went wrong. OSError where stderr cannot be written."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except PlanewiseError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except SystemExit as error:
        # The command line library turns Ctrl-C into a silent exit.
        cause = error.__context__ and error.__context__.__cause__
        if isinstance(cause, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
            print("stopped", file=sys.stderr)
        raise
    except BrokenPipeError:
        # The reader of stdout has closed it; Python would report that again at its exit.
        console.close(sys.stdout)
    except Exception as error:
        if isinstance(error, OSError) and console.is_of_output(error):
            console.close(sys.stdout)
            sentence = f"the output could not be written: {error.strerror}"
            print_error(PlanewiseError(sentence))
        elif isinstance(error, MemoryError) or "failed to map segment" in str(error):
            sentence, remedy = (
                "there is too little memory or address space",
                "`ulimit -v unlimited`",
            )
            print_error(PlanewiseError(sentence, remedy=f"{remedy}, or free some memory"))
        elif isinstance(error, PermissionError) and error.filename:
            remedy = "see the permissions of it and of the folders above it"
            print_error(PlanewiseError(f"{error.filename}: {error.strerror}", remedy=remedy))
            return BadInputError.exit_code
        else:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            sentence = f"planewise itself failed, in {where}: {type(error).__name__}: {error}"
            remedy = "this is a bug in planewise; PLANEWISE_TRACEBACK=1 shows where"
            print_error(PlanewiseError(sentence, remedy=remedy))
            if os.environ.get("PLANEWISE_TRACEBACK"):
                traceback.print_exc()
    return 1
