"""Which planes this machine can build, found out by building them. Knows no measurement."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.store.models import PlaneAvailability
from planewise.testbed.model import TestbedSpec
from planewise.testbed.namespaces import NamespaceTestbed
from planewise.testbed.planes import ELSEWHERE, NAMESPACE_PLANES, Elsewhere, Plane


def try_planes(
    lacking: Mapping[str, str], refused: UnsupportedError | None = None
) -> tuple[PlaneAvailability, ...]:
    """Every plane that Planewise knows: can it be built here, and if not, why.

    `lacking` is what `missing` says; `refused` why there is no privilege to try: then nothing is.
    """
    tried = []
    for plane in NAMESPACE_PLANES:
        tried.append(_refusal(plane.name, refused) if refused else try_plane(plane))
    return (*tried, *(explain_elsewhere(other, lacking) for other in ELSEWHERE))


def try_plane(plane: Plane) -> PlaneAvailability:
    """Builds the smallest testbed with this plane, and takes it down again."""
    try:
        with NamespaceTestbed(TestbedSpec(plane.name)):
            return PlaneAvailability(plane=plane.name, available=True)
    except PlanewiseError as error:
        return _refusal(plane.name, error)


def explain_elsewhere(plane: Elsewhere, lacking: Mapping[str, str]) -> PlaneAvailability:
    """Why a plane that namespaces cannot use is not available. Pure.

    `lacking` says, by need, what this machine has not.
    """
    reasons = [lacking[need] for need in plane.needs if need in lacking]
    if not reasons:
        return PlaneAvailability(
            plane=plane.name,
            available=False,
            reason=f"this machine may have what it needs, but {plane.why}",
            remedy=plane.remedy,
        )
    return PlaneAvailability(
        plane=plane.name, available=False, reason="; ".join(reasons), remedy=plane.remedy
    )


def missing(
    root: Path = Path("/"), which: Callable[[str], str | None] = shutil.which
) -> dict[str, str]:
    """What this machine has not, by need, as reasons."""
    lacking = {}
    functions = (root / "sys/class/net").glob("*/device/sriov_totalvfs")
    if not any(path.read_text().strip() not in ("", "0") for path in functions):
        lacking["sriov"] = "no NIC with SR-IOV"
    kvm = root / "dev/kvm"
    if not kvm.exists():
        lacking["vm"] = "no /dev/kvm for virtual machines"
    elif not os.access(kvm, os.R_OK | os.W_OK):
        lacking["vm"] = "/dev/kvm may not be opened by this user"
    elif not (which("qemu-system-x86_64") or which("qemu-kvm") or which("qemu-system-aarch64")):
        lacking["vm"] = "no QEMU for virtual machines"
    if not (root / "run/docker.sock").exists():
        lacking["docker"] = "no Docker daemon"
    groups = root / "sys/kernel/iommu_groups"
    if not (groups.is_dir() and any(groups.iterdir())):
        lacking["iommu"] = "no IOMMU"
    if not which("ovs-vswitchd"):
        lacking["dpdk"] = "no Open vSwitch with DPDK"
    return lacking


def _refusal(name: str, error: PlanewiseError) -> PlaneAvailability:
    return PlaneAvailability(plane=name, available=False, reason=error.what, remedy=error.remedy)
