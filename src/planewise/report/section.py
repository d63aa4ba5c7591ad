"""Sections of the report, and their order."""

from __future__ import annotations

from dataclasses import dataclass

from planewise.report.figures.base import Figure, Table

OPEN = 6
"""Figures of a section that are unfolded; further ones are folded."""


@dataclass(frozen=True)
class Section:
    """A section of the report."""

    anchor: str
    title: str
    intro: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()
    note: str = ""
    virtual: str = "times"
    """What of a virtualised run is marked as such: `times`, `rates`; empty for nothing."""
    open_figures: int = OPEN
    """Number of unfolded figures."""
    most_drawn: int = 1000
    """Most figures on the page; `note` says where the others are."""
    folded: str = "More conditions"
    """Title of the folded figures."""


ORDER = (
    "policies",
    "switch",
    "download",
    "rtt",
    "missed",
    "guests",
    "chains",
    "tcp",
    "others",
    "compared",
    "tail",
    "overhead",
    "response",
    "parts",
    "lost",
    "loss",
    "cpu",
    "schedule",
)
"""Anchors in the order of the page."""
