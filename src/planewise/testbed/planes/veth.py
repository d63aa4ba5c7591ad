"""Plane `veth`: a pair of virtual interfaces into the host, which routes. No bridge, no ARP."""

from __future__ import annotations

from collections.abc import Mapping

from planewise.store.models import Metric
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import (
    AddNeighbour,
    AddRoute,
    AddVeth,
    SetAddress,
    SetSysctl,
    SetUp,
    Step,
)

_GATEWAY_IPV6 = "fe80::1"


class VethPlane:
    """Routed: the guest's default route points at the host, the host has a route to each guest."""

    name = "veth"
    description = "a veth pair into the host, which routes by IP (as Calico and Cilium do)"
    bridged = False
    not_measurable: Mapping[Metric, str] = {}

    def adopt(self, site: Site, guest: Guest) -> Guest:
        """Unchanged."""
        return guest

    def prepare(self, site: Site) -> tuple[Step, ...]:
        """Forwarding on, and routes to the guests of the other host over the uplink."""
        other, link = site.other, (site.netns, site.uplink)
        return (
            SetSysctl(site.netns, "net/ipv4/ip_forward", "1"),
            SetSysctl(site.netns, "net/ipv6/conf/all/forwarding", "1"),
            SetAddress(*link, f"{site.gateway_ipv4}/32"),
            SetAddress(*link, f"{site.gateway_ipv6}/128"),
            SetAddress(*link, f"{site.link_local}/64"),
            AddNeighbour(*link, other.gateway_ipv4, other.uplink_mac),
            AddNeighbour(*link, other.link_local, other.uplink_mac),
            AddRoute(site.netns, other.guests_ipv4, site.uplink, via=other.gateway_ipv4),
            AddRoute(site.netns, other.guests_ipv6, site.uplink, via=other.link_local),
        )

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The pair, host routes to the guest, the guest's default routes, all neighbours known."""
        port = self.host_interface(guest)
        inside, outside = (guest.netns, guest.interface), (site.netns, port)
        host_mac = site.port_mac(guest)
        return (
            AddVeth(
                site.netns,
                port,
                site.port_index(guest),
                host_mac,
                guest.netns,
                guest.interface,
                guest.mac,
                site.mtu_bytes,
            ),
            SetUp(*outside),
            SetUp(*inside),
            SetAddress(*outside, f"{_GATEWAY_IPV6}/64"),
            AddRoute(site.netns, f"{guest.ipv4}/32", port),
            AddRoute(site.netns, f"{guest.ipv6}/128", port),
            AddNeighbour(*outside, guest.ipv4, guest.mac),
            AddNeighbour(*outside, guest.ipv6, guest.mac),
            SetAddress(*inside, f"{guest.ipv4}/32"),
            SetAddress(*inside, f"{guest.ipv6}/128"),
            AddRoute(guest.netns, "0.0.0.0/0", guest.interface, via=site.gateway_ipv4),
            AddRoute(guest.netns, "::/0", guest.interface, via=_GATEWAY_IPV6),
            AddNeighbour(*inside, site.gateway_ipv4, host_mac),
            AddNeighbour(*inside, _GATEWAY_IPV6, host_mac),
        )

    def acquaint(self, site: Site, guest: Guest, peer: Guest) -> tuple[Step, ...]:
        """Nothing to do: the guest only ever talks to its host."""
        return ()

    def host_interface(self, guest: Guest) -> str:
        """The host's end of the pair."""
        return f"veth-{guest.label}"

    def next_hop_mac(self, site: Site, guest: Guest, peer: Guest) -> str:
        """The host's end of the pair."""
        return site.port_mac(guest)
