"""Fields of other tools' JSON by their path, and an error for the first wrong one."""

from __future__ import annotations

import math

from planewise.errors import BadInputError


class Fields:
    """An object of a tool's JSON, and where it lies."""

    def __init__(self, value: object, what: str, where: str, prefix: str = "") -> None:
        """`what` names the object in errors, `prefix` comes before the paths of its fields.

        BadInputError where `value` is no object.
        """
        if not isinstance(value, dict):
            raise _wrong(what, value, "an object", where)
        self.value = value
        self.where, self._prefix = where, prefix

    def get(self, path: str) -> object:
        """What lies at `path`, as `lower.rate.value`; None where nothing does."""
        found: object = self.value
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def number(self, path: str) -> float:
        """The number at `path`. BadInputError where there is none."""
        return number(self.get(path), f"{self._prefix}{path}", self.where)

    def optional(self, path: str) -> float | None:
        """The number at `path`, if anything is there. BadInputError where it is no number."""
        return None if self.get(path) is None else self.number(path)

    def loose(self, path: str) -> float | None:
        """The number at `path`; None where there is something else."""
        value = self.get(path)
        return self.number(path) if _is_number(value) else None

    def text(self, path: str) -> str:
        """The text at `path`; empty where there is something else."""
        value = self.get(path)
        return value if isinstance(value, str) else ""

    def inner(self, path: str) -> Fields:
        """The object at `path`. BadInputError where there is none."""
        name = f"{self._prefix}{path}"
        return Fields(self.get(path), name, self.where, f"{name}.")

    def each(self, path: str) -> list[Fields]:
        """The objects of the list at `path`; none where there is something else."""
        found = self.get(path)
        values = found if isinstance(found, list) else ()
        return [Fields(one, path, self.where) for one in values if isinstance(one, dict)]


def number(value: object, what: str, where: str) -> float:
    """`value` as a number; BadInputError naming `what` otherwise. True and "12" are no numbers.

    Not-a-number and infinite values pass: `load_trials` names them with their meaning.
    """
    if not _is_number(value):
        raise _wrong(what, value, "a number", where)
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong(what: str, value: object, wanted: str, where: str) -> BadInputError:
    is_object = isinstance(value, dict)
    shown = "an object" if is_object else "a list" if isinstance(value, list) else repr(value)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    return BadInputError(
        f"{what} is missing" if value is None else f"{what} is {shown}, not {wanted}",
        where=where,
        remedy="correct it, or delete that trial"
        if wanted == "a number" and value is not None
        else "this file is not of that format, or damaged: try another with --from",
    )
