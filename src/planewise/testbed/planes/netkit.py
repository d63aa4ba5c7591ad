"""Plane `netkit`: as `veth`, with a netkit pair (Linux 6.7), which Cilium uses instead of veth.

Its primary end is the host's; without BPF programs both ends pass frames on.
"""

from __future__ import annotations

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step, ip
from planewise.testbed.planes.veth import VethPlane


class NetkitPlane(VethPlane):
    """The guest's frames enter the host's stack at once, without a backlog queue."""

    name = "netkit"
    rank = 12
    remedy = "use Linux 6.7 or newer with CONFIG_NETKIT, and iproute2 6.7 or newer"

    def pair(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """A pair of layer 2, so that neighbours are those of `veth`."""
        _, *others = super().pair(site, guest)
        port, mac = self.host_interface(guest), site.port_mac(guest)
        words = (
            f"link add {port} index {guest.port_index} address {mac} mtu {site.mtu_bytes} type "
            f"netkit mode l2 forward peer forward name {guest.interface} netns {guest.netns} "
            f"address {guest.mac} mtu {site.mtu_bytes}"
        )
        return (
            # Without options first: an iproute2 that does not know them says nothing of the kernel.
            ip(site.netns, f"link add {port} type netkit", feature="netkit"),
            ip(site.netns, f"link delete {port}"),
            ip(site.netns, words, other=guest.netns, feature="netkit"),
            *others,
        )


PLANE = NetkitPlane()
