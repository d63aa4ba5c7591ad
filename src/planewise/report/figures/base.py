"""A figure of the report: its texts, drawing and table; writes it to files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import vl_convert

from planewise.errors import BadInputError
from planewise.report import theme
from planewise.report.figures.vega import Spec, with_title
from planewise.store.cells import Factors
from planewise.store.files import write_file
from planewise.units import rate_text, time_text

Format = Literal["svg", "pdf", "png", "html"]
FORMATS: tuple[Format, ...] = ("svg", "pdf", "png", "html")

WIDE, NARROW = 760, 336
"""Width of a figure on a desk and on a phone of 360 px, in CSS pixels."""


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
        return cls(theme.share(share if digits is None else round(share, digits)), share)


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
    """A figure of the report, ready to be drawn at any width."""

    name: str
    """Name of the file and of the anchor: letters, digits and dashes."""
    title: str
    caption: str
    """What is drawn and how to read it, in plain words."""
    alt: str
    """The figure in words, for readers who cannot see it."""
    draw: Callable[[int], Spec]
    """The specification for a width in px."""
    table: Table
    verdict: str = ""
    """GOOD, BAD or UNDECIDED, where the figure is of one judged curve."""
    lead: str = ""
    """The main result in one sentence; may be empty."""

    notes: tuple[str, ...] = ()
    """Remarks, a sentence each."""
    virtual: str = ""
    """Why its figures are not those of hardware, in one sentence; empty when they are."""

    def titled(self, width: int) -> Spec:
        """As `draw`, with title and lead: for a file of its own."""
        title = f"{self.title}: {self.verdict}" if self.verdict else self.title
        sentences = (text.removesuffix(".") for text in (self.lead, self.virtual) if text)
        subtitle = " ".join(f"{sentence}." for sentence in sentences)
        return with_title(self.draw(width), title, subtitle, width)


def slug(text: str) -> str:
    """`text` as a file name and an anchor: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "figure"


class InContext(Protocol):
    """A summary of one cell."""

    @property
    def factors(self) -> Factors:
        """The cell's levels without its plane."""
        ...


C = TypeVar("C", bound=InContext)


def by_context(cells: Iterable[C]) -> list[tuple[Factors, list[C]]]:
    """Cells by their factors without the plane: one small multiple each."""
    groups: dict[Factors, list[C]] = {}
    for cell in cells:
        groups.setdefault(cell.factors, []).append(cell)
    return list(groups.items())


def text(figure: Spec) -> str:
    """The figure's specification as one line of JSON."""
    return json.dumps(figure, allow_nan=False)


def save(
    figure: Spec,
    path_without_suffix: Path,
    formats: Sequence[Format] = ("svg", "pdf", "png"),
) -> list[Path]:
    """Writes `figure` once a format and returns the files.

    SVG, PDF and PNG (2x) are on white; HTML is interactive and holds its scripts, so that it
    needs no network. PlanewiseError when a file cannot be written.
    """
    spec = text({**figure, "background": "white"})
    files = []
    for suffix in formats:
        file = path_without_suffix.with_name(f"{path_without_suffix.name}.{suffix}")
        content: bytes
        if suffix == "svg":
            content = str(vl_convert.vegalite_to_svg(spec)).encode()
        elif suffix == "pdf":
            content = bytes(vl_convert.vegalite_to_pdf(spec))
        elif suffix == "png":
            content = bytes(vl_convert.vegalite_to_png(spec, scale=2))
        else:
            content = str(vl_convert.vegalite_to_html(spec, bundle=True)).encode()
        write_file(file, content)
        files.append(file)
    return files


def parse_formats(text: str) -> list[Format]:
    """`svg,pdf` as formats. BadInputError for an unknown one."""
    formats: list[Format] = []
    for name in text.replace(",", " ").split():
        if name not in FORMATS:
            raise BadInputError(
                f"{name!r} is not a format of figures",
                where="--format",
                remedy=f"choose among {', '.join(FORMATS)}",
            )
        formats.append(name)
    return formats
