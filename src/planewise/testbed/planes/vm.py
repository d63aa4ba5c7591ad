"""Base classes of the planes of virtual machines.

The host side (a tap or macvtap) is made by a plan, as for all other guests, and the virtual machine
opens it. So a guest that replaces another finds its port unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from planewise.testbed.model import Guest, GuestKind, Site
from planewise.testbed.plan import Step, add_tap, set_up
from planewise.testbed.planes.bridge import LinuxBridge
from planewise.testbed.planes.plane import Need, Plane, Switch

if TYPE_CHECKING:
    from planewise.testbed.guests.kind import PlacedGuest
    from planewise.testbed.hosts.host import Host
    from planewise.testbed.hosts.machine import MachineState

VM_REMEDY = "compare it on hosts with virtual machines"
VIRTUAL_WIRE = "its virtual function belongs to a real NIC, and the wire here is virtual"
"""Why one machine alone has no VF."""
VF_REMEDY = "use a NIC with SR-IOV, on hosts with virtual machines"


class VmPlane(Plane):
    """A way for a virtual machine's frames to reach the NIC."""

    guests: ClassVar[tuple[GuestKind, ...]] = ("vm",)
    needs: ClassVar[tuple[Need, ...]] = ("vm",)
    remedy = VM_REMEDY
    model: ClassVar[Literal["e1000", "virtio"] | None]
    """The NIC that QEMU emulates; None: none, a function is passed through."""
    device: ClassVar[Literal["tap", "macvtap", ""]]
    """The device that the virtual machine opens on the host; empty: none."""
    differences: ClassVar[tuple[str, ...]] = ()
    """Differences from the other planes of virtual machines that cannot be removed."""

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The host side, for the virtual machine to open; it carries frames from then on.

        No steps where the virtual machine has the VF itself. `site.nic` is the guest's VF where the
        plane is on one.
        """
        return ()

    def unplug(self, state: MachineState, placed: PlacedGuest) -> None:
        """Removes the host side of a guest that has ended."""
        if port := self.host_interface(placed.guest):
            if self.switch is not None:
                self.switch.leave(state, port)
            state.host.run(["ip", "link", "delete", port])  # it may never have been made

    def socket(self, site: Site, guest: Guest) -> str:
        """The socket where the virtual machine listens for its switch; empty: it opens a device."""
        return ""

    def sent(self, host: Host, site: Site, guest: Guest) -> Callable[[], tuple[int, int]] | None:
        """A reader of the packets and bytes (without FCS) that a guest has sent; None where an
        interface counts them. The reader raises PlanewiseError when the switch does not answer."""
        return None

    def static_neighbours(
        self, site: Site, guest: Guest, peer: Guest, within: bool
    ) -> tuple[Step, ...]:
        """Static forwarding entries: no frame is ever flooded. (Neighbours are the guest's own.)"""
        if self.switch is None:
            return ()
        return self.switch.entries(site, guest.port, guest, peer, within)

    def host_interface(self, guest: Guest) -> str:
        """The tap or macvtap; empty where there is none."""
        return guest.port if self.device else ""


class TapPlane(VmPlane):
    """A tap that is a port of the host's switch."""

    switch: ClassVar[Switch] = LinuxBridge()
    device = "tap"

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The tap, a port of the switch."""
        port = self.host_interface(guest)
        return (
            *add_tap(site.netns, port, site.port_mac(guest), site.mtu_bytes, site.queues),
            self.switch.join(site, port),
            set_up(site.netns, port),
        )
