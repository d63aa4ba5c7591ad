"""The publications' claims as data."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from ruamel.yaml import YAML

from planewise.store.models import Level

End = Literal["fewest", "most"]
"""The least or the greatest level that a run has of a factor of numbers."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Check(_Model):
    """A question about one metric: an order of two levels, their likeness, or a limit."""

    metric: str
    where: dict[str, list[Level]] = {}
    """Levels that a cell must have to count; a cell without the factor counts."""
    factor: str = "plane"
    better: Level | None = None
    than: Level | None = None
    times: float = Field(1, ge=1)
    """`better` is so many times better at least."""
    same: tuple[Level, Level] | None = None
    """These differ by less than `margin`."""
    margin: float = Field(0.1, gt=0, lt=1)
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    """Of a limit, where the metric's own is none that people read."""

    @model_validator(mode="after")
    def _is_one_question(self) -> Check:
        limited = self.at_least is not None or self.at_most is not None
        ordered = self.better is not None and self.than is not None
        if [limited, ordered, self.same is not None].count(True) != 1:
            raise ValueError("a check has better and than, or same, or at_least and at_most")
        return self


class Claim(_Model):
    """One claim."""

    id: str
    section: str
    """Section of the publication."""
    text: str
    """In our words."""
    published: str = ""
    """The publication's own numbers."""
    check: Check
    design: str = ""
    """Design with exactly the cells that the check compares; empty: published data answer it."""
    needs: str = ""
    """Hardware without which no run of ours answers it."""
    trust: str = ""
    """Why its answer can be trusted where hosts are emulated; empty: it cannot."""
    only_held: bool = False
    """Emulation favours the other side: an emulated run in which the claim does not hold decides
    nothing."""


class Publication(_Model):
    """A publication and its claims."""

    key: str
    """Name of its folder."""
    title: str
    source: str
    question: str
    servers: str
    """The full recipe, for servers with the hardware."""
    figures: tuple[str, ...]
    """Beginnings of the names of the report's figures that its page shows."""
    claims: tuple[Claim, ...]


@lru_cache(maxsize=1)
def publications() -> tuple[Publication, ...]:
    """All publications, from claims.yaml."""
    text = (resources.files("planewise.publications") / "claims.yaml").read_text(encoding="utf-8")
    return TypeAdapter(tuple[Publication, ...]).validate_python(YAML(typ="safe").load(text))
