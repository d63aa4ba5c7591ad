"""The planes that a namespace cannot use: what each needs instead. Knows no kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Need = Literal["sriov", "vm", "docker", "iommu", "dpdk"]


@dataclass(frozen=True)
class Elsewhere:
    """A plane that needs more than namespaces."""

    name: str
    description: str
    needs: tuple[Need, ...]
    why: str
    """Why a namespace cannot have it, as the rest of a sentence."""
    remedy: str


_VM = "compare it on hosts with virtual machines"
_VF = "use a NIC with SR-IOV"

ELSEWHERE: tuple[Elsewhere, ...] = (
    Elsewhere(
        "macvtap-bridge",
        "a macvtap (bridge mode) on the NIC, opened as a tap by a virtual machine",
        ("vm",),
        "it ends in a tap that a virtual machine opens, and guests here are namespaces",
        f"{_VM}; macvlan is the same path for namespaces",
    ),
    Elsewhere(
        "docker-bridge",
        "Docker's default network: a container on the bridge docker0",
        ("docker",),
        "it attaches a Docker container, and guests here are namespaces",
        "bridge is the same path for namespaces",
    ),
    Elsewhere(
        "vf",
        "the network device of an SR-IOV virtual function, moved into the guest",
        ("sriov",),
        "its virtual functions belong to a real NIC, and the wire here is virtual",
        _VF,
    ),
    Elsewhere(
        "e1000-bridge",
        "an emulated Intel e1000 NIC of a virtual machine, on a bridge",
        ("vm",),
        "it attaches a virtual machine, and guests here are namespaces",
        _VM,
    ),
    Elsewhere(
        "virtio-bridge",
        "a paravirtual NIC (virtio) of a virtual machine, on a bridge",
        ("vm",),
        "it attaches a virtual machine, and guests here are namespaces",
        _VM,
    ),
    Elsewhere(
        "macvtap-vf",
        "a macvtap (passthrough mode) on a virtual function, opened by a virtual machine",
        ("sriov", "vm"),
        "it attaches a virtual machine, and guests here are namespaces",
        f"{_VF}, on hosts with virtual machines",
    ),
    Elsewhere(
        "vf-passthrough",
        "a virtual function given to a virtual machine whole (VFIO)",
        ("sriov", "iommu", "vm"),
        "it attaches a virtual machine, and guests here are namespaces",
        f"{_VF}, on hosts with virtual machines and an IOMMU",
    ),
    Elsewhere(
        "vhost-user",
        "a DPDK switch (Open vSwitch) that shares memory with a virtual machine",
        ("dpdk", "vm"),
        "it attaches a virtual machine, and guests here are namespaces",
        "install openvswitch-switch-dpdk and set hugepages aside, on hosts with virtual machines",
    ),
)
