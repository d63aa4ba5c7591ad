"""`planewise advise`: which plane for a workload on a host. Asks the model, prints the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planewise.commands import console
from planewise.errors import BadInputError

if TYPE_CHECKING:
    from planewise.advise.demand import Statement
    from planewise.advise.evidence import Evidence
    from planewise.advise.model import Profile
    from planewise.advise.workload import Advice, Ranked
    from planewise.report.advice import Page, Said


def advise(
    workload_file: Annotated[
        Path | None,
        typer.Argument(metavar="WORKLOAD.yaml", help="The workload; options override its keys."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", help="The host: a file (TOML) or the name of a shipped one."),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run", metavar="RUN", help="Evidence: a run directory. May be given more than once."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern",
            help="north-south: each function sends back; east-west: a chain of functions.",
        ),
    ] = None,
    vnfs: Annotated[
        int | None, typer.Option("--vnfs", help="Number of network functions (1).")
    ] = None,
    frame: Annotated[
        int | None,
        typer.Option("--frame", help="Frame size with FCS [bytes] (64).", metavar="BYTES"),
    ] = None,
    application: Annotated[
        str | None,
        typer.Option(
            "--application", help="polling (DPDK, the default) or kernel (sockets) in the guests."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="What all functions together must send [Mpps]."),
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option(
            "--latency", help="Round-trip time that 99 of 100 packets must keep [µs].", metavar="US"
        ),
    ] = None,
    live_migration: Annotated[
        bool | None,
        typer.Option("--live-migration/--no-live-migration", help="Guests must migrate live."),
    ] = None,
    isolation: Annotated[
        list[str] | None,
        typer.Option(
            "--isolation",
            help="memory: no process of the host shares the guests' memory; filtering: the host "
            "filters every packet; load: neighbours do not matter. May be given more than once.",
        ),
    ] = None,
    guests: Annotated[
        int | None,
        typer.Option("--guests", help="Guests that are to have the plane (one a function)."),
    ] = None,
    vfs: Annotated[int | None, typer.Option("--vfs", help="VFs that are free.")] = None,
    cores: Annotated[
        int | None,
        typer.Option("--cores", help="CPU budget: cores for functions and switch together."),
    ] = None,
    spare_cores: Annotated[
        int | None,
        typer.Option("--spare-cores", help="Cores that the host can give beside the functions'."),
    ] = None,
    why_not: Annotated[
        str | None, typer.Option("--why-not", help="Say why this plane is not the answer.")
    ] = None,
    show_profile: Annotated[
        bool, typer.Option("--show-profile", help="Print the profile as TOML; advise nothing.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--page", help="Also write an HTML page.", metavar="FILE")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rank the planes for a workload: predicted figures, what binds, what would change the answer.

    Figures are the capacity model's, with the parameters of the host's profile, or measured where
    a run has them; every statement says what it rests on.
    """
    from planewise.advise import workload as room
    from planewise.advise.profiles import find_profile
    from planewise.advise.workload_file import WorkloadText, read_workload

    host = None if profile is None else find_profile(profile)
    if show_profile:
        _show(host, json_)
        return
    if host is None and not runs:
        raise BadInputError(
            "an advice needs to know the host",
            where="planewise advise",
            remedy="name it with --profile (a file, or one of "
            f"{', '.join(_shipped())}), or measure it and give --run",
        )
    asked = read_workload(workload_file) if workload_file is not None else WorkloadText()
    given = {
        "pattern": pattern,
        "vnfs": vnfs,
        "frame_bytes": frame,
        "application": application,
        "rate_mpps": rate,
        "latency_us": latency,
        "live_migration": live_migration,
        "isolation": tuple(isolation) if isolation else None,
        "guests": guests,
        "vfs": vfs,
        "cores": cores,
        "spare_cores": spare_cores,
    }
    asked = asked.model_copy(update={name: one for name, one in given.items() if one is not None})
    advice = room.advise(host, asked.workload(), _evidence(runs or ()))
    if page is not None:
        from planewise.report.advice import render
        from planewise.store.files import write_file

        write_file(page, render(_page(advice, host)).encode())
    if json_:
        console.print_json(asdict(advice) | {"why_not": _why_not(advice, why_not)})
        return
    if why_not is not None:
        print(room.why_not(advice, why_not))
    else:
        _print(advice)
    if page is not None:
        print()
        print(page)


def _shipped() -> tuple[str, ...]:
    from planewise.advise.model import shipped_names

    return shipped_names()


def _show(host: Profile | None, json_: bool) -> None:
    """The profile, or the names of those that there are."""
    from planewise.advise.model import profile_text

    if host is None and json_:
        console.print_json({"profiles": list(_shipped())})
    elif host is None:
        for name in _shipped():
            print(name)
    elif json_:
        console.print_json(host.model_dump())
    else:
        print(profile_text(host), end="")


def _evidence(runs: Iterable[Path]) -> list[Evidence]:
    from planewise.advise.evidence import gather
    from planewise.store.rundir import RunReader

    found: list[Evidence] = []
    for path in dict.fromkeys(runs):
        reader = RunReader(path)
        found += gather(str(path), reader.trials(), reader.info)
    return found


def _page(advice: Advice, host: Profile | None) -> Page:
    from planewise.advise.workload import course
    from planewise.report import advice as report

    def said(statements: Iterable[Statement]) -> tuple[Said, ...]:
        return tuple(report.Said(one.text, _basis(one.basis, one.source)) for one in statements)

    chain = advice.workload.chain
    functions = f"{chain.vnfs} function{'s' if chain.vnfs > 1 else ''}"
    return report.Page(
        title=f"Which plane for {functions}, {chain.pattern}?",
        sentence=advice.sentence,
        host=advice.profile or "no profile",
        measured=any(one.measured for one in advice.ranking),
        notice=_EMULATED if advice.emulated else "",
        columns=_COLUMNS,
        planes=tuple(
            report.Plane(one.plane, one.possible, _cells(one)[1:], said(one.statements))
            for one in advice.ranking
        ),
        changes=said(advice.changes),
        notes=said(advice.notes),
        points=tuple(
            report.Point(
                one.plane, one.chain.vnfs, one.pps, one.low_pps, one.high_pps, one.bottleneck.name
            )
            for one in course(host, advice.workload)
        ),
        asked_vnfs=chain.vnfs,
    )


_EMULATED = (
    "The profile is of an emulated host: its order of planes may hold, its figures say nothing of "
    "a real one and are not shown."
)
_COLUMNS = ("plane", "Mpps", "95 %", "Gbit/s", "share", "p99 RTT", "cores", "what binds")
_RIGHT = ("Mpps", "Gbit/s", "share", "p99 RTT", "cores")


def _why_not(advice: Advice, plane: str | None) -> str | None:
    from planewise.advise import workload as room

    return None if plane is None else room.why_not(advice, plane)


def _print(advice: Advice) -> None:
    from rich.table import Table

    print(advice.sentence)
    if advice.emulated:
        print(_EMULATED)
    for note in advice.notes:
        print(note.text)
    print()
    table = Table(box=None, pad_edge=False)
    for title in _COLUMNS:
        table.add_column(
            title,
            justify="right" if title in _RIGHT else "left",
            no_wrap=title != "what binds",
        )
    for one in advice.ranking:
        table.add_row(*_cells(one))
    console.out().print(table)
    for one in advice.ranking:
        print()
        print(f"{one.plane}{'' if one.possible else ' (not possible here)'}:")
        for statement in one.statements:
            print(f"  {statement.text} [{_basis(statement.basis, statement.source)}]")
    if advice.changes:
        print()
        print("What would change the answer:")
        for statement in advice.changes:
            print(f"  {statement.text} [{statement.basis}]")


def _basis(basis: str, source: str) -> str:
    return f"{basis}; {source}" if source else basis


def _cells(one: Ranked) -> tuple[str, ...]:
    from planewise.units import percent_text, time_text

    late = "–" if one.rtt_p99_ns is None else time_text(one.rtt_p99_ns)
    if not one.possible:
        return one.plane, "–", "–", "–", "–", late, str(one.host_cores), "not possible here"
    low, high = one.low_pps, one.high_pps
    between = (
        "–"
        if low is None
        else f"{low / 1e6:.3g} or more"
        if high is None
        else f"{low / 1e6:.3g} to {high / 1e6:.3g}"
    )
    return (
        one.plane,
        "–" if one.pps is None else f"{one.pps / 1e6:.3g}",
        between,
        "–" if one.gbps is None else f"{one.gbps:.3g}",
        "–" if one.share is None else percent_text(round(one.share, 3)),
        late,
        str(one.host_cores),
        one.bottleneck,
    )
