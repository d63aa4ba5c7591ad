"""What every plane says of itself. Knows no kernel: planes return steps, others apply them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from planewise.store.models import Metric
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import AddNeighbour, SetAddress, SetUp, Step


class Plane(Protocol):
    """A way for a guest's frames to reach the NIC."""

    @property
    def name(self) -> str:
        """As it is written on the command line."""

    @property
    def description(self) -> str:
        """One sentence."""

    @property
    def bridged(self) -> bool:
        """Whether the host needs a bridge with the wire as a port."""

    @property
    def not_measurable(self) -> Mapping[Metric, str]:
        """Metrics that do not exist for this plane, with the reason."""

    def adopt(self, site: Site, guest: Guest) -> Guest:
        """The guest as this plane makes it (a plane may impose its MAC)."""

    def prepare(self, site: Site) -> tuple[Step, ...]:
        """Once a host, before its guests."""

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """Once a guest, whose namespace exists: gives it its interface, addresses and routes."""

    def acquaint(self, site: Site, guest: Guest, peer: Guest) -> tuple[Step, ...]:
        """Makes addresses of `peer` (on the other host) known, so that none is looked up later."""

    def host_interface(self, guest: Guest) -> str | None:
        """The host side of the guest's attachment; None where the host has none."""

    def next_hop_mac(self, site: Site, guest: Guest, peer: Guest) -> str:
        """Destination MAC of the guest's frames to `peer`."""


def on_link(guest: Guest) -> tuple[Step, ...]:
    """Addresses of a guest that shares one layer-2 segment with all others, and its link up."""
    return (
        SetUp(guest.netns, guest.interface),
        SetAddress(guest.netns, guest.interface, f"{guest.ipv4}/15"),
        SetAddress(guest.netns, guest.interface, f"{guest.ipv6}/48"),
    )


def neighbours(guest: Guest, peer: Guest, mac: str) -> tuple[AddNeighbour, ...]:
    """Permanent entries in the guest: the peer's addresses are behind `mac`."""
    return (
        AddNeighbour(guest.netns, guest.interface, peer.ipv4, mac),
        AddNeighbour(guest.netns, guest.interface, peer.ipv6, mac),
    )
