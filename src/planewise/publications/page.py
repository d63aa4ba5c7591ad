"""The page of a publication in Markdown, with figures beside it. Asks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planewise.publications.answers import Answer, Run
from planewise.publications.claims import Claim, Publication
from planewise.report import html
from planewise.report.figures import save
from planewise.store.files import write_file
from planewise.store.rundir import RunReader
from planewise.units import duration_text

MOST_FIGURES = 6
"""Figures of a run that its page shows; the run's report has all."""


@dataclass(frozen=True)
class Answered:
    """A publication with its answers, claim by claim."""

    publication: Publication
    claims: tuple[tuple[Claim, tuple[Answer, ...]], ...]
    runs: tuple[Run, ...]
    """Those that answered at least one claim."""


def write(answered: Answered, folder: Path) -> list[Path]:
    """Writes the page and its figures into `folder` and returns the files, the page first.

    PlanewiseError when a file cannot be written.
    """
    key = answered.publication.key
    figures: list[tuple[Run, str, Path]] = []
    for run in answered.runs:
        for title, file in _draw(run, answered.publication, folder):
            figures.append((run, title, file))
    page = folder / f"{key}.md"
    write_file(page, text(answered, [(r, t, f.name) for r, t, f in figures]).encode())
    return [page, *(file for _, _, file in figures)]


def text(answered: Answered, figures: Sequence[tuple[Run, str, str]]) -> str:
    """The page; `figures` are run, title and file name."""
    publication = answered.publication
    lines = [
        f"# {publication.title}",
        "",
        f"*{publication.source}.* {publication.question}",
        "",
        "What the publication claims, in our words, and what runs of this tool say of it. *Held* "
        "needs an interval that says so; a claim that no run here can test is not held.",
        "",
        "| | claim | in the text | here | what was measured |",
        "| --- | --- | --- | --- | --- |",
    ]
    for claim, several in answered.claims:
        for answer in several:
            of = f" ({answer.run})" if answer.run and len(answered.runs) > 1 else ""
            lines.append(
                f"| {claim.id} | {claim.text} | {claim.section} | {answer.word} | "
                f"{_escaped(answer.measured)}{of} |"
            )
    lines += ["", "## The runs", "", *_runs(answered.runs), ""]
    if figures:
        lines += ["## Figures", ""]
        for _, title, file in figures:
            lines += [f"![{title}]({file})", ""]
    lines += ["## Do it again", "", *_recipe(publication), ""]
    return "\n".join(lines)


def _runs(runs: Sequence[Run]) -> list[str]:
    if not runs:
        return ["None that could be asked was named."]
    lines = ["| run | design | trials | took | times |", "| --- | --- | ---: | ---: | --- |"]
    for run in runs:
        info = run.info
        seconds = sum(trial.duration_s for trial in run.trials)
        if info.finished is not None:
            seconds = (info.finished - info.started).total_seconds()
        failed = info.trials_planned - len(run.trials)
        missing = f" ({failed} of the planned ones failed or were not made)" if failed > 0 else ""
        lines.append(
            f"| {info.run} | {_escaped(info.title)} | {len(run.trials)}{missing} | "
            f"{duration_text(seconds)} | "
            f"{_escaped(info.emulated) if info.emulated else 'of this hardware'} |"
        )
    return lines


def _recipe(publication: Publication) -> list[str]:
    lines = [f"    planewise run {design} --out RUN" for design in publication.designs]
    if not lines:
        lines = ["    planewise publications --recordings FOLDER -o docs/results"]
    else:
        lines.append("    planewise publications RUN... -o docs/results")
    return [*lines, "", f"The full design, for servers: `{publication.servers}`."]


def _draw(run: Run, publication: Publication, folder: Path) -> list[tuple[str, Path]]:
    """Title and file of each figure."""
    drawn: list[tuple[str, Path]] = []
    for figure in html.all_figures(RunReader(run.path)):
        if len(drawn) < MOST_FIGURES and figure.name.startswith(publication.figures):
            stem = folder / f"{publication.key}-{run.info.run}-{figure.name}"
            for file in save(figure.titled(html.FIGURE_WIDTH), stem, ("svg",)):
                drawn.append((figure.title, file))
    return drawn


def _escaped(sentence: str) -> str:
    return sentence.replace("|", "\\|").replace("\n", " ")
