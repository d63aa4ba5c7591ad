"""Which kinds of guest can have which plane at all. A table; knows no host and no kernel.

Whether a host can build a plane is another question: `testbed.availability` tries it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

GuestKind = Literal["namespace", "container", "vm", "process"]

GUEST_WORDS: Mapping[GuestKind, tuple[str, str]] = MappingProxyType(
    {
        "namespace": ("a network namespace", "network namespaces"),
        "container": ("a container", "containers"),
        "vm": ("a virtual machine", "virtual machines"),
        "process": ("a process", "processes"),
    }
)
"""One of them, and many."""

GUESTS_OF: Mapping[str, tuple[GuestKind, ...]] = MappingProxyType(
    {
        # Interfaces of the host's kernel that are moved into the guest's network namespace.
        "veth": ("namespace", "container"),
        "bridge": ("namespace", "container", "process"),
        "macvlan": ("namespace", "container"),
        "ipvlan": ("namespace", "container"),
        "vf": ("namespace", "container", "process"),
        # Docker makes and owns it.
        "docker-bridge": ("container",),
        # Devices of a virtual machine; the last one also of a process that drives it by itself.
        "e1000-bridge": ("vm",),
        "virtio-bridge": ("vm",),
        "macvtap-bridge": ("vm",),
        "macvtap-vf": ("vm",),
        "vf-passthrough": ("vm",),
        "vhost-user": ("vm", "process"),
    }
)
"""Every plane that Planewise knows, with the kinds of guest that it exists for."""

FUNCTIONS_OF: Mapping[str, tuple[GuestKind, ...]] = MappingProxyType(
    {
        "vhost-user": ("process",),
        "bridge": ("process", "container"),
        "virtio-bridge": ("vm",),
        "vf": ("process", "container"),
        "vf-passthrough": ("vm",),
    }
)
"""Every plane that a chain can have, with what its functions can be."""


def planes_of(kind: GuestKind) -> tuple[str, ...]:
    """The planes that guests of this kind can have."""
    return tuple(plane for plane, kinds in GUESTS_OF.items() if kind in kinds)
