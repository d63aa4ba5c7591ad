"""Plane `vf`: the network device of an SR-IOV virtual function, moved into the guest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step
from planewise.testbed.planes.plane import Plane, on_link

if TYPE_CHECKING:
    from planewise.testbed.guests.kind import PlacedGuest
    from planewise.testbed.hosts.machine import MachineState


class VfPlane(Plane):
    """The NIC switches by itself; the host's kernel sees no frame of the guest's."""

    name = "vf"
    guests = ("namespace", "container", "process")
    functions: ClassVar = {"process": ("kernel", "testpmd", "xdp"), "container": ("kernel", "xdp")}
    rank = 60
    vfs = 1
    nic_within_host = True
    by_steps = False
    local_refusal = "its virtual functions belong to a real NIC, and the wire here is virtual"
    needs = ("sriov",)
    remedy = "use a NIC with SR-IOV"

    def plug(
        self, state: MachineState, site: Site, placed: Sequence[PlacedGuest]
    ) -> tuple[Step, ...]:
        """Moves a VF into each guest, with the VF's own MAC: another would mean that its driver
        is bound anew."""
        steps: list[Step] = []
        moved = state.vfs.move([placed_guest.guest for placed_guest in placed], site.mtu_bytes)
        for placed_guest in placed:
            vf = moved[placed_guest.guest.netns]
            placed_guest.vf = vf
            placed_guest.guest = replace(placed_guest.guest, mac=vf.config.mac)
            steps += on_link(placed_guest.guest)
        return tuple(steps)

    def unplug(self, state: MachineState, placed: PlacedGuest) -> None:
        """Takes the VF back, the guest alive or not."""
        if placed.vf is not None:
            state.vfs.return_to_pool(placed.vf.index)
            placed.vf = None

    def nic_point(self, site: Site, guest: Guest) -> tuple[str, str]:
        """The VF is the guest's NIC: its netdev is the point."""
        return guest.netns, guest.interface


PLANE = VfPlane()
