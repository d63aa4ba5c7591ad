"""Why a setting cannot be built on a pair of hosts, as sentences. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from planewise.testbed.guests.docker import GUEST_MIB
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.platform import vm_mib
from planewise.testbed.hosts.machine import MAC_FILTERS, Resources
from planewise.testbed.model import ETHERNET_BYTES, GUEST_WORDS, GuestKind
from planewise.testbed.planes import plane, refusal
from planewise.testbed.planes.plane import Need, Plane
from planewise.testbed.setting import Setting
from planewise.testbed.switches.dpdk_switch import SWITCH_BYTES

_NAMESPACE_MIB = 3
SPARE_MIB: Mapping[GuestKind, int] = MappingProxyType(
    {"namespace": 128, "container": 128, "vm": 416}
)
"""Memory that a host keeps for itself; for virtual machines also the files of two saved guests that
are woken, which a lab's host holds in memory."""


_LACKING: Mapping[Need, tuple[Callable[[Resources], bool], str]] = MappingProxyType(
    {
        "ovs": (lambda resources: resources.ovs, "there is no Open vSwitch on {}"),
        "dpdk": (lambda resources: resources.dpdk, "there is no Open vSwitch with DPDK on {}"),
        "huge pages": (
            lambda resources: resources.huge_pages,
            "the kernel of {} has no huge pages (CONFIG_HUGETLBFS)",
        ),
    }
)
"""By a plane's need, whether a machine meets it, and the sentence where it does not."""


def memory_of(kind: GuestKind, options: VmOptions = VmOptions()) -> int:  # noqa: B008 - a frozen value
    """Memory of the host that an idle guest takes [MiB]."""
    if kind == "vm":
        return vm_mib(options)
    return GUEST_MIB if kind == "container" else _NAMESPACE_MIB


def impossible(setting: Setting, mtu_bytes: int = 1500, *, local: bool = False) -> str:
    """Why no pair of hosts can have a setting, as a sentence; empty when one can.

    `local`: a pair of namespaces of this machine.
    """
    for name in sorted(setting.planes):
        if reason := refusal(name, setting.kind, local=local):
            return reason
        most = plane(name).most_mtu_bytes
        if most is not None and mtu_bytes > most:
            return (
                f"the plane {name} has frames of up to {most + ETHERNET_BYTES} bytes, the "
                "limit of the device that connects its switch to the NIC"
            )
    if setting.kind not in SPARE_MIB:
        return f"guests that are {GUEST_WORDS[setting.kind][1]} cannot be started on this testbed"
    return setting.conflict


def shortage(
    setting: Setting,
    resources: Resources,
    with_vfs: bool,
    options: VmOptions = VmOptions(),  # noqa: B008 - a frozen value
) -> str:
    """What a machine lacks for a setting, as a sentence; empty when it suffices.

    `with_vfs`: its NIC has VFs at that time. `options` are those of virtual machines.
    """
    place, nic = resources.place, resources.nic
    planes = [plane(name) for name in sorted(setting.planes)]
    if reason := lacking(planes, setting.kind, resources) or vf_shortage(
        setting.vfs_a_host(), resources
    ):
        return reason
    if any(used.passed_through for used in planes) and not resources.iommu:
        return no_iommu(place)
    filters = MAC_FILTERS.get(resources.driver)
    behind = setting.addresses_behind_nic()
    if with_vfs and filters and not setting.within_host and behind > filters - 1 - resources.vfs:
        return (
            f"needs {behind} MAC addresses behind {nic} of {place}, and "
            f"{resources.driver} takes {filters - 1 - resources.vfs} beside its VFs"
        )
    polled = any(used.shares_memory for used in planes)
    switch_mib = SWITCH_BYTES // 2**20 * resources.hosts if polled else 0
    # A machine that is both hosts has the guests of both, whichever path traffic takes.
    guests = (
        2 * (1 + setting.background_guests) if resources.hosts == 2 else setting.guests_a_host()
    )
    guest_mib, free_mib = memory_of(setting.kind, options), resources.free_mib
    return memory_shortage(guests, guest_mib, place, free_mib, setting.kind, switch_mib)


def lacking(planes: Sequence[Plane], kind: GuestKind, resources: Resources) -> str:
    """The program or feature of the kernel that a machine lacks, as a sentence; empty: none."""
    if kind == "container" and not resources.dockerd:
        return f"there is no Docker on {resources.place}"
    for need in dict.fromkeys(need for used in planes for need in used.needs):
        if need in _LACKING and not _LACKING[need][0](resources):
            return _LACKING[need][1].format(resources.place)
    return ""


def vf_shortage(needed: int, resources: Resources) -> str:
    """Why a machine has too few VFs, as a sentence; empty when they suffice."""
    place, nic = resources.place, resources.nic
    if needed and not (resources.vfs or resources.used):
        return f"{nic} of {place} has no SR-IOV"
    if needed <= resources.vfs:
        return ""
    users = f" ({'; '.join(resources.used)})" if resources.used else ""
    free = " free" if resources.used else ""
    return f"needs {needed} VFs on {place}, and {nic} has {resources.vfs}{free}{users}"


def memory_shortage(
    guests: int,
    guest_mib: int,
    place: str,
    free_mib: int,
    kind: GuestKind = "vm",
    switch_mib: int = 0,
) -> str:
    """Why a machine has too little memory for guests, as a sentence; empty when it suffices.

    `switch_mib`: memory of their switches.
    """
    memory_mib = guests * guest_mib + SPARE_MIB[kind] + switch_mib
    if memory_mib <= free_mib:
        return ""
    switch = " with a DPDK switch" if switch_mib else ""
    return (
        f"{guests} {GUEST_WORDS[kind][1]} on {place}{switch} need about {memory_mib} MiB, "
        f"and {free_mib} MiB are free"
    )


def no_iommu(place: str) -> str:
    """Why a host's functions cannot be passed through, with the remedy."""
    return (
        f"{place} has no IOMMU that is in use, and without one no VF can be passed "
        "through (kernel parameter intel_iommu=on or amd_iommu=on, and VT-d or AMD-Vi in its "
        "firmware)"
    )
