"""The pages of the publications in Markdown, with their figures. Checks no claim."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape, unescape
from pathlib import Path
from typing import get_args

from planewise.publications import figures as own_figures
from planewise.publications.answers import DECIDED, Answer, Word
from planewise.publications.claims import Claim, Publication
from planewise.publications.evidence import AskedRun, PublishedTables
from planewise.report import html
from planewise.report.figure import Figure, save, slug
from planewise.store.cells import ALL_TRIALS
from planewise.store.files import write_file
from planewise.store.rundir import RunReader

MOST_FIGURES = 6
"""Most figures of a page; a run's report has all."""
WORDS: tuple[Word, ...] = get_args(Word)


@dataclass(frozen=True)
class PublicationAnswers:
    """A publication with the best answer to each of its claims."""

    publication: Publication
    claims: tuple[tuple[Claim, Answer], ...]
    runs: tuple[AskedRun, ...] = ()
    """Runs that gave one of the answers."""
    tables: PublishedTables | None = None

    @property
    def counted(self) -> Counter[Word]:
        """Claims by word."""
        return Counter(answer.word for _, answer in self.claims)


def write(answered: PublicationAnswers, folder: Path) -> list[Path]:
    """Writes the page and its figures into a folder of `folder`, and returns the files.

    Figures of runs that are not at hand stay. PlanewiseError when a file cannot be written.
    """
    place = folder / answered.publication.key
    place.mkdir(parents=True, exist_ok=True)
    drawn = _draw(answered, place)
    page = place / "index.md"
    shown = sorted(place.glob("*.svg"))[:MOST_FIGURES]
    titles = _titles(page) | {file.name: title for file, title in drawn}
    figures = [(file.name, titles.get(file.name, file.stem)) for file in shown]
    write_file(page, text(answered, figures).encode())
    return [page, *(file for file, _ in drawn)]


def write_front(answered: Sequence[PublicationAnswers], folder: Path) -> Path:
    """Writes the page that sums up all publications."""
    page = folder / "index.md"
    write_file(page, front(answered).encode())
    return page


def front(answered: Sequence[PublicationAnswers]) -> str:
    """The page that sums up."""
    claims = sum(len(one.claims) for one in answered)
    decided = sum(one.counted[word] for one in answered for word in DECIDED)
    return "\n".join(
        [
            "# What five publications claim",
            "",
            f"{claims} claims, {decided} of them answered: by our runs, or from the data that were "
            "published. Every other claim names the hardware, or the run, that it needs.",
            "",
            f"| publication | {' | '.join(DECIDED)} | open |",
            f"| --- |{' ---: |' * (len(DECIDED) + 1)}",
            *(
                f"| [{one.publication.title.partition(':')[0]}]({one.publication.key}/index.md) | "
                f"{' | '.join(str(one.counted[word]) for word in DECIDED)} | "
                f"{len(one.claims) - sum(one.counted[word] for word in DECIDED)} |"
                for one in answered
            ),
            "",
        ]
    )


def text(answered: PublicationAnswers, figures: Sequence[tuple[str, str]]) -> str:
    """The page; its figures, name and title, are files beside it."""
    publication = answered.publication
    lines = [
        f"# {publication.title}",
        "",
        f"*{publication.source}.* {publication.question}",
        "",
        # The site lays a claim out as a card where the page is as narrow as a phone.
        '<div class="claims" markdown>',
        "",
        "| | claim | in the text | published | here | what was measured |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for claim, answer in sorted(answered.claims, key=lambda one: WORDS.index(one[1].word)):
        lines.append(
            f"| {claim.id} | {claim.text} | {claim.section} | {claim.published} | {answer.word} | "
            f"{_escaped(measured(claim, answer))} |"
        )
    lines += ["", "</div>"]
    if figures:
        lines += ["", "## Figures", ""]
        for name, title in figures:
            lines += [f'<img src="{name}" alt="{escape(title)}">', ""]
    return "\n".join([*lines, "", "## Do it again", "", *_recipe(publication), ""])


def measured(claim: Claim, answer: Answer) -> str:
    """The result, where it comes from and why it can be trusted."""
    words = [answer.measured]
    if answer.source.startswith("published"):
        words.append("Published data.")
    elif answer.source:
        words.append(f"Run {answer.source}.")
    if answer.emulated:
        words.append(f"Emulated hosts: {claim.trust}.")
    return " ".join(words)


def _recipe(publication: Publication) -> list[str]:
    designs = dict.fromkeys(claim.design for claim in publication.claims if claim.design)
    lines = [f"    planewise run {design} --out RUN" for design in designs]
    data = {"nfv-brief": " --tables FOLDER", "pastrami": " --recordings FOLDER"}
    lines.append(
        f"    planewise publications RUN...{data.get(publication.key, '')} -o docs/results"
    )
    return [*lines, "", f"The full design, for servers: `{publication.servers}`."]


def _draw(answered: PublicationAnswers, place: Path) -> list[tuple[Path, str]]:
    """Draws the figures and returns their files and titles, one drawing a figure."""
    wanted = answered.publication.figures
    figures: dict[str, Figure] = {}
    if answered.tables is not None:
        figures = {one.name: one for one in own_figures.of_tables(answered.tables)}
    for run in answered.runs:
        own = [*own_figures.of_boost(run)] if answered.publication.key == "flexvf" else []
        for figure in (*own, *html.all_figures(RunReader(run.path))):
            if figure in own or figure.name.startswith(wanted):
                if figure.title.endswith(ALL_TRIALS):  # the run's only curve
                    title = run.info.title
                    figure = replace(figure, title=title, name=slug(title)[:60])
                figures.setdefault(figure.name, figure)
    drawn = []
    for name, figure in list(figures.items())[:MOST_FIGURES]:
        (file,) = save(figure.whole(), place / name, ("svg",))
        drawn.append((file, figure.title))
    return drawn


def _titles(page: Path) -> dict[str, str]:
    """Titles of the figures of a page that is there."""
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    found = re.findall(r'<img src="([^"]+)" alt="([^"]+)">', old)
    return {name: unescape(title) for name, title in found}


def _escaped(sentence: str) -> str:
    return sentence.replace("|", "\\|").replace("\n", " ")
