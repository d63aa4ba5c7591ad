"""`planewise search`: NDR and PDR with intervals, and whether PDR can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from planewise.commands.console import Verbosity, print_json
from planewise.commands.console import out as stdout
from planewise.commands.progress import ProgressLine
from planewise.commands.sut import (
    DestinationOption,
    IpOption,
    NextHopOption,
    PlaneOption,
    RouterOption,
    RxOption,
    SizeOption,
    TxOption,
    choose_sut,
    frame_size,
)
from planewise.errors import BadInputError, VerdictNotGoodError

if TYPE_CHECKING:
    from planewise.measure.search.goals import GoalResult, SearchResult, Trial
    from planewise.measure.search.measurer import Measurer

_EXPECTED_S = {"planewise": 40.0, "mlrsearch": 120.0, "binary": 40.0}
"""About what a search takes, for the progress line."""


def search(
    context: typer.Context,
    plane: PlaneOption = None,
    router: RouterOption = False,
    tx: TxOption = None,
    rx: RxOption = None,
    destination: DestinationOption = "",
    next_hop_mac: NextHopOption = "",
    ip_version: IpOption = 4,
    size_bytes: SizeOption = None,
    synthetic: Annotated[
        str | None,
        typer.Option(
            "--synthetic", metavar="NAME", help="A simulated system whose truth is known; `list`."
        ),
    ] = None,
    goal: Annotated[
        list[str] | None,
        typer.Option("--goal", help="`ndr`, or `pdr:0.005`; may be repeated.", show_default=False),
    ] = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="planewise, mlrsearch or binary.")
    ] = "planewise",
    precision: Annotated[
        float, typer.Option("--precision", help="Half interval that is narrow enough (planewise).")
    ] = 0.0033,
    budget_s: Annotated[
        float, typer.Option("--budget", help="Seconds of traffic and pauses that may be spent.")
    ] = math.inf,
    verdict: Annotated[
        bool, typer.Option("--verdict/--no-verdict", help="Judge by a short ladder beyond PDR.")
    ] = True,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Of the search and of --synthetic.")
    ] = 1,
    require_good: Annotated[
        bool, typer.Option("--require-good", help="Exit 3 unless the verdict is GOOD.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find NDR and PDR with few trials, and judge whether PDR stands for the system.

    Give one of --plane, --router, --tx and --rx, or --synthetic.
    """
    from planewise.measure.search.goals import Goal
    from planewise.measure.search.planewise import PlanewiseOptions, PlanewiseSearch
    from planewise.measure.search.run import DEFAULT_GOALS, algorithm_named, run_search

    if synthetic == "list":
        _print_catalogue(json)
        return
    if not 0.0001 <= precision <= 0.2:
        raise BadInputError(
            f"{precision:g} is no precision for a load", where="--precision", remedy="0.0001 to 0.2"
        )
    goals = tuple(Goal.parse(text) for text in goal) if goal else DEFAULT_GOALS
    chosen = algorithm_named(algorithm)
    if algorithm == PlanewiseSearch.name:
        chosen = PlanewiseSearch(PlanewiseOptions(precision=precision, seed=seed))
    with _measurer(
        synthetic, plane, router, tx, rx, destination, next_hop_mac, ip_version, size_bytes, seed
    ) as measurer:
        progress = ProgressLine(context.obj or Verbosity())
        with progress:
            expected_s = min(budget_s, _EXPECTED_S[algorithm])
            if synthetic is None:
                progress.begin(f"search ({algorithm})", expected_s)

            def tell(trial: Trial, count: int, spent_s: float) -> None:
                if synthetic is not None:
                    return
                from planewise.units import rate_text

                what = f"trial {count}: {rate_text(trial.offered_pps)}, {trial.loss_ratio:.2%} lost"
                progress.step(what, min(spent_s, expected_s))

            result = run_search(
                measurer, goals, chosen, budget_s=budget_s, with_verdict=verdict, progress=tell
            )
    if json:
        print_json(result.to_json() | ({"truth": _truth(synthetic, goals)} if synthetic else {}))
    else:
        _print(result, synthetic)
    label = result.verdict.label if result.verdict else "UNDECIDED"
    if require_good and label != "GOOD":
        raise VerdictNotGoodError(
            f"the verdict is {label}: {result.verdict.reason if result.verdict else 'not asked'}"
        )


@contextmanager
def _measurer(
    synthetic: str | None,
    plane: str | None,
    router: bool,
    tx: str | None,
    rx: str | None,
    destination: str,
    next_hop_mac: str,
    ip_version: int,
    size_bytes: int | None,
    seed: int,
) -> Iterator[Measurer]:
    """What the flags name, built and torn down again."""
    if synthetic is not None:
        if plane or router or tx or rx:
            raise BadInputError("--synthetic goes with none of --plane, --router, --tx, --rx")
        from planewise.judge.synthetic import by_name

        yield by_name(synthetic).start(seed)
        return
    sut = choose_sut(plane, router, tx, rx, destination, next_hop_mac, ip_version, command="search")
    size_bytes = frame_size(size_bytes, sut.ip_version)
    from planewise.measure.sut import SutMeasurer
    from planewise.testbed import privilege

    privilege.ensure()
    with SutMeasurer(sut, size_bytes) as built:
        yield built


def _truth(name: str, goals: tuple[object, ...]) -> dict[str, float | None]:
    """What a perfect search would find, by goal."""
    from planewise.judge.synthetic import by_name
    from planewise.measure.search.goals import Goal

    system = by_name(name)
    found: dict[str, float | None] = {}
    for goal in goals:
        assert isinstance(goal, Goal)
        truth = system.truth(goal.loss_ratio or 0.005)
        found[goal.name] = truth.pdr_pps if goal.loss_ratio else truth.ndr_pps
    return found


def _print_catalogue(json: bool) -> None:
    from planewise.judge.synthetic import catalogue

    systems = {name: sut.summary for name, sut in catalogue().items()}
    if json:
        print_json(systems)
        return
    width = max(len(name) for name in systems)
    for name, summary in systems.items():
        stdout().print(f"{name:{width}}  {summary}", markup=False)


def _print(result: SearchResult, synthetic: str | None) -> None:
    from rich.table import Table

    from planewise.units import rate_text

    console = stdout()
    console.print()
    if result.verdict is not None:
        console.print(
            f"{result.verdict.label}: {result.verdict.reason}", markup=False, style="bold"
        )
        console.print()
    truth = _truth(synthetic, tuple(r.goal for r in result.goals)) if synthetic else {}
    title = "95 % interval" if result.goals[0].interval == "95%" else "bracket"
    table = Table("goal", "load", title, *(["truth"] if truth else []), box=None)
    for goal in result.goals:
        true_pps = truth.get(goal.goal.name)
        row = [_title(goal), _load(goal), _interval(goal)]
        if truth:
            row.append(rate_text(true_pps) if true_pps else "out of range")
        table.add_row(*row)
    console.print(table)
    console.print()
    console.print(
        f"{len(result.trials)} trials, {result.trial_seconds_s:.1f} s of traffic, "
        f"{result.total_seconds_s:.0f} s with pauses ({_STOPPED[result.stopped]})",
        markup=False,
    )
    for finding in result.findings:
        console.print(f"  - {finding.message}", markup=False)


_STOPPED = {
    "precise": "precise enough",
    "trials": "further trials would tell little more",
    "budget": "the budget was spent",
    "range": "the range of loads ended",
    "interrupted": "interrupted",
}


def _title(result: GoalResult) -> str:
    share = result.goal.loss_ratio
    return "NDR" if share == 0 else f"PDR at {share * 100:g} % loss"


def _load(result: GoalResult) -> str:
    from planewise.units import rate_text

    if result.status == "above-range" and result.pps:
        return f"above {rate_text(result.pps)}"
    if result.status == "below-range" and result.high_pps:
        return f"below {rate_text(result.high_pps)}"
    return rate_text(result.pps) if result.pps else f"undecided ({result.note})"


def _interval(result: GoalResult) -> str:
    from planewise.units import rate_text

    if result.low_pps is None or result.high_pps is None:
        return ""
    # Five digits: the interval of a steady system is narrower than three can show.
    if result.relative_half_width < 0.005 and result.high_pps >= 1e4:
        return f"{result.low_pps / 1e3:.2f} to {result.high_pps / 1e3:.2f} kpps"
    return f"{rate_text(result.low_pps)} to {rate_text(result.high_pps)}"
