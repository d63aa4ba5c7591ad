"""Parts of a testbed as values: kinds of guest, guests, capture points, counters, addresses.

Pure: every name, MAC and IP address follows from a token, a host and an index. Addresses come from
the benchmarking ranges 198.18.0.0/15 (RFC 2544) and 2001:2::/48 (RFC 5180): the sender's guests
live in their first half, the responder's in the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

HostRole = Literal["sender", "responder"]
GuestRole = Literal["main", "background"]
IpVersion = Literal[4, 6]
LoadType = Literal["none", "cpu", "network", "cache", "memory"]
TrafficPath = Literal["north-south", "east-west"]

HOSTS: tuple[HostRole, HostRole] = ("sender", "responder")


def other_host(role: HostRole) -> HostRole:
    """The peer of a host."""
    return "responder" if role == "sender" else "sender"


WIRE = "wire0"
BRIDGE = "br0"
DOCKER_BRIDGE = "docker0"
GUEST_INTERFACE = "eth0"
WIRE_INDEX = 500
"""Index of the wire's end in the sender (see `plan.add_veth`)."""

ETHERNET_BYTES = 18
"""Header and FCS of an Ethernet frame."""


def mtu_for(frame_sizes: Iterable[int]) -> int:
    """The MTU [bytes] that lets frames of these sizes (with FCS) through; at least 1500."""
    return max([1500, *(size - ETHERNET_BYTES for size in frame_sizes)])


@dataclass(frozen=True)
class Guest:
    """A guest on a host, behind a plane."""

    name: str
    host: HostRole
    role: GuestRole
    index: int
    plane: str
    netns: str
    interface: str
    mac: str
    ipv4: str
    ipv6: str
    port: str = ""
    """Name of its host-side interface."""
    port_index: int = 0
    """Index of that interface."""

    def address(self, ip_version: IpVersion) -> str:
        """Its IPv4 or IPv6 address."""
        return self.ipv4 if ip_version == 4 else self.ipv6


@dataclass(frozen=True)
class CapturePoint:
    """An interface where passing probe packets can be timestamped."""

    name: str
    """`sender_guest`, `sender_nic`, `responder_nic` or `responder_guest`; `sender_inside` and
    `responder_inside` are the guests' own interfaces."""
    host: HostRole
    netns: str
    interface: str
    own_kernel: bool = False
    """Whether `netns` is a virtual machine: only a process inside it sees its interface."""


def inside(guest: Guest, role: HostRole, *, own_kernel: bool = False) -> CapturePoint:
    """Where a guest's own network stack meets its interface."""
    return CapturePoint(f"{role}_inside", role, guest.netns, guest.interface, own_kernel)


@dataclass(frozen=True)
class CounterPoint:
    """An interface on the path whose counters show where frames were lost."""

    host: str
    netns: str
    interface: str


@dataclass(frozen=True)
class TrialPath:
    """The path of a generator's frames from one interface to another, through a SUT."""

    tx_netns: str
    tx_interface: str
    rx_netns: str
    rx_interface: str
    next_hop_mac: str
    """Destination MAC of the frames that the generator sends."""
    source_ipv4: str
    destination_ipv4: str
    source_ipv6: str
    destination_ipv6: str

    def source(self, ip_version: IpVersion) -> str:
        """Source address of the frames."""
        return self.source_ipv4 if ip_version == 4 else self.source_ipv6

    def destination(self, ip_version: IpVersion) -> str:
        """Destination address of the frames."""
        return self.destination_ipv4 if ip_version == 4 else self.destination_ipv6


@dataclass(frozen=True)
class Site:
    """A host of a testbed as its planes see it."""

    host: HostRole
    netns: str
    uplink: str
    """The interface that reaches the other host: the wire, or the bridge that has it as a port."""
    mtu_bytes: int
    nic: str = WIRE
    """The interface that leaves the host."""
    bridge: str = BRIDGE
    docker_bridge: str = DOCKER_BRIDGE
    nic_mac: str = ""
    """MAC of the NIC; empty: that of a wire of ours."""
    peer_nic_mac: str = ""
    """The same of the other host's NIC."""
    directory: str = ""
    """Prefix of the directories of switches that are programs, on the host."""
    queues: int = 1
    """Queue pairs of a virtual machine's NIC."""

    def on(self, uplink: str) -> Site:
        """The same host with another uplink."""
        return replace(self, uplink=uplink)

    @property
    def number(self) -> int:
        """0 for the sender, 1 for the responder."""
        return HOSTS.index(self.host)

    @property
    def gateway_ipv4(self) -> str:
        """The host's own IPv4 address."""
        return f"198.{18 + self.number}.255.254"

    @property
    def gateway_ipv6(self) -> str:
        """The host's own IPv6 address."""
        return f"2001:2:0:{1 + self.number}::ffff"

    @property
    def link_local(self) -> str:
        """The host's address on its uplink that the other host's routes point to."""
        return f"fe80::{1 + self.number}"

    @property
    def guests_ipv4(self) -> str:
        """All guests of this host."""
        return f"198.{18 + self.number}.0.0/16"

    @property
    def guests_ipv6(self) -> str:
        """All guests of this host."""
        return f"2001:2:0:{1 + self.number}::/64"

    @property
    def wire_mac(self) -> str:
        """MAC of the NIC."""
        return self.nic_mac or f"02:70:77:2{self.number}:00:00"

    @property
    def bridge_mac(self) -> str:
        """MAC of the host's bridge."""
        return f"02:70:77:3{self.number}:00:00"

    @property
    def uplink_mac(self) -> str:
        """MAC of the uplink."""
        return self.wire_mac if self.uplink == self.nic else self.bridge_mac

    @property
    def other(self) -> Site:
        """The other host, with those fields alone that follow from its role."""
        return replace(
            self, host=HOSTS[1 - self.number], netns="", nic_mac=self.peer_nic_mac, peer_nic_mac=""
        )

    def port_mac(self, guest: Guest) -> str:
        """MAC of the host side of a guest's attachment."""
        return guest.mac.replace("02:70:77:0", "02:70:77:1")


def make_guest(
    token: str,
    host: HostRole,
    role: GuestRole,
    index: int,
    plane: str,
    slot: int | None = None,
    *,
    away: bool = False,
) -> Guest:
    """A guest with names and addresses that follow from the arguments.

    `slot` is unique among all guests of a role that a testbed makes; None: it follows from `index`.
    `away`: it lives on the other role's host, with guests of that role on its segment. Its port has
    an index that no other testbed of the machine has: the name of a macvtap in /dev, which all
    namespaces share, follows from it.
    """
    number = HOSTS.index(host)
    segment = number + 2 * away
    name_number = index if slot is None else slot
    if slot is None:
        slot = 0 if role == "main" else 1 + index
    high, low = divmod(slot, 250)
    return Guest(
        name=f"{host}-{role}" if role == "main" else f"{host}-{role}{index}",
        host=host,
        role=role,
        index=index,
        plane=plane,
        netns=f"pw-{token}-{host[0]}{role[0]}{name_number}{'e' * away}",
        interface=GUEST_INTERFACE,
        mac=f"02:70:77:0{segment}:{slot >> 8:02x}:{slot & 255:02x}",
        ipv4=f"198.{18 + number}.{high + 100 * away}.{1 + low}",
        ipv6=f"2001:2:0:{1 + segment}::{1 + slot:x}",
        port=f"pw{token}{1024 * segment + slot:03x}",
        port_index=((8 + int(token[:4], 16)) << 13) + 2048 * segment + slot,
    )


GuestKind = Literal["namespace", "container", "vm", "process"]
Forwarder = Literal["testpmd", "kernel", "xdp"]
"""What sends a function's frames on: dpdk-testpmd, which polls; a kernel that routes; or an XDP
program."""

GUEST_WORDS: Mapping[GuestKind, tuple[str, str]] = MappingProxyType(
    {
        "namespace": ("a network namespace", "network namespaces"),
        "container": ("a container", "containers"),
        "vm": ("a virtual machine", "virtual machines"),
        "process": ("a process", "processes"),
    }
)
"""Singular and plural."""
