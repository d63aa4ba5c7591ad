"""Machines of a testbed: a host with a NIC, its resources, its state, and their removal."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from planewise import procfs
from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.guests.docker import REMOVE_CGROUPS, Docker
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import HostRole
from planewise.testbed.switches.dpdk_switch import PROGRAM as DPDK_PROGRAM
from planewise.testbed.vfs.nic import Tool, VfPool


@dataclass(frozen=True)
class Machine:
    """A host with the NIC that the testbed may use there."""

    host: Host
    nic: str
    bridge: str
    """Name of our bridge there."""
    docker_bridge: str
    second_nic: str = ""
    """A NIC on another wire to the other machine, for our bridge: guests on the bridge and guests
    on the NIC can then stand side by side. Empty where there is none."""
    netns: str = ""
    """The namespace of this machine that stands for it; empty where it is a machine."""

    @property
    def bridge_nic(self) -> str:
        """The NIC that our bridge takes."""
        return self.second_nic or self.nic


@dataclass
class MachineState:
    """State of one machine, without its guests; `close` ends all of it."""

    machine: Machine
    role: HostRole
    token: str
    switch: str = ""
    """The switch that the NIC is a port of; empty: none."""
    switches: set[str] = field(default_factory=set)
    """Switches that were made."""
    datapaths: dict[str, str] = field(default_factory=dict)
    """Types of the datapaths of Open vSwitches, by name of the switch."""
    switch_pids: dict[str, int] = field(default_factory=dict)
    """Processes of switches that are programs, by their names."""
    nic_up: bool = False
    opened: ExitStack = field(default_factory=ExitStack)
    """Closes what was opened here."""
    _programs: dict[str, ExitStack] = field(default_factory=dict)
    _docker: Docker | None = None
    _vfs: VfPool | None = None

    @property
    def host(self) -> Host:
        """The machine's host."""
        return self.machine.host

    @property
    def network(self) -> str:
        """Name of our network in Docker."""
        return f"pw-{self.token}"

    @property
    def directory(self) -> str:
        """See `Site.directory`; empty, and none made, before a switch is a program."""
        return f"{self.host.directory}/pw-{self.token}" if self._programs else ""

    def program(self, switch: str) -> ExitStack:
        """Resources of a switch that is a program."""
        if switch not in self._programs:
            self._programs[switch] = self.opened.enter_context(ExitStack())
        return self._programs[switch]

    def end_program(self, switch: str) -> None:
        """Ends a switch that is a program, before `close`."""
        self.program(switch).close()
        self.switches.discard(switch)
        self.switch_pids.pop(switch, None)

    @property
    def docker(self) -> Docker:
        """Our Docker there, started at the first use.

        Raises:
            UnsupportedError: the host has no Docker, or its daemon does not start.
        """
        if self._docker is None:
            self._docker = self.opened.enter_context(Docker(self.host, self.token))
        return self._docker

    @property
    def vfs(self) -> VfPool:
        """The VFs of the NIC, set up at the first use.

        Raises:
            UnsupportedError: the NIC has no SR-IOV.
            PlanewiseError: somebody uses it, or its VFs cannot be set up.
        """
        if self._vfs is None:
            pool = VfPool(self.host, self.machine.nic, self.token)
            self._vfs = self.opened.enter_context(pool)
        return self._vfs

    def close(self) -> None:
        """Ends what was opened here: Docker, VFs, switches."""
        self._docker = self._vfs = None
        self._programs.clear()
        self.opened.pop_all().close()


@dataclass(frozen=True)
class Resources:
    """Resources of a machine for guests."""

    place: str
    nic: str
    driver: str
    """Of the NIC; empty for a virtual one."""
    vfs: int
    """VFs that its NIC can have; 0 without SR-IOV."""
    free_mib: int
    dockerd: bool
    mac: str = ""
    """Of the NIC; empty for the wire between namespaces."""
    ovs: bool = False
    """Whether Open vSwitch is installed."""
    dpdk: bool = False
    """Whether Open vSwitch with DPDK is."""
    huge_pages: bool = False
    """Whether the kernel has huge pages."""
    cpus: int = 0
    used: tuple[str, ...] = ()
    """VFs in use, each with its user; the others are in `vfs`."""
    iommu: bool = True
    """Whether its IOMMU lets VFs be passed through."""
    hosts: int = 1
    """Hosts of the testbed that this machine is."""


def survey(machine: Machine, with_vfs: bool = False, hosts: int = 1) -> Resources:
    """Reads a machine's resources, with the users of its VFs if wanted.

    `hosts`: how many of the testbed's hosts it is.

    Raises:
        PlanewiseError: it has no such NIC, or somebody uses it.
    """
    cpus = procfs.count_cpus(machine.host.read_text("/proc/cpuinfo"))
    script = (
        "PATH=$PATH:/usr/sbin:/sbin; "
        'cat "/sys/class/net/$1/device/sriov_totalvfs" 2>/dev/null || echo 0; '
        'basename "$(readlink "/sys/class/net/$1/device/driver" || echo none)"; '
        "sed -n 's/^MemAvailable: *//p' /proc/meminfo; "
        "command -v dockerd >/dev/null && echo yes || echo no; "
        "command -v ovs-vswitchd >/dev/null && echo yes || echo no; "
        f"[ -x {DPDK_PROGRAM} ] && echo yes || echo no; "
        "grep -q Hugepagesize /proc/meminfo && echo yes || echo no; "
        'ip -json address show dev "$1" 2>/dev/null'
    )
    host = machine.host
    output = host.run(["sh", "-c", script, "sh", machine.nic]).stdout
    vfs, driver, memory, dockerd, ovs, dpdk, huge_pages, *address_lines = output.splitlines()
    listed = json.loads("\n".join(address_lines) or "[]")
    if not listed:
        raise UnsupportedError(
            f"there is no interface {machine.nic} on {host.place}",
            remedy="name the NIC to use with --nic (`ip link` there lists them)",
        )
    link = listed[0]
    addresses = [info["local"] for info in link.get("addr_info", ()) if info["scope"] == "global"]
    if addresses and not machine.netns:
        raise PlanewiseError(
            f"{machine.nic} on {host.place} is in use: it has the address {addresses[0]}",
            remedy="name a NIC that nobody uses with --nic",
        )
    if link.get("master") and not machine.netns:
        raise PlanewiseError(
            f"{machine.nic} on {host.place} is in use: it is a port of {link['master']}",
            remedy="name a NIC that nobody uses with --nic",
        )
    resources = Resources(
        "this machine" if machine.netns else host.place,
        machine.nic,
        "" if driver == "none" else driver,
        int(vfs),
        int(memory.split()[0]) // 1024,
        dockerd == "yes",
        "" if machine.netns else str(link.get("address", "")),
        ovs == "yes",
        dpdk == "yes",
        huge_pages == "yes",
        cpus,
        hosts=hosts,
    )
    if not with_vfs or not resources.vfs:
        return resources
    pf = Tool.on(host).pf(machine.nic)
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


MAC_FILTERS = {"igb": 24, "igbvf": 24}
"""MAC addresses that a NIC with VFs can receive for, by driver, where promiscuous mode does not do
(rar_entry_count of Linux' igb for the 82576); one is its own, each VF takes one."""

# Removes what carries the token: switches that are programs, namespaces, bridges and the taps that
# a switch made in their place, control groups. And from the NIC what planes added: addresses,
# routes, neighbours; MAC filters for guests, and planewised's for a bridge's own address. And from
# VFs, which are back by now, the XDP program of chains' functions.
_REMOVE = (
    """
if [ -n "$2" ]; then
    ours='02:70:77:[0-3]|02:42:c6:1[23]:'
    for mac in $(bridge fdb show dev "$2" | grep self | grep -Eo "^($ours)[0-9a-f:]*"); do
        bridge fdb delete "$mac" dev "$2" self
    done
    for range in 198.18.0.0/15 2001:2::/48 fe80::1 fe80::2; do
        ip address flush dev "$2" to "$range" 2>/dev/null
        ip route flush root "$range" dev "$2" 2>/dev/null
        ip neighbour flush to "$range" dev "$2" nud permanent 2>/dev/null
    done
    for link in /sys/class/net/"$2"/device/virtfn*/net/*; do
        vf=${link##*/}
        ! ip -d link show dev "$vf" 2>/dev/null | grep -q 'prog/xdp.* name pw_route ' ||
            ip link set dev "$vf" xdp off
    done
fi
for file in $(grep -ls "/pw-$1" /proc/[0-9]*/cmdline); do
    grep -qsE 'ovs-vswitchd|ovsdb-server' "$file" || continue
    process=${file%/cmdline}
    kill -s KILL "${process#/proc/}" 2>/dev/null
    n=0
    while [ -e "$process" ] && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.05; done
done
for name in $(ls /run/netns 2>/dev/null | grep "^pw-$1-"); do
    for pid in $(ip netns pids "$name" 2>/dev/null); do kill -s KILL "$pid" 2>/dev/null; done
    ip netns delete "$name"
done
for link in $(ip -o link | sed -n "s/^[0-9]*: \\(pw-$1-[a-z]*\\):.*/\\1/p"); do
    ip link delete "$link"
done
set -- "pw-$1"
"""
    + REMOVE_CGROUPS
)


def remove_traces(host: Host, nic: str, token: str) -> None:
    """Removes namespaces, bridges and control groups of a token from a host.

    And from its NIC what guests and planes added.

    Raises:
        PlanewiseError: something could not be removed.
    """
    done = host.run(["sh", "-c", _REMOVE, "sh", token, nic], timeout_s=120)
    if done.stderr.strip():
        raise PlanewiseError(
            f"not everything could be removed from {host.place}: {done.last_line}",
            remedy="`planewise clean` tries again",
        )
