"""A design as its file has it: the parts of all kinds of trials stand beside one another. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import create_model, model_validator

from planewise.measure.designs.design import Design, DesignModel
from planewise.measure.trials import KINDS

_PARTS: Mapping[str, type[DesignModel]] = {
    kind.part: kind.own_part for kind in KINDS if kind.own_part is not None
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
