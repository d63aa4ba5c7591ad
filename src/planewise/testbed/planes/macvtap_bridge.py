"""Plane `macvtap-bridge`: a macvtap (bridge mode) on the NIC, opened by a virtual machine."""

from __future__ import annotations

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step, add_macvtap, set_mtu, set_up
from planewise.testbed.planes.vm import VM_REMEDY, VmPlane


class MacvtapBridgePlane(VmPlane):
    """The NIC's driver hands frames to the tap by MAC; no bridge is between."""

    name = "macvtap-bridge"
    rank = 72
    remedy = f"{VM_REMEDY}; macvlan is the same path for namespaces"
    on_uplink = True
    model = "virtio"
    device = "macvtap"
    differences = ("frames go from the NIC to the macvtap by MAC address, past any bridge",)

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The macvtap, on the uplink."""
        port = self.host_interface(guest)
        return (
            add_macvtap(site.netns, site.uplink, port, guest.port_index, guest.mac),
            set_mtu(site.netns, port, site.mtu_bytes),
            set_up(site.netns, port),
        )


PLANE = MacvtapBridgePlane()
