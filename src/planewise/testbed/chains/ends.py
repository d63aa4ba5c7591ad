"""What joins a chain's functions: its two ends, and the switch of the functions' host. Pure.

The generator sends from the first end, and frames come back to the second.

On one machine each is an end of a veth pair whose other end is a NIC of the functions' host; on two
hosts each is a VF of the sender's NIC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planewise.testbed.chains.model import Chain
from planewise.testbed.chains.routing import SOURCE, SOURCES, TARGET, TARGETS, address
from planewise.testbed.model import GUEST_INTERFACE, Site
from planewise.testbed.plan import (
    Step,
    accept_address,
    add_neighbour,
    add_route,
    add_tap,
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


def netns(token: str, place: str) -> str:
    """A namespace of a chain: `c` and `d` the ends, `v1`, `v2`, … the functions."""
    return f"pw-{token}-{place}"


def mac_of(number: int) -> str:
    """MAC of the `number`th function without a VF; `remove_traces` removes such from a NIC."""
    return f"02:70:77:0f:00:{number:02x}"


def macs_of(chain: Chain) -> dict[int, str]:
    """MACs of a chain's functions without VFs, by number."""
    return {number: mac_of(number) for number in chain.numbers}


def port_mac(mac: str) -> str:
    """MAC of the host's end of the veth pair whose other end has `mac`."""
    return mac.replace(":0f:", ":1f:")


@dataclass(frozen=True)
class Ends:
    """Both ends of a chain."""

    macs: tuple[str, str]
    nics: tuple[str, str]
    """Interfaces of the functions' host by which frames come in and go back; may be one."""


CABLES = Ends((mac_of(0xF0), mac_of(0xF1)), _NICS)
"""The ends on one machine."""


def cables(token: str) -> tuple[Step, ...]:
    """Makes the ends on one machine, from the functions' host."""
    steps: list[Step] = []
    for side, place in enumerate(PLACES):
        namespace, nic, mac = netns(token, place), _NICS[side], CABLES.macs[side]
        steps += [
            *new_namespace(namespace),
            add_veth(
                "", nic, _INDEX + side, port_mac(mac), namespace, GUEST_INTERFACE, mac, MTU_BYTES
            ),
            set_up("", nic),
            set_up(namespace, GUEST_INTERFACE),
            await_up(namespace),
        ]
    return tuple(steps)


def accepted(chain: Chain, ends: Ends) -> tuple[Step, ...]:
    """Lets the functions' host receive their frames where both ends use one NIC.

    A NIC with VFs passes the host frames only for addresses that were added.
    """
    if ends.nics[0] != ends.nics[1]:
        return ()
    return tuple(accept_address("", ends.nics[0], mac) for mac in macs_of(chain).values())


def addresses(token: str, chain: Chain, macs: Mapping[int, str]) -> tuple[Step, ...]:
    """Addresses and routes of the ends, for programs that communicate through the chain."""
    last = chain.vnfs if chain.through else 1
    steps: list[Step] = []
    for place, end_address, destination, number in (
        (PLACES[0], SOURCE, TARGETS, 1),
        (PLACES[1], TARGET, SOURCES, last),
    ):
        name = netns(token, place)
        steps += [
            set_address(name, GUEST_INTERFACE, f"{end_address}/32"),
            add_neighbour(name, GUEST_INTERFACE, address(number), macs[number]),
            add_route(name, destination, GUEST_INTERFACE, address(number)),
        ]
        if chain.forwards == "xdp":
            # XDP forwards frames as they are: no later driver fills in a checksum.
            steps.append(run_program(name, ("ethtool", "-K", GUEST_INTERFACE, "tx", "off")))
    return tuple(steps)


_PORT_INDEX = 24_000


def port_of(token: str, number: int) -> str:
    """The switch's port of the `number`th function."""
    return f"pw{token}f{number}"


def switch_of(chain: Chain) -> Switch:
    """The switch that the kernels of the functions' host and of its guests send to."""
    switch = plane(chain.plane).switch
    assert switch is not None, f"no switch on {chain.plane}"
    return switch


def site_of(bridge: str, ends: Ends, directory: str = "") -> Site:
    """The functions' host; `directory` is that of a switch that is a program."""
    return Site("responder", "", bridge, MTU_BYTES, ends.nics[0], bridge, directory=directory)


def ports(token: str, chain: Chain, site: Site, ends: Ends, queues: int = 1) -> tuple[Step, ...]:
    """The NICs and all functions as ports of the chain's switch; no frame is ever flooded.

    Namespaces must exist; virtual machines open the taps that this makes, with `queues` each.
    """
    switch = switch_of(chain)
    steps: list[Step] = []
    for nic in dict.fromkeys(ends.nics):
        steps += switch.add_nic(replace(site, nic=nic))
    steps += [
        switch.static_entry(site, nic, mac) for nic, mac in zip(ends.nics, ends.macs, strict=True)
    ]
    for number in chain.numbers:
        port, mac = port_of(token, number), mac_of(number)
        steps += [
            *_interface(token, chain, number, queues),
            switch.join(site, port),
            set_up("", port),
            switch.static_entry(site, port, mac),
        ]
    ready = (await_up("", nic) for nic in dict.fromkeys(ends.nics))
    return (*steps, *accepted(chain, ends), *ready)


def _interface(token: str, chain: Chain, number: int, queues: int) -> Sequence[Step]:
    port, mac = port_of(token, number), mac_of(number)
    if chain.kind == "vm":
        return list(add_tap("", port, port_mac(mac), MTU_BYTES, queues))
    inside = netns(token, f"v{number}")
    return [
        add_veth(
            "", port, _PORT_INDEX + number, port_mac(mac), inside, GUEST_INTERFACE, mac, MTU_BYTES
        ),
        set_up(inside, GUEST_INTERFACE),
    ]
