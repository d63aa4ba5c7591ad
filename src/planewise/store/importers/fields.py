"""Models of other tools' JSON: which fields are read, and one sentence for what is wrong with them.

Knows no format and no file; the field's path within the value is in every sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from planewise.errors import BadInputError
from planewise.store.importers.text import shown


class Fields(BaseModel):
    """What is read of an object; its other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def at(*path: str, default: Any = ...) -> Any:
    """A field that lies at `path` within the object."""
    return Field(default, validation_alias=AliasPath(*path))


M = TypeVar("M", bound=Fields)

Number = Annotated[float, Field(strict=True)]
"""A JSON number: neither true nor "12". NaN and infinity pass: the columns' check names them."""


def _if_it_is(kind: Any) -> Callable[[object], object]:
    def keep(value: object) -> object:
        return value if isinstance(value, kind) and not isinstance(value, bool) else None

    return keep


LooseNumber = Annotated[float | None, BeforeValidator(_if_it_is(int | float))]
"""A number that is of use where it is one, and no error where it is something else."""
LooseText = Annotated[str | None, BeforeValidator(_if_it_is(str))]
"""The same of a text."""

_KINDS = {
    "float_type": "not a number",
    "list_type": "not a list",
    "string_type": "not a text",
    "literal_error": "not what the format says",
}


def check(model: type[M], value: object, what: str, where: str, prefix: str = "") -> M:
    """`value` as `model`; BadInputError that names the first field which is not as it should be.

    `what` names the value itself, `prefix` comes before the path of a field in it.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    name = f"{prefix}{path}" if path else what
    a_number = first["type"] == "float_type"
    problem = (
        f"{name} is missing"
        if first["type"] == "missing" or first["input"] is None
        else f"{name} is {shown(first['input'])}, {_KINDS.get(first['type'], 'not an object')}"
    )
    raise BadInputError(
        problem,
        where=where,
        remedy="correct it, or delete that trial"
        if a_number
        else "this file is not of that format, or damaged: try another with --from",
    )
