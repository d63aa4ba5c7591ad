"""A figure of the report: its text, its panels and its numbers; writes it to files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import vl_convert

from planewise.errors import BadInputError
from planewise.report import theme, vega
from planewise.report.vega import Spec
from planewise.store.files import write_file
from planewise.units import percent_text, rate_text, time_text

Format = Literal["svg", "pdf", "png", "html"]
FORMATS: tuple[Format, ...] = ("svg", "pdf", "png", "html")

MOST_PANELS = 8
"""Most panels of a drawing; further ones make another."""


@dataclass(frozen=True)
class PrintedNumber:
    """A number and its printed form."""

    text: str
    raw: float
    small: str = ""
    """Small text below the number: its interval, a remark."""

    @classmethod
    def plain(cls, number: int) -> PrintedNumber:
        """A number without grouping: of a CPU, of functions, of replicates."""
        return cls(str(number), number)

    @classmethod
    def count(cls, number: int) -> PrintedNumber:
        """A count, in groups of three digits."""
        return cls(theme.count(number), number)

    @classmethod
    def time(cls, ns: float) -> PrintedNumber:
        """A duration."""
        return cls(time_text(ns), ns)

    @classmethod
    def rate(cls, pps: float) -> PrintedNumber:
        """Packets a second."""
        return cls(rate_text(pps), pps)

    @classmethod
    def share(cls, share: float, digits: int | None = None) -> PrintedNumber:
        """A share, rounded to `digits` as it is printed."""
        return cls(percent_text(share if digits is None else round(share, digits)), share)


@dataclass(frozen=True)
class Missing:
    """A missing number, with the reason: never a zero instead."""

    why: str


Entry = str | PrintedNumber | Missing

R = TypeVar("R")


@dataclass(frozen=True)
class Table:
    """A figure's numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]

    @classmethod
    def of(cls, rows: Iterable[R], columns: Mapping[str, Callable[[R], Entry]]) -> Table:
        """A row for each of `rows`; `columns` maps titles to functions of a row."""
        return cls(
            tuple(columns),
            tuple(tuple(entry(row) for entry in columns.values()) for row in rows),
        )


@dataclass(frozen=True)
class Figure:
    """A figure of small panels, which a page lays out side by side or below each other."""

    name: str
    """Name of the file and of the anchor: letters, digits and dashes."""
    title: str
    caption: str
    """What is drawn and how to read it."""
    panels: tuple[Spec, ...]
    table: Table
    key: Mapping[str, str] = field(default_factory=dict)
    """Colours of the series, where no name stands beside the marks."""
    lead: str = ""
    """The main result in one sentence; may be empty."""
    verdict: str = ""
    """GOOD, BAD or UNDECIDED, where the figure is of one judged curve."""
    notes: tuple[str, ...] = ()
    """Remarks, a sentence each."""

    @property
    def alt(self) -> str:
        """The figure in words, for readers who cannot see it."""
        return f"{self.title}. {self.lead or self.caption}".replace("`", "")

    def parts(self) -> Iterator[Figure]:
        """The figure; several, where it has too many panels, the first with the numbers."""
        starts = range(0, len(self.panels), MOST_PANELS)
        for number, start in enumerate(starts, start=1):
            if len(starts) == 1:
                yield self
                continue
            part = replace(
                self,
                name=f"{self.name}-{number}",
                title=f"{self.title} ({number} of {len(starts)})",
                panels=self.panels[start : start + MOST_PANELS],
            )
            yield part if number == 1 else replace(part, lead="", notes=(), table=Table((), ()))

    def whole(self) -> Spec:
        """All panels with title, lead and key, for a file."""
        title = f"{self.title}: {self.verdict}" if self.verdict else self.title
        return vega.whole(self.panels, title, self.lead, self.key)


@dataclass(frozen=True)
class Section:
    """A section of the report."""

    anchor: str
    title: str
    intro: str
    figures: tuple[Figure, ...] = ()
    """The first is open, the others are folded."""
    tables: tuple[tuple[str, Table], ...] = ()
    """Each with its title."""
    note: str = ""


def slug(text: str) -> str:
    """`text` as a file name and an anchor: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "figure"


def save(
    figure: Spec, path_without_suffix: Path, formats: Sequence[Format] = ("svg", "pdf", "png")
) -> list[Path]:
    """Writes a figure (`Figure.whole`) once a format and returns the files.

    SVG, PDF and PNG (2x) are on white; HTML is interactive and holds its scripts, so that it
    needs no network. PlanewiseError when a file cannot be written.
    """
    spec = theme.printed(json.dumps({**figure, "background": "white"}, allow_nan=False))
    convert: dict[Format, Callable[[], str | bytes]] = {
        "svg": lambda: vl_convert.vegalite_to_svg(spec),
        "pdf": lambda: vl_convert.vegalite_to_pdf(spec),
        "png": lambda: vl_convert.vegalite_to_png(spec, scale=2),
        "html": lambda: vl_convert.vegalite_to_html(spec, bundle=True),
    }
    files = []
    for suffix in formats:
        content = convert[suffix]()
        file = path_without_suffix.with_name(f"{path_without_suffix.name}.{suffix}")
        write_file(file, content.encode() if isinstance(content, str) else content)
        files.append(file)
    return files


def parse_formats(text: str) -> list[Format]:
    """`svg,pdf` as formats. BadInputError for an unknown one."""
    formats: list[Format] = []
    for name in text.replace(",", " ").split():
        if name not in FORMATS:
            raise BadInputError(
                f"{name!r} is not a figure format",
                where="--format",
                remedy=f"choose among {', '.join(FORMATS)}",
            )
        formats.append(name)
    return formats


_MARKDOWN = str.maketrans(
    {"|": "\\|", "\\": "\\\\", "*": "\\*", "_": "\\_", "`": "\\`", "<": "&lt;"}
)
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "µ": r"\textmu{}",
        "τ": r"$\tau$",
        "−": r"\textminus{}",
        "–": "--",
        "—": "---",
        "×": r"\texttimes{}",
        "∞": r"$\infty$",
        "≤": r"$\le$",
        "\u00a0": "~",
        "\u202f": r"\,",
        "\u2060": "",
    }
)
"""Characters that LaTeX needs escaped; others need an engine that reads UTF-8."""


def markdown(table: Table, caption: str) -> str:
    """A pipe table with its caption above it."""
    numbers = _numbers(table)
    lines = [
        f"**{_in_markdown(caption)}**",
        "",
        _row([_in_markdown(column) for column in table.columns]),
        _row(["---:" if number else "---" for number in numbers]),
        *(_row([_in_markdown(_text(entry)) for entry in row]) for row in table.rows),
    ]
    return "\n".join(lines) + "\n"


def latex(table: Table, caption: str, label: str) -> str:
    """A table with rules of booktabs; a long one breaks over pages (longtable)."""
    numbers = _numbers(table)
    columns = "".join("r" if number else "l" for number in numbers)
    head = " & ".join(_in_latex(column) for column in table.columns) + r" \\"
    body = [" & ".join(_in_latex(_text(entry)) for entry in row) + r" \\" for row in table.rows]
    title = rf"\caption{{{_in_latex(caption)}}}\label{{tab:{label}}}"
    rows = [r"\toprule", head, r"\midrule"]
    if len(table.rows) > _MOST_ROWS_A_PAGE:
        package, top = "longtable,", [rf"\begin{{longtable}}{{{columns}}}", title + r" \\"]
        rows.append(r"\endhead")
        end = [r"\end{longtable}"]
    else:
        package, top = "", [r"\begin{table}", r"\centering", title]
        top.append(rf"\begin{{tabular}}{{{columns}}}")
        end = [r"\end{tabular}", r"\end{table}"]
    needs = rf"% needs \usepackage{{booktabs,{package}textcomp}}"
    return "\n".join([needs, *top, *rows, *body, r"\bottomrule", *end, ""])


_MOST_ROWS_A_PAGE = 40


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _numbers(table: Table) -> list[bool]:
    """Whether each column holds numbers."""
    return [
        any(isinstance(row[place], PrintedNumber) for row in table.rows)
        for place in range(len(table.columns))
    ]


def _text(entry: Entry) -> str:
    if isinstance(entry, PrintedNumber):
        return entry.text
    return entry.why if isinstance(entry, Missing) else entry


def _in_markdown(text: str) -> str:
    return " ".join(text.replace("\u2060", "").split()).translate(_MARKDOWN)


def _in_latex(text: str) -> str:
    return text.replace("\n", " ").translate(_LATEX)
