"""Plane `vxlan`: a veth pair into a bridge whose other port is a VXLAN tunnel over the NIC.

What an overlay of Kubernetes or OpenStack does: each frame travels in UDP between the hosts.
"""

from __future__ import annotations

from typing import ClassVar

from planewise.testbed import plan
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step
from planewise.testbed.planes.plane import Plane, neighbours, on_link, veth_pair

_INSIDE = "frames pass the NIC inside a tunnel, where their stamps cannot be read"


class VxlanPlane(Plane):
    """The NIC's MTU grows by the tunnel's headers, so that guests keep theirs."""

    name = "vxlan"
    guests = ("namespace", "container")
    quick = False
    rank = 36
    on_uplink = True
    not_measurable: ClassVar = {"overhead": _INSIDE, "response": _INSIDE}
    options: ClassVar[str] = "type vxlan id 47 local {local} dstport 4789"
    headers_bytes: ClassVar[int] = 50

    def prepare(self, site: Site) -> tuple[Step, ...]:
        """Addresses of the tunnel's ends on the uplink, the tunnel, and its bridge."""
        netns, tunnel, bridge = site.netns, f"{site.bridge}x", f"{site.bridge}y"
        local, remote = (f"198.{18 + n}.255.250" for n in (site.number, 1 - site.number))
        words = f"link add {tunnel} mtu {site.mtu_bytes} {self.options} remote {remote}"
        return (
            *_mtus(site, site.mtu_bytes + self.headers_bytes),
            plan.ip(netns, f"address replace {local}/32 dev {site.uplink}"),
            plan.add_neighbour(netns, site.uplink, remote, site.other.uplink_mac),
            plan.ip(netns, f"route replace {remote}/32 dev {site.uplink}"),
            plan.ip(netns, words.format(local=local), feature=self.name),
            plan.add_bridge(netns, bridge, f"02:70:77:4{site.number}:00:00", site.mtu_bytes),
            plan.set_master(netns, tunnel, bridge),
            plan.set_up(netns, tunnel),
            plan.set_up(netns, bridge),
        )

    def withdraw(self, site: Site) -> tuple[Step, ...]:
        """The tunnel and its bridge go, and the NIC gets its MTU back; `prepare` moves the rest."""
        links = (plan.ip(site.netns, f"link delete {site.bridge}{letter}") for letter in "xy")
        return (*links, *_mtus(site, site.mtu_bytes))

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The pair, its host end a port, and the guest's addresses."""
        return (
            veth_pair(site, guest, guest.port),
            plan.set_master(site.netns, guest.port, f"{site.bridge}y"),
            plan.set_up(site.netns, guest.port),
            *on_link(guest),
        )

    def static_neighbours(
        self, site: Site, guest: Guest, peer: Guest, within: bool
    ) -> tuple[Step, ...]:
        """Nothing is resolved or flooded: the peer is behind the tunnel, or its own port."""
        own = plan.add_forwarding(site.netns, guest.port, guest.mac)
        other = plan.add_forwarding(site.netns, f"{site.bridge}x", peer.mac)
        return (*neighbours(guest, peer, peer.mac), own, *(() if within else (other,)))

    def host_interface(self, guest: Guest) -> str:
        """The bridge port."""
        return guest.port


def _mtus(site: Site, mtu_bytes: int) -> list[Step]:
    return [plan.set_mtu(site.netns, link, mtu_bytes) for link in sorted({site.nic, site.uplink})]


PLANE = VxlanPlane()
