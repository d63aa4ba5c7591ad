"""Guests that are Docker containers; a name in /run/netns makes their network a namespace's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from planewise.testbed.guests.docker import GUEST_MIB, Container, join_command, name_networks
from planewise.testbed.hosts.forwarding import ForwardingHost
from planewise.testbed.hosts.host import Host, HostProcess
from planewise.testbed.hosts.machine import MachineState, PlacedGuest, Resources
from planewise.testbed.hosts.together import together
from planewise.testbed.model import Guest
from planewise.testbed.plan import Step
from planewise.testbed.planes import plane

_WORKERS = 2
"""Containers that a host starts at a time."""


class ContainerMaker:
    """See `GuestMaker`."""

    memory_mib = GUEST_MIB
    waits = True

    def lacking(self, resources: Resources) -> str:
        return "" if resources.dockerd else f"there is no Docker on {resources.place}"

    def steps(self, guest: Guest) -> tuple[Step, ...]:
        """No steps: Docker makes it."""
        return ()

    def create(self, state: MachineState, guests: Sequence[Guest]) -> list[PlacedGuest]:
        """Starts containers and names their network namespaces."""
        docker = state.docker

        def start(guest: Guest) -> None:
            if plane(guest.plane).container_network:
                address = {"ipv4_address": guest.ipv4}
                docker.run(guest.netns, network=state.network, interface=address)
            else:
                docker.run(guest.netns)

        together([partial(start, guest) for guest in guests], _WORKERS)
        located = name_networks(state.host, docker, [guest.netns for guest in guests])
        return [
            PlacedGuest(replace(guest, mac=container.mac or guest.mac), container=container)
            for guest, container in zip(guests, located, strict=True)
        ]

    def remove(self, state: MachineState, placed: PlacedGuest) -> None:
        """Ends the container and removes its namespace's name."""
        if placed.container is not None:
            state.docker.remove(placed.container.name)
        state.host.run(["ip", "netns", "delete", placed.guest.netns])


class JoiningHost(ForwardingHost):
    """A host whose processes join the control groups of the container whose network they enter.

    They are in the container as far as its network and its share of CPU and memory go; their files
    are the host's, as results are written there.
    """

    def __init__(self, host: Host, containers: Mapping[str, Container]) -> None:
        super().__init__(host)
        self._containers = containers

    def start(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> HostProcess:
        argv, netns = self.command(argv, netns)
        return super().start(argv, netns=netns, stdin=stdin, expected_s=expected_s)

    def command(self, argv: Sequence[str], netns: str | None) -> tuple[Sequence[str], str | None]:
        """The command, and the namespace to start it in, that run `argv` in a namespace."""
        if netns is None or netns not in self._containers:
            return argv, netns
        return join_command(self._containers[netns], netns, argv), None

    def entering(self, argv: Sequence[str], netns: str) -> Sequence[str]:
        command, outer_netns = self.command(argv, netns)
        return command if outer_netns is None else super().entering(argv, netns)

    def close(self) -> None:
        """Nothing: the host belongs to its testbed."""
