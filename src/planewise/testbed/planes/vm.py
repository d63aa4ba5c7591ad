"""What planes of virtual machines have in common. Knows no libvirt.

The host's side (a tap or macvtap) is made by a plan, as for all other guests; the virtual machine
opens what is there. So a guest that is replaced finds its port as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import AddTap, SetUp, Step
from planewise.testbed.planes.bridge import LinuxBridge
from planewise.testbed.planes.kinds import GuestKind
from planewise.testbed.planes.plane import Need, Plane, Switch

if TYPE_CHECKING:
    from planewise.testbed.host import Host
    from planewise.testbed.machine import MachineState

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
    """What QEMU shows the guest; None: nothing, it sees the function that is passed through."""
    device: ClassVar[Literal["tap", "macvtap", ""]]
    """What the virtual machine opens on the host; empty: nothing."""
    differences: ClassVar[tuple[str, ...]] = ()
    """What differs from the other planes of virtual machines and cannot be made alike."""

    def refusal(self, kind: GuestKind) -> str:
        return "" if kind in self.guests else "it attaches a virtual machine"

    def attach(
        self, site: Site, guest: Guest, queues: int = 1, vf_interface: str = ""
    ) -> tuple[Step, ...]:
        """The host side, for the virtual machine to open; it carries frames once that is done.

        None where the virtual machine is given the VF itself.

        Args:
            site: the host.
            guest: the virtual machine.
            queues: queue pairs of its NIC.
            vf_interface: that of the guest's VF, where the plane is on one.
        """
        return ()

    def detach(self, here: MachineState, guest: Guest) -> None:
        """Removes the host side of a guest that has ended."""
        if port := self.host_interface(guest):
            if self.switch is not None:
                self.switch.leave(here, port)
            here.host.run(["ip", "link", "delete", port])  # it may never have been made

    def socket(self, site: Site, guest: Guest) -> str:
        """Where the virtual machine listens for its switch; empty where it opens a device."""
        return ""

    def sent(self, host: Host, site: Site, guest: Guest) -> Callable[[], tuple[int, int]] | None:
        """Reads the packets and bytes (without FCS) that a guest has sent until now; None where an
        interface counts them. PlanewiseError from the reader: the switch does not tell."""
        return None

    def introduce(self, site: Site, guest: Guest, peer: Guest, within: bool) -> tuple[Step, ...]:
        """Static forwarding entries: no frame is ever flooded. (Neighbours are the guest's own.)"""
        return ()

    def host_interface(self, guest: Guest) -> str:
        """The tap or macvtap; empty where there is none."""
        if not self.device:
            return ""
        return guest.port or f"{'tap' if self.device == 'tap' else 'mvt'}-{guest.label}"


class TapPlane(VmPlane):
    """A tap that is a port of the host's switch."""

    switch: ClassVar[Switch] = LinuxBridge()
    device = "tap"

    def attach(
        self, site: Site, guest: Guest, queues: int = 1, vf_interface: str = ""
    ) -> tuple[Step, ...]:
        """The tap, a port of the switch."""
        port = self.host_interface(guest)
        return (
            AddTap(site.netns, port, site.port_mac(guest), site.mtu_bytes, queues),
            self.switch.join(site, port),
            SetUp(site.netns, port),
        )

    def introduce(self, site: Site, guest: Guest, peer: Guest, within: bool) -> tuple[Step, ...]:
        """Both guests' addresses are known to the switch."""
        away = () if within else (self.switch.know(site, site.nic, peer.mac),)
        return (self.switch.know(site, self.host_interface(guest), guest.mac), *away)
