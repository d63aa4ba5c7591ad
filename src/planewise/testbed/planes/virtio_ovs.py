"""Plane `virtio-ovs`: a paravirtual NIC (virtio) of a virtual machine, on an Open vSwitch."""

from __future__ import annotations

from typing import ClassVar

from planewise.testbed.planes.ovs import OpenVswitchBridge
from planewise.testbed.planes.vm import VM_REMEDY, TapPlane


class VirtioOvsPlane(TapPlane):
    """What OpenStack gives a virtual machine, without its flows."""

    name = "virtio-ovs"
    functions: ClassVar = {"vm": ("kernel", "testpmd", "xdp")}
    rank = 71
    model = "virtio"
    switch = OpenVswitchBridge()
    switch_is_program = True
    needs = ("vm", "ovs")
    remedy = f"{VM_REMEDY} and Open vSwitch"


PLANE = VirtioOvsPlane()
