"""The switch of the functions' host, with the chain's functions as ports. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planewise.testbed.chains.ends import MTU_BYTES, Ends, accepted, mac_of, netns, port_mac
from planewise.testbed.chains.model import Chain
from planewise.testbed.model import GUEST_INTERFACE, Site
from planewise.testbed.plan import Step, add_tap, add_veth, await_up, set_up
from planewise.testbed.planes import plane
from planewise.testbed.planes.plane import Switch

_INDEX = 24_000


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
        add_veth("", port, _INDEX + number, port_mac(mac), inside, GUEST_INTERFACE, mac, MTU_BYTES),
        set_up(inside, GUEST_INTERFACE),
    ]
