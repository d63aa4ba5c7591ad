"""Trials of MLRsearch: lists of the library's MeasurementResult.

Followed: MLRsearch 1.2.1 (FD.io CSIT, `MLRsearch/trial_measurement/measurement_result.py`).
Accepted are JSON lists (or a JSON line a trial) of the class's fields, as `dataclasses.asdict`
gives them, such lists under `trials`, `results` or `measurements` of one object, and text (a
CSIT log, say) with the class's representation, `MeasurementResult(intended_duration=…, …)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields
from planewise.store.importers.text import lines, values
from planewise.store.loads import LoadTrials, Trial, load_trials

NAME = "mlrsearch"
MARKS = (
    (0.95, r"(Measurement|Discrete)Result\(intended_duration="),
    (0.9, '"intended_load"', '"(offered|loss|forwarding)_count"'),
)

_REPR = re.compile(r"\b(?:MeasurementResult|DiscreteResult)\((intended_duration=[^()]*)")
_LISTS = ("trials", "results", "measurements")
_COUNTS = ("offered_count", "loss_count", "forwarding_count")
_READ = ("intended_load", "intended_duration", "offered_duration", "intended_count", *_COUNTS)


def parse(text: str, path: Path) -> list[LoadTrials]:
    """One curve. BadInputError with file and line for what is not of this format."""
    trials = []
    unsent = False
    for line, fields in _trials(text, path):
        trial = _trial(line, fields)
        trials.append(trial)
        unsent |= (fields.loose("intended_count") or 0.0) > trial.sent * 1.001
    notes = [
        "the generator sent fewer packets than intended in some trials: MLRsearch counts those as "
        "lost, here only packets that were sent can be lost"
    ]
    return [load_trials(path, trials, format_name=NAME, notes=notes if unsent else ())]


def _trials(text: str, path: Path) -> Iterator[tuple[int, Fields]]:
    if text.lstrip()[:1] not in ("[", "{"):
        yield from _from_log(text, path)
        return
    for line, value in values(text, path):
        where = f"{path}:{line}"
        trial = Fields(value, "a trial", where)
        listed = next((inner for key in _LISTS if isinstance(inner := trial.get(key), list)), None)
        if listed is None:
            yield line, trial
        for index, item in enumerate(listed or (), start=1):
            yield line, Fields(item, f"trial {index}", where)


def _from_log(text: str, path: Path) -> Iterator[tuple[int, Fields]]:
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


def _fields(text: str, where: str) -> Fields:
    pairs = (part.partition("=") for part in text.split(","))
    written = {name.strip(): value.strip() for name, _, value in pairs}
    fields: dict[str, object] = {}
    for name in _READ:
        if (value := written.get(name, "None")) == "None":
            continue
        try:
            fields[name] = float(value)
        except ValueError:
            raise BadInputError(
                f"the field {name} cannot be read: {value[:40]}",
                where=where,
                remedy="the log line may have been cut short: delete it",
            ) from None
    return Fields(fields, "a trial", where)


def _trial(line: int, fields: Fields) -> Trial:
    """A trial, whose third count follows from two."""
    load = fields.number("intended_load")
    sent, lost, received = (fields.optional(name) for name in _COUNTS)
    if sent is None and lost is not None and received is not None:
        sent = received + lost
    if received is None and lost is not None and sent is not None:
        received = sent - lost
    if sent is None or received is None:
        raise BadInputError(
            "a trial needs two of offered_count, loss_count and forwarding_count",
            where=fields.where,
            remedy="export the trials with all fields of MeasurementResult",
        )
    duration_s = fields.optional("offered_duration") or fields.optional("intended_duration")
    return Trial(line, load, sent, received, duration_s or -1.0)
