"""Base classes of planes and switches: one subclass of `Plane` a file.

A plane returns steps, which a host performs. Where steps do not do (a VF is moved by planewised, a
network is made by Docker), it acts on the `MachineState` that it is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from planewise.store.models import Metric
from planewise.testbed.model import GUEST_WORDS, Forwarder, Guest, GuestKind, Site
from planewise.testbed.plan import Step, add_neighbour, add_veth, set_address, set_up

if TYPE_CHECKING:
    from planewise.testbed.guests.kind import PlacedGuest
    from planewise.testbed.hosts.host import Host
    from planewise.testbed.hosts.machine import MachineState

Need = Literal["sriov", "vm", "docker", "iommu", "dpdk", "huge pages", "ovs"]
"""What a plane may need of a host beside its kernel."""


class Switch(ABC):
    """A switch that has the NIC as a port, for the planes that name it."""

    name: ClassVar[str]
    user_space: ClassVar[bool] = False
    """Whether it may forward in user space: Open vSwitch has one such datapath a namespace, so that
    two of these do not stand side by side."""

    def interface(self, site: Site) -> str:
        """The switch's own interface on the host, which is the uplink of other planes."""
        return site.bridge

    def steps(self, site: Site) -> tuple[Step, ...]:
        """Steps that make the switch, without the NIC; none where `create` does it."""
        return ()

    def create(self, state: MachineState, site: Site) -> tuple[Step, ...]:
        """Makes the switch, without the NIC; the steps returned are still to be performed."""
        return self.steps(site)

    def described(self, site: Site) -> tuple[object, ...]:
        """The steps that make the switch, for people."""
        return self.steps(site)

    @abstractmethod
    def add_nic(self, site: Site) -> tuple[Step, ...]:
        """Makes the NIC a port of it."""

    @abstractmethod
    def release_nic(self, site: Site) -> tuple[Step, ...]:
        """Takes the NIC out of it."""

    @abstractmethod
    def join(self, site: Site, port: str) -> Step:
        """Makes an interface of the host a port of it."""

    @abstractmethod
    def leave(self, state: MachineState, port: str) -> None:
        """Removes a port before its interface is deleted, where it does not go with that."""

    @abstractmethod
    def static_entry(self, site: Site, port: str, mac: str) -> Step:
        """Adds a static forwarding entry: no frame for `mac`, behind `port`, is flooded."""

    def entries(
        self, site: Site, port: str, guest: Guest, peer: Guest, within: bool
    ) -> tuple[Step, ...]:
        """Static entries of a guest, behind `port`, and of its peer."""
        entry = self.static_entry(site, port, guest.mac)
        return (entry,) if within else (entry, self.static_entry(site, site.nic, peer.mac))

    def remarks(self, host: Host, *, local: bool) -> tuple[str, ...]:
        """How it forwards; see `Plane.remarks`."""
        return ()

    def pause(self, state: MachineState) -> None:  # noqa: B027 - most do not poll
        """Stops polling until `resume`. Idempotent."""

    def resume(self, state: MachineState) -> None:  # noqa: B027 - most do not poll
        """Undoes `pause`. Idempotent."""

    def disable_offloads(self, state: MachineState, netns: str, interface: str) -> tuple[Step, ...]:
        """Disables a guest's transmit offloads where the switch forwards frames as they are."""
        return ()


_NO_FORWARDER: Mapping[Forwarder, str] = {
    "testpmd": "dpdk-testpmd polls a device of its own, and the interface of such a function is a "
    "kernel's",
    "kernel": "such a function has a ring in shared memory, and no interface that a kernel could "
    "route on",
    "xdp": "such a function has a ring in shared memory, and no interface that could have an XDP "
    "program",
}


class Plane:
    """A way for a guest's frames to reach the NIC."""

    name: ClassVar[str]
    """As it is written in designs."""
    guests: ClassVar[tuple[GuestKind, ...]]
    """The kinds of guest that it exists for."""
    functions: ClassVar[Mapping[GuestKind, tuple[Forwarder, ...]]] = {}
    """Of these, the kinds that can be functions of a chain on it, with the forwarders of each;
    the first is the default."""
    rank: ClassVar[int] = 100
    """Its place where planes are listed."""
    switch_is_program: ClassVar[bool] = False
    """Whether its switch is a program, which has a CPU of its own in a chain."""
    switch: ClassVar[Switch | None] = None
    """The switch that the NIC must be a port of; None: none, and it works beside any switch."""
    on_uplink: ClassVar[bool] = False
    """Whether its interfaces sit on the uplink, and end when the NIC changes its switch."""
    is_host: ClassVar[bool] = False
    """Whether its guest is the host itself: there is one, with no interface of its own."""
    vfs: ClassVar[int] = 0
    """VFs of the NIC that each guest holds."""
    passed_through: ClassVar[bool] = False
    """Whether the guest drives a VF itself, past the host."""
    outward_only: ClassVar[bool] = False
    """Whether the sender's guests can open connections, and nobody can to them."""
    nic_within_host: ClassVar[bool] = False
    """Whether frames between guests of one host pass the NIC."""
    container_network: ClassVar[bool] = False
    """Whether Docker makes and owns the guest's interface."""
    by_steps: ClassVar[bool] = True
    """Whether `plug` only returns steps; else it acts, and the guests must exist."""
    local_refusal: ClassVar[str] = ""
    """Why no pair of namespaces of one machine can have it; empty where one can."""
    chains_only: ClassVar[Mapping[GuestKind, str]] = {}
    """Kinds of guest that are functions of chains on it and nothing else, with the reason."""
    shares_memory: ClassVar[bool] = False
    """Whether its switch sees the memory of guests."""
    most_mtu_bytes: ClassVar[int | None] = None
    """The largest MTU that it can have; None: the kernel's."""
    needs: ClassVar[tuple[Need, ...]] = ()
    remedy: ClassVar[str] = ""
    """What to do where the host lacks something."""
    quick: ClassVar[bool] = True
    """Whether `planewise quick` measures it, where it needs nothing but a kernel."""
    not_measurable: ClassVar[Mapping[Metric, str]] = {}
    """Metrics that do not exist for this plane, with the reason."""
    preparation: ClassVar[str] = ""
    """Name of what `prepare` makes, which planes share; empty: the plane's own."""

    def function_refusal(self, kind: GuestKind, forwarder: Forwarder | Literal[""]) -> str:
        """Why no function of a chain can be of this kind and forwarder, as a sentence. Pure."""
        if not self.functions:
            return f"no chain is built on the plane {self.name}"
        if kind not in self.functions:
            kinds = " or ".join(GUEST_WORDS[function][1] for function in self.functions)
            plural = GUEST_WORDS[kind][1]
            return f"functions of a chain on {self.name} cannot be {plural}: they are {kinds}"
        if not forwarder or forwarder in self.functions[kind]:
            return ""
        return f"{_NO_FORWARDER[forwarder]} (on {self.name}, {GUEST_WORDS[kind][1]})"

    def remarks(self, host: Host, *, local: bool) -> tuple[str, ...]:
        """How the plane is built on a host, where results depend on it.

        `local`: the host is a namespace of this machine.
        """
        return () if self.switch is None else self.switch.remarks(host, local=local)

    def adopt(self, site: Site, guest: Guest) -> Guest:
        """The guest as this plane makes it (a plane may impose its MAC)."""
        return guest

    def prepare(self, site: Site) -> tuple[Step, ...]:
        """Steps for a host and uplink, before its guests."""
        return ()

    def withdraw(self, site: Site) -> tuple[Step, ...]:
        """Undoes `prepare`, before the uplink changes."""
        return ()

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """Steps that give a guest, whose namespace exists, its interface, addresses and routes.

        None where `plug` acts instead, or the plane is for chains only.
        """
        return ()

    def plug(
        self, state: MachineState, site: Site, placed: Sequence[PlacedGuest]
    ) -> tuple[Step, ...]:
        """Gives guests of a host their interfaces; the steps returned are still to be performed."""
        guests = (placed_guest.guest for placed_guest in placed)
        return tuple(step for guest in guests for step in self.attach(site, guest))

    def unplug(self, state: MachineState, placed: PlacedGuest) -> None:
        """Takes back what outlives a guest: from a namespace before it ends, from a virtual machine
        once it has ended."""

    def port(self, state: MachineState, guest: Guest) -> str:
        """The host side of a guest that is plugged in; empty where the host has none."""
        return self.host_interface(guest)

    def static_neighbours(
        self, site: Site, guest: Guest, peer: Guest, within: bool
    ) -> tuple[Step, ...]:
        """Steps that set `peer`'s addresses permanently: none is resolved, no frame is flooded.

        `within`: the peer lives on the same host.
        """
        return neighbours(guest, peer, peer.mac)

    def host_interface(self, guest: Guest) -> str:
        """The host side of the guest's attachment; empty where the host has none."""
        return ""

    def nic_point(self, site: Site, guest: Guest) -> tuple[str, str]:
        """Namespace and name of the interface where frames pass the NIC."""
        return site.netns, site.nic

    def next_hop_mac(self, site: Site, guest: Guest, peer: Guest) -> str:
        """Destination MAC of the guest's frames to `peer`."""
        return peer.mac


def veth_pair(site: Site, guest: Guest, port: str) -> Step:
    """The pair of a guest's interface and its port of the host."""
    return add_veth(
        site.netns,
        port,
        guest.port_index,
        site.port_mac(guest),
        guest.netns,
        guest.interface,
        guest.mac,
        site.mtu_bytes,
    )


def on_link(guest: Guest) -> tuple[Step, ...]:
    """Addresses of a guest that shares one layer-2 segment with all others, and its link up."""
    return (
        set_up(guest.netns, guest.interface),
        set_address(guest.netns, guest.interface, f"{guest.ipv4}/15"),
        set_address(guest.netns, guest.interface, f"{guest.ipv6}/48"),
    )


def neighbours(guest: Guest, peer: Guest, mac: str) -> tuple[Step, ...]:
    """Permanent neighbour entries in the guest: the peer's addresses are behind `mac`.

    Background guests send by IPv4 alone, and with a hundred of them each entry takes its time.
    """
    addresses = (peer.ipv4, peer.ipv6) if guest.role == "main" else (peer.ipv4,)
    return tuple(add_neighbour(guest.netns, guest.interface, address, mac) for address in addresses)
