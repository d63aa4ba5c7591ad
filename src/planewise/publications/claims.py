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


class Order(_Model):
    """One level beats another by a metric."""

    metric: str
    factor: str = "plane"
    better: Level
    than: Level
    where: dict[str, list[Level]] = {}
    stand_in: dict[str, str] = {}
    """Plane to measure in place of a plane that a run lacks."""


class Same(_Model):
    """Two levels differ by less than a margin."""

    metric: str
    factor: str
    levels: tuple[Level, Level]
    margin: float = Field(gt=0, lt=1)
    where: dict[str, list[Level]] = {}


class GainOf(_Model):
    """The gain of a plane over another by packet rate and frame size."""

    slow: str
    fast: str
    stand_in: str


class Words(_Model):
    """Verdicts that at least one recorded experiment gets."""

    some: tuple[Literal["GOOD", "BAD"], ...]


class Claim(_Model):
    """One claim; exactly one of its checks is given."""

    id: str
    section: str
    """Section of the publication."""
    text: str
    """In our words."""
    order: Order | None = None
    same: Same | None = None
    rates: GainOf | None = None
    sizes: GainOf | None = None
    words: Words | None = None

    @model_validator(mode="after")
    def _has_one_check(self) -> Claim:
        kinds = [self.order, self.same, self.rates, self.sizes, self.words]
        if sum(check is not None for check in kinds) != 1:
            raise ValueError(f"{self.id} needs exactly one check")
        return self


class Publication(_Model):
    """A publication and its claims."""

    key: str
    """Name of its page."""
    title: str
    source: str
    question: str
    designs: tuple[str, ...]
    """Designs that a single machine or a lab can run, with the options that they take."""
    servers: str
    """The full recipe, for servers."""
    figures: tuple[str, ...]
    """Beginnings of the names of the report's figures that its page shows."""
    of_runs: dict[str, list[Level]] = {}
    """Runs with one of these levels are on the page, whether they answer a claim or not."""
    claims: tuple[Claim, ...]


@lru_cache(maxsize=1)
def publications() -> tuple[Publication, ...]:
    """All publications, from claims.yaml."""
    text = (resources.files("planewise.publications") / "claims.yaml").read_text(encoding="utf-8")
    return TypeAdapter(tuple[Publication, ...]).validate_python(YAML(typ="safe").load(text))
