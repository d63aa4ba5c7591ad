"""Which planes this machine can build, found out by building them. Knows no measurement."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.store.models import PlaneAvailability
from planewise.testbed.chains.functions import PROGRAM as TESTPMD
from planewise.testbed.dpdk_switch import PROGRAM as OVS
from planewise.testbed.host import LocalHost
from planewise.testbed.planes import PLANES, Plane
from planewise.testbed.setting import Setting
from planewise.testbed.steering import may_steer
from planewise.testbed.testbed import stand_here
from planewise.testbed.vms import platform as vms

_DPDK_PROGRAMS = {"Open vSwitch with DPDK": OVS, "dpdk-testpmd": TESTPMD}
"""What a chain on vhost-user starts, by the names that people know."""


def try_planes(
    lacking: Mapping[str, str], refused: UnsupportedError | None = None
) -> tuple[PlaneAvailability, ...]:
    """Every plane that Planewise knows: can it be built here, and if not, why.

    `lacking` is what `missing` says; `refused` why there is no privilege to try: then nothing is.
    """
    no_vms = None if "vm" in lacking else why_no_vms()
    root = may_steer(Path("/proc/self/uid_map").read_text())
    tried = []
    for plane in PLANES:
        if "namespace" in plane.guests and not any(need in lacking for need in plane.needs):
            tried.append(_refusal(plane.name, refused) if refused else try_plane(plane))
        elif (
            "vm" in plane.needs
            and not plane.local_refusal
            and not any(need in lacking for need in plane.needs)
        ):
            built = PlaneAvailability(plane=plane.name, available=True)
            tried.append(_refusal(plane.name, no_vms) if no_vms else built)
        else:
            tried.append(explain_needs(plane, lacking, whole_machine=root))
    return tuple(tried)


def why_no_vms() -> UnsupportedError | None:
    """Why virtual machines cannot be started here; None when they can. None is started."""
    host = LocalHost("this machine")
    try:
        vms.check(host)
    except UnsupportedError as error:
        return error
    finally:
        host.close()
    return None


def try_plane(plane: Plane) -> PlaneAvailability:
    """Builds the smallest testbed of namespaces with this plane, and takes it down again."""
    setting = Setting("namespace", plane.name, plane.name, 0, "north-south")
    try:
        with stand_here(setting):
            return PlaneAvailability(plane=plane.name, available=True)
    except PlanewiseError as error:
        return _refusal(plane.name, error)


def explain_needs(
    plane: Plane, lacking: Mapping[str, str], *, whole_machine: bool = True
) -> PlaneAvailability:
    """Whether a plane can be had that no testbed of namespaces can try, and why not. Pure.

    `lacking` says, by need, what this machine has not; `whole_machine` whether the user is root of
    it, and not of a user namespace alone.
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
    """What this machine has not, by need, as reasons."""
    lacking = {}
    functions = (root / "sys/class/net").glob("*/device/sriov_totalvfs")
    if not any(path.read_text().strip() not in ("", "0") for path in functions):
        lacking["sriov"] = "no NIC with SR-IOV"
    # Where KVM does not work, QEMU emulates: slower, and said wherever a time is printed.
    if not (which("qemu-system-x86_64") or which("qemu-kvm") or which("qemu-system-aarch64")):
        lacking["vm"] = "no QEMU for virtual machines"
    # One that runs is used; else planewise starts one of its own.
    if not which("dockerd") and not (root / "run/docker.sock").exists():
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
