"""`planewise quick`: compare this host's planes, judge, recommend, report."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from typer import Option

from planewise.commands import options
from planewise.commands.console import Verbosity
from planewise.commands.progress import ProgressLine
from planewise.commands.result import print_result
from planewise.targets import examined


def quick(
    context: typer.Context,
    out: options.RunOption = None,
    minutes: Annotated[
        float,
        Option(
            parser=options.minutes,
            metavar="TIME",
            help="Time to aim at, such as 3, 3m or 1h; more time, more blocks.",
        ),
    ] = 1.9,
    wide: options.WideOption = False,
    json: options.JsonOption = False,
) -> None:
    """Compare this host's data planes, and recommend one.

    Measures every plane idle, under CPU load and under network load, in network namespaces of its
    own (as a plain user inside a user namespace), judges the numbers and writes a report.
    """
    ends_s = time.monotonic() + minutes * 60
    verbosity: Verbosity = context.obj
    host = examined(None)
    from planewise import pipeline
    from planewise.measure.runs.experiment import default_directory
    from planewise.testbed.planes import plane, planes_of

    # A plane that starts a program of its own takes the time of several: `planewise run` has it.
    names = planes_of("namespace")
    cheap = [name for name in names if plane(name).quick and not plane(name).needs]
    planes = [tried.plane for tried in host.planes if tried.available and tried.plane in cheap]
    fitting = pipeline.Quick(planes, ends_s)
    with ProgressLine(verbosity) as progress:
        finished = pipeline.start(
            fitting.first(), out or default_directory(), host, progress, quick=fitting
        )
    print_result(finished, json, wide=wide)
