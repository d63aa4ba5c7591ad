"""Planes that attach virtual machines: what each is and needs. `testbed.vms` builds them."""

from __future__ import annotations

from typing import ClassVar

from planewise.testbed.planes.kinds import GuestKind
from planewise.testbed.planes.plane import Need, Plane

_VM = "compare it on hosts with virtual machines"
_VF = "use a NIC with SR-IOV"


class VmOnlyPlane(Plane):
    """A plane whose guests open a device: they are virtual machines."""

    guests: ClassVar[tuple[GuestKind, ...]] = ("vm",)
    needs: ClassVar[tuple[Need, ...]] = ("vm",)
    remedy = _VM

    def refusal(self, kind: GuestKind) -> str:
        """See `Plane.refusal`."""
        return "" if kind in self.guests else "it attaches a virtual machine"


class E1000BridgePlane(VmOnlyPlane):
    """An emulated NIC."""

    name = "e1000-bridge"
    description = "an emulated Intel e1000 NIC of a virtual machine, on a bridge"
    rank = 70


class VirtioBridgePlane(VmOnlyPlane):
    """A paravirtual NIC."""

    name = "virtio-bridge"
    description = "a paravirtual NIC (virtio) of a virtual machine, on a bridge"
    rank = 71
    functions = ("vm",)


class MacvtapBridgePlane(VmOnlyPlane):
    """A macvtap on the NIC."""

    name = "macvtap-bridge"
    description = "a macvtap (bridge mode) on the NIC, opened as a tap by a virtual machine"
    rank = 72
    remedy = f"{_VM}; macvlan is the same path for namespaces"

    def refusal(self, kind: GuestKind) -> str:
        """See `Plane.refusal`."""
        return "" if kind in self.guests else "it ends in a tap that a virtual machine opens"


class MacvtapVfPlane(VmOnlyPlane):
    """A macvtap on a VF."""

    name = "macvtap-vf"
    description = "a macvtap (passthrough mode) on a virtual function, opened by a virtual machine"
    rank = 73
    vfs = 1
    needs = ("sriov", "vm")
    remedy = f"{_VF}, on hosts with virtual machines"


class VfPassthroughPlane(VmOnlyPlane):
    """A VF that the guest drives by itself."""

    name = "vf-passthrough"
    description = "a virtual function given to a virtual machine whole (VFIO)"
    rank = 74
    functions = ("vm",)
    vfs = 1
    nic_within_host = True
    needs = ("sriov", "iommu", "vm")
    remedy = f"{_VF}, on hosts with virtual machines and an IOMMU"


class VhostUserPlane(VmOnlyPlane):
    """Shared memory with a switch in user space."""

    name = "vhost-user"
    description = "a DPDK switch (Open vSwitch) that shares memory with a virtual machine"
    guests = ("vm", "process")
    functions = ("process",)
    rank = 75
    needs = ("dpdk", "vm")
    remedy = (
        "install openvswitch-switch-dpdk and set hugepages aside, on hosts with virtual machines"
    )


PLANES: tuple[Plane, ...] = (
    E1000BridgePlane(),
    VirtioBridgePlane(),
    MacvtapBridgePlane(),
    MacvtapVfPlane(),
    VfPassthroughPlane(),
    VhostUserPlane(),
)
