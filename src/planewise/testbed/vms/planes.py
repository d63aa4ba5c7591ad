"""The planes of virtual machines: their NIC, and what it is plugged into. Knows no libvirt.

The host's side (a tap or macvtap) is made by a plan, as for all other guests; the virtual machine
opens what is there. So a guest that is replaced finds its port as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planewise.errors import BadInputError
from planewise.store.models import Metric
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import AddForwarding, AddMacvtap, AddTap, SetMaster, SetMtu, SetUp, Step
from planewise.testbed.vms.domain import NicModel


@dataclass(frozen=True)
class VmPlane:
    """A way for a virtual machine's frames to reach the NIC."""

    name: str
    description: str
    model: NicModel | None
    """What QEMU shows the guest; None: nothing, it sees the function that is passed through."""
    port: Literal["tap", "macvtap", "none"]
    """What the virtual machine opens on the host."""
    differences: tuple[str, ...]
    """What differs from the other planes of virtual machines and cannot be made alike."""
    takes_vf: bool = False
    """Whether each guest holds a VF of the NIC."""

    @property
    def bridged(self) -> bool:
        """Whether the host needs a bridge with the wire as a port."""
        return self.port == "tap"

    @property
    def passed_through(self) -> bool:
        """Whether the guest drives the VF itself, past the host."""
        return self.port == "none"

    @property
    def not_measurable(self) -> Mapping[Metric, str]:
        """Metrics that do not exist for this plane, with the reason."""
        return dict.fromkeys(("overhead", "response"), UNSEEN) if self.passed_through else {}

    def attach(
        self, site: Site, guest: Guest, queues: int, vf_interface: str = ""
    ) -> tuple[Step, ...]:
        """The host side, for the virtual machine to open. It carries frames once that is done.

        `vf_interface` is that of the guest's VF, where the plane is on one.
        """
        port = self.host_interface(guest)
        if self.port == "none":
            return ()
        if self.port == "tap":
            return (
                AddTap(site.netns, port, site.port_mac(guest), site.mtu_bytes, queues),
                SetMaster(site.netns, port, site.uplink),
                SetUp(site.netns, port),
            )
        if self.takes_vf:
            # The address is the VF's own: a macvtap that has all of an interface has its address.
            add = AddMacvtap(site.netns, vf_interface, port, guest.port_index, "", "passthru")
        else:
            add = AddMacvtap(site.netns, site.uplink, port, guest.port_index, guest.mac)
        return add, SetMtu(site.netns, port, site.mtu_bytes), SetUp(site.netns, port)

    def acquaint(self, site: Site, guest: Guest, peer: Guest) -> tuple[Step, ...]:
        """Static forwarding entries: no frame is ever flooded. (Neighbours are the guest's own.)"""
        if site.uplink == site.nic or self.takes_vf:
            return ()
        towards = (AddForwarding(site.netns, site.nic, peer.mac),)
        if self.port == "tap":
            return (AddForwarding(site.netns, self.host_interface(guest), guest.mac), *towards)
        return towards

    def host_interface(self, guest: Guest) -> str:
        """The host side, tap or macvtap; empty where there is none."""
        if self.port == "none":
            return ""
        return guest.port or f"{'tap' if self.port == 'tap' else 'mvt'}-{guest.label}"


UNSEEN = "the guest drives the VF itself: its frames pass the host by, which cannot see them"
"""Why a host cannot capture what a guest sends through a VF that is passed through."""

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

VF_PLANES: tuple[VmPlane, ...] = (
    VmPlane(
        "macvtap-vf",
        "a macvtap (passthrough mode) on a virtual function, opened by a virtual machine",
        "virtio",
        "macvtap",
        (
            "frames go from the macvtap to a virtual function, past any bridge of the host",
            "its MAC address is the virtual function's",
        ),
        takes_vf=True,
    ),
    VmPlane(
        "vf-passthrough",
        "a virtual function given to a virtual machine whole (VFIO)",
        None,
        "none",
        (
            "the guest's own driver drives the virtual function, with the queues, interrupts and "
            "offloads that it has",
            "its MAC address is the virtual function's",
            "all of the guest's memory is pinned, as the NIC writes into it",
        ),
        takes_vf=True,
    ),
)
"""Planes that give a virtual machine a VF of the NIC."""


def vm_plane(name: str) -> VmPlane:
    """The plane called `name`, for guests that are virtual machines.

    Raises:
        BadInputError: there is no such plane.
    """
    for plane in (*VM_PLANES, *VF_PLANES):
        if plane.name == name:
            return plane
    raise BadInputError(
        f"virtual machines have no plane {name}",
        remedy=f"theirs are: {', '.join(plane.name for plane in (*VM_PLANES, *VF_PLANES))}",
    )
