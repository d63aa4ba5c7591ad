"""What an operator asks for, from options or a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from planewise.advise.model.capacity import ChainWorkload
from planewise.errors import BadInputError, first_fault
from planewise.store.files import read_yaml

Application = Literal["polling", "kernel"]
Isolation = Literal["memory", "filtering", "load"]
"""`memory`: no process of the host shares the guests' memory; `filtering`: the host filters every
packet; `load`: what one guest gets does not depend on what others send."""
MOST = 100_000
_MOST_BYTES = 65_536
_REMEDY = "docs/guide/advise.md has a whole example"
_SCALED = {"rate_mpps": ("rate_pps", 1e6), "latency_us": ("latency_ns", 1e3)}
"""Keys in the units in which people write them: our field, and its units in one of theirs."""


@dataclass(frozen=True)
class Workload:
    """What an operator asks for.

    Raises:
        BadInputError: a rate, a number of VFs, guests or cores, or a latency that cannot be.
    """

    chain: ChainWorkload
    application: Application = "polling"
    """Whether the guests' programs poll their NIC (DPDK) or use the kernel's sockets."""
    rate_pps: float | None = None
    """Packets a second that all functions together must send; None for as many as can be."""
    latency_ns: float | None = None
    """Round-trip time that 99 of 100 packets must keep; None where it does not matter."""
    live_migration: bool = False
    isolation: tuple[Isolation, ...] = ()
    guests: int | None = None
    """Guests of the host that are to have this plane; None: one for each function."""
    vfs: int | None = None
    """VFs that are free; None: as many as the profile's NIC has."""
    cores: int | None = None
    """Cores for functions and switch together; None where it does not matter."""
    spare_cores: int | None = None
    """Cores that the host can give beside the functions' own; None where it does not matter."""

    def __post_init__(self) -> None:
        """Refuses what cannot be asked for."""
        for name, value in (("rate", self.rate_pps), ("latency goal", self.latency_ns)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise BadInputError(f"the {name} must be above zero")
        for name in ("vfs", "spare_cores", "cores", "guests"):
            count = getattr(self, name)
            if count is not None and not 0 <= count <= MOST:
                raise BadInputError(f"{name} cannot be {count}", remedy=f"give 0 to {MOST}")
        if self.guests is not None and self.guests < self.chain.functions:
            raise BadInputError(
                f"{self.guests} guests are fewer than {self.chain.functions} functions",
                where="guests",
                remedy="the functions' own guests count among them",
            )

    @property
    def holders(self) -> int:
        """Guests that would need a VF each."""
        return self.chain.functions if self.guests is None else self.guests


_CHAIN = tuple(field.name for field in fields(ChainWorkload) if field.name != "switch_threads")
_OWN = tuple(field.name for field in fields(Workload) if field.name != "chain")
KEYS = (*_CHAIN, *(name for name in _OWN if name not in dict(_SCALED.values())), *_SCALED)
"""Keys of a workload, in files and as options."""
_ADAPTER = TypeAdapter(Workload)


def read_workload(path: Path) -> dict[str, object]:
    """The keys and values in a YAML file, unchecked.

    Raises:
        BadInputError: it is no mapping, or has unknown keys.
    """
    values = {
        str(key): value
        for key, value in read_yaml(path, "workload", "pattern", _REMEDY, _MOST_BYTES).items()
    }
    for key in values:
        if key not in KEYS:
            raise BadInputError(
                f"there is no key {key}", where=str(path), remedy=f"keys: {', '.join(KEYS)}"
            )
    return values


def workload_of(values: Mapping[str, object]) -> Workload:
    """The workload with these `KEYS`.

    Raises:
        BadInputError: there is no such workload; what and why.
    """
    if values.get("pattern") is None:
        raise BadInputError(
            "a workload needs a pattern",
            where="pattern",
            remedy="--pattern north-south (each function sends back) or east-west (a chain)",
        )
    own = {name: value for name, value in values.items() if name in _OWN}
    for key, (name, scale) in _SCALED.items():
        value = values.get(key)
        own[name] = value * scale if isinstance(value, int | float) else value
    chain: dict[str, object] = {"vnfs": 1, "frame_bytes": 64}
    chain |= {name: value for name, value in values.items() if name in _CHAIN}
    try:
        return _ADAPTER.validate_python({"chain": chain, **own})
    except ValidationError as error:
        fault, (place, message) = error.errors()[0], first_fault(error)
        place = place.removeprefix("chain.")
        if fault["type"] == "literal_error":
            raise BadInputError(
                f"there is no {place.partition('.')[0]} {fault['input']}",
                remedy=str(fault["ctx"]["expected"]),
            ) from error
        raise BadInputError(f"{place}: {message}", remedy=_REMEDY) from error
