"""`planewise advise`: which plane for a workload on a host. Asks the model, prints the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from planewise.commands import console
from planewise.commands.newest import newest_measured
from planewise.commands.options import JsonOption, grouped
from planewise.store.files import write_file

if TYPE_CHECKING:
    from planewise.advise.advice import Advice
    from planewise.advise.evidence import Evidence
    from planewise.advise.model.profile import Profile


@dataclass(frozen=True)
class WorkloadOptions:
    """Keys of a workload; None leaves what the file says."""

    pattern: Annotated[
        str | None,
        Option(
            help="north-south: each function sends back; east-west: a chain of functions through "
            "the switch; pipeline: a chain of functions that are connected directly."
        ),
    ] = None
    vnfs: Annotated[int | None, Option(help="Number of network functions (1).")] = None
    chains: Annotated[int | None, Option(help="Chains side by side (1).")] = None
    switch_cores: Annotated[int | None, Option(help="Cores of the polling switch (1).")] = None
    vnf_cores: Annotated[int | None, Option(help="Cores of each function (1).")] = None
    frame_bytes: Annotated[
        int | None, Option("--frame", help="Frame size with FCS [bytes] (64).", metavar="BYTES")
    ] = None
    application: Annotated[
        str | None, Option(help="polling (DPDK, the default) or kernel (sockets) in the guests.")
    ] = None
    rate_mpps: Annotated[
        float | None, Option("--rate", help="What all functions together must send [Mpps].")
    ] = None
    latency_us: Annotated[
        float | None,
        Option(
            "--latency", help="Round-trip time that 99 of 100 packets must keep [µs].", metavar="US"
        ),
    ] = None
    live_migration: Annotated[
        bool | None,
        Option("--live-migration/--no-live-migration", help="Guests must migrate live."),
    ] = None
    isolation: Annotated[
        list[str] | None,
        Option(
            help="memory: no process of the host shares the guests' memory; filtering: the host "
            "filters every packet; load: neighbours do not matter. May be given more than once."
        ),
    ] = None
    guests: Annotated[
        int | None, Option(help="Guests that are to have the plane (one a function).")
    ] = None
    vfs: Annotated[int | None, Option(help="VFs that are free.")] = None
    cores: Annotated[
        int | None, Option(help="CPU budget: cores for functions and switch together.")
    ] = None
    spare_cores: Annotated[
        int | None, Option(help="Cores that the host can give beside the functions'.")
    ] = None


@grouped
def advise(
    options: WorkloadOptions,
    workload_file: Annotated[
        Path | None,
        Argument(metavar="WORKLOAD.yaml", help="The workload; options override its keys."),
    ] = None,
    profile: Annotated[
        str | None, Option(help="The host: a file (TOML) or the name of a shipped one.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        Option(
            "--run", metavar="RUN", help="Evidence: a run directory. May be given more than once."
        ),
    ] = None,
    gain_file: Annotated[
        Path | None,
        Option(
            "--gain",
            help="Gain profile of this host, which `planewise boost` writes: what a VF saves "
            "each packet.",
            metavar="FILE",
        ),
    ] = None,
    why_not: Annotated[str | None, Option(help="Explain why this plane is not the answer.")] = None,
    show_profile: Annotated[
        bool, Option("--show-profile", help="Print the profile as TOML; advise nothing.")
    ] = False,
    page: Annotated[Path | None, Option(help="Also write an HTML page.", metavar="FILE")] = None,
    json_: JsonOption = False,
) -> None:
    """Rank the planes for a workload: rates, bottlenecks, reasons.

    Figures are the capacity model's, with the parameters of the host's profile, or measured where
    a run has them; every statement says what it rests on. Without --profile and --run the newest
    run in runs/ is the evidence; without a workload, too, its own recommendation is printed.
    """
    from planewise.advise import advice as room
    from planewise.advise.gain_profile import read_gain
    from planewise.advise.model.profile import find_profile, shipped_names
    from planewise.advise.workload import read_workload, workload_of

    host = None if profile is None else find_profile(profile)
    if show_profile:
        _show(host, json_)
        return
    gain = None if gain_file is None else read_gain(gain_file)
    if host is None and not runs:
        alternative = (
            f". Or describe it: --profile with a file or one of {', '.join(shipped_names())}"
        )
        runs = [newest_measured("planewise advise", alternative)]
    asked = read_workload(workload_file) if workload_file is not None else {}
    overrides = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(options).items()
        if value not in (None, [])
    }
    only_runs = workload_file is None and not overrides and host is None and gain is None
    if only_runs and why_not is None and page is None and runs is not None and len(runs) == 1:
        _print_recommendation(runs[0], json_)
        return
    advice = room.advise(host, workload_of(asked | overrides), _evidence(runs or ()), gain)
    if page is not None:
        from planewise.report.advice import render

        write_file(page, render(advice, host).encode())
    if json_:
        reason = None if why_not is None else room.why_not(advice, why_not)
        console.print_json(asdict(advice) | {"why_not": reason})
        return
    if why_not is not None:
        print(room.why_not(advice, why_not))
    else:
        _print(advice)
    if page is not None:
        print()
        print(page)


def _print_recommendation(path: Path, json_: bool) -> None:
    """Prints the recommendation of a run, for guests like those that it measured."""
    from planewise.advise.recommend import recommend
    from planewise.commands.result import print_recommendation
    from planewise.store.rundir import RunReader

    run = RunReader(path)
    recommendation = recommend(run.trials(), run.info)
    if json_:
        console.print_json(
            {"run": str(path), "recommendation": recommendation.model_dump(mode="json")}
        )
        return
    print_recommendation(recommendation)
    print("For a planned workload: planewise advise --pattern north-south (see --help)")


def _show(host: Profile | None, json_: bool) -> None:
    """Prints the profile, or the names of the shipped ones."""
    from planewise.advise.model.profile import shipped_names
    from planewise.advise.toml_text import toml_text

    if host is None and json_:
        console.print_json({"profiles": list(shipped_names())})
    elif host is None:
        for name in shipped_names():
            print(name)
    elif json_:
        console.print_json(host.model_dump())
    else:
        print(toml_text(host, defaults=False), end="")


def _evidence(runs: Iterable[Path]) -> list[Evidence]:
    from planewise.advise.evidence import gather
    from planewise.store.rundir import RunReader

    evidence: list[Evidence] = []
    for path in dict.fromkeys(runs):
        reader = RunReader(path)
        evidence += gather(str(path), reader.trials(), reader.info)
    return evidence


def _print(advice: Advice) -> None:
    from rich.table import Table

    from planewise.advise import table

    print(advice.sentence)
    if advice.emulated:
        print(table.EMULATED)
    for note in advice.notes:
        print(note.text)
    print()
    grid = Table(box=None, pad_edge=False)
    for title in table.COLUMNS:
        grid.add_column(
            title,
            justify="right" if title in table.NUMBERS else "left",
            no_wrap=title != "bottleneck",
        )
    for ranked in advice.ranking:
        grid.add_row(*table.cells(ranked))
    console.out().print(grid)
    for ranked in advice.ranking:
        print()
        print(f"{ranked.plane}{'' if ranked.possible else ' (not possible here)'}:")
        for statement in ranked.statements:
            print(f"  {statement.text} [{statement.rests_on}]")
    if advice.changes:
        print()
        print("What would change the answer:")
        for statement in advice.changes:
            print(f"  {statement.text} [{statement.basis}]")
