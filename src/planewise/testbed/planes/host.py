"""Plane `host`: no guest at all, the host's own network, as containers have it by `--network host`.

What the other planes cost beyond it is the price of having a network of one's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step
from planewise.testbed.planes.plane import Plane, on_link

if TYPE_CHECKING:
    from planewise.testbed.guests.kind import PlacedGuest
    from planewise.testbed.hosts.machine import MachineState


class HostPlane(Plane):
    """Programs run beside the NIC, which has the addresses that a guest would have."""

    name = "host"
    guests = ("namespace",)
    only = "it is the host itself"
    for_vms = ""
    rank = 5
    is_host = True
    quick = False
    on_uplink = True

    def adopt(self, site: Site, guest: Guest) -> Guest:
        """The host's namespace and NIC."""
        mac = site.uplink_mac
        return replace(guest, netns=site.netns, interface=site.uplink, mac=mac)

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """Addresses of the NIC."""
        return on_link(guest)

    def unplug(self, state: MachineState, placed: PlacedGuest) -> None:
        """Takes the addresses and what was said of the peer from the NIC."""
        guest = placed.guest
        for what in ("address", "neighbour"):
            for address, peers in ((guest.ipv4, "198.18.0.0/15"), (guest.ipv6, "2001:2::/48")):
                own = address if what == "address" else peers
                argv = ["ip", what, "flush", "dev", guest.interface, "to", own]
                permanent = ["nud", "permanent"] if what == "neighbour" else []
                state.host.run([*argv, *permanent], netns=guest.netns or None)


PLANE = HostPlane()
