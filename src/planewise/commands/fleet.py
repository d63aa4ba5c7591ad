"""`planewise fleet`: measure pairs of many hosts, and say which of them are slow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from planewise.commands import console
from planewise.commands.console import Verbosity, print_items
from planewise.commands.options import JsonOption, MarginOption
from planewise.commands.progress import ProgressLine
from planewise.errors import BadInputError, PlanewiseError, first_fault

if TYPE_CHECKING:
    from planewise.fleet.analysis import Findings
    from planewise.fleet.plan import Fleet, FleetPlan
    from planewise.fleet.tournament import Match
    from planewise.testbed.hosts.pair import Targets

app = typer.Typer(
    help="Measure pairs of many hosts, and find the slow ones.",
    no_args_is_help=True,
    cls=console.Commands,
    rich_markup_mode=None,
)

JOB_INDEX = "JOB_COMPLETION_INDEX"
"""What Kubernetes tells a pod of an Indexed Job."""


@app.callback()
def fleet() -> None:
    """Many hosts."""


@app.command()
def run(
    context: typer.Context,
    design_file: Annotated[
        Path | None, Argument(metavar="DESIGN.yaml", help="What each pair measures.")
    ] = None,
    nodes: Annotated[Path | None, Option(help="File with one host a line.")] = None,
    pairs: Annotated[
        int | None,
        Option(help="Number of pairs; twice as many as nodes tells them apart well."),
    ] = None,
    out_directory: Annotated[
        Path | None, Option("--out", help="Fleet directory (default: fleets/<time>).")
    ] = None,
    resume: Annotated[Path | None, Option(metavar="FLEET", help="Continue this directory.")] = None,
    index: Annotated[
        int | None, Option(envvar=JOB_INDEX, help="Measure this pair alone, from 0.")
    ] = None,
    parallel: Annotated[int, Option(min=1, help="Pairs of a round to measure at a time.")] = 1,
    nic: Annotated[str, Option(help="The interface to use on all nodes (a lab's: pf0).")] = "",
    seed: Annotated[
        int | None, Option(min=0, help="Seed of the pairing (default: derived from the nodes).")
    ] = None,
    budget_pps: Annotated[
        float | None, Option(help="Most packets a second to offer to a node.")
    ] = None,
    budget_cpu: Annotated[
        float | None, Option(help="Largest share of a node's CPUs to burn (0 to 1).")
    ] = None,
    budget_time: Annotated[
        float, Option(help="Largest share of the time in which to measure a node.")
    ] = 1.0,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the pairs; do nothing.")] = False,
    json_: JsonOption = False,
) -> None:
    """Measure pairs of nodes, round by round.

    In a round every node is in one pair, and no two nodes meet twice. Ctrl-C stops; --resume
    continues, and retries what failed.
    """
    if (design_file is None) == (resume is None):
        raise BadInputError(
            "give either a design or --resume FLEET",
            where="planewise fleet run",
            remedy="planewise fleet run DESIGN.yaml --nodes nodes.txt --pairs 50",
        )
    from planewise.fleet.plan import Fleet

    budget = {"pps": budget_pps, "cpu": budget_cpu, "time": budget_time}
    if design_file is None:
        assert resume is not None
        fleet = Fleet.open(resume)
    else:
        plan = _plan(design_file, nodes, pairs, nic, seed, budget)
        if dry_run:
            _print_pairs(Fleet(Path(), plan), json_)
            return
        if out_directory is None and index is not None:
            raise BadInputError(
                "pods of a Job need one directory",
                where="--index",
                remedy="name a directory on a volume that all of them mount with --out",
            )
        now = datetime.now().astimezone()
        fleet = Fleet.create(out_directory or Path("fleets") / f"{now:%Y%m%d-%H%M%S}", plan)
    if dry_run:
        _print_pairs(fleet, json_)
    elif index is not None:
        _measure_one(fleet, index, context.obj)
    else:
        _measure_all(fleet, parallel, context.obj, json_)


def _plan(
    design_file: Path,
    nodes_file: Path | None,
    pairs: int | None,
    nic: str,
    seed: int | None,
    limits: Mapping[str, float | None],
) -> FleetPlan:
    from pydantic import ValidationError

    from planewise.fleet.budget import within
    from planewise.fleet.plan import Budget, FleetPlan, default_seed, read_nodes
    from planewise.fleet.tournament import tournament
    from planewise.measure.designs.design_file import load_design

    if nodes_file is None or pairs is None:
        raise BadInputError(
            f"{'--nodes' if nodes_file is None else '--pairs'} is missing",
            where="planewise fleet run",
            remedy="--nodes FILE has a line a node; --pairs N of them are measured",
        )
    nodes = read_nodes(nodes_file)
    try:
        budget = Budget.model_validate(limits)
        design = within(load_design(design_file), budget)
        chosen_seed = default_seed(nodes, design) if seed is None else seed
        drawn = tournament(len(nodes), pairs, chosen_seed)
        plan = FleetPlan(
            title=design.title,
            nodes=nodes,
            nic=nic,
            pairs=tuple((match.round, match.sender, match.responder) for match in drawn),
            seed=chosen_seed,
            budget=budget,
            design=design.model_dump(mode="json"),
        )
    except ValidationError as error:
        name, fault = first_fault(error)
        where = f"--budget-{name}" if name in limits else str(nodes_file)
        raise BadInputError(fault, where=where) from error
    if not plan.local:
        targets_of(plan, plan.matches()[0])  # a NIC that is not named is said now
    return plan


def targets_of(plan: FleetPlan, match: Match) -> Targets:
    """The hosts of a pair. BadInputError where no NIC is named."""
    from planewise.testbed.hosts.pair import Targets

    return Targets(plan.nodes[match.sender], plan.nodes[match.responder], plan.nic)


def _print_pairs(fleet: Fleet, json_: bool) -> None:
    from planewise.fleet.run import names
    from planewise.fleet.tournament import MEETINGS, meetings_of

    meetings = meetings_of(len(fleet.plan.nodes), fleet.matches)
    pairs = [(match, *names(fleet, match)) for match in fleet.matches]
    if json_:
        as_json = [
            {"index": match.index, "round": match.round, "sender": sender, "responder": responder}
            for match, sender, responder in pairs
        ]
        console.print_json({"seed": fleet.plan.seed, "pairs": as_json})
        return
    out = console.out()
    for match, sender, responder in pairs:
        out.print(f"{match.index:5d}  round {match.round:<4d} {sender} -> {responder}")
    shares = ", ".join(f"{n} nodes {times}" for times, n in sorted(Counter(meetings).items()))
    out.print(f"Meetings of a node: {shares}.")
    if min(meetings) < MEETINGS:
        enough = -(-len(meetings) * MEETINGS // 2)
        out.print(
            f"Below {MEETINGS} meetings a slow node can hardly be told from its partners: "
            f"--pairs {enough} gives that many."
        )


def _measure_all(fleet: Fleet, parallel: int, verbosity: Verbosity, json_: bool) -> None:
    from planewise.fleet import run as fleet_run

    def note(text: str) -> None:
        if not verbosity.quiet:
            console.err().print(text)

    result = fleet_run.run(fleet, fleet_run.in_a_process, note, parallel=parallel)
    if json_:
        failed = [{"pair": match.index, "reason": why} for match, why in result.failed]
        console.print_json(
            {
                "fleet": str(fleet.path),
                "measured": result.measured,
                "failed": failed,
                "left": result.left,
            }
        )
    elif not result.left:
        console.out().print(
            f"All {len(fleet.matches)} pairs are measured: planewise fleet report {fleet.path}"
        )
    if result.left:
        raise PlanewiseError(
            f"{result.left} of {len(fleet.matches)} pairs are not measured",
            remedy=f"planewise fleet run --resume {fleet.path}",
        )


def _measure_one(fleet: Fleet, index: int, verbosity: Verbosity) -> None:
    """One pair in this process, as `planewise run` does it."""
    from planewise import targets
    from planewise.fleet.run import match_of

    match = match_of(fleet, index)
    if fleet.state(match) == "done":
        return
    other_hosts = None if fleet.plan.local else targets.OtherHosts(targets_of(fleet.plan, match))
    host = targets.examined(other_hosts)
    from planewise import pipeline
    from planewise.fleet.run import wait_for_budget
    from planewise.store.rundir import RUN_FILE

    with ProgressLine(verbosity) as progress, fleet.using(match):
        if fleet.state(match) == "done":
            return  # by another process, while this one waited
        wait_for_budget(fleet, match, progress.note)
        with targets.opened(other_hosts, progress) as remote:
            directory = fleet.directory(match)
            if (directory / RUN_FILE).exists():
                finished = pipeline.resume(directory, host, progress, remote)
            else:
                design = fleet.plan.design_of(match)
                finished = pipeline.start(design, directory, host, progress, remote)
    if finished.outcome.info.status != "done" or not finished.outcome.done:
        raise PlanewiseError(
            f"pair {index} is {finished.outcome.info.status}: "
            f"{finished.outcome.info.reason or 'all of its trials failed'}"
        )
    fleet.clear_failure(match)


@app.command()
def report(
    context: typer.Context,
    directory: Annotated[Path, Argument(metavar="FLEET", help="A fleet directory.")],
    metric: Annotated[
        list[str] | None, Option(help="As of compare; may be repeated.", show_default="usual ones")
    ] = None,
    margin: MarginOption = 0.05,
    out: Annotated[
        Path | None,
        Option("-o", "--out", help="The page [default: FLEET/report.html].", metavar="FILE"),
    ] = None,
    json_: Annotated[bool, Option("--json", help="Print JSON, and write no page.")] = False,
) -> None:
    """Rank a fleet's nodes, and name those worse than most.

    A pair's result depends on both nodes: each one's share is estimated from all of its pairs.
    """
    from planewise.fleet.analysis import find
    from planewise.fleet.plan import Fleet

    findings = find(Fleet.open(directory), metric or (), margin=margin)
    if json_:
        console.print_json(asdict(findings))
        return
    from planewise.fleet import page

    _print(findings)
    file = out or directory / "report.html"
    page.write(findings, file)
    print(file)
    if not context.obj.quiet:
        console.err().print("open the page in a browser; it needs no network")


def _print(findings: Findings) -> None:
    from planewise.fleet import page

    out = console.out()
    text = page.headline(findings)
    out.print(f"{text[0].upper()}{text[1:]}.", style="bold")
    out.print(
        f"{findings.measured} of {findings.pairs} pairs are measured."
        + (f" The last attempt at {len(findings.failures)} failed." if findings.failures else "")
    )
    if findings.emulated:
        out.print(f"Emulated times, not those of hardware: {findings.emulated}.")
    for outlier in findings.outliers:
        out.print()
        out.print(outlier.node, style="bold")
        print_items(out, page.sentences(outlier))
    out.print()
