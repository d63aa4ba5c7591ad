"""`planewise trend`: what changed over runs of one design, night by night."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from planewise.commands import console
from planewise.commands.options import JsonOption


def trend(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Run directories of one design.")],
    metric: Annotated[
        list[str] | None, Option(help="As `planewise compare` takes them.", show_default="all")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find lasting changes over nightly runs of one design.

    Exits with 1 if one is new. Runs are put in order of time. A cell that never changed is reported
    in at most 5 % of calls, all cells and metrics together.
    """
    from planewise.judge.trend import RECENT, trends

    found = trends(runs, tuple(metric or ()))
    recent = [trend for trend in found if trend.point.recent]
    if json:
        console.print_json([trend.as_json() for trend in found])
    else:
        for trend in found:
            console.out().print(f"- {trend.sentence}")
        new = f"{len(recent)} of them among the newest {RECENT} runs" if found else "no change"
        console.out().print(f"{len(found)} lasting changes in {len(runs)} runs: {new}.")
    if recent:
        raise typer.Exit(1)
