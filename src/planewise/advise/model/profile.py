"""A host's profile: what its NIC, its PCIe link and its cores can do, and where each is known from.

A TOML file, by hand from data sheets or fitted to measurements (`planewise calibrate`).
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from planewise.advise.model.pcie import Link, Rings
from planewise.advise.toml_text import read_toml
from planewise.errors import BadInputError

Basis = Literal["measurement", "data sheet", "literature", "assumption"]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    basis: Basis = "assumption"
    """Where the numbers are known from."""
    source: str = ""
    """The document, the run or the reason."""


class LinkPart(_Part):
    """The NIC's PCIe link."""

    generation: int
    lanes: int
    mps_bytes: int = 256
    mrrs_bytes: int = 512

    def link(self) -> Link:
        """The link as the model takes it. BadInputError when there is no such link."""
        return Link(**self.model_dump(exclude={"basis", "source"}))


class RingsPart(_Part):
    """How NIC and driver exchange descriptors; counts are packets for one exchange."""

    descriptor_bytes: Annotated[int, Field(gt=0, le=64)] = 16
    tx_fetch: Annotated[int, Field(gt=0, le=512)] = 40
    tx_write_back: Annotated[int, Field(gt=0, le=512)] = 8
    rx_fetch: Annotated[int, Field(gt=0, le=512)] = 1
    rx_write_back: Annotated[int, Field(gt=0, le=512)] = 1

    def rings(self) -> Rings:
        """The rings as the model takes them, under a polling driver."""
        return Rings(**self.model_dump(exclude={"basis", "source"}))


class NicPart(_Part):
    """The NIC behind the link."""

    line_gbps: Positive
    packets_mpps: Positive
    """Packets that it sends, and as many that it receives, a second."""
    loop_mpps: Positive
    """Packets a second that its embedded switch hands from one VF to another."""
    loop_gbps: Positive
    """What goes through its embedded switch."""
    loop_overhead_bytes: NotNegative = 0.0
    """What each packet takes of that beside its own bytes."""
    vfs: Annotated[int, Field(ge=0, le=65_536)] | None = None
    """VFs that the NIC has at most; None where that is not known."""


class CoresPart(_Part):
    """What a core needs for a packet [ns] and for a byte of it [ns]."""

    vf_ns: Positive
    """A polling guest that sends a packet on, on a VF: for the packet …"""
    vf_byte_ns: NotNegative = 0.0
    """… and for each of its bytes."""
    vhost_ns: Positive
    """A polling guest on vhost-user: for the packet …"""
    crossing_ns: NotNegative = 0.0
    """… for each time that it crosses to or from the switch …"""
    copy_byte_ns: NotNegative = 0.0
    """… and for each byte copied in a crossing."""
    pmd_ns: Positive
    """The switch's core that polls the NIC: for a packet there and back …"""
    pmd_port_ns: NotNegative = 0.0
    """… more for each guest's port that it polls …"""
    pmd_byte_ns: NotNegative = 0.0
    """… and for each byte."""
    pmd_gbps: Positive = 1e6
    """What one receive queue and its core pass on at most."""


class SpreadPart(_Part):
    """Half the width of a prediction's 95 % interval: ln(measured / predicted); and for which
    chains it stands. A width is None where nothing tells it."""

    vf: NotNegative | None = None
    """On VFs, for numbers of functions up to `most_functions` …"""
    vf_frame: NotNegative | None = None
    """… for a frame size that was not measured …"""
    vf_pattern: NotNegative | None = None
    """… and for a pattern that was not."""
    vhost: NotNegative | None = None
    """The same on vhost-user."""
    vhost_frame: NotNegative | None = None
    vhost_pattern: NotNegative | None = None
    most_functions: Annotated[int, Field(ge=1)] | None = None
    """The longest chain that was measured; None in profiles that do not say what was."""
    frames_bytes: tuple[int, ...] = ()
    """The frame sizes that were measured."""
    patterns: tuple[str, ...] = ()
    """The patterns that were measured."""


class Profile(BaseModel):
    """All that the model knows of a host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    emulated: bool = False
    """Times of an emulated or virtualised host: they say nothing of a real one's."""
    link: LinkPart
    rings: RingsPart = RingsPart()
    nic: NicPart
    cores: CoresPart
    spread: SpreadPart | None = None


def load_profile(path: Path) -> Profile:
    """The profile in a TOML file.

    Raises:
        BadInputError: it is no profile; what and where.
        PlanewiseError: it cannot be read.
    """
    profile = read_toml(path, Profile, "planewise calibrate", _remedy)
    try:
        profile.link.link()
    except BadInputError as error:
        raise BadInputError(str(error), where=str(path), remedy=error.remedy) from error
    return profile


def _remedy(place: str) -> str:
    if place in ("cores", "nic"):
        return (
            "a profile needs what its NIC and cores can do: `planewise calibrate` fits it to "
            "measurements, starting from a shipped profile"
        )
    return "docs/reference/host-profile.md lists all keys"


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
