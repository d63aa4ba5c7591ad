"""Profiles as TOML, as people read and change them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from planewise.errors import BadInputError, PlanewiseError, first_fault

_Model = TypeVar("_Model", bound=BaseModel)


def read_toml(path: Path, model: type[_Model], writes: str, remedy: Callable[[str], str]) -> _Model:
    """What the file holds.

    Args:
        path: the file.
        model: what it is to be.
        writes: the command that writes one.
        remedy: the way out of a fault at a place, a key with the keys that it is below.

    Raises:
        BadInputError: it is no such profile; what and where.
        PlanewiseError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanewiseError(
            f"the profile {path} cannot be read: {error.strerror}",
            remedy=f"`{writes}` writes one",
        ) from error
    except UnicodeDecodeError as error:
        raise BadInputError("this is not text", where=str(path)) from error
    try:
        return model.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BadInputError(f"this is not TOML: {error}", where=str(path)) from error
    except ValidationError as error:
        place, fault = first_fault(error)
        message = f"{place}: {fault}" if place else fault
        raise BadInputError(message, where=str(path), remedy=remedy(place)) from error


def toml_text(model: BaseModel, *, defaults: bool = True) -> str:
    """The model as TOML, with or without defaults: numbers with four significant digits."""
    content = model.model_dump(exclude_none=True, exclude_defaults=not defaults)
    return tomli_w.dumps(_rounded(content))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
