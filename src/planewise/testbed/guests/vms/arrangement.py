"""A built setting of virtual machines, with its guests' names and addresses, as values. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from planewise.testbed.model import (
    HOSTS,
    CounterPoint,
    Guest,
    GuestRole,
    HostRole,
    make_guest,
)
from planewise.testbed.planes import vm_plane
from planewise.testbed.setting import Arrangement, GuestRequest, Setting


@dataclass(frozen=True)
class VmArrangement(Arrangement):
    """A built setting of virtual machines.

    The NIC of a site is the interface by which the main guest's frames leave the host: its NIC, or
    the VF.
    """

    replaced: tuple[Guest, ...] = ()
    """Guests that had ended and were started anew."""
    own_kernels: ClassVar[bool] = True

    @property
    def counter_points(self) -> tuple[CounterPoint, ...]:
        """The hosts' interfaces on the way between the main guests, along that way."""
        return tuple(
            CounterPoint(point.host, point.netns, point.interface)
            for point in self.capture_points
            if not point.own_kernel
        )


@dataclass(frozen=True)
class VmRequest(GuestRequest):
    """A virtual machine as a setting asks for it."""

    switch: str
    """The switch that its port is, or sits on, a port of; empty: it sits on the NIC."""


def guest_in(
    token: str,
    slot: int,
    role: HostRole,
    use: GuestRole,
    index: int,
    plane: str,
    lives_on: HostRole,
) -> Guest:
    """The `slot`th guest of a role that lives on a machine. Pure.

    Each of a testbed's guests has a name and addresses of its own, and each of the machine's
    macvtaps an index that no other testbed has: /dev has one name for all namespaces.
    """
    away = lives_on != role
    number = HOSTS.index(role) + 2 * away
    first = (8 + int(token[:4], 16)) << 13
    return replace(
        make_guest(token, role, use, index, plane, slot, away=away),
        port=f"pw{token}{1024 * number + slot:03x}",
        port_index=first + 2048 * number + slot,
    )


def on_nic(request: VmRequest) -> bool:
    """Whether a guest needs the NIC outside of any switch."""
    return not request.switch and not vm_plane(request.plane).vfs


def vm_requests(setting: Setting, role: HostRole) -> Iterator[VmRequest]:
    """The guests of a role that a setting asks for, the main one first. Pure."""
    switch = next(iter(setting.switches), "")
    for request in setting.requests(role):
        yield VmRequest(**vars(request), switch="" if vm_plane(request.plane).vfs else switch)
