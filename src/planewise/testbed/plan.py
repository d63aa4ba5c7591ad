"""Plans: steps of a testbed as values that can be printed, compared and then applied.

Knows no kernel: `apply.py` performs a plan. Every step prints as the command of iproute2 that
does the same, so that `--dry-run` can be read, and pasted, by anyone who knows `ip`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal


def _ip(netns: str, program: str = "ip") -> str:
    """The call of a program for a namespace; an empty name is the host's own."""
    return f"{program} -n {netns}" if netns else program


class Step:
    """A step of a plan; it prints as a command."""


@dataclass(frozen=True)
class _OnInterface(Step):
    """A step on one interface of a namespace."""

    netns: str
    interface: str


@dataclass(frozen=True)
class AddNamespace(Step):
    """A new, empty network namespace; its loopback comes up with it."""

    name: str

    def __str__(self) -> str:
        return f"ip netns add {self.name} && ip -n {self.name} link set lo up"


@dataclass(frozen=True)
class AddVeth(Step):
    """A pair of virtual Ethernet interfaces, one end in each namespace; both stay down.

    `index` must differ from the one that the peer's end gets (the next free one there): between
    ends of one index, Linux takes a pair for a single interface and may tell the first end only
    a second later that the other is up.
    """

    netns: str
    name: str
    index: int
    mac: str
    peer_netns: str
    peer: str
    peer_mac: str
    mtu_bytes: int

    def __str__(self) -> str:
        return (
            f"{_ip(self.netns)} link add {self.name} index {self.index} address {self.mac} "
            f"mtu {self.mtu_bytes} type veth peer name {self.peer} "
            f"netns {self.peer_netns} address {self.peer_mac} mtu {self.mtu_bytes}"
        )


@dataclass(frozen=True)
class AddBridge(Step):
    """A Linux bridge, no spanning tree, no multicast snooping.

    `ageing_s` is long: a guest that only receives must not fall out of the forwarding table in
    the middle of a measurement, or its frames would be flooded to every guest.
    """

    netns: str
    name: str
    mac: str
    mtu_bytes: int
    ageing_s: int = 3600

    def __str__(self) -> str:
        return (
            f"{_ip(self.netns)} link add {self.name} address {self.mac} mtu {self.mtu_bytes} "
            f"type bridge stp_state 0 mcast_snooping 0 ageing_time {self.ageing_s * 100}"
        )


@dataclass(frozen=True)
class AddMacvlan(Step):
    """A macvlan interface on `parent`, made in the guest's namespace."""

    netns: str
    parent: str
    guest_netns: str
    name: str
    mac: str
    mode: Literal["bridge", "private", "vepa"] = "bridge"

    def __str__(self) -> str:
        return (
            f"{_ip(self.netns)} link add link {self.parent} name {self.name} "
            f"netns {self.guest_netns} address {self.mac} type macvlan mode {self.mode}"
        )


@dataclass(frozen=True)
class AddIpvlan(Step):
    """An ipvlan interface on `parent`, made in the guest's namespace; the MAC is the parent's."""

    netns: str
    parent: str
    guest_netns: str
    name: str
    mode: Literal["l2", "l3", "l3s"] = "l2"

    def __str__(self) -> str:
        return (
            f"{_ip(self.netns)} link add link {self.parent} name {self.name} "
            f"netns {self.guest_netns} type ipvlan mode {self.mode}"
        )


@dataclass(frozen=True)
class AddTap(Step):
    """A persistent tap, for a virtual machine to open; it stays down."""

    netns: str
    name: str
    mac: str
    mtu_bytes: int
    queues: int = 1

    def __str__(self) -> str:
        multi_queue = " multi_queue" if self.queues > 1 else ""
        return (
            f"{_ip(self.netns)} tuntap add dev {self.name} mode tap vnet_hdr{multi_queue} && "
            f"{_ip(self.netns)} link set {self.name} address {self.mac} mtu {self.mtu_bytes}"
        )


@dataclass(frozen=True)
class AddMacvtap(Step):
    """A macvtap on `parent`; a virtual machine opens it as /dev/tap<index>.

    All namespaces of a machine share these files, and the kernel chooses an index that is free in
    one: `index` must be one that no other macvtap of the machine has.
    """

    netns: str
    parent: str
    name: str
    index: int
    mac: str
    """Empty: the parent's, as always in the mode `passthru`."""
    mode: Literal["bridge", "private", "vepa", "passthru"] = "bridge"

    def __str__(self) -> str:
        address = f"address {self.mac} " if self.mac else ""
        return (
            f"{_ip(self.netns)} link add link {self.parent} name {self.name} index {self.index} "
            f"{address}type macvtap mode {self.mode}"
        )


@dataclass(frozen=True)
class SetMaster(_OnInterface):
    """Makes an interface a port of a bridge."""

    bridge: str

    def __str__(self) -> str:
        return f"{_ip(self.netns)} link set {self.interface} master {self.bridge}"


@dataclass(frozen=True)
class ReleaseMaster(_OnInterface):
    """Removes an interface from its bridge."""

    def __str__(self) -> str:
        return f"{_ip(self.netns)} link set {self.interface} nomaster"


@dataclass(frozen=True)
class DeleteLink(_OnInterface):
    """Removes an interface."""

    def __str__(self) -> str:
        return f"{_ip(self.netns)} link delete {self.interface}"


@dataclass(frozen=True)
class SetAddress(_OnInterface):
    """An address with its prefix length; IPv6 without duplicate address detection."""

    address: str

    def __str__(self) -> str:
        nodad = " nodad" if ":" in self.address else ""
        return f"{_ip(self.netns)} address add {self.address} dev {self.interface}{nodad}"


@dataclass(frozen=True)
class RemoveAddress(_OnInterface):
    """Takes an address with its prefix length off an interface."""

    address: str

    def __str__(self) -> str:
        return f"{_ip(self.netns)} address delete {self.address} dev {self.interface}"


@dataclass(frozen=True)
class SetLinkAddress(_OnInterface):
    """Sets the MAC address of an interface that no step made."""

    mac: str

    def __str__(self) -> str:
        return f"{_ip(self.netns)} link set {self.interface} address {self.mac}"


@dataclass(frozen=True)
class SetUp(_OnInterface):
    """Brings an interface up."""

    def __str__(self) -> str:
        return f"{_ip(self.netns)} link set {self.interface} up"


@dataclass(frozen=True)
class SetMtu(_OnInterface):
    """The largest packet (without Ethernet header) that an interface carries."""

    mtu_bytes: int

    def __str__(self) -> str:
        return f"{_ip(self.netns)} link set {self.interface} mtu {self.mtu_bytes}"


@dataclass(frozen=True)
class AddRoute(Step):
    """A route; with an empty `via` the destination is on the link itself."""

    netns: str
    destination: str
    interface: str
    via: str = ""

    def __str__(self) -> str:
        via = f"via {self.via} " if self.via else ""
        onlink = " onlink" if self.via else ""
        return f"{_ip(self.netns)} route add {self.destination} {via}dev {self.interface}{onlink}"


@dataclass(frozen=True)
class RemoveRoute(Step):
    """Removes a route."""

    netns: str
    destination: str
    interface: str

    def __str__(self) -> str:
        return f"{_ip(self.netns)} route delete {self.destination} dev {self.interface}"


@dataclass(frozen=True)
class RunProgram(Step):
    """Runs a program on the host, for what iproute2 cannot do: `ovs-vsctl add-port …`."""

    netns: str
    argv: tuple[str, ...]

    def __str__(self) -> str:
        inside = f"ip netns exec {self.netns} " if self.netns else ""
        return f"{inside}{shlex.join(self.argv)}"


@dataclass(frozen=True)
class AddNeighbour(_OnInterface):
    """A permanent neighbour entry, so that no measurement contains an address resolution."""

    address: str
    mac: str

    def __str__(self) -> str:
        return (
            f"{_ip(self.netns)} neighbour replace {self.address} lladdr {self.mac} "
            f"dev {self.interface} nud permanent"
        )


@dataclass(frozen=True)
class AddForwarding(Step):
    """A static entry of a bridge's forwarding table: this MAC is behind this port."""

    netns: str
    port: str
    mac: str

    def __str__(self) -> str:
        return f"{_ip(self.netns, 'bridge')} fdb replace {self.mac} dev {self.port} master static"


@dataclass(frozen=True)
class AcceptAddress(_OnInterface):
    """Lets a NIC receive frames for this MAC, too: with VFs, promiscuous mode may not suffice."""

    mac: str

    def __str__(self) -> str:
        return (
            f"{_ip(self.netns, 'bridge')} fdb append {self.mac} dev {self.interface} self permanent"
        )


@dataclass(frozen=True)
class SetSysctl(Step):
    """A kernel setting of one namespace, as a path below /proc/sys."""

    netns: str
    key: str
    value: str

    def __str__(self) -> str:
        inside = f"ip netns exec {self.netns} " if self.netns else ""
        return f"{inside}sysctl -w {self.key.replace('/', '.')}={self.value}"


@dataclass(frozen=True)
class AwaitUp(Step):
    """Waits until each interface of a namespace that is set up carries frames.

    `interface`: only this one, where others are not Planewise's.
    """

    netns: str
    interface: str = ""

    def __str__(self) -> str:
        show = f"{_ip(self.netns)} link show{f' dev {self.interface}' if self.interface else ''} up"
        return f"while {show} | grep -q LOWERLAYERDOWN; do sleep 0.01; done"


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they are performed."""

    steps: tuple[Step, ...]

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that this plan makes: removing them undoes it."""
        return tuple(step.name for step in self.steps if isinstance(step, AddNamespace))

    def __str__(self) -> str:
        return "\n".join(str(step) for step in self.steps)


def new_namespace(name: str) -> tuple[Step, ...]:
    """A namespace that sends nothing by itself: no link-local addresses, no solicitations."""
    return (
        AddNamespace(name),
        SetSysctl(name, "net/ipv6/conf/default/addr_gen_mode", "1"),
        SetSysctl(name, "net/ipv6/conf/default/accept_ra", "0"),
    )
