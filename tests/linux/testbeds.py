"""Testbeds of namespaces for tests."""

from __future__ import annotations

from contextlib import AbstractContextManager

from planewise.testbed.availability import missing
from planewise.testbed.model import GuestKind
from planewise.testbed.planes import PLANES as ALL
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.testbed import local_testbed

PLANES = [
    plane.name
    for plane in ALL
    if "namespace" in plane.guests and not set(plane.needs) & set(missing())
]
"""Planes of namespaces that this machine has what it takes for, beside the kernel."""


def here(
    plane: str,
    background: str | None = None,
    guests: int = 0,
    mtu_bytes: int = 1500,
    kind: GuestKind = "namespace",
) -> AbstractContextManager[Arrangement]:
    """Main guests on a plane, background guests on another, on this machine."""
    setting = Setting(kind, plane, background or plane, guests, "north-south")
    return local_testbed(setting, mtu_bytes)
