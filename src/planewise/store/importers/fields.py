"""Models of other tools' JSON: the fields that are read, and an error for the first wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from planewise.errors import BadInputError
from planewise.store.importers.text import shown


class Fields(BaseModel):
    """The fields that are read of an object; others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def at(*path: str, default: Any = ...) -> Any:
    """A field that lies at `path` within the object."""
    return Field(default, validation_alias=AliasPath(*path))


M = TypeVar("M", bound=Fields)

Number = Annotated[float, Field(strict=True)]
"""A JSON number: neither true nor "12". NaN and infinity pass: the columns' check names them."""


def _none_unless(kind: Any) -> Callable[[object], object]:
    def keep(value: object) -> object:
        return value if isinstance(value, kind) and not isinstance(value, bool) else None

    return keep


LooseNumber = Annotated[float | None, BeforeValidator(_none_unless(int | float))]
"""An optional number; None, and no error, for another type."""
LooseText = Annotated[str | None, BeforeValidator(_none_unless(str))]
"""An optional text; None, and no error, for another type."""


def entries(value: object) -> list[dict[str, object]]:
    """The objects of a JSON list; none of anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


_KINDS = {
    "float_type": "not a number",
    "float_parsing": "not a number",
    "list_type": "not a list",
    "string_type": "not a text",
    "literal_error": "not what the format says",
}


def check(model: type[M], value: object, what: str, where: str, prefix: str = "") -> M:
    """`value` as `model`; BadInputError that names the first wrong field.

    `what` names the value itself, `prefix` comes before the path of a field in it.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
    path = ".".join(str(part) for part in fault["loc"])
    name = f"{prefix}{path}" if path else what
    a_number = fault["type"] in ("float_type", "float_parsing")
    problem = (
        f"{name} is missing"
        if fault["type"] == "missing" or fault["input"] is None
        else f"{name} is {shown(fault['input'])}, {_KINDS.get(fault['type'], 'not an object')}"
    )
    raise BadInputError(
        problem,
        where=where,
        remedy="correct it, or delete that trial"
        if a_number
        else "this file is not of that format, or damaged: try another with --from",
    )
