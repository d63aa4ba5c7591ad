"""The report: one HTML file from a run directory. Static: no script, no address, no network.

Figures are drawn here and not in the reader's browser: the file then stays small, opens where
scripts are forbidden (mail, CI artifacts), prints, and can be read by anyone with a browser.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import planewise
from planewise.judge.statistics.sentences import bound_text, worse_text
from planewise.report import inference, renderer, svg, tables, theme
from planewise.report.data import RunData
from planewise.report.figures import base, comparison, kendall
from planewise.report.figures.base import Entry, Figure, Missing, PrintedNumber, Table
from planewise.report.renderer import Drawing, Renderer
from planewise.report.section import ORDER, Section
from planewise.report.sections import choose
from planewise.store.cells import Sending, common_factors, words
from planewise.store.files import write_file
from planewise.store.recommendation import RankedPlane
from planewise.store.rundir import RunReader
from planewise.units import rate_text, time_text

FIGURE_WIDTH = base.WIDE
"""Width [px] at which figures are saved."""
_OPEN_REASONS = 4
"""Most reasons and reservations that are shown unfolded."""
_MOST_ROWS_OPEN = 40
"""Most rows of a table that is shown unfolded."""
_MANY_TRIALS = 1000
"""Larger runs have their figures drawn in a process of its own, which takes time to start."""


@dataclass(frozen=True)
class DrawnFigure:
    """A figure, drawn for the page."""

    figure: Figure
    wide: Markup | None
    """None for a folded figure, which is narrow on a wide screen, too."""
    narrow: Markup


@dataclass(frozen=True)
class DrawnSection:
    """A section with its drawn figures."""

    section: Section
    opened: tuple[DrawnFigure, ...]
    folded: tuple[DrawnFigure, ...]


def render(run: RunReader) -> str:
    """The report as HTML text. BadInputError when a trial line is damaged."""
    data = RunData(run)
    page = filled(
        "report.html.j2",
        data=data,
        info=data.info,
        recommendation=data.recommendation,
        open_reasons=_OPEN_REASONS,
        most_rows_open=_MOST_ROWS_OPEN,
        headline=headline(data),
        sections=drawn_sections(data),
        rankings=rankings(data),
        shared_words=_shared_words(data),
    )
    return unbroken(page)


def filled(template: str, **values: object) -> str:
    """The page of a template, with these values, the style sheet and the filters."""
    templates = Environment(
        loader=PackageLoader("planewise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.tests["value"] = lambda entry: isinstance(entry, PrintedNumber)
    templates.filters["cells"] = _cells
    templates.filters["sentence"] = sentence
    templates.filters["code"] = code
    templates.filters["count"] = theme.count
    sheet = resources.files("planewise.report") / "templates" / "report.css"
    style = Markup(sheet.read_text(encoding="utf-8") + _recolouring() + _chips())
    page = templates.get_template(template)
    return page.render(values, style=style, version=planewise.__version__)


def unbroken(page: str) -> str:
    """The page, with no line broken between a number and its unit."""
    return _NUMBER_AND_UNIT.sub("\u00a0", page)


_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|[kMG]?pps|GiB)\b|%)")
"""The space between a number and its unit, where no line may break."""


def write(run: RunReader, out: Path) -> None:
    """Writes the report to `out`, as a whole or not at all. PlanewiseError when it cannot."""
    write_file(out, render(run).encode())


def all_figures(run: RunReader) -> list[Figure]:
    """Every figure of the report, for `save`."""
    data = RunData(run)
    return [figure for section in choose(data) for figure in section.figures]


def write_tables(run: RunReader, folder: Path) -> list[Path]:
    """Writes the comparisons, correlations and typical values of the run's planes as tables.

    Each as Markdown (`.md`) and as LaTeX (`.tex`, booktabs). Nothing is written for a run in which
    there is nothing to compare. PlanewiseError when a file cannot be written.
    """
    data = RunData(run)
    compared = inference.compare(data)
    if not compared:
        return []
    files = []
    for name, caption, content in (
        ("comparisons", "Planes compared pair by pair", comparison.table(compared)),
        ("values", "Typical values by plane", comparison.values(compared)),
        ("correlations", "Rank correlation of planes", kendall.table(compared, data.planes)),
    ):
        if data.virtual:
            caption = f"{caption} ({data.virtual_word}: {data.virtual})"
        for suffix, text in (
            ("md", tables.markdown(content, caption)),
            ("tex", tables.latex(content, caption, name)),
        ):
            file = folder / f"{name}.{suffix}"
            write_file(file, text.encode())
            files.append(file)
    return files


def headline(data: RunData) -> str:
    """The recommendation in one sentence; without one, a result that the trials show."""
    if data.recommendation is not None:
        return data.recommendation.headline
    if not data.trials:
        return "This run has no finished trial yet: there is nothing to compare."
    if not data.done:
        return f"All {len(data.trials)} trials of this run failed: there is nothing to compare."
    if data.rtt:
        idle = [cell for cell in data.rtt if dict(cell.factors).get("load_type") == "none"]
        best = min(idle or data.rtt, key=lambda cell: cell.median_ns)
        return (
            f"This run holds no recommendation. Its lowest median RTT is "
            f"{time_text(best.median_ns)}, with {best.plane}, {words(best.factors)}."
        )
    if data.curves:
        return "This run holds no recommendation; its load-loss curves are below."
    if data.chains or data.tcp:
        return "This run holds no recommendation; what it carried is below."
    return "This run holds no recommendation, and no trial that can be drawn."


def sentence(text: str) -> Markup:
    """`text`, escaped, with a capital letter, a full stop, and commands set as code."""
    start = text.strip()
    if not start:
        return Markup("")
    return code(f"{start[0].upper()}{start[1:].rstrip('.')}.")


def code(text: str) -> Markup:
    """`text`, escaped, with flags and text between backquotes set as code."""
    return Markup(_CODE.sub(lambda m: f"<code>{m[1] or m[2]}</code>", str(escape(text))))


_CODE = re.compile(r"`([^`]+)`|(?<![\w-])(--[a-z][a-z-]*)")


def rankings(data: RunData) -> list[tuple[str, Table]]:
    """The recommendation's rankings: a table a metric, planes by rising rank, a column a load."""
    advice = data.recommendation
    if advice is None:
        return []
    result = []
    tables = dict.fromkeys(
        (place.metric, Sending(place.frequency_pps, place.pattern, place.application))
        for place in advice.ranking
    )
    for metric, sending in tables:
        places = [
            place
            for place in advice.ranking
            if (place.metric, place.frequency_pps, place.pattern, place.application)
            == (metric, *sending)
        ]
        loads = sorted(
            {place.load_type for place in places},
            key=lambda load: (*_LOADS, load).index(load) if load in _LOADS else len(_LOADS),
        )
        if len(loads) == 2:  # one load, which "all" repeats
            loads = [load for load in loads if load != "all"]
        ordering_load = loads[-1]
        planes = dict.fromkeys(
            place.plane
            for place in sorted(places, key=lambda place: place.load_type != ordering_load)
        )
        title, show = _METRICS[metric]
        rows = tuple(
            (
                plane,
                *(
                    _place([p for p in places if (p.plane, p.load_type) == (plane, load)], show)
                    for load in loads
                ),
            )
            for plane in planes
        )
        if sending.frequency_pps is not None:
            title = f"{title} {sending.words}"
        result.append((title, Table(("Plane", *(_LOADS.get(load, load) for load in loads)), rows)))
    return result


def _place(places: Sequence[RankedPlane], show: Callable[[float], str]) -> Entry:
    if not places:
        return Missing("not measured")
    place = places[0]
    small = []
    if place.low is not None and place.high is not None:
        small.append(theme.interval(show(place.low), show(place.high)))
    if place.note:
        small.append(place.note)
    else:
        small.append(worse_text(place) or "best")
    text = bound_text(place.bound, show(place.value))
    return PrintedNumber(text, place.value, small="; ".join(small))


_LOADS = {
    "none": "No load",
    "cpu": "CPU load",
    "network": "Network load",
    "cache": "Cache load",
    "memory": "Memory load",
    "all": "All loads",
}
_METRICS = {
    "rtt_p50": ("Median round-trip time", time_text),
    "rtt_p99": ("99th percentile of the round-trip time", time_text),
    "forwarded": ("Highest forwarding rate", rate_text),
    "cpu": ("Kernel CPU time for each forwarded packet", time_text),
}


def drawn_sections(data: RunData) -> list[DrawnSection]:
    """The report's sections that this run has data for, their figures drawn."""
    sections: list[tuple[Section, list[_Pending]]] = []
    with contextlib.ExitStack() as stack:
        draw: Callable[[str], Drawing] = _later
        if len(data.trials) > _MANY_TRIALS:
            draw = stack.enter_context(Renderer()).draw
        for section in choose(data):
            figures = section.figures[: section.most_drawn]
            pending = [
                _Pending(
                    figure,
                    f"{section.anchor}{place}",
                    draw(base.text(figure.draw(base.WIDE)))
                    if place < section.open_figures
                    else None,
                    draw(base.text(figure.draw(base.NARROW))),
                )
                for place, figure in enumerate(figures)
            ]
            sections.append((section, pending))
        sections.sort(key=lambda pair: ORDER.index(pair[0].anchor))
        result = []
        for section, pending in sections:
            drawn = [figure.wait() for figure in pending]
            opened, folded = drawn[: section.open_figures], drawn[section.open_figures :]
            result.append(DrawnSection(section, tuple(opened), tuple(folded)))
    return result


def _cells(row: Sequence[Entry]) -> Markup:
    """A table's row as markup. In Python, as a large report has tens of thousands of cells."""
    return Markup("".join(_cell(entry, first=place == 0) for place, entry in enumerate(row)))


def _cell(entry: Entry, *, first: bool) -> str:
    if isinstance(entry, PrintedNumber):
        small = f"<br><small>{escape(entry.small)}</small>" if entry.small else ""
        number = f'<data value="{entry.raw}">{escape(entry.text)}</data>'
        return f'<td class="number">{number}{small}</td>'
    if isinstance(entry, Missing):
        return f'<td class="missing">{escape(entry.why)}</td>'
    text = escape(entry)
    if first:
        return f'<th scope="row">{text}</th>'
    if entry in theme.VERDICTS:
        return f'<td><span class="chip {entry.lower()}">{text}</span></td>'
    return f'<td class="range">{text}</td>' if " – " in entry else f"<td>{text}</td>"


def _later(specification: str) -> Drawing:
    return lambda: renderer.svg(specification)


@dataclass(frozen=True)
class _Pending:
    """A figure that is being drawn."""

    figure: Figure
    prefix: str
    wide: Drawing | None
    narrow: Drawing

    def wait(self) -> DrawnFigure:
        # What Vega draws is markup already, and it escapes the names in it.
        wide = None if self.wide is None else Markup(svg.inline(self.wide(), f"w{self.prefix}"))
        return DrawnFigure(self.figure, wide, Markup(svg.inline(self.narrow(), f"n{self.prefix}")))


def _shared_words(data: RunData) -> str:
    """The factor levels that all trials share."""
    common = common_factors(data.key(trial)[1] for trial in data.trials)
    return words(common) if common else ""


def _recolouring() -> str:
    rules = theme.recolouring(".drawing")
    return f"\n@media screen and (prefers-color-scheme: dark) {{\n{rules}\n}}\n"


def _chips() -> str:
    light = [f".chip.{name.lower()}{{--chip:{c.light}}}" for name, c in theme.VERDICTS.items()]
    dark = [f".chip.{name.lower()}{{--chip:{c.dark}}}" for name, c in theme.VERDICTS.items()]
    return "\n".join([*light, "@media screen and (prefers-color-scheme: dark){", *dark, "}"])


__all__ = ["all_figures", "headline", "render", "write", "write_tables"]
