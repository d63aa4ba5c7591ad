"""The planes: one file each, all with the interface of `plane.Plane`. This file only lists them."""

from __future__ import annotations

from difflib import get_close_matches

from planewise.errors import BadInputError, UnsupportedError
from planewise.testbed.planes.bridge import BridgePlane
from planewise.testbed.planes.elsewhere import ELSEWHERE, Elsewhere
from planewise.testbed.planes.ipvlan import IpvlanPlane
from planewise.testbed.planes.macvlan import MacvlanPlane
from planewise.testbed.planes.plane import Plane
from planewise.testbed.planes.veth import VethPlane

NAMESPACE_PLANES: tuple[Plane, ...] = (VethPlane(), BridgePlane(), MacvlanPlane(), IpvlanPlane())
"""Planes that can attach a namespace."""


def known() -> tuple[str, ...]:
    """Names of all planes that Planewise knows."""
    return (*(one.name for one in NAMESPACE_PLANES), *(one.name for one in ELSEWHERE))


def namespace_plane(name: str) -> Plane:
    """The plane called `name`, for guests that are namespaces.

    Raises:
        BadInputError: there is no such plane.
        UnsupportedError: there is, but not for namespaces.
    """
    for plane in NAMESPACE_PLANES:
        if plane.name == name:
            return plane
    for other in ELSEWHERE:
        if other.name == name:
            raise UnsupportedError(
                f"the plane {name} cannot attach a namespace: {other.why}", remedy=other.remedy
            )
    close = get_close_matches(name, known(), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise BadInputError(
        f"there is no plane called {name!r}", remedy=f"{hint}planes: {', '.join(known())}"
    )


__all__ = ["ELSEWHERE", "NAMESPACE_PLANES", "Elsewhere", "Plane", "known", "namespace_plane"]
