"""Plane `virtio-bridge`: a paravirtual NIC (virtio) of a virtual machine, on a bridge."""

from __future__ import annotations

from typing import ClassVar

from planewise.testbed.planes.vm import TapPlane


class VirtioBridgePlane(TapPlane):
    """The guest knows that its NIC is QEMU's: what libvirt does by default."""

    name = "virtio-bridge"
    functions: ClassVar = {"vm": ("kernel", "testpmd", "xdp")}
    rank = 71
    model = "virtio"


PLANE = VirtioBridgePlane()
