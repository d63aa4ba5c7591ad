"""Options of several commands, and groups of options as one dataclass."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Option

from planewise.errors import BadInputError

JsonOption = Annotated[bool, Option("--json", help="Print the result as JSON.")]
RunOption = Annotated[Path | None, Option("--out", help="Run directory (default: runs/<time>).")]
ProfileOutOption = Annotated[
    Path | None, Option("-o", "--out", help="Write the profile here.", metavar="FILE")
]
WideOption = Annotated[bool, Option("--wide", help="Print all columns and reservations.")]


def share(text: str | float, flag: str = "") -> float:
    """`5%`, `5 %` or `0.05` as a ratio between 0 and 1."""
    number = str(text).strip()
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise BadInputError(
            f"{text} is not a share between 0 and 1", where=flag, remedy="write 5% or 0.05"
        )
    return value


def minutes(text: str | float) -> float:
    """`3`, `3m`, `90s` or `1h` as minutes."""
    units = {"s": 1 / 60, "m": 1.0, "min": 1.0, "h": 60.0}
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|m|min|h|)\s*", str(text))
    value = float(found[1]) * units.get(found[2], 1.0) if found else 0.0
    if not 0.5 <= value <= 24 * 60:
        raise BadInputError(
            f"{text} is not a time between 30s and 24h",
            where="--minutes",
            remedy="write 3, 3m or 1h",
        )
    return value


PlrOption = Annotated[
    float,
    Option(
        parser=partial(share, flag="--plr"),
        metavar="SHARE",
        help="Loss that PDR allows, as 0.5% or 0.005.",
    ),
]
MarginOption = Annotated[
    float,
    Option(
        "--margin",
        parser=partial(share, flag="--margin"),
        metavar="SHARE",
        help="Difference that does not matter: 5% or 0.05.",
    ),
]
RequireGoodOption = Annotated[
    bool, Option("--require-good", help="Exit 3 unless the verdict is GOOD.")
]


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` for typer, with an option for each field of a parameter that is a dataclass."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if is_dataclass(group := parameter.annotation):
            groups[parameter.name] = group
            parameters += _options(group)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def called(**arguments: Any) -> None:
        for name, group in groups.items():
            arguments[name] = group(
                **{field.name: arguments.pop(field.name) for field in fields(group)}
            )
        command(**arguments)

    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(field.name, keyword, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    ]
