"""A host's profile: the stations that packets pass, with their times, as a TOML file."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from planewise.advise.toml_text import read_toml
from planewise.errors import BadInputError

Basis = Literal["measurement", "data sheet", "literature", "assumption"]
Plane = Literal["vf-passthrough", "vhost-user", "memif"]
StationName = Literal[
    "NIC packet rate",
    "NIC internal packet rate",
    "NIC internal throughput",
    "switch core",
    "VNF core",
    "switch throughput",
    "line rate",
]
Dimension = Literal[
    "vnfs", "chains", "frame_bytes", "pattern", "switch_cores", "vnf_cores", "threads_per_core"
]
"""What may differ between a measured chain and a predicted one."""
Nanos = Annotated[float, Field(ge=0, allow_inf_nan=False)]

PLANES: tuple[Plane, ...] = get_args(Plane)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    basis: Basis = "assumption"
    source: str = ""
    """The document, the run or the reason."""


class Station(_Part):
    """What one packet takes of a station of a plane [ns]; `capacity.visits` says how often each."""

    plane: Plane
    name: StationName
    packet_ns: Nanos = 0.0
    """Once a packet."""
    visit_ns: Nanos = 0.0
    """Each time the switch handles the packet: once more than functions in its chain."""
    hop_ns: Nanos = 0.0
    """Each time a packet goes from one function to the next."""
    byte_ns: Nanos = 0.0
    """Each byte of the packet, once a packet."""
    hop_byte_ns: Nanos = 0.0
    """Each byte, each time a packet goes from one function to the next."""
    port_ns: Nanos = 0.0
    """Each port of the switch beyond the first that a function uses."""


class Fitted(_Part):
    """The rows that a plane's stations were fitted to."""

    plane: Plane
    rows: Annotated[int, Field(ge=1)]
    seen: dict[Dimension, tuple[int | float | str, ...]]
    """The values that were measured."""
    errors: dict[Dimension, Nanos]
    """Largest error, ln(predicted / measured), of rows whose value was left out of the fit."""


class Profile(BaseModel):
    """All that the model knows about a host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    emulated: bool = False
    """Whether times are those of an emulated host, which say nothing about a real one."""
    line_gbps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Line rate of the NIC's port; None where there is none or it is a fitted station."""
    vfs: Annotated[int, Field(ge=0, le=65_536)] | None = None
    """VFs that the NIC has at most; None where that is not known."""
    stations: tuple[Station, ...] = ()
    fitted: tuple[Fitted, ...] = ()

    def stations_of(self, plane: Plane) -> tuple[Station, ...]:
        """The stations of `plane`; empty where nothing is known about it."""
        return tuple(station for station in self.stations if station.plane == plane)

    def fitted_to(self, plane: Plane) -> Fitted | None:
        """The rows that `plane` was fitted to; None if it never was."""
        return next((part for part in self.fitted if part.plane == plane), None)


def load_profile(path: Path) -> Profile:
    """The profile in a TOML file.

    Raises:
        BadInputError: it is no profile; what and where.
        PlanewiseError: it cannot be read.
    """
    return read_toml(path, Profile, "planewise calibrate", _remedy)


def _remedy(place: str) -> str:
    if place in ("cores", "nic", "link", "rings", "spread"):
        return "this profile is of an older version: `planewise calibrate` writes a new one"
    return "docs/reference/host-profile.md lists all keys"


def find_profile(name: str) -> Profile:
    """The profile in the file `name`, or the shipped one of that name.

    Raises:
        BadInputError: it is none, or there is none of that name.
    """
    path = Path(name)
    return load_profile(path) if path.suffix == ".toml" or path.exists() else shipped(name)


def shipped_names() -> tuple[str, ...]:
    """The profiles that come with Planewise."""
    folder = resources.files("planewise.advise") / "profiles"
    files = (Path(entry.name) for entry in folder.iterdir())
    return tuple(sorted(file.stem for file in files if file.suffix == ".toml"))


def shipped(name: str) -> Profile:
    """A profile that comes with Planewise.

    Raises:
        BadInputError: there is none of that name.
    """
    names = shipped_names()
    if name not in names:
        raise BadInputError(
            f"there is no host profile {name}",
            remedy=f"one of {', '.join(names)}, or a file of yours",
        )
    folder = resources.files("planewise.advise") / "profiles"
    with resources.as_file(folder / f"{name}.toml") as file:
        return load_profile(file)
