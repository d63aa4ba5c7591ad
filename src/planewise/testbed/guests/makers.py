"""The kinds of guest that share their host's kernel: one `GuestMaker` each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planewise.testbed.guests.container import ContainerMaker
from planewise.testbed.guests.maker import GuestMaker
from planewise.testbed.guests.namespace import NamespaceMaker
from planewise.testbed.planes.kinds import GuestKind

MAKERS: Mapping[GuestKind, GuestMaker] = MappingProxyType(
    {"namespace": NamespaceMaker(), "container": ContainerMaker()}
)
