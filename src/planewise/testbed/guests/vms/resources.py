"""Resources of a machine for virtual machines, and what it lacks for a setting."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planewise import procfs
from planewise.testbed.guests.vms.platform import VM_MIB, machine_name
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.machine import MAC_FILTERS, Machine, Resources, survey
from planewise.testbed.planes import plane, vm_plane
from planewise.testbed.setting import Setting
from planewise.testbed.switches.dpdk_switch import SWITCH_BYTES
from planewise.testbed.vfs.nic import read_pf

SPARE_MIB = 416
"""Memory that a host keeps for itself: 256, and the files of two saved guests that are woken, which
a lab's host holds in memory."""


@dataclass(frozen=True, kw_only=True)
class VmResources(Resources):
    """Resources of a machine for virtual machines; `vfs` counts unused VFs."""

    cpus: int
    used: tuple[str, ...] = ()
    """VFs in use, each with its user."""
    iommu: bool = True
    """Whether its IOMMU lets functions be passed through."""
    hosts: int = 1
    """Hosts of the testbed that this machine is."""


def survey_vms(machine: Machine, with_vfs: bool, hosts: int = 1) -> VmResources:
    """Reads a machine's resources; its VFs only with `with_vfs`.

    Raises:
        PlanewiseError: it has no such NIC, or somebody uses it.
    """
    surveyed = survey(machine)
    cpus = procfs.count_cpus(machine.host.read_text("/proc/cpuinfo"))
    without_vfs = replace(surveyed, place=machine_name(machine.host), vfs=0)
    resources = VmResources(**vars(without_vfs), cpus=cpus, hosts=hosts)
    if not with_vfs or not surveyed.vfs:
        return resources
    pf = read_pf(machine.host, machine.nic)
    usable = [vf for vf in pf.vfs if vf.usable]
    return replace(
        resources,
        vfs=len(usable) if pf.num_vfs else pf.total_vfs,
        used=tuple(
            f"{machine.nic}/{vf.index} {vf.used_by or f'has the driver {vf.driver}'}"
            for vf in pf.vfs
            if not vf.usable
        ),
        iommu=pf.iommu_group is not None,
    )


def shortage(
    setting: Setting, resources: VmResources, with_vfs: bool, guest_mib: int = VM_MIB
) -> str:
    """What a machine lacks for a setting, as a sentence; empty when it suffices. Pure.

    `with_vfs`: its NIC has VFs at that time. `guest_mib`: memory of the host that a guest takes.
    """
    main, background = vm_plane(setting.plane), vm_plane(setting.background_plane)
    count = setting.background_guests
    for guest_plane in (main, background) if count else (main,):
        if lacking := guest_plane.lacking(resources):
            return lacking
    polled = any(plane(name).shares_memory for name in setting.planes)
    switch_mib = SWITCH_BYTES // 2**20 * resources.hosts if polled else 0
    needed = setting.vfs_a_host()
    if needed and resources.hosts == 2:
        name = next(plane.name for plane in (main, background) if plane.vfs)
        return f"the plane {name} needs a NIC with SR-IOV, and the wire here is virtual"
    if needed and not (resources.vfs or resources.used):
        return f"{resources.nic} of {resources.place} has no SR-IOV"
    if needed > resources.vfs:
        users = f" ({'; '.join(resources.used)})" if resources.used else ""
        free = " free" if resources.used else ""
        return (
            f"needs {needed} VFs on {resources.place}, and {resources.nic} has "
            f"{resources.vfs}{free}{users}"
        )
    if (main.passed_through or (count and background.passed_through)) and not resources.iommu:
        return no_iommu(resources.place)
    filters = MAC_FILTERS.get(resources.driver)
    bridged = setting.addresses_behind_nic()
    if with_vfs and filters and bridged > filters - 1 - resources.vfs:
        return (
            f"needs {bridged} MAC addresses behind {resources.nic} of {resources.place}, and "
            f"{resources.driver} takes {filters - 1 - resources.vfs} beside its VFs"
        )
    # A machine that is both hosts has the guests of both, whichever path traffic takes.
    guests = 2 * (1 + count) if resources.hosts == 2 else setting.guests_a_host()
    return memory_shortage(guests, guest_mib, resources.place, resources.free_mib, switch_mib)


def memory_shortage(
    guests: int, guest_mib: int, place: str, free_mib: int, switch_mib: int = 0
) -> str:
    """Why a machine has too little memory for guests, as a sentence; empty when it suffices. Pure.

    `switch_mib`: memory of their switches.
    """
    memory_mib = guests * guest_mib + SPARE_MIB + switch_mib
    if memory_mib <= free_mib:
        return ""
    switch = " with a DPDK switch" if switch_mib else ""
    return (
        f"{guests} virtual machines on {place}{switch} need about {memory_mib} MiB, "
        f"and {free_mib} MiB are free"
    )


def free_mib(host: Host) -> int:
    """Available memory of a host [MiB].

    Raises:
        PlanewiseError: the host does not answer.
    """
    return procfs.memory(host.read_text("/proc/meminfo")).get("MemAvailable", 0) >> 20


def no_iommu(place: str) -> str:
    """Why a host's functions cannot be passed through, with the remedy. Pure."""
    return (
        f"{place} has no IOMMU that is in use, and without one no VF can be passed "
        "through (kernel parameter intel_iommu=on or amd_iommu=on, and VT-d or AMD-Vi in its "
        "firmware)"
    )
