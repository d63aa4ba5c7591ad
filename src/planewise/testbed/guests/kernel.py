"""Guests that share their host's kernel: network namespaces and Docker containers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from planewise.errors import PlanewiseError
from planewise.testbed.guests.docker import join_command, name_networks
from planewise.testbed.guests.kind import Guests, PlacedGuest
from planewise.testbed.hosts.signals import together
from planewise.testbed.plan import Step, await_up, new_namespace

_WORKERS = 2
"""Containers that a host starts at a time."""


class Namespaces(Guests):
    """Network namespaces: the cheapest guests, and what containers are to the network."""

    def create(self, placed: Sequence[PlacedGuest], steps: list[Step]) -> list[Step]:
        """Makes guests without an interface; returns the steps that are still to be performed."""
        return [
            *steps,
            *(
                step
                for one in placed
                if not one.plane.is_host
                for step in new_namespace(one.guest.netns)
            ),
        ]

    def prepare(self, placed: Sequence[PlacedGuest], steps: Sequence[Step]) -> None:
        state, steps = self.state, list(steps)
        if placed:
            steps = self.create(placed, steps)
        for name in dict.fromkeys(one.guest.plane for one in placed):
            group = [one for one in placed if one.guest.plane == name]
            if not group[0].plane.by_steps:
                state.host.perform(steps)
                steps = []
            steps += group[0].plane.plug(state, group[0].site, group)
        netns, nic = state.machine.netns, state.machine.nic
        if steps or placed:
            mains = (one.guest.netns for one in placed if one.guest.role == "main")
            ready = [*(await_up(name) for name in mains), await_up(netns, "" if netns else nic)]
            state.host.perform([*steps, *ready])
        for one in placed:
            one.ready = True

    def remove(self, placed: PlacedGuest) -> None:
        guest = placed.guest
        if placed.plane.on_uplink and not placed.plane.is_host:
            # The kernel deletes what a namespace had a moment after it, and the NIC is wanted now.
            words = ["ip", "-n", guest.netns, "link", "delete", guest.interface]
            self.state.host.run(words)
        with suppress(PlanewiseError):
            if not placed.socket:
                placed.plane.unplug(self.state, placed)
        with suppress(PlanewiseError):
            if not placed.plane.is_host:
                self.end(placed)

    def end(self, placed: PlacedGuest) -> None:
        """Ends a guest that has no interface any more."""
        self.state.host.run(["ip", "netns", "delete", placed.guest.netns])


class Containers(Namespaces):
    """Docker containers; a name in /run/netns makes their network a namespace's."""

    def create(self, placed: Sequence[PlacedGuest], steps: list[Step]) -> list[Step]:
        """Starts containers and names their network namespaces, after the steps."""
        state = self.state
        state.host.perform(steps)
        docker = state.docker

        def start(one: PlacedGuest) -> None:
            if one.plane.container_network:
                address = {"ipv4_address": one.guest.ipv4}
                docker.run(one.guest.netns, network=state.network, interface=address)
            else:
                docker.run(one.guest.netns)

        together([partial(start, one) for one in placed], _WORKERS)
        located = name_networks(state.host, docker, [one.guest.netns for one in placed])
        for one, container in zip(placed, located, strict=True):
            one.guest = replace(one.guest, mac=container.mac or one.guest.mac)
            state.host.joining[container.name] = partial(join_command, container)
        return []

    def end(self, placed: PlacedGuest) -> None:
        self.state.host.joining.pop(placed.guest.netns, None)
        self.state.docker.remove(placed.guest.netns)
        super().end(placed)

    def lost(self, placed: Sequence[PlacedGuest]) -> list[tuple[PlacedGuest, PlanewiseError]]:
        if not placed:
            return []
        reasons = self.state.docker.ended([one.guest.netns for one in placed])
        return [(one, reasons[one.guest.netns]) for one in placed if one.guest.netns in reasons]
