"""`planewise advise`: which plane for a workload on a host. Asks the model, prints the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planewise.commands import console

if TYPE_CHECKING:
    from planewise.advise.model import Profile
    from planewise.advise.workload import Advice, Ranked, Statement
    from planewise.report.advice import Page, Said


def advise(
    profile: Annotated[
        str, typer.Option("--profile", help="The host: a file (TOML) or the name of a shipped one.")
    ],
    pattern: Annotated[
        str,
        typer.Option(
            "--pattern",
            help="north-south: each function sends back; east-west: a chain of functions.",
        ),
    ],
    vnfs: Annotated[int, typer.Option("--vnfs", help="Number of network functions.")] = 1,
    frame: Annotated[
        int, typer.Option("--frame", help="Frame size with FCS [bytes].", metavar="BYTES")
    ] = 64,
    application: Annotated[
        str,
        typer.Option("--application", help="polling (DPDK) or kernel (sockets) in the guests."),
    ] = "polling",
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="What all functions together must send [Mpps]."),
    ] = None,
    live_migration: Annotated[
        bool, typer.Option("--live-migration", help="Guests must migrate live.")
    ] = False,
    vfs: Annotated[int | None, typer.Option("--vfs", help="VFs that are free.")] = None,
    spare_cores: Annotated[
        int | None,
        typer.Option("--spare-cores", help="Cores that the host can give to a polling switch."),
    ] = None,
    why_not: Annotated[
        str | None, typer.Option("--why-not", help="Say why this plane is not the answer.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Also write an HTML page.", metavar="FILE")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rank the planes for a workload: predicted figures, what binds, what would change the answer.

    Figures are the capacity model's, with the parameters of the host's profile; every statement
    says what it rests on.
    """
    from planewise.advise import workload as room
    from planewise.advise.model import Chain
    from planewise.advise.profiles import find_profile

    host = find_profile(profile)
    advice = room.advise(
        host,
        room.Workload(
            chain=Chain(pattern, vnfs, frame),  # type: ignore[arg-type]  # Chain refuses others
            application=application,  # type: ignore[arg-type]  # so does Workload
            rate_pps=None if rate is None else rate * 1e6,
            live_migration=live_migration,
            vfs=vfs,
            spare_cores=spare_cores,
        ),
    )
    if page is not None:
        from planewise.report.advice import render
        from planewise.store.files import write_file

        write_file(page, render(_page(advice, host)).encode())
    if json_:
        console.print_json(asdict(advice) | {"why_not": _why_not(advice, why_not)})
        return
    if why_not is not None:
        print(room.why_not(advice, why_not))
        return
    _print(advice)
    if page is not None:
        print()
        print(page)


def _page(advice: Advice, host: Profile) -> Page:
    from planewise.advise.workload import course
    from planewise.report import advice as report

    def said(statements: Iterable[Statement]) -> tuple[Said, ...]:
        return tuple(report.Said(one.text, _basis(one.basis, one.source)) for one in statements)

    chain = advice.workload.chain
    return report.Page(
        title=f"Which plane for {chain.vnfs} functions, {chain.pattern}?",
        sentence=advice.sentence,
        host=advice.profile,
        notice=_EMULATED if advice.emulated else "",
        columns=_COLUMNS,
        planes=tuple(
            report.Plane(one.plane, one.possible, _cells(one)[1:], said(one.statements))
            for one in advice.ranking
        ),
        changes=said(advice.changes),
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
_COLUMNS = ("plane", "Mpps", "95 %", "Gb/s", "share", "cores", "what binds")


def _why_not(advice: Advice, plane: str | None) -> str | None:
    from planewise.advise import workload as room

    return None if plane is None else room.why_not(advice, plane)


def _print(advice: Advice) -> None:
    from rich.table import Table

    print(advice.sentence)
    if advice.emulated:
        print(_EMULATED)
    print()
    table = Table(box=None, pad_edge=False)
    for title in _COLUMNS:
        right = title in ("Mpps", "Gb/s", "share", "cores")
        table.add_column(title, justify="right" if right else "left", no_wrap=title != "what binds")
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
    from planewise.units import percent_text

    if not one.possible:
        return one.plane, "–", "–", "–", "–", str(one.host_cores), "not possible here"
    low, high = one.low_pps, one.high_pps
    return (
        one.plane,
        "–" if one.pps is None else f"{one.pps / 1e6:.3g}",
        "–" if low is None or high is None else f"{low / 1e6:.3g} to {high / 1e6:.3g}",
        "–" if one.gbps is None else f"{one.gbps:.3g}",
        "–" if one.share is None else percent_text(round(one.share, 3)),
        str(one.host_cores),
        one.bottleneck,
    )
