"""A profile as TOML, as people read and change it. Knows no profile."""

from __future__ import annotations

from typing import Any

import tomli_w
from pydantic import BaseModel


def toml_text(model: BaseModel) -> str:
    """The model as TOML: numbers with four significant digits, what is None left out."""
    return tomli_w.dumps(_rounded(model.model_dump(exclude_none=True)))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
