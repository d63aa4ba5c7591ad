"""The kernel's bridge of the functions' host, with the chain's functions as ports. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.testbed.chains.ends import MTU_BYTES, Ends, mac_of, netns, port_mac
from planewise.testbed.chains.model import Chain
from planewise.testbed.model import GUEST_INTERFACE
from planewise.testbed.plan import (
    AcceptAddress,
    AddBridge,
    AddForwarding,
    AddTap,
    AddVeth,
    AwaitUp,
    SetMaster,
    SetUp,
    Step,
)

_INDEX = 24_000
_MAC = mac_of(0xFF)


def port_of(token: str, number: int) -> str:
    """The bridge's port of the `number`th function."""
    return f"pw{token}f{number}"


def bridge(token: str, chain: Chain, name: str, ends: Ends, queues: int = 1) -> tuple[Step, ...]:
    """The bridge `name` with the NICs and all functions as ports; no frame is ever flooded.

    Namespaces must exist; virtual machines open the taps that this makes, with `queues` each.
    """
    steps: list[Step] = [AddBridge("", name, _MAC, MTU_BYTES), SetUp("", name)]
    steps += [SetMaster("", nic, name) for nic in dict.fromkeys(ends.nics)]
    steps += [AddForwarding("", nic, mac) for nic, mac in zip(ends.nics, ends.macs, strict=True)]
    shared = ends.nics[0] == ends.nics[1]
    for number in range(1, chain.vnfs + 1):
        port, mac = port_of(token, number), mac_of(number)
        steps += [
            *_interface(token, chain, number, queues),
            SetMaster("", port, name),
            SetUp("", port),
            AddForwarding("", port, mac),
            # A NIC with VFs passes the host frames only for addresses that were added.
            *([AcceptAddress("", ends.nics[0], mac)] if shared else []),
        ]
    return (*steps, *(AwaitUp("", nic) for nic in dict.fromkeys(ends.nics)))


def _interface(token: str, chain: Chain, number: int, queues: int) -> Sequence[Step]:
    port, mac = port_of(token, number), mac_of(number)
    if chain.kind == "vm":
        return [AddTap("", port, port_mac(mac), MTU_BYTES, queues)]
    inside = netns(token, f"v{number}")
    return [
        AddVeth("", port, _INDEX + number, port_mac(mac), inside, GUEST_INTERFACE, mac, MTU_BYTES),
        SetUp(inside, GUEST_INTERFACE),
    ]
