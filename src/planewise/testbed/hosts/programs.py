"""Programs of the wheel beside Planewise: their paths, and checks of their output."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from planewise.errors import PlanewiseError, UnsupportedError, first_fault

FORMAT = 1
"""Version of their output that this Planewise reads."""

AnswerT = TypeVar("AnswerT", bound=BaseModel)


def find(program: str) -> str:
    """Path of `pw-probe` or `planewised`: beside the Python that runs, else on PATH.

    Raises:
        UnsupportedError: there is none.
    """
    beside = Path(sys.executable).with_name(program)
    path = str(beside) if beside.is_file() else shutil.which(program)
    if not path:
        raise UnsupportedError(
            f"{program} is not installed beside planewise and not on PATH",
            remedy="run `scripts/setup alloc` in the checkout, or install the planewise wheel",
        )
    return path


def checked(raw: Any, model: type[AnswerT], program: str) -> AnswerT:
    """A program's JSON output as a `model`.

    Raises:
        PlanewiseError: it is of another format, or not as documented.
    """
    remedy = f"install planewise and {program} from one wheel"
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != FORMAT:
        raise PlanewiseError(
            f"{program} speaks format {version!r}, this planewise reads format {FORMAT}",
            remedy=remedy,
        )
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        place, fault = first_fault(error)
        raise PlanewiseError(
            f"{program}'s output is not as documented: {place}: {fault}", remedy=remedy
        ) from error
