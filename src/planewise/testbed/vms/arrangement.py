"""A setting that stands, and the names and addresses of its guests, as values. Touches nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from planewise.store.models import Metric
from planewise.testbed.model import (
    HOSTS,
    CapturePoint,
    CounterPoint,
    Guest,
    GuestRole,
    HostRole,
    inside,
    make_guest,
)
from planewise.testbed.planes import vm_plane
from planewise.testbed.setting import Setting, Standing, WantedGuest


@dataclass(frozen=True)
class VmArrangement(Standing):
    """A setting of virtual machines that stands."""

    nics: Mapping[HostRole, str]
    """What leaves each host on the main guests' way: its NIC, or the VF's interface."""
    replaced: tuple[Guest, ...] = ()
    """Guests that had ended and were started anew."""

    @property
    def capture_points(self) -> tuple[CapturePoint, ...]:
        """Where probe packets can be seen, along their way from the sender.

        Those on the hosts are missing where the guests drive their VFs themselves. Within one
        host, frames of planes without a VF reach no NIC.
        """
        points: list[CapturePoint] = []
        plane = vm_plane(self.setting.plane)
        for role in HOSTS:
            guest = self.mains[role]
            here = [inside(guest, role, own_kernel=True)]
            if not plane.passed_through:
                here.append(CapturePoint(f"{role}_guest", role, "", plane.host_interface(guest)))
            if not plane.passed_through and (plane.nic_within_host or not self.shared):
                here.append(CapturePoint(f"{role}_nic", role, "", self.nics[role]))
            points += here if role == "sender" else reversed(here)
        return tuple(points)

    @property
    def counter_points(self) -> tuple[CounterPoint, ...]:
        """The hosts' interfaces on the way between the main guests, along that way."""
        return tuple(
            CounterPoint(point.host, point.netns, point.interface)
            for point in self.capture_points
            if not point.own_kernel
        )

    @property
    def not_measurable(self) -> Mapping[Metric, str]:
        """Metrics that do not exist for the main guests' plane, with the reason."""
        plane = vm_plane(self.setting.plane)
        if self.shared and not plane.nic_within_host:
            why = "between guests of one host no frame reaches the NIC"
            return {"overhead": why, "response": why}
        return plane.not_measurable


@dataclass(frozen=True)
class GuestRequest(WantedGuest):
    """A virtual machine as a setting asks for it."""

    on_bridge: bool
    """Whether its port is, or sits on, a port of our bridge."""


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
    """Whether a guest's port sits on the NIC itself."""
    plane = vm_plane(want.plane)
    return plane.on_uplink and not want.on_bridge


def wanted(setting: Setting, role: HostRole) -> Iterator[GuestRequest]:
    """The guests of a role that a setting asks for, the main one first. Pure."""
    bridge = any(vm_plane(name).switch is not None for name in setting.planes)
    for one in setting.wanted(role):
        yield GuestRequest(**vars(one), on_bridge=bridge and not vm_plane(one.plane).vfs)
