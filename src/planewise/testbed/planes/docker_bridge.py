"""Plane `docker-bridge`: a network of Docker's bridge driver, with the NIC a port of its bridge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import SetLinkAddress, Step
from planewise.testbed.planes.bridge import LinuxBridge
from planewise.testbed.planes.kinds import GuestKind
from planewise.testbed.planes.plane import Plane, neighbours

if TYPE_CHECKING:
    from planewise.testbed.machine import MachineState, PlacedGuest

_SUBNET = "198.18.0.0/15"


class DockerNetwork(LinuxBridge):
    """The bridge of a network of Docker's."""

    name = "docker-bridge"

    def interface(self, site: Site) -> str:
        return site.docker_bridge

    def steps(self, site: Site) -> tuple[Step, ...]:
        """None: Docker makes it."""
        return ()

    def create(self, here: MachineState, site: Site) -> tuple[Step, ...]:
        here.docker.add_network(
            here.network,
            self.interface(site),
            _SUBNET,
            f"198.{18 + site.number}.255.253",
            site.mtu_bytes,
        )
        return (SetLinkAddress(site.netns, self.interface(site), site.bridge_mac),)


class DockerBridgePlane(Plane):
    """What `docker run` gives a container, without address translation."""

    name = "docker-bridge"
    description = "Docker's default network: a container on the bridge docker0"
    guests = ("container",)
    rank = 50
    switch = DockerNetwork()
    container_network = True
    needs = ("docker",)
    remedy = "install docker.io; bridge is the same path for namespaces"

    def refusal(self, kind: GuestKind) -> str:
        return "" if kind in self.guests else "it attaches a Docker container"

    def plug(
        self, here: MachineState, site: Site, placed: Sequence[PlacedGuest]
    ) -> tuple[Step, ...]:
        """Nothing: Docker plugged its container in."""
        return ()

    def port(self, here: MachineState, guest: Guest) -> str:
        """The host's end of Docker's pair, which has a random name: found by its index."""
        host = here.host
        listed = host.run(["ip", "-n", guest.netns, "-json", "link", "show", guest.interface])
        index = listed.json()[0]["link_index"]
        for link in host.run(["ip", "-json", "link"]).json():
            if link["ifindex"] == index:
                return str(link["ifname"])
        return ""

    def introduce(self, site: Site, guest: Guest, peer: Guest, within: bool) -> tuple[Step, ...]:
        """The static neighbour by IPv4: Docker's network has no IPv6."""
        return neighbours(guest, peer, peer.mac)[:1]


PLANE = DockerBridgePlane()
