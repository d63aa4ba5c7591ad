"""A design: which cells, how often, with what traffic. Reads and checks the YAML; runs nothing.

The file's reference is docs/reference/designs.md.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from planewise.errors import BadInputError

MAX_TRIALS = 1_000_000
"""A design that expands to more is a mistake; it is refused before anything is listed."""

LoadType = Literal["none", "cpu", "network"]
LoadLocation = Literal["sender", "responder"]

Rate = Annotated[float, Field(gt=0, le=1e9)]
FrameBytes = Annotated[int, Field(ge=64, le=9000)]


class Part(BaseModel):
    """A part of a design: unknown keys are errors, values are final."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Factors(Part):
    """Levels of each factor; a cell takes one of each."""

    plane: Annotated[tuple[str, ...], Field(min_length=1)]
    load_type: Annotated[tuple[LoadType, ...], Field(min_length=1)] = ("none",)
    load_location: Annotated[tuple[LoadLocation, ...], Field(min_length=1)] = ("responder",)
    background_guests: Annotated[
        tuple[Annotated[int, Field(ge=0, le=1024)], ...], Field(min_length=1)
    ] = (0,)

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        loads = set(self.load_type) - {"none"}
        if loads and max(self.background_guests) == 0:
            raise ValueError(
                f"load_type {' and '.join(sorted(loads))} needs background guests: "
                "give background_guests a level above 0"
            )
        for name, levels in self:
            if len(set(levels)) != len(levels):
                raise ValueError(f"{name} names a level twice")
        return self


class RttPart(Part):
    """RTT trials: one a cell and block for each frequency and size."""

    frequency_pps: Annotated[tuple[Rate, ...], Field(min_length=1)] = (1000.0,)
    size_bytes: Annotated[tuple[FrameBytes, ...], Field(min_length=1)] = (64,)
    packets: Annotated[int, Field(ge=1, le=100_000_000)] = 1000
    protocol: Literal["icmp", "stamp"] = "icmp"


class SweepPart(Part):
    """Load trials at a ladder of offered loads: one a load, cell and block."""

    size_bytes: Annotated[tuple[FrameBytes, ...], Field(min_length=1)] = (64,)
    offered_pps: Literal["auto"] | tuple[Rate, ...] = "auto"
    """`auto`: a ladder of `loads` steps around the rate that a short overload trial forwards."""
    loads: Annotated[int, Field(ge=2, le=200)] = 8
    duration_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    max_pps: Rate = 10_000_000.0
    """No more than this is ever offered."""


class BackgroundPart(Part):
    """What the background guests of a loaded host do, all together."""

    cpu_share: Annotated[float, Field(gt=0, le=0.9)] = 0.5
    """CPU time burnt, as a share of all CPUs of the host."""
    rate_pps: Annotated[float, Field(gt=0, le=1e6)] = 20_000.0
    """Datagrams sent a second."""
    burst_packets: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Datagrams that a guest sends back to back."""
    payload_bytes: Annotated[int, Field(ge=0, le=8000)] = 1024
    """UDP payload of a datagram."""


class Design(Part):
    """A whole experiment, as its YAML file says it."""

    title: str = ""
    factors: Factors
    rtt: RttPart | None = None
    sweep: SweepPart | None = None
    background: BackgroundPart = BackgroundPart()
    blocks: Annotated[int, Field(ge=1, le=100_000)] = 3
    """Replicates of every cell; each block holds every cell once, in a random order of its own."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1

    @model_validator(mode="before")
    @classmethod
    def _measures_times_by_default(cls, raw: object) -> object:
        """A design that names neither part measures round-trip times."""
        if isinstance(raw, dict) and "rtt" not in raw and "sweep" not in raw:
            return {**raw, "rtt": {}}
        return raw

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.rtt is None and self.sweep is None:
            raise ValueError("measures nothing: give it `rtt` or `sweep`")
        return self

    def frame_sizes(self) -> tuple[int, ...]:
        """Every frame size [bytes, with FCS] that it sends."""
        parts = (self.rtt, self.sweep)
        return tuple(size for part in parts if part is not None for size in part.size_bytes)

    def trials_upper_bound(self) -> int:
        """How many trials the design has at most, without listing them."""
        cells = 1
        for _, levels in self.factors:
            cells *= len(levels)
        each = 0
        if self.rtt is not None:
            each += len(self.rtt.frequency_pps) * len(self.rtt.size_bytes)
        if self.sweep is not None:
            ladder = self.sweep.offered_pps
            each += len(self.sweep.size_bytes) * (
                self.sweep.loads if ladder == "auto" else len(ladder)
            )
        return cells * each * self.blocks


def load_design(path: Path) -> Design:
    """Reads a design. BadInputError with file and line for everything that is wrong with it."""
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInputError(
            f"the design cannot be read: {reason}",
            where=str(path),
            remedy="give a YAML file such as experiments/my-first.yaml",
        ) from error
    try:
        raw = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise BadInputError(
            f"not YAML: {error.problem or error}",
            where=f"{path}:{line}",
            remedy="experiments/my-first.yaml is a whole example",
        ) from error
    except (YAMLError, RecursionError, ValueError) as error:
        raise BadInputError(f"not YAML: {error}", where=str(path)) from error
    if not isinstance(raw, CommentedMap):
        raise BadInputError(
            "a design is a mapping with at least `factors`",
            where=f"{path}:1",
            remedy="experiments/my-first.yaml is a whole example",
        )
    try:
        design = Design.model_validate(_plain(raw))
    except ValidationError as error:
        raise _explain(error, raw, path) from error
    if design.trials_upper_bound() > MAX_TRIALS:
        raise BadInputError(
            f"the design has up to {design.trials_upper_bound():.3g} trials, "
            f"more than {MAX_TRIALS:,}",
            where=str(path),
            remedy="leave out levels or blocks",
        )
    return design


def _plain(node: object) -> object:
    """The YAML as plain values; a single level may stand for a list of one."""
    if isinstance(node, dict):
        plain = {str(key): _plain(value) for key, value in node.items()}
        for name in ("factors", "rtt", "sweep"):
            part = plain.get(name)
            if isinstance(part, dict):
                for key in _LISTS:
                    value = part.get(key)
                    if isinstance(value, str | int | float) and value != "auto":
                        part[key] = [value]
        return plain
    if isinstance(node, list):
        return [_plain(item) for item in node]
    return node


_LISTS = (
    "plane",
    "load_type",
    "load_location",
    "background_guests",
    "frequency_pps",
    "size_bytes",
    "offered_pps",
)


def _explain(error: ValidationError, raw: object, path: Path) -> BadInputError:
    """The first thing that is wrong, with its line and the nearest known name."""
    # Of a value that may be one of several types, the error that got furthest tells most.
    errors = error.errors()
    root = errors[0]["loc"][:2]
    first = max((e for e in errors if e["loc"][:2] == root), key=lambda e: len(e["loc"]))
    place = tuple(part for part in first["loc"] if not _is_union_tag(part))
    name = ".".join(str(part) for part in place)
    message = str(first["msg"]).removeprefix("Value error, ")
    remedy = "docs/reference/designs.md lists every key"
    if first["type"] == "extra_forbidden":
        known = _known_keys(place[:-1])
        close = difflib.get_close_matches(str(place[-1]), known, n=1)
        message = f"unknown key `{place[-1]}`"
        remedy = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(known)}"
        name = ".".join(str(part) for part in place[:-1])
    elif first["type"] == "missing":
        message = f"`{place[-1]}` is missing"
        name = ".".join(str(part) for part in place[:-1])
    sentence = f"{name}: {message}" if name else message
    return BadInputError(sentence, where=f"{path}:{_line(raw, place)}", remedy=remedy)


def _is_union_tag(part: object) -> bool:
    return isinstance(part, str) and ("[" in part or "literal" in part or part == "tuple")


def _known_keys(place: tuple[object, ...]) -> list[str]:
    model: type[BaseModel] = Design
    for part in place:
        model = _PARTS.get(str(part), Design)
    return sorted(model.model_fields)


_PARTS: dict[str, type[BaseModel]] = {
    "factors": Factors,
    "rtt": RttPart,
    "sweep": SweepPart,
    "background": BackgroundPart,
}


def _line(raw: object, place: tuple[object, ...]) -> int:
    """Line (from 1) of the value at `place`, or of the nearest enclosing one."""
    line = 1
    node = raw
    for part in place:
        marks = getattr(node, "lc", None)
        try:
            if isinstance(node, dict):
                line = marks.key(part)[0] + 1  # type: ignore[union-attr]
                node = node[part]
            elif isinstance(node, list) and isinstance(part, int):
                line = marks.item(part)[0] + 1  # type: ignore[union-attr]
                node = node[part]
            else:
                return line
        except (KeyError, IndexError, AttributeError, TypeError):
            return line
    return line
