"""The planes: each file of this package that defines `PLANE` (or `PLANES`) is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from planewise.errors import BadInputError, UnsupportedError
from planewise.testbed.model import GUEST_WORDS, Forwarder, GuestKind
from planewise.testbed.planes.plane import Plane as Plane
from planewise.testbed.planes.plane import Switch as Switch
from planewise.testbed.planes.vm import VmPlane as VmPlane


def _find() -> tuple[Plane, ...]:
    planes: list[Plane] = []
    for module in pkgutil.iter_modules(__path__):
        content = importlib.import_module(f"{__name__}.{module.name}")
        planes += getattr(content, "PLANES", ())
        planes += (content.PLANE,) if hasattr(content, "PLANE") else ()
    return tuple(sorted(planes, key=lambda plane: (plane.rank, plane.name)))


PLANES: tuple[Plane, ...] = _find()
"""All planes that Planewise knows, as they are listed."""

_BY_NAME: Mapping[str, Plane] = MappingProxyType({plane.name: plane for plane in PLANES})

GUESTS_OF: Mapping[str, tuple[GuestKind, ...]] = MappingProxyType(
    {plane.name: plane.guests for plane in PLANES}
)
"""Every plane, with the kinds of guest that it exists for."""

FUNCTIONS_OF: Mapping[str, Mapping[GuestKind, tuple[Forwarder, ...]]] = MappingProxyType(
    {plane.name: plane.functions for plane in PLANES if plane.functions}
)
"""Every plane of chains, with the kinds that its functions can have, and their forwarders."""


def plane_names() -> tuple[str, ...]:
    """Names of all planes that Planewise knows."""
    return tuple(_BY_NAME)


def planes_of(kind: GuestKind) -> tuple[str, ...]:
    """Names of the planes that guests of this kind can have."""
    return tuple(plane.name for plane in PLANES if kind in plane.guests)


def refusal(name: str, kind: GuestKind, *, local: bool) -> str:
    """Why no hosts can have guests of this kind on a plane, as a sentence; empty where some can.

    `local`: on a pair of namespaces of this machine.
    """
    if name not in _BY_NAME:
        return f"there is no plane called {name!r} (planes: {', '.join(plane_names())})"
    plane = _BY_NAME[name]
    if kind not in plane.guests:
        own = ", ".join(GUEST_WORDS[own][1] for own in plane.guests)
        return f"the plane {name} cannot attach {GUEST_WORDS[kind][1]}, only {own}"
    if reason := plane.chains_only.get(kind):
        return f"the plane {name} has {GUEST_WORDS[kind][1]} in chains alone: {reason}"
    if local and plane.local_refusal:
        return f"the plane {name} cannot be built on one machine: {plane.local_refusal}"
    return ""


def plane(name: str) -> Plane:
    """The plane called `name`.

    Raises:
        BadInputError: there is no such plane.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    close = get_close_matches(name, plane_names(), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise BadInputError(
        f"there is no plane called {name!r}", remedy=f"{hint}planes: {', '.join(plane_names())}"
    )


def plane_for(name: str, kind: GuestKind) -> Plane:
    """The plane called `name`, for guests of this kind.

    Raises:
        BadInputError: there is no such plane.
        UnsupportedError: there is, but not for these guests.
    """
    found = plane(name)
    if reason := refusal(name, kind, local=False):
        others = f"planes of {GUEST_WORDS[kind][1]}: {', '.join(planes_of(kind))}"
        raise UnsupportedError(reason, remedy=found.remedy or others)
    return found


def switch_named(name: str) -> Switch | None:
    """The switch called `name`; None where there is none."""
    switches = (plane.switch for plane in PLANES)
    return next((switch for switch in switches if switch is not None and switch.name == name), None)


def vm_plane(name: str) -> VmPlane:
    """The plane called `name`, for guests that are virtual machines.

    Raises:
        BadInputError: there is no such plane for them.
    """
    plane = _BY_NAME.get(name)
    if isinstance(plane, VmPlane):
        return plane
    names = ", ".join(plane.name for plane in PLANES if isinstance(plane, VmPlane))
    raise BadInputError(
        f"virtual machines have no plane {name} on a testbed", remedy=f"theirs are: {names}"
    )
