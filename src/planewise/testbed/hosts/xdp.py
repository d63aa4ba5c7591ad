"""XDP of an interface: its driver's features, by the kernel, and a program that routes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

from pyroute2.netlink import NLM_F_REQUEST, genlmsg
from pyroute2.netlink.generic import GenericNetlinkSocket

from planewise.testbed.plan import RunProgram

DEV_GET = 1
"""Request and attributes of the family `netdev` (include/uapi/linux/netdev.h, Linux 6.3)."""

NATIVE, REDIRECTS, SENDS, ZERO_COPY = 1, 2, 4, 8
"""Bits of NETDEV_A_DEV_XDP_FEATURES."""


class _Device(genlmsg):  # type: ignore[misc]  # pyroute2 has no types
    nla_map = (
        ("NETDEV_A_DEV_UNSPEC", "none"),
        ("NETDEV_A_DEV_IFINDEX", "uint32"),
        ("NETDEV_A_DEV_PAD", "none"),
        ("NETDEV_A_DEV_XDP_FEATURES", "uint64"),
    )


def xdp_features(interface: str) -> int | None:
    """XDP features of an interface of this namespace; None: unknown to the kernel."""
    request = _Device()
    request["cmd"], request["version"] = DEV_GET, 1
    try:
        request["attrs"] = [("NETDEV_A_DEV_IFINDEX", socket.if_nametoindex(interface))]
        with GenericNetlinkSocket() as netlink:
            netlink.bind("netdev", _Device)
            (answer,) = netlink.nlm_request(request, msg_type=netlink.prid, msg_flags=NLM_F_REQUEST)
    except Exception:  # pyroute2 raises many kinds; all mean that it is not known
        return None
    features = answer.get_attr("NETDEV_A_DEV_XDP_FEATURES")
    return None if features is None else int(features)


def generator_text(driver: str, features: int | None) -> str:
    """Which of the kernel's generators can send by a NIC, else why not. Pure."""
    if features is None:
        return "not known: Linux says it from 6.3 on"
    if not features & NATIVE:
        return f"AF_XDP with copies only: {driver} has no XDP of its own"
    live = (
        "live frames"
        if features & SENDS
        else f"live frames once an XDP program is attached ({driver} takes none before)"
    )
    return f"{live}; AF_XDP {'without copies' if features & ZERO_COPY else 'with copies'}"


_OBJECTS = Path(__file__).parents[1] / "bpf"
XDP_ROUTER = _OBJECTS / "router.bpf.o"
"""Routes by the kernel's routes and neighbours; passes other frames to the kernel."""
XDP_PASS = _OBJECTS / "pass.bpf.o"
"""Passes every frame to the kernel: for the peer of a veth interface whose program sends."""


def attach(
    netns: str, interface: str, program: Path | str, mode: Literal["xdp", "xdpdrv"] = "xdpdrv"
) -> RunProgram:
    """Attaches a program to an interface, in place of an earlier one. Pure.

    `xdpdrv`: by its driver; `xdp`: by its driver, or by the kernel where the driver has no XDP.
    """
    words = ("ip", "-force", "link", "set", "dev", interface, mode)
    return RunProgram(netns, (*words, "obj", str(program), "sec", "xdp"))
