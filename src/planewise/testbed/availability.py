"""Which planes this machine can build, by trial builds."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.store.models import PlaneAvailability
from planewise.testbed.chains.functions import PROGRAM as TESTPMD
from planewise.testbed.guests.vms import platform as vms
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.steering import may_steer
from planewise.testbed.planes import PLANES, Plane
from planewise.testbed.setting import Setting
from planewise.testbed.switches.dpdk_switch import PROGRAM as OVS
from planewise.testbed.testbed import local_testbed

_DPDK_PROGRAMS = {"Open vSwitch with DPDK": OVS, "dpdk-testpmd": TESTPMD}
"""Programs of a chain on vhost-user, by their usual names."""


def try_planes(
    lacking: Mapping[str, str], refused: UnsupportedError | None = None
) -> tuple[PlaneAvailability, ...]:
    """Whether each plane of Planewise can be built here, and if not, why.

    `lacking` is the result of `missing`; `refused` the reason why trial builds are not allowed.
    Where the first, the host itself, cannot be built, there is no other testbed either.
    """
    no_vms = None if "vm" in lacking else why_no_vms()
    simplest = _refusal(PLANES[0].name, refused) if refused else try_plane(PLANES[0])
    is_root = may_steer(Path("/proc/self/uid_map").read_text())
    availabilities = []
    for plane in PLANES:
        answer = explain_needs(plane, lacking, whole_machine=is_root)
        met = not any(need in lacking for need in plane.needs)
        tried = met and "namespace" in plane.guests
        if plane is PLANES[0] or (not simplest.available and (tried or answer.available)):
            answer = simplest.model_copy(update={"plane": plane.name})
        elif tried:
            answer = try_plane(plane)
        elif met and "vm" in plane.needs and not plane.local_refusal:
            available = PlaneAvailability(plane=plane.name, available=True)
            answer = _refusal(plane.name, no_vms) if no_vms else available
        availabilities.append(answer)
    return tuple(availabilities)


def why_no_vms() -> UnsupportedError | None:
    """Why virtual machines cannot be started here; None when they can. Starts none."""
    try:
        with closing(LocalHost("this machine")) as host:
            vms.check(host)
    except UnsupportedError as error:
        return error
    return None


def try_plane(plane: Plane) -> PlaneAvailability:
    """Builds the smallest testbed of namespaces with a plane, and removes it again."""
    setting = Setting("namespace", plane.name, plane.name, 0, "north-south")
    try:
        with local_testbed(setting):
            return PlaneAvailability(plane=plane.name, available=True)
    except PlanewiseError as error:
        return _refusal(plane.name, error)


def explain_needs(
    plane: Plane, lacking: Mapping[str, str], *, whole_machine: bool = True
) -> PlaneAvailability:
    """Availability of a plane that a testbed of namespaces cannot try. Pure.

    `lacking` has the reason for each need that this machine does not meet; `whole_machine` is
    whether the user is root of the machine, and not of a user namespace only.
    """
    remedy = plane.remedy
    reason = "; ".join(lacking[need] for need in plane.needs if need in lacking)
    if not reason and plane.local_refusal:
        reason = f"it cannot be built on one machine: {plane.local_refusal}"
    if not reason and not whole_machine:
        reason = "only root of this machine can build it"
        remedy = "run planewise as root of the machine"
    return PlaneAvailability(
        plane=plane.name, available=not reason, reason=reason, remedy=remedy if reason else ""
    )


def missing(
    root: Path = Path("/"), which: Callable[[str], str | None] = shutil.which
) -> dict[str, str]:
    """The needs that this machine does not meet, with the reasons."""
    lacking = {}
    functions = (root / "sys/class/net").glob("*/device/sriov_totalvfs")
    if not any(path.read_text().strip() not in ("", "0") for path in functions):
        lacking["sriov"] = "no NIC with SR-IOV"
    # Without KVM, QEMU emulates: slower, and every printed time says so.
    if not (which("qemu-system-x86_64") or which("qemu-kvm") or which("qemu-system-aarch64")):
        lacking["vm"] = "no QEMU for virtual machines"
    if not which("dockerd"):
        lacking["docker"] = "no Docker"
    groups = root / "sys/kernel/iommu_groups"
    if not (groups.is_dir() and any(groups.iterdir())):
        lacking["iommu"] = "no IOMMU"
    if not which("ovs-vswitchd"):
        lacking["ovs"] = "no Open vSwitch"
    if absent := [name for name, program in _DPDK_PROGRAMS.items() if not which(program)]:
        lacking["dpdk"] = f"no {' and no '.join(absent)}"
    return lacking


def _refusal(name: str, error: PlanewiseError) -> PlaneAvailability:
    return PlaneAvailability(plane=name, available=False, reason=error.what, remedy=error.remedy)
