"""Plane `ipvlan`: an interface on top of the NIC that shares its MAC and is told apart by IP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planewise.store.models import Metric
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import AddIpvlan, SetMtu, Step
from planewise.testbed.planes.plane import neighbours, on_link


class IpvlanPlane:
    """Layer 2 mode: as macvlan, for networks that allow one MAC a port."""

    name = "ipvlan"
    description = (
        "an ipvlan interface (L2 mode) on the NIC, moved into the guest; it shares its MAC"
    )
    bridged = False
    not_measurable: Mapping[Metric, str] = {}

    def adopt(self, site: Site, guest: Guest) -> Guest:
        """With the uplink's MAC, which all guests of the host share."""
        return replace(guest, mac=site.uplink_mac)

    def prepare(self, site: Site) -> tuple[Step, ...]:
        """Nothing: the uplink is there."""
        return ()

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The ipvlan, made right inside the guest."""
        return (
            AddIpvlan(site.netns, site.uplink, guest.netns, guest.interface),
            SetMtu(guest.netns, guest.interface, site.mtu_bytes),
            *on_link(guest),
        )

    def acquaint(self, site: Site, guest: Guest, peer: Guest) -> tuple[Step, ...]:
        """Static neighbours."""
        return neighbours(guest, peer, site.other.uplink_mac)

    def host_interface(self, guest: Guest) -> None:
        """There is none."""
        return

    def next_hop_mac(self, site: Site, guest: Guest, peer: Guest) -> str:
        """The other host's NIC: its MAC is that of all its guests."""
        return site.other.uplink_mac
