"""What joins a chain's functions: its two ends, and the switch of the functions' host. Pure.

The generator sends from the first end, and frames come back to the second.

On one machine each is an end of a veth pair whose other end is a NIC of the functions' host; on two
hosts each is a VF of the sender's NIC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planewise.testbed.chains.model import Chain
from planewise.testbed.chains.routing import SOURCE, SOURCES, TARGET, TARGETS, mac_of, netns
from planewise.testbed.hosts.machine import Machine
from planewise.testbed.model import GUEST_INTERFACE, Guest, Site
from planewise.testbed.plan import (
    Step,
    accept_address,
    add_neighbour,
    add_route,
    add_veth,
    await_up,
    new_namespace,
    run_program,
    set_address,
    set_up,
)
from planewise.testbed.planes import plane
from planewise.testbed.planes.plane import Switch

PLACES = ("c", "d")
"""Namespaces of the ends: frames leave from the first, and come back to the second."""
MTU_BYTES = 1500
_NICS = ("up0", "up1")
_INDEX = 920


@dataclass(frozen=True)
class Ends:
    """Both ends of a chain."""

    macs: tuple[str, str]
    nics: tuple[str, str]
    """Interfaces of the functions' host by which frames come in and go back; may be one."""


CABLES = Ends((mac_of(0xF0), mac_of(0xF1)), _NICS)
"""The ends on one machine."""


def nics_of(machine: Machine) -> tuple[str, str]:
    """Interfaces by which frames come in to the functions' host, and go back."""
    return CABLES.nics if machine.netns else (machine.nic, machine.nic)


def cables(token: str) -> tuple[Step, ...]:
    """Makes the ends on one machine, from the functions' host."""
    steps: list[Step] = []
    for side, place in enumerate(PLACES):
        namespace, nic, mac = netns(token, place), _NICS[side], CABLES.macs[side]
        nic_mac = mac.replace(":0f:", ":1f:")
        steps += [
            *new_namespace(namespace),
            add_veth("", nic, _INDEX + side, nic_mac, namespace, GUEST_INTERFACE, mac, MTU_BYTES),
            set_up("", nic),
            set_up(namespace, GUEST_INTERFACE),
            await_up(namespace),
        ]
    return tuple(steps)


def accepted(functions: Mapping[int, Guest], ends: Ends) -> tuple[Step, ...]:
    """Lets the functions' host receive their frames where both ends use one NIC.

    A NIC with VFs passes the host frames only for addresses that were added.
    """
    if ends.nics[0] != ends.nics[1]:
        return ()
    return tuple(accept_address("", ends.nics[0], guest.mac) for guest in functions.values())


def addresses(token: str, chain: Chain, functions: Mapping[int, Guest]) -> tuple[Step, ...]:
    """Addresses and routes of the ends, for programs that communicate through the chain."""
    last = chain.vnfs if chain.through else 1
    steps: list[Step] = []
    for place, end_address, destination, hop in (
        (PLACES[0], SOURCE, TARGETS, functions[1]),
        (PLACES[1], TARGET, SOURCES, functions[last]),
    ):
        name = netns(token, place)
        steps += [
            set_address(name, GUEST_INTERFACE, f"{end_address}/32"),
            add_neighbour(name, GUEST_INTERFACE, hop.ipv4, hop.mac),
            add_route(name, destination, GUEST_INTERFACE, hop.ipv4),
        ]
        if chain.forwards == "xdp":
            # XDP forwards frames as they are: no later driver fills in a checksum.
            steps.append(run_program(name, ("ethtool", "-K", GUEST_INTERFACE, "tx", "off")))
    return tuple(steps)


def site_of(bridge: str, nics: tuple[str, str], queues: int = 1) -> Site:
    """The functions' host; its virtual machines have NICs with so many `queues`."""
    return Site("responder", "", bridge, MTU_BYTES, nics[0], bridge, queues=queues)


def kernel_switch(chain: Chain) -> Switch | None:
    """The switch that kernels of the functions' host and of its guests send to; None: another kind
    joins the functions."""
    return None if chain.plane == "vhost-user" else plane(chain.plane).switch


def add_nics(switch: Switch, site: Site, nics: tuple[str, str]) -> tuple[Step, ...]:
    """Makes the NICs ports of a chain's switch."""
    sites = (replace(site, nic=nic) for nic in dict.fromkeys(nics))
    return tuple(step for of_nic in sites for step in switch.add_nic(of_nic))


def entries(
    switch: Switch, site: Site, functions: Mapping[int, Guest], ends: Ends
) -> tuple[Step, ...]:
    """Static entries of a chain's switch, whose ports exist: no frame is ever flooded."""
    behind = [
        *zip(ends.nics, ends.macs, strict=True),
        *((guest.port, guest.mac) for guest in functions.values()),
    ]
    ready = (await_up("", nic) for nic in dict.fromkeys(ends.nics))
    return (
        *(switch.static_entry(site, port, mac) for port, mac in behind),
        *accepted(functions, ends),
        *ready,
    )
