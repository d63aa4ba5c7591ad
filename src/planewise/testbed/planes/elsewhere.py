"""The planes that a namespace cannot use: what each needs instead. Knows no kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Elsewhere:
    """A plane that needs more than namespaces."""

    name: str
    description: str
    needs: str
    """Why a namespace cannot have it, as the rest of a sentence."""
    remedy: str


_VM = "compare it on the virtual lab (planewise lab up), or on hosts with virtual machines"
_VF = "use a NIC with SR-IOV, or the virtual lab (planewise lab up)"

ELSEWHERE: tuple[Elsewhere, ...] = (
    Elsewhere(
        "macvtap-bridge",
        "a macvtap (bridge mode) on the NIC, opened as a tap by a virtual machine",
        "it ends in a tap that a virtual machine opens, and a namespace has none",
        _VM,
    ),
    Elsewhere(
        "docker-bridge",
        "Docker's default network: a container on the bridge docker0",
        "it attaches a Docker container",
        "install Docker and start its daemon; the plane bridge is the same path for namespaces",
    ),
    Elsewhere(
        "vf",
        "the network device of an SR-IOV virtual function, moved into the guest",
        "it needs a virtual function of an SR-IOV NIC",
        _VF,
    ),
    Elsewhere(
        "e1000-bridge",
        "an emulated Intel e1000 NIC of a virtual machine, on a bridge",
        "it attaches a virtual machine",
        _VM,
    ),
    Elsewhere(
        "virtio-bridge",
        "a paravirtual NIC (virtio) of a virtual machine, on a bridge",
        "it attaches a virtual machine",
        _VM,
    ),
    Elsewhere(
        "macvtap-vf",
        "a macvtap (passthrough mode) on a virtual function, opened by a virtual machine",
        "it needs a virtual machine and a virtual function of an SR-IOV NIC",
        _VF,
    ),
    Elsewhere(
        "vf-passthrough",
        "a virtual function given to a virtual machine whole (VFIO)",
        "it needs a virtual machine, an IOMMU and a virtual function of an SR-IOV NIC",
        _VF,
    ),
    Elsewhere(
        "vhost-user",
        "a DPDK switch (Open vSwitch) that polls shared memory with a virtual machine",
        "it needs a virtual machine and a DPDK switch",
        "install openvswitch-switch-dpdk and set hugepages aside, on hosts with virtual machines",
    ),
)
