"""`planewise search`: NDR and PDR with intervals, and whether PDR can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from planewise import targets
from planewise.commands.console import Verbosity, print_items, print_json, print_rows
from planewise.commands.console import out as stdout
from planewise.commands.options import JsonOption, RequireGoodOption, RunOption, grouped
from planewise.commands.progress import ProgressLine
from planewise.commands.sut import SutOptions
from planewise.errors import BadInputError, VerdictNotGoodError
from planewise.units import percent_text, rate_text

if TYPE_CHECKING:
    from pathlib import Path

    from planewise.measure.search.goals import Goal, GoalResult, SearchResult, SearchTrial
    from planewise.measure.search.run import Algorithm

_EXPECTED_S = {"planewise": 40.0, "mlrsearch": 120.0, "binary": 40.0}
"""Usual duration of a search, for the progress line."""


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search itself."""

    goals: Annotated[
        list[str] | None,
        Option("--goal", help="`ndr`, or `pdr:LOSS_RATIO` such as pdr:0.005; may be repeated."),
    ] = None
    algorithm: Annotated[str, Option(help="planewise, mlrsearch or binary.")] = "planewise"
    precision: Annotated[
        float, Option(help="Relative half-width at which an interval is narrow enough (planewise).")
    ] = 0.005
    confidence: Annotated[float, Option(help="Confidence of the intervals (planewise).")] = 0.95
    budget_s: Annotated[
        float, Option("--budget", help="Most seconds of traffic and pauses to spend.")
    ] = math.inf
    with_verdict: Annotated[
        bool,
        Option("--verdict/--no-verdict", help="Also judge, by a short ladder of loads beyond PDR."),
    ] = True
    seed: Annotated[int, Option(min=0, help="Seed of the search and of --synthetic.")] = 1

    def goals_and_algorithm(self) -> tuple[tuple[Goal, ...], Algorithm]:
        """Goals and algorithm by their names. BadInputError: one is unknown."""
        from planewise.measure.search.run import goals_and_algorithm

        return goals_and_algorithm(
            self.goals or (), self.algorithm, self.precision, self.confidence, self.seed
        )


@grouped
def search(
    context: typer.Context,
    options: SutOptions,
    settings: SearchOptions,
    synthetic: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Search a simulated system whose truth is known; `list` names them.",
        ),
    ] = None,
    out: RunOption = None,
    require_good: RequireGoodOption = False,
    json: JsonOption = False,
) -> None:
    """Find NDR and PDR with few trials, and judge the curve.

    Give one of --plane, --router, --tx and --rx, or --synthetic.
    """
    if synthetic == "list":
        _print_catalogue(json)
        return
    checks = (
        ("--precision", settings.precision, 0.0001, 0.2),
        ("--confidence", settings.confidence, 0.5, 0.999),
    )
    for flag, value, low, high in checks:
        if not low <= value <= high:
            raise BadInputError(
                f"{value:g} is out of range", where=flag, remedy=f"{low:g} to {high:g}"
            )
    if synthetic is None:
        result = _measure(options, settings, context.obj or Verbosity(), out, json)
    elif options.named:
        raise BadInputError("--synthetic goes with none of --plane, --router, --tx, --rx")
    elif out is not None:
        raise BadInputError("--synthetic measures nothing, so --out has nothing to write")
    else:
        result = _simulate(synthetic, settings, json)
    label = result.verdict.label if result.verdict else "UNDECIDED"
    if require_good and label != "GOOD":
        raise VerdictNotGoodError(
            f"the verdict is {label}: {result.verdict.reason if result.verdict else 'not asked'}"
        )


def _simulate(name: str, settings: SearchOptions, json: bool) -> SearchResult:
    """Searches a synthetic system, and prints the result beside the truth."""
    from planewise.judge.synthetic import by_name
    from planewise.measure.search.run import run_search

    system = by_name(name)
    goals, algorithm = settings.goals_and_algorithm()
    result = run_search(
        system.start(settings.seed),
        goals,
        algorithm,
        budget_s=settings.budget_s,
        with_verdict=settings.with_verdict,
    )
    truth = {goal.name: system.goal_pps(goal.loss_ratio) for goal in goals}
    if json:
        print_json(result.to_json() | {"truth": truth})
    else:
        _print(result, truth)
    return result


def _measure(
    options: SutOptions, settings: SearchOptions, verbosity: Verbosity, out: Path | None, json: bool
) -> SearchResult:
    """Searches a real system into a run directory, and prints the result."""
    other_hosts = options.hosts()
    sut = options.sut("search")
    size_bytes = options.frame_bytes()
    host = targets.examined(other_hosts)
    from planewise import sweeps
    from planewise.measure.runs.experiment import default_directory

    goals, algorithm = settings.goals_and_algorithm()
    plan = sweeps.SearchPlan(
        sut=sut,
        goals=goals,
        algorithm=algorithm,
        budget_s=settings.budget_s,
        with_verdict=settings.with_verdict,
        size_bytes=size_bytes,
        seed=settings.seed,
    )
    expected_s = min(settings.budget_s, _EXPECTED_S[settings.algorithm])
    with ProgressLine(verbosity) as progress, targets.opened(other_hosts, progress) as remote:
        progress.begin(f"search ({settings.algorithm})", expected_s)

        def on_trial(trial: SearchTrial, count: int, spent_s: float) -> None:
            lost = percent_text(trial.loss_ratio)
            label = f"trial {count}: {rate_text(trial.offered_pps)}, {lost} lost"
            progress.step(label, min(spent_s, expected_s))

        directory = out or default_directory()
        result = sweeps.search(plan, directory, host, progress, on_trial, remote)
    report = directory / sweeps.REPORT_FILE
    if json:
        print_json({"run": str(directory), "report": str(report)} | result.to_json())
    else:
        _print(result, {})
        stdout().print(f"Report: {report}", soft_wrap=True)
    return result


def _print_catalogue(json: bool) -> None:
    from planewise.judge.synthetic import catalogue

    systems = {name: sut.summary for name, sut in catalogue().items()}
    if json:
        print_json(systems)
        return
    width = max(len(name) for name in systems)
    for name, summary in systems.items():
        stdout().print(f"{name:{width}}  {summary}")


def _print(result: SearchResult, truth: Mapping[str, float | None]) -> None:
    console = stdout()
    console.print()
    if result.verdict is not None:
        console.print(f"{result.verdict.label}: {result.verdict.reason}", style="bold")
        if result.verdict.stability:
            console.print(f"Stability: {result.verdict.stability}")
        console.print()
    title = result.goals[0].interval
    if title != "bracket":
        title = f"{title.replace('%', ' %')} interval"
    rows = []
    for goal in result.goals:
        true_pps = truth.get(goal.goal.name)
        true = [rate_text(true_pps) if true_pps else "out of range"] if truth else []
        rows.append((_title(goal), _load(goal), _interval(goal), *true))
    print_rows(("goal", "load", title, *(["truth"] if truth else [])), rows)
    console.print()
    console.print(
        f"{len(result.trials)} trials, {result.trial_seconds_s:.1f} s of traffic, "
        f"{result.total_seconds_s:.0f} s with pauses ({_STOPPED[result.stopped]}); "
        f"the loads are those of trials of {result.final_duration_s:g} s"
    )
    print_items(console, (finding.message for finding in result.findings))


_STOPPED = {
    "precise": "precise enough",
    "trials": "further trials would tell little more",
    "budget": "the budget was spent",
    "range": "the range of loads ended",
    "interrupted": "interrupted",
}


def _title(result: GoalResult) -> str:
    share = result.goal.loss_ratio
    return "NDR" if share == 0 else f"PDR at {percent_text(share)} loss"


def _load(result: GoalResult) -> str:
    if result.status == "above-range" and result.pps:
        return f"above {rate_text(result.pps)}"
    if result.status == "below-range" and result.high_pps:
        return f"below {rate_text(result.high_pps)}"
    return rate_text(result.pps) if result.pps else f"undecided ({result.note})"


def _interval(result: GoalResult) -> str:
    if result.low_pps is None or result.high_pps is None:
        return ""
    # Five digits: the interval of a steady system is narrower than three can show.
    if result.relative_half_width < 0.005 and result.high_pps >= 1e4:
        return f"{result.low_pps / 1e3:.2f} to {result.high_pps / 1e3:.2f} kpps"
    return f"{rate_text(result.low_pps)} to {rate_text(result.high_pps)}"
