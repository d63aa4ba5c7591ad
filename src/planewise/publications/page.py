"""The page of a publication in Markdown, with its figures. Checks no claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from planewise.judge.campaign import Campaign, Figures
from planewise.publications.answers import Answer, AskedRun
from planewise.publications.boost import boost_figure
from planewise.publications.claims import Claim, Publication
from planewise.report import html
from planewise.report.data import virtual_reason
from planewise.report.figure import save
from planewise.store.cells import ALL_TRIALS
from planewise.store.files import write_file
from planewise.store.rundir import RunReader
from planewise.units import duration_text, rate_text

MOST_FIGURES = 6
"""Most figures of a run on the page; the run's report has all."""
_LONGEST_NAME = 40
MOST_OF_PAGE = 12
"""A page with so many figures shows none of further runs."""


@dataclass(frozen=True)
class DrawnFigure:
    """A figure of a page."""

    title: str
    file: Path


@dataclass(frozen=True)
class PublicationAnswers:
    """A publication with its answers, claim by claim."""

    publication: Publication
    claims: tuple[tuple[Claim, tuple[Answer, ...]], ...]
    runs: tuple[AskedRun, ...]
    """Runs that answered a claim, and those of `Publication.of_runs`."""
    campaigns: tuple[tuple[str, Campaign], ...] = ()
    """Summaries of load-loss curves by aspect, each with its title."""


def write(answered: PublicationAnswers, folder: Path) -> list[Path]:
    """Writes the page and its figures into `folder` and returns the files, the page first.

    PlanewiseError when a file cannot be written.
    """
    key = answered.publication.key
    figures: list[DrawnFigure] = []
    for run in answered.runs:
        if len(figures) >= MOST_OF_PAGE:
            break
        figures += _draw(run, answered, folder)
    page = folder / f"{key}.md"
    write_file(page, text(answered, figures).encode())
    return [page, *(figure.file for figure in figures)]


def text(answered: PublicationAnswers, figures: Sequence[DrawnFigure]) -> str:
    """The page; its figures are files beside it."""
    publication = answered.publication
    lines = [
        f"# {publication.title}",
        "",
        f"*{publication.source}.* {publication.question}",
        "",
        "What the publication claims, in our words, and what runs of this tool say of it. *Held* "
        "needs an interval that says so; a claim that no run here can test is not held.",
        "",
        # The site lays a claim out as a card where the page is as narrow as a phone.
        '<div class="claims" markdown>',
        "",
        "| | claim | in the text | here | what was measured |",
        "| --- | --- | --- | --- | --- |",
    ]
    for claim, claim_answers in answered.claims:
        for answer in claim_answers:
            run_note = f" ({answer.run})" if answer.run and len(answered.runs) > 1 else ""
            lines.append(
                f"| {claim.id} | {claim.text} | {claim.section} | {answer.word} | "
                f"{_escaped(answer.measured)}{run_note} |"
            )
    lines += ["", "</div>"]
    for title, campaign in answered.campaigns:
        lines += ["", f"## {title}", "", *_aspects(campaign)]
    lines += ["", "## The runs", "", *_runs(answered.runs), ""]
    if figures:
        lines += ["## Figures", ""]
        for figure in figures:
            lines += [f'<img src="{figure.file.name}" alt="{escape(figure.title)}">', ""]
    lines += ["## Do it again", "", *_recipe(publication), ""]
    return "\n".join(lines)


def _aspects(campaign: Campaign) -> list[str]:
    """Verdicts, PDR and saturation by aspect, and how often repetitions agree."""
    lines = [campaign.agreement.sentence, ""]
    if not campaign.rows:
        return [*lines, "No aspect varies."]
    lines += [
        "| aspect | level | curves | GOOD · BAD · UNDECIDED | GOOD by the paper | PDR | "
        "at saturation |",
        "| --- | --- | ---: | --- | ---: | --- | --- |",
    ]
    for row in campaign.rows:
        words = " · ".join(str(row.words.get(word, 0)) for word in ("GOOD", "BAD", "UNDECIDED"))
        lines.append(
            f"| {row.aspect} | {row.level} | {row.curves} | {words} | {row.pastrami_good} | "
            f"{rates_cell(row.pdr)} | {rates_cell(row.saturation)} |"
        )
    return [
        *lines,
        "",
        "PDR, and throughput at saturation: the median over curves (least to greatest, in the "
        "same unit; of how many).",
    ]


def rates_cell(figures: Figures | None) -> str:
    """As `figures_text`, on two lines that do not wrap, for a table of seven columns."""
    if figures is None:
        return "not known"
    median, unit = rate_text(figures.median_pps).split()
    scale = {"pps": 1.0, "kpps": 1e3, "Mpps": 1e6, "Gpps": 1e9}[unit]
    low, high = (f"{float(f'{pps / scale:.3g}'):g}" for pps in (figures.low_pps, figures.high_pps))
    text = f"{median} {unit}<br>({low} to {high}; {figures.known})"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _runs(runs: Sequence[AskedRun]) -> list[str]:
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
            f"{_escaped(virtual_reason(info) or 'of this hardware')} |"
        )
    return lines


def _recipe(publication: Publication) -> list[str]:
    lines = [f"    planewise run {design} --out RUN" for design in publication.designs]
    if any(claim.words for claim in publication.claims):
        lines.append("    planewise publications RUN/router-* --recordings FOLDER -o docs/results")
    else:
        lines.append("    planewise publications RUN... -o docs/results")
    return [*lines, "", f"The full design, for servers: `{publication.servers}`."]


def _draw(run: AskedRun, answered: PublicationAnswers, folder: Path) -> list[DrawnFigure]:
    """Draws a run's figures, those in the publication's layout first."""
    publication = answered.publication
    claim_figures = [
        figure
        for claim, _ in answered.claims
        if claim.rates is not None and (figure := boost_figure(claim.rates, run)) is not None
    ]
    drawn: list[DrawnFigure] = []
    for figure in (*claim_figures, *html.all_figures(RunReader(run.path))):
        shown = figure in claim_figures or figure.name.startswith(publication.figures)
        if len(drawn) < MOST_FIGURES and shown:
            name = figure.name
            if len(name) > _LONGEST_NAME:
                name = f"{name[:_LONGEST_NAME]}-{len(drawn) + 1}"
            stem = folder / f"{publication.key}-{run.info.run}-{name}"
            if figure.title.endswith(ALL_TRIALS):  # the run's only curve
                figure = replace(figure, title=run.info.title)
            (file,) = save(figure.whole(), stem, ("svg",))
            drawn.append(DrawnFigure(figure.title, file))
    return drawn


def _escaped(sentence: str) -> str:
    return sentence.replace("|", "\\|").replace("\n", " ")
