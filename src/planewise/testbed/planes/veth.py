"""Plane `veth`: a pair of virtual interfaces into the host, which routes. No bridge, no ARP."""

from __future__ import annotations

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import (
    Step,
    add_neighbour,
    add_route,
    ip,
    set_address,
    set_sysctl,
    set_up,
)
from planewise.testbed.planes.plane import Plane, veth_pair

_GATEWAY_IPV6 = "fe80::1"


class VethPlane(Plane):
    """Routed: the guest's default route points at the host, the host has a route to each guest."""

    name = "veth"
    guests = ("namespace", "container")
    rank = 10
    preparation = "routing"

    def prepare(self, site: Site) -> tuple[Step, ...]:
        """Forwarding on, and routes to the guests of the other host over the uplink."""
        other, link = site.other, (site.netns, site.uplink)
        return (
            *forwarding(site, site.uplink),
            set_address(*link, f"{site.gateway_ipv4}/32"),
            set_address(*link, f"{site.gateway_ipv6}/128"),
            set_address(*link, f"{site.link_local}/64"),
            add_neighbour(*link, other.gateway_ipv4, other.uplink_mac),
            add_neighbour(*link, other.link_local, other.uplink_mac),
            add_route(site.netns, other.guests_ipv4, site.uplink, via=other.gateway_ipv4),
            add_route(site.netns, other.guests_ipv6, site.uplink, via=other.link_local),
        )

    def withdraw(self, site: Site) -> tuple[Step, ...]:
        """Routes and addresses go; neighbours and forwarding say nothing without them."""
        other = site.other
        return (
            ip(site.netns, f"route delete {other.guests_ipv4} dev {site.uplink}"),
            ip(site.netns, f"route delete {other.guests_ipv6} dev {site.uplink}"),
            ip(site.netns, f"address delete {site.gateway_ipv4}/32 dev {site.uplink}"),
            ip(site.netns, f"address delete {site.gateway_ipv6}/128 dev {site.uplink}"),
            ip(site.netns, f"address delete {site.link_local}/64 dev {site.uplink}"),
        )

    def pair(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The pair, up, and the host's routes to the guest."""
        port = self.host_interface(guest)
        return (
            veth_pair(site, guest, port),
            *(() if site.netns else forwarding(site, port)),
            set_up(site.netns, port),
            set_up(guest.netns, guest.interface),
            set_address(site.netns, port, f"{_GATEWAY_IPV6}/64"),
            add_route(site.netns, f"{guest.ipv4}/32", port),
            add_route(site.netns, f"{guest.ipv6}/128", port),
            set_address(guest.netns, guest.interface, f"{guest.ipv4}/32"),
            set_address(guest.netns, guest.interface, f"{guest.ipv6}/128"),
        )

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The pair, the guest's default routes, all neighbours known."""
        inside, outside = (guest.netns, guest.interface), (site.netns, self.host_interface(guest))
        host_mac = site.port_mac(guest)
        return (
            *self.pair(site, guest),
            add_neighbour(*outside, guest.ipv4, guest.mac),
            add_neighbour(*outside, guest.ipv6, guest.mac),
            add_route(guest.netns, "0.0.0.0/0", guest.interface, via=site.gateway_ipv4),
            add_route(guest.netns, "::/0", guest.interface, via=_GATEWAY_IPV6),
            add_neighbour(*inside, site.gateway_ipv4, host_mac),
            add_neighbour(*inside, _GATEWAY_IPV6, host_mac),
        )

    def static_neighbours(
        self, site: Site, guest: Guest, peer: Guest, within: bool
    ) -> tuple[Step, ...]:
        """Nothing to do: the guest only ever talks to its host."""
        return ()

    def host_interface(self, guest: Guest) -> str:
        """The host's end of the pair."""
        return guest.port

    def next_hop_mac(self, site: Site, guest: Guest, peer: Guest) -> str:
        """The host's end of the pair."""
        return site.port_mac(guest)


def forwarding(site: Site, interface: str) -> tuple[Step, ...]:
    """Has the host forward what comes in by an interface.

    In a namespace of ours for all interfaces. A server's other interfaces are none of ours: there
    IPv4 is forwarded by interface, and IPv6, which Linux forwards for the whole machine or not at
    all (`net.ipv6.conf.all.forwarding`), is not.
    """
    if not site.netns:
        return (set_sysctl("", f"net/ipv4/conf/{interface}/forwarding", "1"),)
    return (
        set_sysctl(site.netns, "net/ipv4/ip_forward", "1"),
        set_sysctl(site.netns, "net/ipv6/conf/all/forwarding", "1"),
    )


PLANE = VethPlane()
