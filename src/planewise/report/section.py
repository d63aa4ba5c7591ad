"""A part of the report, and the order of parts."""

from __future__ import annotations

from dataclasses import dataclass

from planewise.report.figures.base import Figure, Table

OPEN = 6
"""Figures of a section that are unfolded; of more, all but the first ones are folded."""


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    anchor: str
    title: str
    intro: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()
    note: str = ""
    virtual: str = "times"
    """What in it is not that of hardware when the run was virtualised; empty: nothing."""
    open_figures: int = OPEN
    """How many of the figures are unfolded."""
    most_drawn: int = 1000
    """How many are on the page at all; `note` says where the others are."""
    folded: str = "More conditions"
    """What the folded ones are."""


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
"""Sections as a person asks for them."""
