"""Plane `macvtap-vf`: a macvtap (passthrough mode) on a VF, opened by a virtual machine."""

from __future__ import annotations

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step, add_macvtap, set_mtu, set_up
from planewise.testbed.planes.vm import VF_REMEDY, VIRTUAL_WIRE, VmPlane


class MacvtapVfPlane(VmPlane):
    """The NIC switches; the host's kernel carries frames between the VF and the guest."""

    name = "macvtap-vf"
    rank = 73
    vfs = 1
    nic_within_host = True
    local_refusal = VIRTUAL_WIRE
    needs = ("sriov", "vm")
    remedy = VF_REMEDY
    model = "virtio"
    device = "macvtap"
    differences = (
        "frames go from the macvtap to a virtual function, past any bridge of the host",
        "its MAC address is the virtual function's",
    )

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The macvtap, which has all of the VF's interface (`site.nic`), and so its address."""
        port = self.host_interface(guest)
        return (
            add_macvtap(site.netns, site.nic, port, guest.port_index, "", "passthru"),
            set_mtu(site.netns, port, site.mtu_bytes),
            set_up(site.netns, port),
        )


PLANE = MacvtapVfPlane()
