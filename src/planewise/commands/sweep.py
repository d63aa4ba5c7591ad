"""`planewise sweep`: a load-loss curve of one plane, router or pair of interfaces, judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from planewise import targets
from planewise.commands.console import Verbosity, print_items, print_json, print_rows
from planewise.commands.console import out as stdout
from planewise.commands.judge import pdr_text
from planewise.commands.options import JsonOption, RequireGoodOption, RunOption, grouped
from planewise.commands.progress import ProgressLine
from planewise.commands.sut import SutOptions
from planewise.errors import BadInputError, VerdictNotGoodError
from planewise.units import percent_text, rate_text

if TYPE_CHECKING:
    from planewise.measure.search.sequential import SweepResult
    from planewise.store.models import Fingerprint


RUNS = 5
UNTIL_VERDICT_RUNS = 30


@grouped
def sweep(
    context: typer.Context,
    options: SutOptions,
    loads: Annotated[
        str, Option(help="`auto`, or offered loads [packet/s], such as 100k,200k,300k.")
    ] = "auto",
    steps: Annotated[int, Option(help="Number of loads of an automatic ladder.")] = 9,
    runs: Annotated[
        int | None,
        Option(help="Trials at each load (5; with --until-verdict 30 on average, at most)."),
    ] = None,
    duration_s: Annotated[float, Option("--duration", help="Duration of a trial [s].")] = 0.5,
    until_verdict: Annotated[
        bool,
        Option(
            "--until-verdict",
            help="Place trials where they decide the verdict; --runs then limits their mean.",
        ),
    ] = False,
    seed: Annotated[int, Option(min=0, help="Seed of the trials' order.")] = 1,
    out: RunOption = None,
    require_good: RequireGoodOption = False,
    json: JsonOption = False,
) -> None:
    """Measure a load-loss curve and judge it.

    Give one of --plane, --router, or --tx and --rx. Only interfaces that you name, or that
    planewise makes, carry any traffic.
    """
    other_hosts = options.hosts()
    sut = options.sut("sweep")
    size_bytes = options.frame_bytes()
    ladder = None if loads == "auto" else parse_loads(loads)
    if runs is None:
        runs = UNTIL_VERDICT_RUNS if until_verdict else RUNS
    for flag, value, low, high in (
        ("--runs", runs, 1, 10**6),
        ("--steps", steps, 3, 1000),
        ("--duration", duration_s, 0.01, 3600),
    ):
        if not low <= value <= high:
            raise BadInputError(
                f"{value:g} is out of range", where=flag, remedy=f"{low:g} to {high}"
            )
    verbosity: Verbosity = context.obj
    host = targets.examined(other_hosts)
    from planewise import sweeps
    from planewise.measure.runs.experiment import default_directory

    plan = sweeps.SweepPlan(
        sut=sut,
        loads_pps=ladder,
        steps=steps,
        runs=runs,
        duration_s=duration_s,
        size_bytes=size_bytes,
        until_verdict=until_verdict,
        seed=seed,
    )
    with ProgressLine(verbosity) as progress, targets.opened(other_hosts, progress) as remote:
        directory = out or default_directory()
        swept = sweeps.sweep(plan, directory, host, progress, remote)
    report = directory / sweeps.REPORT_FILE
    if json:
        paths = {"run": str(directory), "report": str(report)}
        print_json(paths | swept.to_json() | {"disturbances": host.warnings})
    else:
        _print(swept, host)
        stdout().print(f"Report: {report}")
    if require_good and swept.verdict.verdict != "GOOD":
        raise VerdictNotGoodError(
            f"the verdict is {swept.verdict.verdict}: {swept.verdict.reason}",
            remedy="more runs or other loads may tell more; see the report",
        )


def parse_loads(text: str) -> tuple[float, ...]:
    """`100k,1.5M,2000` as rates [packet/s], rising."""
    rates = []
    for part in text.split(","):
        number, unit = part.strip(), 1.0
        if number[-1:] in "kM":
            number, unit = number[:-1], {"k": 1e3, "M": 1e6}[number[-1]]
        try:
            rate = float(number) * unit
        except ValueError:
            rate = float("nan")
        if not 0 < rate <= 1e9:
            raise BadInputError(
                f"`{part.strip()}` is not a rate", where="--loads", remedy="write 100k,200k or 1.5M"
            )
        rates.append(rate)
    if len(set(rates)) < 2:
        raise BadInputError("a curve needs two loads", where="--loads", remedy="write 100k,200k")
    return tuple(sorted(set(rates)))


def _print(swept: SweepResult, host: Fingerprint) -> None:
    verdict, console = swept.verdict, stdout()
    console.print()
    console.print(f"{verdict.label}: {verdict.reason}", style="bold")
    console.print(f"Stability: {verdict.stability}")
    console.print()
    rows = [
        (
            rate_text(point.offered_pps),
            rate_text(point.forwarded_pps),
            percent_text(point.plr),
            str(point.count),
            "left out, see below" if point.limited == len(point.runs) else "",
        )
        for point in swept.curve.points
    ]
    print_rows(("offered", "forwarded", "loss", "runs", ""), rows)
    console.print()
    pdr = pdr_text(verdict.pdr, verdict.no_pdr, rate_text)
    console.print(f"PDR at {percent_text(verdict.plr)} loss: {pdr}")
    console.print(f"{swept.trials} trials, {swept.traffic_s:.1f} s of traffic ({swept.stopped})")
    print_items(console, [*(warning.text for warning in verdict.warnings), *host.warnings])
