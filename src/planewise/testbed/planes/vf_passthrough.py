"""Plane `vf-passthrough`: a virtual function passed through to a virtual machine (VFIO)."""

from __future__ import annotations

from typing import ClassVar

from planewise.testbed.planes.vm import VF_REMEDY, VIRTUAL_WIRE, VmPlane

UNSEEN = "the guest drives the VF itself: its frames pass the host by, which cannot see them"
"""Why a host cannot capture what a guest sends through a VF that is passed through."""


class VfPassthroughPlane(VmPlane):
    """The guest's own driver drives the VF; the host sees nothing of it."""

    name = "vf-passthrough"
    functions: ClassVar = {"vm": ("kernel", "testpmd", "xdp")}
    rank = 74
    vfs = 1
    nic_within_host = True
    local_refusal = VIRTUAL_WIRE
    needs = ("sriov", "iommu", "vm")
    remedy = f"{VF_REMEDY} and an IOMMU"
    not_measurable = {"overhead": UNSEEN, "response": UNSEEN}  # noqa: RUF012 - a ClassVar's value
    model = None
    passed_through = True
    device = ""
    differences = (
        "the guest's own driver drives the virtual function, with the queues, interrupts and "
        "offloads that it has",
        "its MAC address is the virtual function's",
        "all of the guest's memory is pinned, as the NIC writes into it",
    )


PLANE = VfPassthroughPlane()
