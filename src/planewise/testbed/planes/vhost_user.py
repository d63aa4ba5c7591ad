"""Plane `vhost-user`: memory shared with a switch in user space; `testbed.chains` builds it."""

from __future__ import annotations

from typing import ClassVar

from planewise.testbed.planes.kinds import GuestKind
from planewise.testbed.planes.plane import Plane


class VhostUserPlane(Plane):
    """A DPDK switch polls; no kernel sees a frame."""

    name = "vhost-user"
    description = (
        "a DPDK switch (Open vSwitch) that shares memory with its guests; in chains of functions"
    )
    guests = ("vm", "process", "container")
    functions: ClassVar = {
        "process": ("testpmd",),
        "container": ("testpmd",),
        "vm": ("kernel", "testpmd", "xdp"),
    }
    rank = 75
    switch_is_program = True
    chains_only = "its switch polls on cores of its own, as functions of a chain have them"
    needs = ("dpdk",)
    remedy = "install openvswitch-switch-dpdk and dpdk-dev; planewise takes huge pages by itself"

    def refusal(self, kind: GuestKind) -> str:
        return (
            "" if kind in self.guests else "it shares memory with a program, and has no interface"
        )


PLANE = VhostUserPlane()
