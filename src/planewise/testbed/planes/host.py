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
    rank = 5
    is_host = True
    quick = False
    on_uplink = True

    def adopt(self, site: Site, guest: Guest) -> Guest:
        """The host's namespace and NIC."""
        return replace(guest, netns=site.netns, interface=site.uplink, mac=site.uplink_mac)

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """Addresses of the NIC."""
        return on_link(guest)

    def unplug(self, state: MachineState, placed: PlacedGuest) -> None:
        """Removes its addresses and the peer's entries; the NIC's others are other planes'."""
        guest, peer = placed.guest, placed.peer
        words = [f"address delete {guest.ipv4}/15", f"address delete {guest.ipv6}/48"]
        if peer is not None:
            words += [f"neighbour delete {peer.ipv4}", f"neighbour delete {peer.ipv6}"]
        for one in words:
            argv = ["ip", *one.split(), "dev", guest.interface]
            state.host.run(argv, netns=guest.netns or None)


PLANE = HostPlane()
