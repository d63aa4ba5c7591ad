"""The report: one HTML file from a run directory. Static: no script, no address, no network.

Figures are drawn here and not in the reader's browser: the file then stays small, opens where
scripts are forbidden (mail, CI artifacts), prints, and can be read by anyone with a browser.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import resources
from itertools import accumulate
from pathlib import Path

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import planewise
from planewise.judge.statistics.sentences import bound_text, worse_text
from planewise.report import left_out, sections, theme, vega
from planewise.report.data import RunData
from planewise.report.figure import (
    Entry,
    Figure,
    Missing,
    PrintedNumber,
    Section,
    Table,
    latex,
    markdown,
)
from planewise.report.sections import compared
from planewise.store.cells import Sending, common_factors, words
from planewise.store.files import write_file
from planewise.store.recommendation import RankedPlane
from planewise.store.rundir import RunReader
from planewise.units import rate_text, time_text

_OPEN_RESERVATIONS = 3
_MOST_ROWS_OPEN, _MOST_COLUMNS_OPEN = 12, 8
"""Most rows and columns of a table that is shown unfolded."""
_MOST_PANELS, _MOST_OF_LARGE = 32, 8
"""Most panels of a section on the page, and on that of a large run; `--figures` draws all."""
_MANY_TRIALS = 1000
"""Larger runs have their figures drawn in a process of its own, which takes time to start."""


Drawn = tuple[Figure, Iterable[Markup]]
"""A figure, and its panels drawn for the page."""


def render(run: RunReader) -> str:
    """The report as HTML text. BadInputError when a trial line is damaged."""
    data = RunData(run)
    drawn = drawn_sections(data)
    common = common_factors(data.key(trial)[1] for trial in data.trials)
    page = filled(
        "report.html.j2",
        data=data,
        info=data.info,
        recommendation=data.recommendation,
        open_reservations=_OPEN_RESERVATIONS,
        most_rows_open=_MOST_ROWS_OPEN,
        most_columns_open=_MOST_COLUMNS_OPEN,
        headline=headline(data),
        planes=planes(data),
        sections=drawn,
        rankings=rankings(data),
        shared_words=words(common) if common else "",
        left_out_sentence=left_out.sentence(data.trials),
        left_out=left_out.table(data.left_out),
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
    templates.filters["labels"] = _labels
    templates.filters["sentence"] = sentence
    templates.filters["code"] = code
    templates.filters["count"] = theme.count
    sheet = resources.files("planewise.report") / "templates" / "report.css"
    style = Markup(theme.style() + _LABELS + sheet.read_text(encoding="utf-8"))
    page = templates.get_template(template)
    return page.render(values, style=style, version=planewise.__version__)


def unbroken(page: str) -> str:
    """The page, with no line broken between a number and its unit."""
    return _NUMBER_AND_UNIT.sub("\u00a0", page)


_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:ns|µs|ms|s|[kMG]?pps|GiB)\b|%)")


def write(run: RunReader, out: Path) -> None:
    """Writes the report to `out`, as a whole or not at all. PlanewiseError when it cannot."""
    write_file(out, render(run).encode())


def all_figures(run: RunReader) -> list[Figure]:
    """Every figure of the report, for `save`: with the remark that times are virtualised."""
    data = RunData(run)
    remark = f"{data.virtual_word} times: {data.virtual}." if data.virtual else ""
    return [
        replace(figure, lead=f"{figure.lead} {remark}".strip())
        for section in sections.choose(data)
        for figure in _parts(section)
    ]


def write_tables(run: RunReader, folder: Path) -> list[Path]:
    """Writes the comparisons, correlations and typical values of the run's planes as tables.

    Each as Markdown (`.md`) and as LaTeX (`.tex`, booktabs). Nothing is written for a run in which
    there is nothing to compare. PlanewiseError when a file cannot be written.
    """
    data = RunData(run)
    families = [family for family, _ in compared.compare(data)]
    if not families:
        return []
    files = []
    for name, caption, content in (
        ("comparisons", "Planes compared pair by pair", compared.table(families)),
        ("values", "Typical values by plane", compared.values(families)),
        (
            "correlations",
            "Rank correlation of planes",
            compared.kendall_table(families, data.planes),
        ),
    ):
        if data.virtual:
            caption = f"{caption} ({data.virtual_word.lower()}: {data.virtual})"
        for suffix, text in (
            ("md", markdown(content, caption)),
            ("tex", latex(content, caption, name)),
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
    none = "This run has no recommendation"
    if data.rtt:
        idle = [cell for cell in data.rtt if dict(cell.factors).get("load_type") == "none"]
        best = min(idle or data.rtt, key=lambda cell: cell.rtt.median_ns)
        where = f"{best.plane}, {words(best.factors)}"
        return f"{none}. Its lowest median RTT is {time_text(best.rtt.median_ns)}, with {where}."
    return f"{none}; its {'load-loss curves' if data.curves else 'results'} are below."


def sentence(text: str) -> Markup:
    """`text`, escaped, with a capital letter, a full stop, and commands set as code."""
    start = text.strip()
    return code(f"{start[0].upper()}{start[1:].rstrip('.')}.") if start else Markup("")


def code(text: str) -> Markup:
    """`text`, escaped, with flags and text between backquotes set as code."""
    return Markup(_CODE.sub(lambda m: f"<code>{m[1] or m[2]}</code>", str(escape(text))))


_CODE = re.compile(r"`([^`]+)`|(?<![\w-])(--[a-z][a-z-]*)")


@dataclass(frozen=True)
class Bar:
    """A value of a plane as a bar with its interval, each as a share of the longest [%]."""

    number: PrintedNumber
    to: float
    low: float
    high: float


@dataclass(frozen=True)
class PlaneRow:
    """A plane on the first screen."""

    plane: str
    bars: tuple[Bar | None, ...]
    """By metric; None where it was not measured."""
    verdicts: tuple[str, ...]
    """Of its load-loss curves, each once."""


def planes(data: RunData) -> tuple[tuple[str, ...], list[PlaneRow]]:
    """Titles of the metrics, and the planes, best first, over all loads together."""
    ranking = data.recommendation.ranking if data.recommendation else ()
    bars: dict[str, dict[str, Bar]] = {}
    for metric, better in _FIRST_SCREEN.items():
        # The first sending and the last load, which is all of them together.
        places = [place for place in ranking if place.metric == metric]
        places = [place for place in places if _sending(place) == _sending(places[0])]
        if places := [place for place in places if place.load_type == places[-1].load_type]:
            bars[f"{_METRICS[metric][0]}, {better}"] = _bars(places)
    rows = [
        PlaneRow(
            plane,
            tuple(of_metric.get(plane) for of_metric in bars.values()),
            tuple(dict.fromkeys(c.verdict.verdict for c in data.curves if c.plane == plane)),
        )
        for plane in dict.fromkeys(plane for of_metric in bars.values() for plane in of_metric)
    ]
    return tuple(bars), rows


def _sending(place: RankedPlane) -> tuple[str, Sending]:
    return place.metric, Sending(place.frequency_pps, place.pattern, place.application)


def _bars(places: Sequence[RankedPlane]) -> dict[str, Bar]:
    ends = [end for p in places for end in (p.value, p.high) if end is not None]
    longest = max(filter(math.isfinite, ends), default=1.0) or 1.0

    def share(value: float | None, otherwise: float) -> float:
        value = otherwise if value is None else value
        return round(100 * min(max(value, 0.0), longest) / longest, 1)

    return {
        p.plane: Bar(_place(p), share(p.value, 0.0), share(p.low, p.value), share(p.high, p.value))
        for p in places
    }


def rankings(data: RunData) -> list[tuple[str, Table]]:
    """The recommendation's rankings: a table a metric, planes by rising rank, a column a load."""
    ranking = data.recommendation.ranking if data.recommendation else ()
    result = []
    for key in dict.fromkeys(map(_sending, ranking)):
        places = [place for place in ranking if _sending(place) == key]
        loads = sorted(
            {place.load_type for place in places},
            key=lambda load: (*_LOADS, load).index(load) if load in _LOADS else len(_LOADS),
        )
        if len(loads) == 2:  # one load, which "all" repeats
            loads = [load for load in loads if load != "all"]
        by_rank = sorted(places, key=lambda place: place.load_type != loads[-1])
        by_cell = {(place.plane, place.load_type): place for place in places}
        title = _METRICS[key[0]][0]
        rows = tuple(
            (
                plane,
                *(
                    _place(by_cell[plane, load])
                    if (plane, load) in by_cell
                    else Missing("not measured")
                    for load in loads
                ),
            )
            for plane in dict.fromkeys(place.plane for place in by_rank)
        )
        at = f" {key[1].words}" if key[1].frequency_pps is not None else ""
        columns = ("Plane", *map(compared.stratum_words, loads))
        result.append((f"{title}{at}", Table(columns, rows)))
    return result


def _place(place: RankedPlane) -> PrintedNumber:
    small, show = [], _METRICS[place.metric][1]
    if place.low is not None and place.high is not None:
        small.append(theme.interval(show(place.low), show(place.high)))
    small.append(place.note or worse_text(place) or "best")
    text = bound_text(place.bound, show(place.value))
    return PrintedNumber(text, place.value, small="; ".join(small))


_LOADS = ("none", "cpu", "network", "cache", "memory", "all")
_FIRST_SCREEN = {"rtt_p50": "less is better", "forwarded": "more is better"}
_METRICS: dict[str, tuple[str, Callable[[float], str]]] = {
    "rtt_p50": ("Median round-trip time", time_text),
    "rtt_p99": ("99th percentile of the round-trip time", time_text),
    "forwarded": ("Forwarding rate at the best load", rate_text),
    "cpu": ("Kernel CPU time per forwarded packet", time_text),
}


def drawn_sections(data: RunData) -> list[tuple[Section, list[Drawn], int]]:
    """The report's sections that this run has data for, with their figures as far as the page shows
    them, and the number of those that only `--figures` draws."""
    is_large = len(data.trials) > _MANY_TRIALS
    most = _MOST_OF_LARGE if is_large else _MOST_PANELS
    context = multiprocessing.get_context("spawn")  # Vega holds Python's lock
    with ProcessPoolExecutor(2, context) if is_large else nullcontext() as pool:
        result = []
        for section in sections.choose(data):
            parts = _parts(section)
            panels = accumulate(len(part.panels) for part in parts)
            shown = max(1, sum(so_far <= most for so_far in panels))
            figures = drawn(parts[:shown], pool.map if pool else map)
            result.append((section, figures, max(0, len(parts) - shown)))
    return result


def _parts(section: Section) -> list[Figure]:
    return [part for figure in section.figures for part in figure.parts()]


def drawn(figures: Iterable[Figure], draw: Callable[..., Iterable[str]] = map) -> list[Drawn]:
    """The figures, drawn when they are read; by a pool's `draw`, meanwhile."""
    result: list[Drawn] = []
    for figure in figures:
        specs = [json.dumps(vega.alone(panel), allow_nan=False) for panel in figure.panels]
        names = [f"{figure.name}-{place}" for place in range(len(specs))]
        result.append((figure, map(inline, draw(vl_convert.vegalite_to_svg, specs), names)))
    return result


_ID = re.compile(r'\bid="([^"]+)"')
_ID_OR_USE = re.compile(r'(\bid="|url\(#|href="#)([^)"]+)')
_LABELLED = re.compile(r'<path ([^>]*?)aria-label="([^"]*)"([^>]*?)/>')
_IDLE = re.compile(
    r' (?:(?:role|aria-[a-z]+|class|pointer-events|font-family)="[^"]*"|stroke-miterlimit="10"'
    r'|opacity="1"|font-size="12px"|transform="translate\(0,0\)")'
)
_LONG = re.compile(r"(?<=\d\.\d)\d+")
_TEXT = re.compile(r"(>[^<]+<)")
_SIZE = re.compile(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>')


def inline(text: str, prefix: str) -> Markup:
    """A whole SVG `text` as an element to be put in a page; `prefix` makes its ids unique.

    The ids are counted anew: Vega counts on through all drawings of its process.

    Marks that carry a description get it as `<title>`, which a browser shows on hover without any
    script. The element is hidden from assistive technology: the page has the figure's text.
    """
    ids = {name: f"{prefix}-{n}" for n, name in enumerate(dict.fromkeys(_ID.findall(text)))}
    text = _ID_OR_USE.sub(lambda match: f"{match[1]}{ids.get(match[2], match[2])}", text)
    text = _LABELLED.sub(
        lambda match: f"<path {match[1]}{match[3]}><title>{match[2]}</title></path>", text
    )
    pieces = _TEXT.split(_IDLE.sub("", text))
    pieces[::2] = [_LONG.sub("", piece) for piece in pieces[::2]]  # a tenth of a pixel is enough
    text = "".join(pieces)
    start = r'<svg viewBox="\1" aria-hidden="true" focusable="false">'
    return Markup(_SIZE.sub(start, text, count=1))  # Vega escapes the names in it


def _cells(row: Sequence[Entry]) -> Markup:
    """A table's row as markup. In Python, as a large report has tens of thousands of cells."""
    return Markup("".join(_cell(entry, first=n == 0) for n, entry in enumerate(row)))


_LABELS = "".join(f"td:nth-child({n}){{--c:var(--c{n})}}" for n in range(2, 65))
"""Rules that give each cell its column's name; all factors and figures make fewer columns."""


def _labels(columns: Sequence[str]) -> str:
    """The names of a table's columns for its style, which a narrow page shows in each cell."""
    return "".join(
        f"--c{n}:{json.dumps(column, ensure_ascii=False)};"
        for n, column in enumerate(columns, start=1)
    )


def _cell(entry: Entry, *, first: bool) -> str:
    if isinstance(entry, PrintedNumber):
        small = f"<small>{escape(entry.small)}</small>" if entry.small else ""
        number = f'<data value="{entry.raw}">{escape(entry.text)}</data>'
        return f'<td class="number">{number}{small}</td>'
    if isinstance(entry, Missing):
        return f'<td class="missing">{escape(entry.why)}</td>'
    if first:
        return f'<th scope="row">{escape(entry)}</th>'
    if entry in theme.VERDICTS:
        return f'<td><span class="chip {entry.lower()}">{entry}</span></td>'
    wide = ' class="range"' if " – " in entry else ""
    return f"<td{wide}>{escape(entry)}</td>"
