"""Plane `virtio-routed`: a paravirtual NIC (virtio) of a virtual machine, on a host that routes."""

from __future__ import annotations

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step, add_neighbour, add_route, add_tap, set_up
from planewise.testbed.planes.veth import VethPlane, forwarding
from planewise.testbed.planes.vm import VmPlane

_ROUTING = VethPlane()


class VirtioRoutedPlane(VmPlane):
    """What Calico gives a virtual machine: no bridge, the host has a route to each guest."""

    name = "virtio-routed"
    rank = 71
    model = "virtio"
    device = "tap"
    preparation = _ROUTING.preparation
    differences = ("the host routes between tap and NIC, past any bridge",)

    def prepare(self, site: Site) -> tuple[Step, ...]:
        return _ROUTING.prepare(site)

    def withdraw(self, site: Site) -> tuple[Step, ...]:
        return _ROUTING.withdraw(site)

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The tap, and the host's routes to the guest."""
        port = site.netns, self.host_interface(guest)
        return (
            *add_tap(*port, site.port_mac(guest), site.mtu_bytes, site.queues),
            *(() if site.netns else forwarding(site, port[1])),
            set_up(*port),
            add_route(site.netns, f"{guest.ipv4}/32", port[1]),
            add_route(site.netns, f"{guest.ipv6}/128", port[1]),
            add_neighbour(*port, guest.ipv4, guest.mac),
            add_neighbour(*port, guest.ipv6, guest.mac),
        )

    def next_hop_mac(self, site: Site, guest: Guest, peer: Guest) -> str:
        """The tap: the guest takes all others for neighbours, and the host routes to them."""
        return site.port_mac(guest)


PLANE = VirtioRoutedPlane()
