"""Plane `bridge`: a veth pair whose host end is a port of a Linux bridge, with the NIC another."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from planewise.testbed.model import Guest, GuestKind, Site
from planewise.testbed.plan import (
    Step,
    add_bridge,
    add_forwarding,
    ip,
    set_master,
    set_up,
)
from planewise.testbed.planes.plane import Plane, Switch, neighbours, on_link, veth_pair

if TYPE_CHECKING:
    from planewise.testbed.guests.kind import PlacedGuest
    from planewise.testbed.hosts.machine import MachineState


class LinuxBridge(Switch):
    """A bridge of the host's kernel."""

    name = "bridge"

    def steps(self, site: Site) -> tuple[Step, ...]:
        return (
            add_bridge(site.netns, site.bridge, site.bridge_mac, site.mtu_bytes),
            set_up(site.netns, site.bridge),
        )

    def add_nic(self, site: Site) -> tuple[Step, ...]:
        return (set_master(site.netns, site.nic, self.interface(site)),)

    def release_nic(self, site: Site) -> tuple[Step, ...]:
        return (ip(site.netns, f"link set {site.nic} nomaster"),)

    def join(self, site: Site, port: str) -> Step:
        return set_master(site.netns, port, self.interface(site))

    def leave(self, state: MachineState, port: str) -> None:
        """Nothing: a port that is deleted leaves the bridge."""

    def static_entry(self, site: Site, port: str, mac: str) -> Step:
        return add_forwarding(site.netns, port, mac)


class BridgePlane(Plane):
    """The Linux bridge switches by MAC address: what Docker and libvirt do by default."""

    name = "bridge"
    guests: ClassVar[tuple[GuestKind, ...]] = ("namespace", "container", "process")
    functions: ClassVar = {"process": ("kernel", "xdp"), "container": ("kernel", "xdp")}
    rank = 20
    switch: ClassVar[Switch] = LinuxBridge()
    learns_on_servers: ClassVar[bool] = True
    """Whether a server's switch learns addresses, instead of being told."""

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The pair, its host end a port, and the guest's addresses on the shared segment."""
        port = self.host_interface(guest)
        return (
            veth_pair(site, guest, port),
            self.switch.join(site, port),
            set_up(site.netns, port),
            *on_link(guest),
        )

    def unplug(self, state: MachineState, placed: PlacedGuest) -> None:
        self.switch.leave(state, self.host_interface(placed.guest))

    def static_neighbours(
        self, site: Site, guest: Guest, peer: Guest, within: bool
    ) -> tuple[Step, ...]:
        """Static neighbours and static entries of the switch against flooding.

        A server's bridge learns instead: a NIC that joins a bridge with static entries stops to
        receive for their addresses (`br_fdb_unsync_static`), also where it was told to (VFs).
        """
        entries = neighbours(guest, peer, peer.mac)
        if self.learns_on_servers and not site.netns:
            return entries
        port = self.host_interface(guest)
        return (*entries, *self.switch.entries(site, port, guest, peer, within))

    def host_interface(self, guest: Guest) -> str:
        """The bridge port."""
        return guest.port


PLANE = BridgePlane()
