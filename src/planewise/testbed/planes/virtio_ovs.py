"""Plane `virtio-ovs`: a paravirtual NIC (virtio) of a virtual machine, on an Open vSwitch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from planewise.testbed.planes.ovs import OpenVswitchBridge, lacking
from planewise.testbed.planes.vm import VM_REMEDY, TapPlane

if TYPE_CHECKING:
    from planewise.testbed.hosts.host import Host
    from planewise.testbed.hosts.machine import Resources


class VirtioOvsPlane(TapPlane):
    """What OpenStack gives a virtual machine, without its flows."""

    name = "virtio-ovs"
    description = "a paravirtual NIC (virtio) of a virtual machine, on an Open vSwitch without DPDK"
    functions: ClassVar = {"vm": ("kernel", "testpmd", "xdp")}
    rank = 71
    model = "virtio"
    switch = OpenVswitchBridge()
    switch_is_program = True
    needs = ("vm", "ovs")
    remedy = f"{VM_REMEDY} and Open vSwitch"

    def lacking(self, resources: Resources) -> str:
        return lacking(resources)

    def remarks(self, host: Host, *, local: bool) -> tuple[str, ...]:
        return self.switch.remarks(host, local=local)


PLANE = VirtioOvsPlane()
