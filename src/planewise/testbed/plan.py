"""Steps: the commands that build a testbed, as values that are printed, compared and then run.

Every step is a command of iproute2, or another program, and prints as one: `--dry-run` can be
read, and pasted. `script.py` runs them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Step:
    """One command of a plan."""

    netns: str
    """The namespace that it works in; empty: the host's own."""
    program: Literal["ip", "bridge", "shell", "host", "await"]
    """What runs it: `ip` or `bridge` in a batch, a `shell` in the namespace, a program on the
    `host` that may touch any namespace, or a wait for interfaces."""
    words: str
    """Arguments, or the shell's line; of `await` the interface."""
    shown: str = ""
    """As it prints, where that is not what runs."""
    other: str = ""
    """A second namespace that it changes: that of the other end."""
    feature: str = ""
    """The feature of the kernel that it needs."""
    package: str = "iproute2"
    """The Debian package of its program."""

    def __str__(self) -> str:
        if self.shown:
            return self.shown
        if self.program == "host":
            return self.words
        if self.program == "shell":
            return f"ip netns exec {self.netns} {self.words}" if self.netns else self.words
        return " ".join([self.program, *(["-n", self.netns] if self.netns else []), self.words])


def namespaces_of(steps: Iterable[Step]) -> tuple[str, ...]:
    """The namespaces that steps make: removing them undoes these."""
    return tuple(step.other for step in steps if step.feature == "namespaces")


def ip(netns: str, words: str, *, other: str = "", feature: str = "") -> Step:
    """`ip` with these words; `other` and `feature` are those of the `Step`."""
    return Step(netns, "ip", words, other=other, feature=feature)


def new_namespace(name: str) -> tuple[Step, ...]:
    """A namespace that sends nothing by itself: no link-local addresses, no solicitations."""
    return (
        Step("", "ip", f"netns add {name}", other=name, feature="namespaces"),
        run_program(name, ("ip", "link", "set", "lo", "up")),
        set_sysctl(name, "net/ipv6/conf/default/addr_gen_mode", "1"),
        set_sysctl(name, "net/ipv6/conf/default/accept_ra", "0"),
    )


def add_veth(
    netns: str,
    name: str,
    index: int,
    mac: str,
    peer_netns: str,
    peer: str,
    peer_mac: str,
    mtu_bytes: int,
) -> Step:
    """A pair of virtual Ethernet interfaces, one end in each namespace; both stay down.

    `index` must differ from the one that the peer's end gets (the next free one there): between
    ends of one index, Linux takes a pair for a single interface and may report only a second
    later to the first end that the other is up.
    """
    words = (
        f"link add {name} index {index} address {mac} mtu {mtu_bytes} type veth "
        f"peer name {peer} netns {peer_netns} address {peer_mac} mtu {mtu_bytes}"
    )
    return Step(netns, "ip", words, other=peer_netns, feature="veth")


def add_bridge(netns: str, name: str, mac: str, mtu_bytes: int) -> Step:
    """A Linux bridge, no spanning tree, no multicast snooping.

    Entries age after an hour: a guest that only receives must not fall out of the forwarding
    table in the middle of a measurement, or its frames would be flooded to every guest.
    """
    words = (
        f"link add {name} address {mac} mtu {mtu_bytes} "
        "type bridge stp_state 0 mcast_snooping 0 ageing_time 360000"
    )
    return Step(netns, "ip", words, feature="bridge")


def add_tap(netns: str, name: str, mac: str, mtu_bytes: int, queues: int = 1) -> tuple[Step, ...]:
    """A persistent tap, for a virtual machine to open; it stays down."""
    multi_queue = " multi_queue" if queues > 1 else ""
    words = f"tuntap add dev {name} mode tap vnet_hdr{multi_queue}"
    return (
        Step(netns, "ip", words, feature="tun"),
        Step(netns, "ip", f"link set {name} address {mac} mtu {mtu_bytes}"),
    )


def add_macvtap(
    netns: str,
    parent: str,
    name: str,
    index: int,
    mac: str = "",
    mode: Literal["bridge", "passthru"] = "bridge",
) -> Step:
    """A macvtap on `parent`; a virtual machine opens it as /dev/tap<index>.

    All namespaces of a machine share these files, and the kernel chooses an index that is free in
    one: `index` must be one that no other macvtap of the machine has. Without a `mac` it has the
    parent's, as always in the mode `passthru`.
    """
    address = f"address {mac} " if mac else ""
    words = f"link add link {parent} name {name} index {index} {address}type macvtap mode {mode}"
    return Step(netns, "ip", words, feature="macvtap")


def set_master(netns: str, interface: str, bridge: str) -> Step:
    """Makes an interface a port of a bridge."""
    return Step(netns, "ip", f"link set {interface} master {bridge}")


def set_address(netns: str, interface: str, address: str) -> Step:
    """An address with its prefix length; IPv6 without duplicate address detection."""
    nodad = " nodad" if ":" in address else ""
    return Step(netns, "ip", f"address add {address} dev {interface}{nodad}")


def set_up(netns: str, interface: str) -> Step:
    """Brings an interface up."""
    return Step(netns, "ip", f"link set {interface} up")


def set_mtu(netns: str, interface: str, mtu_bytes: int) -> Step:
    """The largest packet (without Ethernet header) that an interface carries."""
    return Step(netns, "ip", f"link set {interface} mtu {mtu_bytes}")


def add_route(netns: str, destination: str, interface: str, via: str = "") -> Step:
    """A route; with an empty `via` the destination is on the link itself."""
    hop = f"via {via} dev {interface} onlink" if via else f"dev {interface}"
    return Step(netns, "ip", f"route add {destination} {hop}")


def add_neighbour(netns: str, interface: str, address: str, mac: str) -> Step:
    """A permanent neighbour entry, so that no measurement contains an address resolution."""
    words = f"neighbour replace {address} lladdr {mac} dev {interface} nud permanent"
    return Step(netns, "ip", words)


def add_forwarding(netns: str, port: str, mac: str) -> Step:
    """A static entry of a bridge's forwarding table: this MAC is behind this port."""
    return Step(netns, "bridge", f"fdb replace {mac} dev {port} master static")


def accept_address(netns: str, interface: str, mac: str) -> Step:
    """Lets a NIC receive frames for this MAC, too: with VFs, promiscuous mode may not suffice."""
    words = f"fdb append {mac} dev {interface} self permanent"
    return Step(netns, "bridge", words, feature="MAC filters")


def run_program(netns: str, argv: tuple[str, ...]) -> Step:
    """Runs a program on the host, for what iproute2 cannot do: `ovs-vsctl add-port …`."""
    return Step(netns, "shell" if netns else "host", shlex.join(argv))


def set_sysctl(netns: str, key: str, value: str) -> Step:
    """A kernel setting of one namespace, as a path below /proc/sys."""
    inside = f"ip netns exec {netns} " if netns else ""
    shown = f"{inside}sysctl -w {key.replace('/', '.')}={value}"
    words = f"echo {shlex.quote(value)} >/proc/sys/{shlex.quote(key)}"
    return Step(netns, "shell", words, shown)


def await_up(netns: str, interface: str = "") -> Step:
    """Waits until each interface of a namespace that is set up carries frames.

    `interface`: only this one, where others are not Planewise's.
    """
    show = " ".join(["ip", *(["-n", netns] if netns else []), "link show"])
    show += f" dev {interface} up" if interface else " up"
    shown = f"while {show} | grep -q LOWERLAYERDOWN; do sleep 0.01; done"
    return Step(netns, "await", interface, shown)
