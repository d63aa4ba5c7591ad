"""Output of `planewise run --dry-run`: cells, order, duration, cells that cannot be run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from planewise.commands.console import out, print_json, print_rows
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.schedule import blocks_within, estimate_s
from planewise.units import count_text, duration_text

if TYPE_CHECKING:
    from planewise.measure.designs.design import Design
    from planewise.measure.designs.schedule import Schedule
    from planewise.measure.runs.chains import Build
    from planewise.store.models import Level


_FEW_CELLS = 4
"""Most cells of a plane and reason that are listed; more are counted, --json lists all."""
_FEW_BLOCKS = 20
"""Number of blocks whose order is printed."""


def print_schedule(design: Design, schedule: Schedule, json: bool, nic: str = "") -> None:
    """Prints the plan of a run; `nic` is what it uses on other hosts, empty on this machine."""
    if json:
        print_json(as_json(design, schedule, nic))
    else:
        _print(design, schedule, nic)


def as_json(design: Design, schedule: Schedule, nic: str = "") -> dict[str, object]:
    """The plan as plain values (docs/reference/designs.md)."""
    return {
        "title": design.title,
        "cells": [cell.levels() for cell in _cells(schedule)],
        "blocks": schedule.blocks,
        "blocks_within_budget": _within(design, schedule),
        "trials": schedule.trials,
        "estimated_s": estimate_s(schedule),
        "visits": [
            {
                "block": visit.block,
                "cell": visit.cell.levels(),
                "trials": [trial.name for trial in visit.trials],
            }
            for visit in schedule.visits
        ],
        "builds": {
            plane: {
                "cpus": {str(cpu): list(tasks) for cpu, tasks in build.tasks.items()},
                "steps": list(build.steps),
            }
            for plane, build in _builds(design, schedule, nic).items()
        },
        "skipped": [
            {"cell": cell.levels(), "reason": reason} for cell, reason in schedule.skipped.items()
        ],
    }


def _builds(design: Design, schedule: Schedule, nic: str) -> dict[str, Build]:
    """The build of the longest chain, by plane; empty for a design without chains."""
    chains = [cell for cell in _cells(schedule) if cell.vnfs]
    if not chains:
        return {}
    from planewise.measure.runs.chains import Chains

    return Chains(design).builds(chains, nic)


def _within(design: Design, schedule: Schedule) -> int:
    if design.budget_s is None:
        return schedule.blocks
    return blocks_within(schedule, design.budget_s)


def _cells(schedule: Schedule) -> list[Cell]:
    """The cells that can be run, in the order of the design's factors."""
    return sorted({visit.cell for visit in schedule.visits})


def _print(design: Design, schedule: Schedule, nic: str) -> None:
    from planewise.pipeline import check_budget

    console = out()
    if design.title:
        console.print(design.title, style="bold")
    cells = _cells(schedule)
    if not cells:
        console.print("No cell of this design can be run here.")
        _print_skipped(schedule.skipped)
        return
    console.print(
        f"{count_text(len(cells), 'cell')} in {count_text(schedule.blocks, 'block')}: "
        f"{count_text(schedule.trials, 'trial')}, about {duration_text(estimate_s(schedule))}."
    )
    if omission := check_budget(design, schedule):
        console.print(f"{omission[0].upper()}{omission[1:]}.")
    _print_cells(cells, schedule)
    for plane, build in _builds(design, schedule, nic).items():
        where = "; ".join(f"{', '.join(tasks)} on CPU {cpu}" for cpu, tasks in build.tasks.items())
        console.print()
        console.print(
            f"Longest chain on {plane}{': ' if where else ''}{where}"
            f"{'' if where or not _long(plane) else ': --json lists its steps'}."
        )
        if not _long(plane):  # hundreds of `ip` commands otherwise: --json has them
            for step in build.steps:
                console.print(f"  {step}")
    _print_order(cells, schedule)
    _print_skipped(schedule.skipped)


def _long(plane: str) -> bool:
    """Whether a chain takes too many commands to print."""
    return plane.partition(",")[0].endswith("bridge")


def _print_cells(cells: Sequence[Cell], schedule: Schedule) -> None:
    console = out()
    levels = [cell.levels() for cell in cells]
    varying = [name for name in levels[0] if len({cell[name] for cell in levels}) > 1]
    same = [f"{name} {levels[0][name]}" for name in levels[0] if name not in varying]
    if same:
        console.print(f"In all cells: {', '.join(same)}.")
    trials = {visit.cell: len(visit.trials) for visit in schedule.visits}
    console.print()
    print_rows(
        [name.replace("_", " ") for name in ("cell", *varying, "trials")],
        [
            (
                str(number),
                *(_levels_text(name, cell_levels) for name in varying),
                str(trials[cell]),
            )
            for number, (cell, cell_levels) in enumerate(zip(cells, levels, strict=True), start=1)
        ],
    )


def _levels_text(name: str, levels: Mapping[str, Level]) -> str:
    """A level; empty where it has no meaning."""
    alone = levels.get("background_guests") == 0
    if name == "background_plane" and alone:
        return ""
    if name == "load_location" and levels.get("load_type") == "none":
        return ""
    return str(levels[name])


def _print_order(cells: Sequence[Cell], schedule: Schedule) -> None:
    console = out()
    number = {cell: place for place, cell in enumerate(cells, start=1)}
    console.print()
    console.print("Order of the cells:")
    for block, visits in islice(schedule.by_block(), _FEW_BLOCKS):
        order = " ".join(str(number[visit.cell]) for visit in visits)
        console.print(f"  block {block + 1}: {order}")
    if more := max(0, schedule.blocks - _FEW_BLOCKS):
        console.print(f"  and so on: {count_text(more, 'more block')} (--json lists them)")


def _print_skipped(skipped: Mapping[Cell, str]) -> None:
    if not skipped:
        return
    console = out()
    console.print()
    console.print(f"Cannot be run here: {count_text(len(skipped), 'cell')}.")
    reasons: dict[str, list[Cell]] = {}
    for cell, reason in skipped.items():
        reasons.setdefault(reason, []).append(cell)
    for reason, cells in reasons.items():
        console.print(f"  {reason}:")
        planes: dict[str, list[Cell]] = {}
        for cell in cells:
            planes.setdefault(cell.plane, []).append(cell)
        for plane, cells_of_plane in planes.items():
            if len(cells_of_plane) > _FEW_CELLS:
                console.print(f"    {plane}: {count_text(len(cells_of_plane), 'cell')}")
            else:
                for cell in cells_of_plane:
                    console.print(f"    {cell.name}")
