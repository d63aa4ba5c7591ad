"""Plane `macvlan`: an interface with a MAC of its own on top of the NIC, in bridge mode."""

from __future__ import annotations

from collections.abc import Mapping

from planewise.store.models import Metric
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import AddMacvlan, SetMtu, Step
from planewise.testbed.planes.plane import neighbours, on_link


class MacvlanPlane:
    """The NIC's driver hands frames to the guest's interface by MAC; the host has no port of it."""

    name = "macvlan"
    description = "a macvlan interface (bridge mode) on the NIC, moved into the guest"
    bridged = False
    not_measurable: Mapping[Metric, str] = {}

    def adopt(self, site: Site, guest: Guest) -> Guest:
        """Unchanged."""
        return guest

    def prepare(self, site: Site) -> tuple[Step, ...]:
        """Nothing: the uplink is there."""
        return ()

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The macvlan, made right inside the guest."""
        return (
            AddMacvlan(site.netns, site.uplink, guest.netns, guest.interface, guest.mac),
            SetMtu(guest.netns, guest.interface, site.mtu_bytes),
            *on_link(guest),
        )

    def acquaint(self, site: Site, guest: Guest, peer: Guest) -> tuple[Step, ...]:
        """Static neighbours."""
        return neighbours(guest, peer, peer.mac)

    def host_interface(self, guest: Guest) -> None:
        """There is none."""
        return

    def next_hop_mac(self, site: Site, guest: Guest, peer: Guest) -> str:
        """The peer itself."""
        return peer.mac
