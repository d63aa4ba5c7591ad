"""Plane `bridge`: a veth pair whose host end is a port of a Linux bridge, with the wire another."""

from __future__ import annotations

from collections.abc import Mapping

from planewise.store.models import Metric
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import AddForwarding, AddVeth, SetMaster, SetUp, Step
from planewise.testbed.planes.plane import neighbours, on_link


class BridgePlane:
    """The Linux bridge switches by MAC address: what Docker and libvirt do by default."""

    name = "bridge"
    description = "a veth pair into a Linux bridge that has the NIC as a port"
    bridged = True
    not_measurable: Mapping[Metric, str] = {}

    def adopt(self, site: Site, guest: Guest) -> Guest:
        """Unchanged."""
        return guest

    def prepare(self, site: Site) -> tuple[Step, ...]:
        """Nothing beyond the bridge itself."""
        return ()

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The pair, its host end enslaved, and the guest's addresses on the shared segment."""
        port = self.host_interface(guest)
        return (
            AddVeth(
                site.netns,
                port,
                site.port_index(guest),
                site.port_mac(guest),
                guest.netns,
                guest.interface,
                guest.mac,
                site.mtu_bytes,
            ),
            SetMaster(site.netns, port, site.uplink),
            SetUp(site.netns, port),
            *on_link(guest),
        )

    def acquaint(self, site: Site, guest: Guest, peer: Guest) -> tuple[Step, ...]:
        """Static neighbours, and static forwarding entries: no frame is ever flooded."""
        return (
            *neighbours(guest, peer, peer.mac),
            AddForwarding(site.netns, self.host_interface(guest), guest.mac),
            AddForwarding(site.netns, site.nic, peer.mac),
        )

    def host_interface(self, guest: Guest) -> str:
        """The bridge port."""
        return guest.port or f"veth-{guest.label}"

    def next_hop_mac(self, site: Site, guest: Guest, peer: Guest) -> str:
        """The peer itself."""
        return peer.mac
