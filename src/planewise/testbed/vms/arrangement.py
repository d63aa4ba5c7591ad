"""A setting that stands, and the names and addresses of its guests, as values. Touches nothing."""

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
from planewise.testbed.setting import Arrangement, Setting, WantedGuest


@dataclass(frozen=True)
class VmArrangement(Arrangement):
    """A setting of virtual machines that stands.

    The NIC of a site is what leaves the host on the main guest's way: its own, or the VF's
    interface.
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
class GuestRequest(WantedGuest):
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


def on_nic(want: GuestRequest) -> bool:
    """Whether a guest needs the NIC outside of any switch."""
    return not want.switch and not vm_plane(want.plane).vfs


def wanted(setting: Setting, role: HostRole) -> Iterator[GuestRequest]:
    """The guests of a role that a setting asks for, the main one first. Pure."""
    switch = next(iter(setting.switches), "")
    for one in setting.wanted(role):
        yield GuestRequest(**vars(one), switch="" if vm_plane(one.plane).vfs else switch)
