"""`planewise campaign`: verdicts, PDR and saturation of many experiments, by what was varied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planewise.commands import console
from planewise.commands.judge import checked_rule, complain, judge_file
from planewise.errors import BadInputError, PlanewiseError

if TYPE_CHECKING:
    from planewise.judge.campaign import Agreement, Campaign, Figures, Member


def campaign(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="Results of load trials of any known format, or run directories."
        ),
    ],
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="ASPECT",
            help="An aspect, such as kernel or nic_ring; may be repeated.",
            show_default="all that vary",
        ),
    ] = None,
    repetition: Annotated[
        list[str] | None,
        typer.Option(
            "--repetition",
            metavar="ASPECT",
            help="An aspect that tells repetitions of one configuration apart, as date and run "
            "do; may be repeated.",
        ),
    ] = None,
    rule: Annotated[str, typer.Option(help="As of `planewise judge`.")] = "planewise",
    format_name: Annotated[
        str | None,
        typer.Option("--from", metavar="FORMAT", help="As of `planewise judge`."),
    ] = None,
    plr: Annotated[
        float, typer.Option(metavar="RATIO", help="Loss ratio that PDR allows; 0.005 is 0.5 %.")
    ] = 0.005,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Sum up many experiments by aspect, and say how often repeated ones agree.

    Aspects are what a file's name or a run's cells say of an experiment: kernel, NIC ring, IRQ
    pinning, platform, plane, duration, ...
    """
    from planewise.judge.campaign import campaign as sum_up
    from planewise.judge.campaign import member

    chosen = checked_rule(rule, plr)
    members, failed = [], 0
    for file in files:
        try:
            for one in judge_file(file, format_name, chosen, plr):
                if one.verdict is not None:
                    members.append(member(one.trials, one.verdict, repetition or ()))
        except PlanewiseError as error:
            failed += 1
            complain(error)
    _check(members, by or [], repetition or [])
    found = sum_up(members, by or [])
    if json:
        console.print_json(_as_json(found))
    else:
        _print(found)
    if failed:
        raise typer.Exit(BadInputError.exit_code)


def _check(members: list[Member], by: list[str], repetition: list[str]) -> None:
    if not members:
        raise BadInputError(
            "no file has a curve to judge",
            where="planewise campaign",
            remedy="`planewise judge FILE` says what is wrong with each",
        )
    aspects = {name for one in members for name in one.aspects}
    told_apart = {name for one in members for name, _ in one.repetition}
    for flag, names, known in (
        ("--by", by, aspects),
        ("--repetition", repetition, aspects | told_apart),
    ):
        for name in names:
            if name not in known:
                raise BadInputError(
                    f"no curve has an aspect '{name}'",
                    where=flag,
                    remedy=f"aspects that there are: {', '.join(sorted(known)) or 'none'}",
                )


def _print(found: Campaign) -> None:
    from planewise.judge.campaign import NOT_SAID

    out = console.out()
    many = "s" if len(found.members) != 1 else ""
    out.print(f"{len(found.members)} curve{many}.", markup=False)
    out.print(_agreement(found.agreement), markup=False)
    if not found.rows:
        out.print("No aspect varies.", markup=False)
        return
    out.print()
    table = console.Rows(
        "aspect", "level", "curves", "GOOD", "BAD", "UNDECIDED", "of these", "PASTRAMI GOOD",
        "PDR", "throughput at saturation",
    )  # fmt: skip
    for row in found.rows:
        table.add(
            row.aspect,
            str(row.level) if row.level != NOT_SAID else "(not said)",
            str(row.curves),
            *(str(row.words.get(word, 0)) for word in ("GOOD", "BAD", "UNDECIDED")),
            ", ".join(f"{times} {kind}" for kind, times in sorted(row.open.items())) or "-",
            str(row.pastrami_good),
            _figures(row.pdr),
            _figures(row.saturation),
        )
    table.print()
    out.print()
    out.print(
        "PDR and throughput: the median over curves (least to greatest), and of how many.",
        markup=False,
    )


def _figures(figures: Figures | None) -> str:
    from planewise.units import rate_text

    if figures is None:
        return "not known"
    low, high = rate_text(figures.low_pps), rate_text(figures.high_pps)
    return f"{rate_text(figures.median_pps)} ({low} to {high}; {figures.known})"


def _agreement(found: Agreement) -> str:
    if not found.pairs:
        return "No configuration was repeated, so nothing tells how far repetitions agree."
    ratio = "" if found.pdr_ratio is None else f"; their PDRs are {found.pdr_ratio:.3g} times apart"
    return (
        f"{found.configurations} configurations were repeated, {found.pairs} pairs: "
        f"{found.agree} have the same word, {found.opposite} opposite ones (by PASTRAMI's "
        f"conditions {found.agree_pastrami} the same){ratio}."
    )


def _as_json(found: Campaign) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "curves": [
            {
                "name": one.name,
                "aspects": dict(one.aspects),
                "repetition": dict(one.repetition),
                "verdict": one.verdict.verdict,
                "open": one.verdict.open,
                "pastrami": one.verdict.pastrami.word,
                "pdr_pps": one.verdict.pdr.pps if one.verdict.pdr else None,
            }
            for one in found.members
        ],
        "rows": [{**asdict(row), "curves": row.curves} for row in found.rows],
        "agreement": asdict(found.agreement),
    }
