"""A DPDK switch's way to the outside on one machine: two veth pairs to the generator.

One pair carries frames into the switch, the other what it gives back. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from planewise.testbed.chains.switch import Flow, Port
from planewise.testbed.plan import AddVeth, AwaitUp, Plan, SetUp, Step, new_namespace

Driver = Literal["af_packet", "af_xdp"]

TX, RX = "tx0", "rx0"
"""The generator's ends."""
IN, OUT = "up0", "up1"
"""The switch's ports."""
_INTERFACES = ("uin", "uout")
END_MACS = ("02:70:77:42:00:f0", "02:70:77:42:00:f1")
"""Of the generator's ends; frames come back for the second."""
BACK_MAC = END_MACS[1]
_FIRST_NUMBER = 200
_MTU_BYTES = 1500
_INDEX = 920

_DEVICES: Mapping[Driver, str] = MappingProxyType(
    {
        "af_packet": "net_af_packet{number},iface={interface},framecnt=4096,blocksz=65536,"
        "qdisc_bypass=1",
        "af_xdp": "net_af_xdp{number},iface={interface}",
    }
)
"""Devices of DPDK over an interface of the kernel's. A packet socket's default ring holds 512."""


def mac_of(number: int) -> str:
    """By which the switch knows what is for the `number`th function; a function takes any."""
    return f"02:70:77:42:00:{number:02x}"


def ends_of(token: str) -> str:
    """The generator's namespace."""
    return f"pw-{token}-g"


def plan(token: str, switch: str) -> Plan:
    """The generator's namespace, and both pairs into that of the switch."""
    ends = ends_of(token)
    steps: list[Step] = [*new_namespace(ends)]
    for side, (interface, end) in enumerate(zip(_INTERFACES, (TX, RX), strict=True)):
        mac = END_MACS[side].replace("42:00", "43:00")
        steps += [
            AddVeth(switch, interface, _INDEX + side, mac, ends, end, END_MACS[side], _MTU_BYTES),
            SetUp(switch, interface),
            SetUp(ends, end),
        ]
    return Plan((*steps, AwaitUp(switch), AwaitUp(ends)))


def ports(driver: Driver, cpus: tuple[int, ...]) -> tuple[Port, ...]:
    """The switch's ports, polled by these CPUs in turn."""
    return tuple(
        Port(
            name,
            _FIRST_NUMBER + side,
            "dpdk",
            {"dpdk-devargs": _DEVICES[driver].format(number=side, interface=interface)},
            cpus[side % len(cpus)],
        )
        for side, (name, interface) in enumerate(zip((IN, OUT), _INTERFACES, strict=True))
    )


def entry(number: int, name: str) -> Flow:
    """What the generator sends for the `number`th function goes there."""
    return Flow(IN, name, to_mac=mac_of(number))
