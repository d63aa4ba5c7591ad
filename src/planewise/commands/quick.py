"""`planewise quick`: compare this host's planes, judge, recommend, report."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from planewise.commands.console import Verbosity
from planewise.commands.options import JsonOption, RunOption
from planewise.commands.progress import ProgressLine
from planewise.commands.result import print_result
from planewise.commands.targets import examined
from planewise.errors import BadInputError


def quick(
    context: typer.Context,
    out: RunOption = None,
    minutes: Annotated[
        float, typer.Option("--minutes", help="Time to aim at; more minutes, more blocks.")
    ] = 1.6,
    json: JsonOption = False,
) -> None:
    """Compare this host's data planes, judge the numbers, recommend one, write a report.

    Builds its own network namespaces (as a plain user inside a user namespace), measures every
    plane idle, under CPU load and under network load, and removes everything again.
    """
    if not 0.5 <= minutes <= 24 * 60:
        raise BadInputError(
            f"{minutes:g} minutes is not a budget",
            where="--minutes",
            remedy="give between 0.5 and 1440",
        )
    ends_s = time.monotonic() + minutes * 60
    verbosity: Verbosity = context.obj
    host = examined(None)
    from planewise import pipeline
    from planewise.measure.runs.experiment import default_directory
    from planewise.testbed.planes import plane, planes_of

    # A plane that starts a program of its own takes the time of several: `planewise run` has it.
    cheap = [name for name in planes_of("namespace") if not plane(name).needs]
    planes = [tried.plane for tried in host.planes if tried.available and tried.plane in cheap]
    fitting = pipeline.Quick(planes, ends_s)
    with ProgressLine(verbosity) as progress:
        finished = pipeline.start(
            fitting.first(), out or default_directory(), host, progress, quick=fitting
        )
    print_result(finished, json)
