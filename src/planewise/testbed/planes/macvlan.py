"""Plane `macvlan`: an interface with a MAC of its own on top of the NIC, in bridge mode."""

from __future__ import annotations

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step, ip, set_mtu
from planewise.testbed.planes.plane import Plane, on_link


class MacvlanPlane(Plane):
    """The NIC's driver hands frames to the guest's interface by MAC; the host has no port of it."""

    name = "macvlan"
    guests = ("namespace", "container")
    rank = 30
    on_uplink = True

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The macvlan, made right inside the guest."""
        return (
            ip(
                site.netns,
                f"link add link {site.uplink} name {guest.interface} netns {guest.netns} "
                f"address {guest.mac} type macvlan mode bridge",
                other=guest.netns,
                feature="macvlan",
            ),
            set_mtu(guest.netns, guest.interface, site.mtu_bytes),
            *on_link(guest),
        )


PLANE = MacvlanPlane()
