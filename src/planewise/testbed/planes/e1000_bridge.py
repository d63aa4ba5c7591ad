"""Plane `e1000-bridge`: an emulated Intel e1000 NIC of a virtual machine, on a bridge."""

from __future__ import annotations

from planewise.testbed.planes.vm import TapPlane


class E1000BridgePlane(TapPlane):
    """QEMU emulates the registers of a NIC: what runs on any guest, and slowest."""

    name = "e1000-bridge"
    rank = 70
    model = "e1000"
    differences = (
        "the NIC is emulated register by register, by QEMU's own thread; it has no kernel path "
        "(vhost)",
        "one queue of 256 descriptors each way; its driver limits interrupts by itself",
        "its driver always offers checksum and TSO offload, which QEMU carries out",
    )


PLANE = E1000BridgePlane()
