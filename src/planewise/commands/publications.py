"""`planewise publications`: the publications' claims, checked against runs and published data."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from planewise.commands import console
from planewise.errors import BadInputError
from planewise.units import count_text, duration_text

if TYPE_CHECKING:
    from planewise.publications.claims import Publication
    from planewise.publications.page import PublicationAnswers

QEMU = "qemu-system-x86_64"
"""Virtual machines and the lab's hosts need it, and so does every design of the claims."""


def publications(
    runs: Annotated[list[Path] | None, Argument(metavar="RUN", help="Run directories.")] = None,
    tables: Annotated[
        Path | None, Option(metavar="FOLDER", help="Publication N's tables (throughput.csv).")
    ] = None,
    recordings: Annotated[
        Path | None, Option(metavar="FOLDER", help="PASTRAMI's recorded experiments.")
    ] = None,
    out: Annotated[
        Path | None,
        Option("-o", "--out", metavar="FOLDER", help="Write pages there; answers there are kept."),
    ] = None,
    plan: Annotated[
        bool, Option("--plan", help="Print what would answer each claim; do nothing.")
    ] = False,
    json: Annotated[bool, Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Check the claims of five publications.

    The answers: held, did not hold, or what is needed. A claim is checked against every run, and
    the published data, that have what it compares.
    """
    from planewise.publications import page
    from planewise.publications.answers import answers, best, evidence_of, load, merged, save
    from planewise.publications.claims import publications as all_publications
    from planewise.publications.evidence import Evidence, Recordings, published_tables, read_run

    if plan:
        _print_plan(all_publications())
        return
    if not runs and tables is None and recordings is None:
        raise BadInputError(
            "there is no run to check claims against",
            where="planewise publications",
            remedy="name run directories, --tables or --recordings",
        )
    loaded = tuple(read_run(path) for path in runs or ())
    published = published_tables(tables) if tables is not None else None
    recorded = Recordings(recordings) if recordings is not None else None
    evidence: list[Evidence] = [*loaded]
    evidence += [one for one in (published, recorded) if one is not None]
    if recorded is not None:
        _ = recorded.experiments  # a folder without any is an error
    found = [
        answer
        for one in all_publications()
        for claim in one.claims
        for answer in answers(claim, evidence_of(one, evidence))
    ]
    found = merged(load(out) if out is not None else (), found)
    answered = []
    for one in all_publications():
        claims = tuple((claim, best(claim, found)) for claim in one.claims)
        sources = {answer.source for _, answer in claims}
        of_routers = [run for run in loaded if one.key == "pastrami" and run.has_plane("router")]
        shown = (*(run for run in loaded if run.name in sources), *of_routers)
        answered.append(
            page.PublicationAnswers(
                one, claims, shown, published if one.key == "nfv-brief" else None
            )
        )  # fmt: skip
    if json:
        console.print_json(_as_json(answered))
    else:
        _print(answered)
    if out is not None:
        for result in answered:
            for file in page.write(result, out):
                print(file)
        print(page.write_front(answered, out))
        print(save(out, found))


def _print(answered: Sequence[PublicationAnswers]) -> None:
    from planewise.publications.page import measured

    out = console.out()
    for result in answered:
        out.print(f"{result.publication.title} ({result.publication.source})", style="bold")
        for claim, answer in result.claims:
            out.print(f"  {claim.id}  {claim.text}: {answer.word}.")
            out.print(f"      {measured(claim, answer)}")
        out.print(f"  On servers: planewise run {result.publication.servers}\n")


def _as_json(answered: Sequence[PublicationAnswers]) -> list[object]:
    return [
        {
            "publication": result.publication.key,
            **claim.model_dump(include={"section", "text", "published"}),
            "claim": claim.id,
            "word": answer.word,
            "measured": answer.measured,
            "run": answer.source,
            "emulated": answer.emulated,
        }
        for result in answered
        for claim, answer in result.claims
    ]


def _print_plan(publications: Sequence[Publication]) -> None:
    """Of each claim the design, its cells and blocks, the time here, and what is missing."""
    from planewise.measure.designs.cells import cells_of
    from planewise.measure.designs.design_file import load_design
    from planewise.measure.designs.schedule import estimate_s, make_schedule

    out = console.out()
    lack = "" if shutil.which(QEMU) else f"; this host lacks {QEMU}"
    sizes: dict[str, str] = {}
    for servers, claim in ((one.servers, claim) for one in publications for claim in one.claims):
        file = claim.design.split(" ")[0]
        if file and file not in sizes:
            design = load_design(Path(file))
            schedule = make_schedule(design, dict.fromkeys(cells_of(design), ()), {})
            cells = count_text(schedule.trials // schedule.blocks, "cell")
            time = duration_text(estimate_s(schedule))
            sizes[file] = f"{cells}, {schedule.blocks} blocks, about {time}{lack}"
        if file:
            out.print(f"{claim.id}  planewise run {claim.design}: {sizes[file]}")
        elif claim.needs:
            out.print(f"{claim.id}  needs {claim.needs}: planewise run {servers}")
        else:
            out.print(f"{claim.id}  published data: --tables or --recordings")
