"""The planes of virtual machines: their NIC, and what it is plugged into. Knows no libvirt.

The host's side (a tap or macvtap) is made by a plan, as for all other guests; the virtual machine
opens what is there. So a guest that is replaced finds its port as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planewise.errors import BadInputError, UnsupportedError
from planewise.store.models import Metric
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import AddForwarding, AddMacvtap, AddTap, SetMaster, SetMtu, SetUp, Step
from planewise.testbed.planes import ELSEWHERE
from planewise.testbed.planes.kinds import planes_of
from planewise.testbed.vms.domain import NicModel


@dataclass(frozen=True)
class VmPlane:
    """A way for a virtual machine's frames to reach the NIC."""

    name: str
    description: str
    model: NicModel
    port: Literal["tap", "macvtap"]
    differences: tuple[str, ...]
    """What differs from the other planes of virtual machines and cannot be made alike."""

    @property
    def bridged(self) -> bool:
        """Whether the host needs a bridge with the wire as a port."""
        return self.port == "tap"

    @property
    def not_measurable(self) -> Mapping[Metric, str]:
        """Metrics that do not exist for this plane: none, the host sees every frame."""
        return {}

    def attach(self, site: Site, guest: Guest, queues: int) -> tuple[Step, ...]:
        """The host side, for the virtual machine to open. It carries frames once that is done."""
        port = self.host_interface(guest)
        if self.port == "tap":
            return (
                AddTap(site.netns, port, site.port_mac(guest), site.mtu_bytes, queues),
                SetMaster(site.netns, port, site.uplink),
                SetUp(site.netns, port),
            )
        return (
            AddMacvtap(site.netns, site.uplink, port, guest.port_index, guest.mac),
            SetMtu(site.netns, port, site.mtu_bytes),
            SetUp(site.netns, port),
        )

    def acquaint(self, site: Site, guest: Guest, peer: Guest) -> tuple[Step, ...]:
        """Static forwarding entries: no frame is ever flooded. (Neighbours are the guest's own.)"""
        if site.uplink == site.nic:
            return ()
        towards = (AddForwarding(site.netns, site.nic, peer.mac),)
        if self.port == "tap":
            return (AddForwarding(site.netns, self.host_interface(guest), guest.mac), *towards)
        return towards

    def host_interface(self, guest: Guest) -> str:
        """The host side: tap or macvtap."""
        return f"{'tap' if self.port == 'tap' else 'mvt'}-{guest.label}"


_EMULATED = (
    "the NIC is emulated register by register, by QEMU's own thread; it has no kernel path (vhost)",
    "one queue of 256 descriptors each way; its driver limits interrupts by itself",
    "its driver always offers checksum and TSO offload, which QEMU carries out",
)
_NO_PORT = "frames go from the NIC to the macvtap by MAC address, past any bridge"

VM_PLANES: tuple[VmPlane, ...] = (
    VmPlane(
        "e1000-bridge",
        "an emulated Intel e1000 NIC of a virtual machine, on a bridge",
        "e1000",
        "tap",
        _EMULATED,
    ),
    VmPlane(
        "virtio-bridge",
        "a paravirtual NIC (virtio) of a virtual machine, on a bridge",
        "virtio",
        "tap",
        (),
    ),
    VmPlane(
        "macvtap-bridge",
        "a macvtap (bridge mode) on the NIC, opened as a tap by a virtual machine",
        "virtio",
        "macvtap",
        (_NO_PORT,),
    ),
)
"""Planes that attach a virtual machine to a NIC without help from hardware."""


def vm_plane(name: str) -> VmPlane:
    """The plane called `name`, for guests that are virtual machines.

    Raises:
        BadInputError: there is no such plane.
        UnsupportedError: there is, but not on this testbed.
    """
    for plane in VM_PLANES:
        if plane.name == name:
            return plane
    for other in ELSEWHERE:
        if other.name == name and name in planes_of("vm"):
            raise UnsupportedError(
                f"the plane {name} needs {other.description}, and the wire here is virtual",
                remedy=other.remedy,
            )
    raise BadInputError(
        f"virtual machines have no plane {name}",
        remedy=f"theirs are: {', '.join(plane.name for plane in VM_PLANES)}",
    )
