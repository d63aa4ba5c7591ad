"""Plane `routed`: a veth pair, proxy ARP and a host route, as Calico lays them for a pod.

The guest resolves a gateway that no interface has; the host's end of the pair answers for it, as
the host has a route there (proxy_arp, Documentation/networking/ip-sysctl.rst of Linux).
"""

from __future__ import annotations

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step, add_neighbour, add_route, set_sysctl
from planewise.testbed.planes.veth import VethPlane

_GATEWAY_IPV6 = "fe80::1"


class RoutedPlane(VethPlane):
    """As `veth`, but the guest asks for its gateway by ARP, and the host answers for all."""

    name = "routed"
    guests = ("namespace", "container")
    rank = 15

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The pair; the gateway is an address of the other host's guests that nobody has."""
        port = self.host_interface(guest)
        gateway = site.other.gateway_ipv4
        inside = guest.netns, guest.interface
        return (
            *self.pair(site, guest),
            # Without it the kernel answers by proxy after up to 0.8 s.
            set_sysctl(site.netns, f"net/ipv4/neigh/{port}/proxy_delay", "0"),
            set_sysctl(site.netns, f"net/ipv4/conf/{port}/proxy_arp", "1"),
            add_route(guest.netns, f"{gateway}/32", guest.interface),
            add_route(guest.netns, "0.0.0.0/0", guest.interface, via=gateway),
            add_route(guest.netns, "::/0", guest.interface, via=_GATEWAY_IPV6),
            add_neighbour(*inside, _GATEWAY_IPV6, site.port_mac(guest)),
        )


PLANE = RoutedPlane()
