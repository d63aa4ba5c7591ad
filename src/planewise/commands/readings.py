"""Readings of other tools' files in `planewise judge` and `planewise compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from planewise.commands import console
from planewise.errors import BadInputError
from planewise.units import list_text, percent_text

if TYPE_CHECKING:
    from planewise.judge.readings import Compared, Estimate
    from planewise.store.readings import Readings

_STYLES = {"better": "green", "worse": "red", "not distinguishable": "yellow"}


def print_each(readings: Sequence[Readings]) -> None:
    """Prints what each file holds, and what it can and cannot answer."""
    from planewise.judge.readings import can_tell, estimate, told_apart, value_text

    out = console.out()
    for place, (file, group) in enumerate(groupby(readings, lambda one: one.file)):
        members = list(group)
        if place:
            out.print()
        conditions = [one.condition for one in members]
        common = conditions[0] if len(set(conditions)) == 1 else ""
        title = ", ".join(part for part in (file.name, members[0].format, common) if part)
        out.print(title, style="bold")
        names = [""] * len(members) if common else told_apart(conditions)
        rows = []
        for one, name in zip(members, names, strict=True):
            known = estimate(one)
            quantity = f"{one.quantity}, {name}" if name else one.quantity
            rows.append((quantity, value_text(one, known.value), _interval(one, known)))
        console.print_rows(("quantity", "value", _title(members)), rows, right={"value"})
        for sentence in can_tell(members):
            out.print(f"{sentence[0].upper()}{sentence[1:]}.")
    if readings:
        out.print("No verdict: that takes trials at several offered loads. `planewise compare`")
        out.print("compares files like these.")


def as_json(one: Readings) -> dict[str, object]:
    """A quantity of a file for `planewise judge --json`."""
    from planewise.judge.readings import can_tell, estimate

    known = estimate(one)
    names = ("format", "quantity", "condition", "unit", "of", "runs")
    return {
        "file": str(one.file),
        **{name: getattr(one, name) for name in names},
        "verdict": None,
        "reason": can_tell([one])[0],
        **{name: getattr(known, name) for name in ("value", "low", "high", "least_difference")},
        "values": len(one.values),
    }


def compare(paths: Sequence[Path], margin: float, *, json: bool) -> None:
    """Compares files of other tools and prints the answer.

    Raises:
        BadInputError: a file cannot be read, or nothing in the files can be compared.
    """
    from planewise.judge import readings as judged
    from planewise.judge.files import as_readings, judge_curves
    from planewise.store import importers

    found: list[Readings] = []
    for path in paths:
        content = importers.content(path)
        found += content.readings
        for curve in judge_curves(path, content.curves):
            found += as_readings(curve)
    results = judged.compare(found, margin)
    if not results:
        held = {one.file.name: f"{one.quantity} {one.condition}".strip() for one in found}
        raise BadInputError(
            "nothing to compare: no two have the same quantity under the same condition "
            f"({', '.join(f'{name}: {what}' for name, what in list(held.items())[:4])})",
            where="planewise compare",
            remedy="name several files of the same test",
        )
    if json:
        console.print_json([_as_json(one) for one in results])
        return
    for one in results:
        _print(one)
    kinds = {level.readings.of for one in results for level in one.levels}
    out = console.out()
    if kinds - {"run", "number"}:
        out.print(
            "One run each: a difference may be between these runs rather than between what\n"
            "was compared. Repeat each three times or more, in a folder each."
        )
    if any(pair.outcome == "not known" for one in results for pair in one.pairs):
        out.print("Not known: a single number doesn't tell how much it varies. Repeat the run.")


def _print(one: Compared) -> None:
    from planewise.judge.readings import can_tell, change_text, value_text

    out = console.out()
    title = f"{one.quantity}, {one.condition}" if one.condition else one.quantity
    bounds = _title([level.readings for level in one.levels])
    console.print_rows(
        (title, "value", bounds),
        [
            (
                level.name,
                value_text(level.readings, level.estimate.value),
                _interval(level.readings, level.estimate),
            )
            for level in one.levels
        ],
        right={"value"},
    )
    rows = []
    for pair in one.pairs:
        ends = [percent_text(end, signed=True) for end in (pair.low, pair.high) if end is not None]
        change = change_text(pair, one.levels[0])
        rows.append((f"{pair.a} – {pair.b}", pair.outcome, change, " to ".join(ends) or "–"))
    console.print_rows(
        ("compared", "answer", "change", "95 % interval"), rows,
        right={"change"}, less=("95 % interval",), styles=_STYLES,
    )  # fmt: skip
    open_pairs = [pair for pair in one.pairs if pair.outcome == "not distinguishable"]
    if open_pairs:
        widths = [(pair.high or 0.0) - (pair.low or 0.0) for pair in open_pairs]
        known = {can_tell([level.readings])[0].split(":")[0] for level in one.levels}
        least = percent_text(round(max(widths) / 2, 3))
        out.print(f"With {list_text(sorted(known))} each, differences below {least} can't be told.")
    out.print()


def _interval(one: Readings, known: Estimate) -> str:
    from planewise.judge.readings import value_text

    if known.low is None or known.high is None:
        return "–"
    return value_text(one, known.low, known.high)


def _title(readings: Sequence[Readings]) -> str:
    """Of the column with intervals; a search's bounds are none of 95 %."""
    bounds = all(one.of == "number" and one.runs == 1 for one in readings)
    return "bounds" if bounds else "95 % interval"


def _as_json(one: Compared) -> dict[str, object]:
    return {
        "quantity": one.quantity,
        "condition": one.condition,
        "unit": one.levels[0].readings.unit,
        "levels": [
            {"name": level.name, **asdict(level.estimate), "of": level.readings.of,
             "values": len(level.readings.values)}
            for level in one.levels
        ],
        "comparisons": [asdict(pair) for pair in one.pairs],
    }  # fmt: skip
