"""`planewise publications`: the publications' claims, checked against runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planewise.commands import console
from planewise.errors import BadInputError

if TYPE_CHECKING:
    from planewise.judge.campaign import CampaignCurve
    from planewise.publications.page import PublicationAnswers


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

    A claim is checked against every run that has its planes and factors.
    """
    from planewise.judge.campaign import campaign as sum_up
    from planewise.publications import page
    from planewise.publications.answers import answers, read_run
    from planewise.publications.claims import publications as all_publications

    if not runs and recordings is None:
        raise BadInputError(
            "there is no run to check claims against",
            where="planewise publications",
            remedy="name run directories, or a folder of --recordings",
        )
    loaded = tuple(read_run(path) for path in runs or ())
    recorded = _curves(_recordings(recordings)) if recordings is not None else ()
    verdicts = [curve.verdict for curve in recorded]
    answered = []
    for publication in all_publications():
        claims = tuple(
            (claim, tuple(answers(claim, loaded, verdicts))) for claim in publication.claims
        )
        used = {answer.run for _, claim_answers in claims for answer in claim_answers}
        shown = tuple(r for r in loaded if r.info.run in used or r.has_one_of(publication.of_runs))
        campaigns = []
        if any(claim.words for claim in publication.claims):
            judged = _curves([run.path for run in shown])
            titles = (("The recordings by aspect", recorded), ("Curves of ours by aspect", judged))
            campaigns = [(title, sum_up(curves)) for title, curves in titles if curves]
        answered.append(page.PublicationAnswers(publication, claims, shown, tuple(campaigns)))
    if json:
        console.print_json(_as_json(answered))
    else:
        _print(answered)
    if out is not None:
        for result in answered:
            for file in page.write(result, out):
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
    from planewise.judge.campaign import member
    from planewise.judge.files import judge_file

    return tuple(
        member(judged.trials, judged.verdict)
        for file in files
        for judged in judge_file(file, None)
        if judged.verdict is not None
    )


def _print(answered: list[PublicationAnswers]) -> None:
    out = console.out()
    for place, result in enumerate(answered):
        if place:
            out.print()
        out.print(f"{result.publication.title} ({result.publication.source})", style="bold")
        for claim, publication_answers in result.claims:
            for answer in publication_answers:
                out.print(f"  {claim.id}  {claim.text}: {answer.word}.")
                out.print(f"      {answer.measured}")


def _as_json(answered: list[PublicationAnswers]) -> list[object]:
    return [
        {
            "publication": result.publication.key,
            "claim": claim.id,
            "section": claim.section,
            "text": claim.text,
            "word": answer.word,
            "measured": answer.measured,
            "run": answer.run,
        }
        for result in answered
        for claim, publication_answers in result.claims
        for answer in publication_answers
    ]
