"""`planewise publications`: what the publications claim, and what runs say of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planewise.commands import console
from planewise.errors import BadInputError

if TYPE_CHECKING:
    from planewise.judge.campaign import CampaignCurve
    from planewise.publications.page import Answered


def publications(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]…", help="Run directories.")
    ] = None,
    recordings: Annotated[
        Path | None,
        typer.Option(
            "--recordings",
            metavar="FOLDER",
            help="Recorded experiments (PASTRAMI's files), for the claims about them.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FOLDER", help="Write a page for each publication there."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Check the claims of five publications against runs: held, did not hold, cannot be told here.

    A claim is asked of every run that has its planes and factors.
    """
    from planewise.judge.campaign import campaign as sum_up
    from planewise.publications import page
    from planewise.publications.answers import answers, read_run
    from planewise.publications.claims import publications as all_of_them

    if not runs and recordings is None:
        raise BadInputError(
            "there is nothing to ask",
            where="planewise publications",
            remedy="name run directories, or a folder of --recordings",
        )
    asked = tuple(read_run(path) for path in runs or ())
    recorded = _curves(_recordings(recordings)) if recordings is not None else ()
    verdicts = [one.verdict for one in recorded]
    answered = []
    for publication in all_of_them():
        claims = tuple(
            (claim, tuple(answers(claim, asked, verdicts))) for claim in publication.claims
        )
        used = {answer.run for _, several in claims for answer in several}
        shown = tuple(r for r in asked if r.info.run in used or r.has_one_of(publication.of_runs))
        campaigns = []
        if any(claim.words for claim in publication.claims):
            here = _curves([run.path for run in shown])
            titles = (("The recordings by aspect", recorded), ("Curves of ours by aspect", here))
            campaigns = [(title, sum_up(curves)) for title, curves in titles if curves]
        answered.append(page.Answered(publication, claims, shown, tuple(campaigns)))
    if json:
        console.print_json(_as_json(answered))
    else:
        _print(answered)
    if out is not None:
        for one in answered:
            for file in page.write(one, out):
                print(file)


def _recordings(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise BadInputError(
            "there are no recorded experiments (*.txt)",
            where=str(folder),
            remedy="name the folder that holds PASTRAMI's files",
        )
    return files


def _curves(files: Sequence[Path]) -> tuple[CampaignCurve, ...]:
    """Every load-loss curve of files or runs, judged."""
    from planewise.commands.judge import judge_file
    from planewise.judge.campaign import member

    return tuple(
        member(one.trials, one.verdict)
        for file in files
        for one in judge_file(file, None)
        if one.verdict is not None
    )


def _print(answered: list[Answered]) -> None:
    out = console.out()
    for place, one in enumerate(answered):
        if place:
            out.print()
        out.print(f"{one.publication.title} ({one.publication.source})", style="bold")
        for claim, several in one.claims:
            for answer in several:
                out.print(f"  {claim.id}  {claim.text}: {answer.word}.")
                out.print(f"      {answer.measured}")


def _as_json(answered: list[Answered]) -> list[object]:
    return [
        {
            "publication": one.publication.key,
            "claim": claim.id,
            "section": claim.section,
            "text": claim.text,
            "word": answer.word,
            "measured": answer.measured,
            "run": answer.run,
        }
        for one in answered
        for claim, several in one.claims
        for answer in several
    ]
