"""Reads a design's YAML file, and says what is wrong with it by file and line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails

from planewise.errors import BadInputError
from planewise.measure.designs.campaign import CampaignDesign
from planewise.measure.designs.design import MEASURES, Design, DesignModel, Factors
from planewise.measure.designs.sense import find_problem
from planewise.measure.trials import KINDS
from planewise.store.files import read_yaml

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def design_schema() -> dict[str, Any]:
    """The schema in `docs/reference/design.schema.json`."""
    planes, campaign = FILE_MODEL.model_json_schema(), CampaignDesign.model_json_schema()
    parts = {**campaign.pop("$defs"), **planes.pop("$defs")}
    # Functions of chains may name the planes in its place.
    parts["Factors"].pop("required", None)
    planes["properties"].pop("others")
    planes["anyOf"] = [
        {"required": ["functions"]},
        {"properties": {"factors": {"required": ["plane"]}}},
    ]
    return {
        "$schema": DIALECT,
        "title": "A Planewise design",
        "description": "What `planewise run` measures. docs/reference/designs.md explains it.",
        "if": {"required": ["sut"]},
        "then": {"$ref": "#/$defs/CampaignDesign"},
        "else": {"$ref": "#/$defs/Design"},
        "$defs": {**parts, "CampaignDesign": campaign, "Design": planes},
    }


_PARTS: Mapping[str, type[DesignModel]] = {
    kind.key: kind.own_part for kind in KINDS if kind.own_part is not None
}
"""The parts that kinds of trials bring."""


class _FileDesign(Design):
    @model_validator(mode="before")
    @classmethod
    def _asks_for(cls, raw: object) -> object:
        """Lists the parts of other kinds of trials in `others`, as `Design` has them."""
        if not isinstance(raw, dict):
            return raw
        if "others" in raw:
            raise ValueError("unknown key `others`")
        named = [name for name in _PARTS if name in raw]
        parts: dict[str, object] = {name: {} for name in named if raw[name] is not None}
        return {**raw, "others": parts} if named else raw


FILE_MODEL: type[Design] = create_model(
    "Design",
    __base__=_FileDesign,
    __doc__=Design.__doc__,
    **{name: (part | None, None) for name, part in _PARTS.items()},  # type: ignore[call-overload]
)
"""What a file of a design may hold; `others` is for run directories."""


def design_of(read: Design) -> Design:
    """The design that a file holds, which was read as `FILE_MODEL`."""
    values: dict[str, Any] = read.model_dump(mode="json", exclude_unset=True, exclude={*_PARTS})
    for name in read.others:
        values["others"][name] = getattr(read, name).model_dump(mode="json")
    return Design.model_validate(values)


ModelT = TypeVar("ModelT", bound=BaseModel)

_EXAMPLE = "give a YAML file such as experiments/my-first.yaml"
_MOST_DEPTH = 20
_MOST_VALUES = 100_000
_MOST_MISTAKES = 8
"""Reported at once beside the first."""


def load_design(path: Path) -> Design:
    """Reads a design of planes. BadInputError with file and line for what is wrong with it."""
    raw = read_yaml(path, "design", "factors", _EXAMPLE)
    if "sut" in raw:
        raise BadInputError(
            "a campaign of a router, not a design of planes",
            where=f"{path}:{_line(raw, ('sut',))}",
            remedy="`planewise run` measures campaigns",
        )
    return _design(raw, path)


def load_any(path: Path) -> Design | CampaignDesign:
    """Reads a design of planes, or a campaign (key `sut`). BadInputError as `load_design`."""
    raw = read_yaml(path, "design", "factors", _EXAMPLE)
    return _checked(CampaignDesign, raw, path) if "sut" in raw else _design(raw, path)


def _checked(model: type[ModelT], raw: Mapping[str, object], path: Path) -> ModelT:
    try:
        plain = _plain(raw, iter(range(1, _MOST_VALUES)))
    except ValueError as error:
        raise BadInputError(
            f"more than {_MOST_VALUES:,} values, or nested deeper than {_MOST_DEPTH}",
            where=str(path),
            remedy="write levels out instead of by aliases",
        ) from error
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise _explain(error, raw, path) from error


def _design(raw: Mapping[str, object], path: Path) -> Design:
    design = design_of(_checked(FILE_MODEL, raw, path))
    problem = find_problem(design)
    if problem is not None:
        raise BadInputError(
            problem.sentence,
            where=f"{path}:{_line(raw, problem.place)}",
            remedy=problem.remedy,
        )
    return design


def _plain(node: object, budget: Iterator[object], depth: int = 0) -> object:
    """The YAML as plain Python values.

    An alias stands for all that is below its anchor, itself perhaps: `budget` and `depth` bound
    what that can grow to. ValueError beyond.
    """
    if depth > _MOST_DEPTH or next(budget, None) is None:
        raise ValueError
    if isinstance(node, dict):
        return {str(key): _plain(value, budget, depth + 1) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(item, budget, depth + 1) for item in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _explain(error: ValidationError, raw: object, path: Path) -> BadInputError:
    """Everything that is wrong, each with its line and the nearest known name."""
    places: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for detail in error.errors():
        places.setdefault(detail["loc"][:2], []).append(detail)
    # Of a value that may be one of several types, the error that got furthest tells most.
    furthest = [max(place, key=lambda detail: len(detail["loc"])) for place in places.values()]
    mistakes = sorted((_mistake(detail, raw) for detail in furthest), key=lambda detail: detail[0])
    (line, sentence, remedy), *more = mistakes
    also = [f"also, line {line}: {text}; {remedy}" for line, text, remedy in more[:_MOST_MISTAKES]]
    if len(more) > _MOST_MISTAKES:
        also.append(f"and {len(more) - _MOST_MISTAKES} more")
    return BadInputError(sentence, where=f"{path}:{line}", remedy="\n".join((remedy, *also)))


def _mistake(error: ErrorDetails, raw: object) -> tuple[int, str, str]:
    """Line, sentence and remedy of one thing that is wrong."""
    place = tuple(part for part in error["loc"] if not _is_union_tag(part))
    if error["type"] in ("extra_forbidden", "missing") and place[-1:] != error["loc"][-1:]:
        place = (*place, error["loc"][-1])  # a key that only looks like a tag
    name = ".".join(str(part) for part in place)
    message = _message(error)
    remedy = "docs/reference/designs.md lists every key"
    if error["type"] == "extra_forbidden":
        campaign = isinstance(raw, dict) and "sut" in raw
        keys = _known_keys(CampaignDesign if campaign else FILE_MODEL, place[:-1])
        close = difflib.get_close_matches(str(place[-1]), keys, n=1)
        message = f"unknown key `{place[-1]}`"
        remedy = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(keys)}"
        if place[0] in MEASURES and place[-1] in Factors.model_fields:
            remedy = f"it is a factor: move it to `factors.{place[-1]}`"
        name = ".".join(str(part) for part in place[:-1])
    elif error["type"] == "literal_error":
        levels = [level.strip("'") for level in re.split(", | or ", error["ctx"]["expected"])]
        close = difflib.get_close_matches(str(error["input"]), levels, n=1)
        named = ", ".join(f"`{level}`" for level in levels)
        # A single word stands where a number may stand, too.
        either = f"neither {named} nor a number" if len(levels) == 1 else f"none of {named}"
        message = f"`{error['input']}` is {either}"
        remedy = f"did you mean `{close[0]}`?" if close else remedy
    elif error["type"] == "missing":
        message = f"`{place[-1]}` is missing"
        name = ".".join(str(part) for part in place[:-1])
    return _line(raw, place), f"{name}: {message}" if name else message, remedy


def _message(error: ErrorDetails) -> str:
    """What is wrong with a value, in the words of designs, not of pydantic."""
    value = error["input"]
    expected = _EXPECTED.get(error["type"])
    if expected is not None and isinstance(value, str | int | float | None):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        kind = "the text " if isinstance(value, str) else ""
        shown = "nothing" if value is None else f"{kind}`{text}`"
        return f"{shown} is not {expected}"
    bound = _BOUNDS.get(error["type"])
    if bound is not None:
        key, words = bound
        return f"`{value}` must be {words} {error['ctx'][key]:g}"
    if error["type"] == "too_short" and not value:
        return "it has no level; it needs at least 1"
    return str(error["msg"]).removeprefix("Value error, ")


_WHOLE = "a whole number (an integer)"
_EXPECTED = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), _WHOLE),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    **dict.fromkeys(("model_type", "model_attributes_type"), "a mapping of keys to values"),
}
"""What pydantic expected, where its own words are a programmer's."""

_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
"""The key of pydantic's context that has a bound, and the word for it."""


def _is_union_tag(part: object) -> bool:
    return isinstance(part, str) and (
        "[" in part
        or "literal" in part
        or part in ("tuple", "function-before", "constrained-int", "constrained-float")
    )


def _known_keys(model: type[BaseModel], place: tuple[object, ...]) -> list[str]:
    """The keys of the part of a design that `place` leads to."""
    for part in place:
        if field := model.model_fields.get(str(part)):
            model = next(_models_in(field.annotation), model)
    return sorted(model.model_fields)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _line(raw: object, place: tuple[object, ...]) -> int:
    """Line (from 1) of the value at `place`, or of the nearest enclosing one."""
    line, node = 1, raw
    for part in place:
        try:
            marks = node.lc  # type: ignore[attr-defined]
            line = (marks.key if isinstance(node, dict) else marks.item)(part)[0] + 1
            node = node[part]  # type: ignore[index]
        except (KeyError, IndexError, AttributeError, TypeError):
            return line
    return line
