"""Options of several commands, and groups of options as one dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunOption = Annotated[
    Path | None, typer.Option("--out", help="Run directory (default: runs/<time>).")
]
ProfileOutOption = Annotated[
    Path | None, typer.Option("-o", "--out", help="Write the profile here.", metavar="FILE")
]
PlrOption = Annotated[
    float, typer.Option(metavar="RATIO", help="Loss ratio that PDR allows; 0.005 is 0.5 %.")
]
RequireGoodOption = Annotated[
    bool, typer.Option("--require-good", help="Exit 3 unless the verdict is GOOD.")
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
