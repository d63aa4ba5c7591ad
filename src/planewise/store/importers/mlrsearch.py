"""Trials of MLRsearch: lists of the library's MeasurementResult. Knows that class's fields alone.

Followed: MLRsearch 1.2.1 (FD.io CSIT, `MLRsearch/trial_measurement/measurement_result.py`).
Accepted are JSON lists (or a JSON line a trial) of the class's fields, as `dataclasses.asdict`
gives them, such lists under `trials`, `results` or `measurements` of one object, and text (a
CSIT log, say) with the class's representation, `MeasurementResult(intended_duration=…, …)`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields, LooseNumber, Number, check
from planewise.store.importers.text import lines, mapping, values
from planewise.store.loads import LoadTrials, TrialColumns

NAME = "mlrsearch"

_REPR = re.compile(r"\b(?:MeasurementResult|DiscreteResult)\((intended_duration=[^()]*)")
_LISTS = ("trials", "results", "measurements")
_COUNTS = ("offered_count", "loss_count", "forwarding_count")


class _Trial(Fields):
    intended_load: Number
    intended_duration: Number | None = None
    offered_duration: Number | None = None
    offered_count: Number | None = None
    loss_count: Number | None = None
    forwarding_count: Number | None = None
    intended_count: LooseNumber = None


def recognise(head: bytes, path: Path) -> float:
    """`intended_load` beside one of the counts: field names of this class."""
    if b"MeasurementResult(intended_duration=" in head or b"DiscreteResult(intended_d" in head:
        return 0.95
    if b'"intended_load"' in head and any(f'"{name}"'.encode() in head for name in _COUNTS):
        return 0.9
    return 0.0


def parse(text: str, path: Path) -> list[LoadTrials]:
    """One curve. BadInputError with file and line for what is not of this format."""
    columns = TrialColumns(path)
    unsent = False
    for line, fields in _trials(text, path):
        unsent |= _add(columns, fields, line, f"{path}:{line}")
    notes = []
    if unsent:
        notes.append(
            "the generator sent fewer packets than intended in some trials: MLRsearch counts "
            "those as lost, here only packets that were sent can be lost"
        )
    return [columns.finish(format_name=NAME, notes=notes)]


def _trials(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    if text.lstrip()[:1] not in ("[", "{"):
        yield from _from_log(text, path)
        return
    for line, value in values(text, path):
        where = f"{path}:{line}"
        trial = mapping(value, "a trial", where)
        inner = next((trial[key] for key in _LISTS if isinstance(trial.get(key), list)), None)
        if inner is None:
            yield line, trial
            continue
        assert isinstance(inner, list)
        for index, item in enumerate(inner):
            yield line, mapping(item, f"trial {index + 1}", where)


def _from_log(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    any_trial = False
    for line, content in lines(text):
        for match in _REPR.finditer(content):
            any_trial = True
            yield line, _fields(match[1], f"{path}:{line}")
    if not any_trial:
        raise BadInputError(
            "no MeasurementResult(intended_duration=…) in this text",
            where=str(path),
            remedy="give the log of the search, or its trials as JSON",
        )


def _fields(text: str, where: str) -> dict[str, object]:
    fields: dict[str, object] = {}
    for part in text.split(","):
        name, sign, value = part.partition("=")
        if not sign:
            continue
        try:
            fields[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            if name.strip() in ("intended_load", "intended_duration", *_COUNTS):
                raise BadInputError(
                    f"the field {name.strip()} cannot be read: {value.strip()[:40]}",
                    where=where,
                    remedy="the log line may have been cut short: delete it",
                ) from None
    return fields


def _add(columns: TrialColumns, fields: Mapping[str, object], line: int, where: str) -> bool:
    """Adds a trial, whose third count follows from two; returns whether it sent too few packets."""
    trial = check(_Trial, fields, "a trial", where)
    sent, lost, received = trial.offered_count, trial.loss_count, trial.forwarding_count
    if sent is None and lost is not None and received is not None:
        sent = received + lost
    if received is None and lost is not None and sent is not None:
        received = sent - lost
    if sent is None or received is None:
        raise BadInputError(
            "a trial needs two of offered_count, loss_count and forwarding_count",
            where=where,
            remedy="export the trials with all fields of MeasurementResult",
        )
    columns.add(
        line=line,
        offered_pps=trial.intended_load,
        sent=sent,
        received=received,
        duration_s=trial.offered_duration or trial.intended_duration or -1.0,
    )
    return trial.intended_count is not None and trial.intended_count > sent * 1.001
