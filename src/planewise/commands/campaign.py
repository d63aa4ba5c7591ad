"""`planewise campaign`: verdicts, PDR and saturation of many experiments, by what was varied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from planewise.commands import console
from planewise.commands.options import JsonOption, PlrOption, WideOption
from planewise.errors import BadInputError, PlanewiseError
from planewise.units import count_text

if TYPE_CHECKING:
    from planewise.judge.campaign import Campaign, CampaignCurve


def campaign(
    files: Annotated[
        list[Path],
        Argument(
            metavar="FILE…", help="Results of load trials of any known format, or run directories."
        ),
    ],
    by: Annotated[
        list[str] | None,
        Option(
            metavar="ASPECT",
            help="An aspect, such as kernel or nic_ring; may be repeated.",
            show_default="all that vary",
        ),
    ] = None,
    repetition: Annotated[
        list[str] | None,
        Option(
            metavar="ASPECT",
            help="An aspect that tells repetitions of one configuration apart, as date and run "
            "do; may be repeated.",
        ),
    ] = None,
    rule: Annotated[str, Option(help="As of `planewise judge`.")] = "planewise",
    format_name: Annotated[
        str | None, Option("--from", metavar="FORMAT", help="As of `planewise judge`.")
    ] = None,
    plr: PlrOption = 0.005,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Summarise many experiments; say how often repetitions agree.

    Aspects describe an experiment, by its file's name or its run's cells: kernel, NIC ring, IRQ
    pinning, platform, plane, duration, ...
    """
    summarise(files, by or [], repetition or [], rule, format_name, plr, wide=wide, json=json)


def summarise(
    files: Sequence[Path],
    by: Sequence[str] = (),
    repetition: Sequence[str] = (),
    rule: str = "planewise",
    format_name: str | None = None,
    plr: float = 0.005,
    *,
    wide: bool = False,
    json: bool = False,
) -> None:
    """Judges every curve of `files` and prints their summary by aspect."""
    from planewise.judge.campaign import campaign as sum_up
    from planewise.judge.campaign import member
    from planewise.judge.files import judge_file
    from planewise.judge.verdict import checked_rule
    from planewise.store.rundir import CAMPAIGN_FILE

    chosen = checked_rule(rule, plr)
    members, failed = [], 0
    for file in files:
        if file.name == CAMPAIGN_FILE:
            continue  # the design, beside the curves
        try:
            for judged in judge_file(file, format_name, chosen, plr):
                if judged.verdict is not None:
                    members.append(member(judged.trials, judged.verdict, repetition))
        except PlanewiseError as error:
            failed += 1
            console.print_error(error)
    _check(members, by, repetition)
    summary = sum_up(members, by)
    if json:
        console.print_json(_as_json(summary))
    else:
        _print(summary, wide=wide)
    if failed:
        raise typer.Exit(BadInputError.exit_code)


def _check(members: Sequence[CampaignCurve], by: Sequence[str], repetition: Sequence[str]) -> None:
    if not members:
        raise BadInputError(
            "no file has a curve to judge",
            where="planewise campaign",
            remedy="`planewise judge FILE` says what is wrong with each",
        )
    aspects = {name for member in members for name in member.aspects}
    repetition_names = {name for member in members for name, _ in member.repetition}
    for flag, names, available in (
        ("--by", by, aspects),
        ("--repetition", repetition, aspects | repetition_names),
    ):
        for name in names:
            if name not in available:
                raise BadInputError(
                    f"no curve has an aspect '{name}'",
                    where=flag,
                    remedy=f"the curves' aspects: {', '.join(sorted(available)) or 'none'}",
                )


def _print(campaign_summary: Campaign, *, wide: bool) -> None:
    from planewise.judge.campaign import NOT_SAID, figures_text

    out = console.out()
    out.print(f"{count_text(len(campaign_summary.members), 'curve')}.")
    out.print(campaign_summary.agreement.sentence)
    if not campaign_summary.rows:
        out.print("No aspect varies.")
        return
    out.print()
    console.print_rows(
        ("aspect", "level", "curves", "GOOD", "BAD", "UNDECIDED", "of these", "PASTRAMI GOOD",
         "PDR", "throughput at saturation"),
        [
            (
                row.aspect,
                str(row.level) if row.level != NOT_SAID else "(not given)",
                str(row.curves),
                *(str(row.words.get(word, 0)) for word in ("GOOD", "BAD", "UNDECIDED")),
                ", ".join(f"{times} {kind}" for kind, times in sorted(row.open.items())) or "-",
                str(row.pastrami_good),
                figures_text(row.pdr),
                figures_text(row.saturation),
            )
            for row in campaign_summary.rows
        ],
        less=("PDR", "of these", "PASTRAMI GOOD", "throughput at saturation"), wide=wide,
    )  # fmt: skip
    out.print()
    out.print("PDR and throughput: median over curves (least to greatest), number of curves.")


def _as_json(summary: Campaign) -> dict[str, object]:
    return {
        "curves": [
            {
                "name": curve.name,
                "aspects": dict(curve.aspects),
                "repetition": dict(curve.repetition),
                "verdict": curve.verdict.verdict,
                "open": curve.verdict.open,
                "pastrami": curve.verdict.pastrami.word,
                "pdr_pps": curve.verdict.pdr.pps if curve.verdict.pdr else None,
            }
            for curve in summary.members
        ],
        "rows": [{**asdict(row), "curves": row.curves} for row in summary.rows],
        "agreement": asdict(summary.agreement),
    }
