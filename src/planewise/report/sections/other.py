"""The section of the figures that trials of other kinds bring along, as a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from planewise.judge.statistics.sentences import value_text
from planewise.report import theme
from planewise.report.data import RunData
from planewise.report.figure import Entry, Missing, PrintedNumber, Section, Table
from planewise.store.cells import Factors, common_factors, words
from planewise.store.models import Figure


def sections(data: RunData) -> Iterator[Section]:
    """The section, where some trial has figures."""
    cells: dict[tuple[str, Factors], dict[str, list[Figure]]] = {}
    for trial in data.counted:
        for name, figure in trial.figures.items():
            cells.setdefault(data.key(trial), {}).setdefault(name, []).append(figure)
    if not cells:
        return
    titles = {name: named[0].title for by_name in cells.values() for name, named in by_name.items()}
    shared = common_factors(factors for _, factors in cells)
    rows = tuple(
        (key[0], words(key[1], shared), *(_entry(cells[key].get(name, [])) for name in titles))
        for key in sorted(cells, key=lambda key: (data.plane_rank(key[0]), key[1]))
    )
    columns = ("Plane", "Condition", *(f"{text[0].upper()}{text[1:]}" for text in titles.values()))
    yield Section(
        "others",
        "Other measurements",
        "Each number is the median of its replicates, with the smallest and the largest of them.",
        tables=(("Other measurements by plane", Table(columns, rows)),),
    )


def _entry(figures: list[Figure]) -> Entry:
    if not figures:
        return Missing("not measured")
    values, unit = [figure.value for figure in figures], figures[0].unit
    middle = statistics.median(values)
    low, high = value_text(min(values), unit), value_text(max(values), unit)
    return PrintedNumber(
        value_text(middle, unit), middle, small=theme.interval(low, high) if low != high else ""
    )
