"""Our own JSON of load trials, as `planewise judge --export FILE.json` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from planewise.errors import BadInputError
from planewise.store.importers.text import mapping, number, parse_json
from planewise.store.loads import Floats, LoadTrials, TrialColumns

NAME = "json"
MARK = "planewise_load_trials"
VERSION = 1
COLUMNS = ("offered_pps", "sent", "received", "duration_s", "drops", "cpu", "limited", "order")


def recognise(head: bytes, path: Path) -> float:
    """The mark is the file's first key."""
    return 1.0 if f'"{MARK}"'.encode() in head[:256] else 0.0


def parse(text: str, path: Path) -> list[LoadTrials]:
    """Every curve of the file. BadInputError for what is not of this format."""
    where = str(path)
    content = mapping(parse_json(text, path), "the file's content", where)
    version = content.get(MARK)
    if version != VERSION or isinstance(version, bool):
        raise BadInputError(
            f"load trials of version {str(version)[:20]}, this planewise reads version {VERSION}",
            where=where,
            remedy="use the planewise version that wrote it",
        )
    curves = content.get("curves")
    if not isinstance(curves, list) or not curves:
        raise BadInputError(
            "there are no curves in it", where=where, remedy="export the results again"
        )
    return [
        from_description(mapping(curve, f"curve {index}", where), index, path)
        for index, curve in enumerate(curves, start=1)
    ]


def from_description(curve: Mapping[str, object], index: int, path: Path) -> LoadTrials:
    """A curve from its JSON object: columns under `trials`, its description beside them."""
    where = str(path)
    trials = mapping(curve.get("trials"), f"curve {index}: trials", where)
    columns = {
        name: _column(trials[name], f"curve {index}: {name}", where)
        for name in COLUMNS
        if trials.get(name) is not None
    }
    return from_columns(curve, columns, index, path)


def from_columns(
    curve: Mapping[str, object], columns: Mapping[str, Floats], index: int, path: Path
) -> LoadTrials:
    """A curve from its columns by name; `curve` is its description."""
    where = str(path)
    missing = [name for name in ("offered_pps", "sent", "received") if name not in columns]
    if missing:
        raise BadInputError(
            f"curve {index} has no column {missing[0]}",
            where=where,
            remedy="export the results again",
        )
    size = len(columns["offered_pps"])
    for name, column in columns.items():
        if len(column) != size:
            raise BadInputError(
                f"curve {index}: {name} has {len(column)} values for {size} trials",
                where=where,
                remedy="export the results again",
            )
    limited = columns.get("limited")
    collected = TrialColumns(path)
    collected.add_columns(
        line=np.zeros(size),
        offered_pps=columns["offered_pps"],
        sent=columns["sent"],
        received=columns["received"],
        duration_s=columns.get("duration_s"),
        drops=columns.get("drops"),
        cpu=columns.get("cpu"),
        limited=None if limited is None else limited == 1,
    )
    notes = curve.get("notes")
    reported = curve.get("reported")
    order = columns.get("order")
    return collected.finish(
        format_name=str(curve.get("format", NAME)),
        name=str(curve.get("name", "")),
        curve=str(curve.get("curve", "")),
        order=None if order is None or np.isnan(order).any() else order,
        info=facts_of(curve),
        notes=[str(note) for note in notes] if isinstance(notes, list) else (),
        reported={
            name: number(value, f"curve {index}: reported.{name}", where)
            for name, value in reported.items()
        }
        if isinstance(reported, dict)
        else None,
    )


def facts_of(curve: Mapping[str, object]) -> dict[str, str | int | float] | None:
    """Facts on the experiment from a curve's description; None where it has none."""
    info = curve.get("info")
    if not isinstance(info, dict):
        return None
    return {name: value for name, value in info.items() if isinstance(value, str | int | float)}


def described(text: str) -> dict[str, dict[str, object]]:
    """Descriptions of curves, by name, from an exporter's JSON; empty for other text."""
    try:
        about = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    curves = about.get("curves") if isinstance(about, dict) else None
    return {
        str(curve.get("curve", "")): curve
        for curve in (curves if isinstance(curves, list) else [])
        if isinstance(curve, dict)
    }


def _column(value: object, what: str, where: str) -> Floats:
    if not isinstance(value, list):
        raise BadInputError(f"{what} is not a list", where=where, remedy="export the results again")
    return np.array(
        [
            np.nan
            if item is None
            else float(item)
            if isinstance(item, bool)
            else number(item, f"{what}, trial {place}", where)
            for place, item in enumerate(value, start=1)
        ],
        dtype=np.float64,
    )
