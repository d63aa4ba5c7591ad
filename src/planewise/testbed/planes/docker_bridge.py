"""Plane `docker-bridge`: a network of Docker's bridge driver, with the NIC a port of its bridge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step, ip
from planewise.testbed.planes.bridge import LinuxBridge
from planewise.testbed.planes.plane import Plane, neighbours

if TYPE_CHECKING:
    from planewise.testbed.guests.kind import PlacedGuest
    from planewise.testbed.hosts.machine import MachineState

_SUBNET = "198.18.0.0/15"


class DockerNetwork(LinuxBridge):
    """The bridge of a Docker network."""

    name = "docker-bridge"

    def interface(self, site: Site) -> str:
        return site.docker_bridge

    def steps(self, site: Site) -> tuple[Step, ...]:
        """No steps: Docker makes the bridge."""
        return ()

    def create(self, state: MachineState, site: Site) -> tuple[Step, ...]:
        state.docker.add_network(
            state.network,
            self.interface(site),
            _SUBNET,
            f"198.{18 + site.number}.255.253",
            site.mtu_bytes,
        )
        return (ip(site.netns, f"link set {self.interface(site)} address {site.bridge_mac}"),)


class DockerBridgePlane(Plane):
    """What `docker run` gives a container, without address translation."""

    name = "docker-bridge"
    guests = ("container",)
    rank = 50
    switch = DockerNetwork()
    container_network = True
    needs = ("docker",)
    remedy = "install docker.io; bridge is the same path for namespaces"

    def plug(
        self, state: MachineState, site: Site, placed: Sequence[PlacedGuest]
    ) -> tuple[Step, ...]:
        """No steps: Docker attaches its containers."""
        return ()

    def port(self, state: MachineState, guest: Guest) -> str:
        """The host's end of Docker's veth pair; its name is random, so that its index tells."""
        host = state.host
        show = ["ip", "-n", guest.netns, "-json", "link", "show", guest.interface]
        index = host.run(show).json()[0]["link_index"]
        links = host.run(["ip", "-json", "link"]).json()
        return next((str(link["ifname"]) for link in links if link["ifindex"] == index), "")

    def static_neighbours(
        self, site: Site, guest: Guest, peer: Guest, within: bool
    ) -> tuple[Step, ...]:
        """The static neighbour by IPv4: Docker's network has no IPv6."""
        return neighbours(guest, peer, peer.mac)[:1]


PLANE = DockerBridgePlane()
