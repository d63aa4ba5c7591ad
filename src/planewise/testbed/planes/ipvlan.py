"""Plane `ipvlan`: an interface on top of the NIC that shares its MAC and is told apart by IP."""

from __future__ import annotations

from dataclasses import replace

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step, ip, set_mtu
from planewise.testbed.planes.plane import Plane, on_link


class IpvlanPlane(Plane):
    """Layer 2 mode: as macvlan, for networks that allow one MAC a port."""

    name = "ipvlan"
    guests = ("namespace", "container")
    rank = 40
    on_uplink = True

    def adopt(self, site: Site, guest: Guest) -> Guest:
        """With the uplink's MAC, which all guests of the host share."""
        return replace(guest, mac=site.uplink_mac)

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The ipvlan, made right inside the guest."""
        return (
            ip(
                site.netns,
                f"link add link {site.uplink} name {guest.interface} netns {guest.netns} "
                "type ipvlan mode l2",
                other=guest.netns,
                feature="ipvlan",
            ),
            set_mtu(guest.netns, guest.interface, site.mtu_bytes),
            *on_link(guest),
        )


PLANE = IpvlanPlane()
