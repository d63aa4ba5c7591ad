"""XDP of an interface: its driver's features, by the kernel, and a program that routes."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path
from typing import Literal

from planewise.testbed.plan import Step, run_program

NATIVE, SENDS = 1, 4
"""Bits of NETDEV_A_DEV_XDP_FEATURES (include/uapi/linux/netdev.h, Linux 6.3)."""
_NETLINK_GENERIC, _CONTROL = 16, 16
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_DEV_GET, _IFINDEX, _XDP_FEATURES = 1, 1, 3


def xdp_features(interface: str) -> int | None:
    """XDP features of an interface of this namespace; None: unknown to the kernel."""
    try:
        index = struct.pack("=I", socket.if_nametoindex(interface))
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_GENERIC) as netlink:
            family = _ask(netlink, _CONTROL, _GET_FAMILY, _FAMILY_NAME, b"netdev\0\0")[_FAMILY_ID]
            number = int.from_bytes(family, sys.byteorder)
            features = _ask(netlink, number, _DEV_GET, _IFINDEX, index)[_XDP_FEATURES]
    except (OSError, KeyError, struct.error):
        return None
    return int.from_bytes(features, sys.byteorder)


def _ask(
    netlink: socket.socket, family: int, command: int, key: int, value: bytes
) -> dict[int, bytes]:
    """The attributes of the answer to a request with one attribute (Linux, netlink/intro)."""
    content = struct.pack("=BBHHH", command, 1, 0, 4 + len(value), key) + value
    netlink.send(struct.pack("=IHHII", 16 + len(content), family, 1, 0, 0) + content)
    answer = netlink.recv(65_536)
    found, start = {}, 20
    while start < len(answer):
        length, kind = struct.unpack_from("=HH", answer, start)
        found[kind] = answer[start + 4 : start + length]
        start += (length + 3) & ~3
    return found


def generator_text(driver: str, features: int | None) -> str:
    """Which of the kernel's generators can send by a NIC, else why not. Pure."""
    if features is None:
        return "not known: Linux says it from 6.3 on"
    if not features & NATIVE:
        return f"live frames through the network stack (live-skb): {driver} has no XDP of its own"
    if features & SENDS:
        return "live frames"
    return f"live frames once an XDP program is attached ({driver} takes none before)"


_OBJECTS = Path(__file__).parents[1] / "bpf"
XDP_ROUTER = _OBJECTS / "router.bpf.o"
"""Routes by the kernel's routes and neighbours; passes other frames to the kernel."""
XDP_PASS = _OBJECTS / "pass.bpf.o"
"""Passes every frame to the kernel: for the peer of a veth interface whose program sends."""


def attach(
    netns: str, interface: str, program: Path | str, mode: Literal["xdp", "xdpdrv"] = "xdpdrv"
) -> Step:
    """Attaches a program to an interface, in place of an earlier one. Pure.

    `xdpdrv`: by its driver; `xdp`: by its driver, or by the kernel where the driver has no XDP.
    """
    words = ("ip", "-force", "link", "set", "dev", interface, mode)
    return run_program(netns, (*words, "obj", str(program), "sec", "xdp"))
