"""Testbeds made of network namespaces: two hosts and a wire, or a router. Knows no measurement.

`plan_hosts` and `plan_router` are pure; `NamespaceTestbed` and `RouterTestbed` apply what they
return, and remove it again: on success, on error, on Ctrl-C and on SIGTERM. After a kill -9 the
names are leftovers that `planewise clean` finds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from planewise.errors import PlanewiseError
from planewise.store.models import Metric
from planewise.testbed import netns, signals
from planewise.testbed.apply import apply
from planewise.testbed.host import LocalHost
from planewise.testbed.ledger import Ownership, token_of
from planewise.testbed.model import (
    BRIDGE,
    HOSTS,
    WIRE,
    WIRE_INDEX,
    CapturePoint,
    CounterPoint,
    Guest,
    HostRole,
    IpVersion,
    Site,
    TestbedSpec,
    TrialPath,
    make_guest,
)
from planewise.testbed.netns import NamespaceThread
from planewise.testbed.plan import (
    AddBridge,
    AddNamespace,
    AddNeighbour,
    AddVeth,
    AwaitUp,
    Plan,
    SetAddress,
    SetMaster,
    SetSysctl,
    SetUp,
    Step,
)
from planewise.testbed.planes import Plane, namespace_plane


@dataclass(frozen=True)
class Topology:
    """What a namespace testbed consists of, before anything of it exists."""

    spec: TestbedSpec
    sites: Mapping[HostRole, Site]
    main: Mapping[HostRole, Guest]
    background: Mapping[HostRole, tuple[Guest, ...]]


def lay_out(token: str, spec: TestbedSpec) -> Topology:
    """Names and addresses of everything in a testbed. Pure.

    Raises:
        BadInputError: there is no such plane.
        UnsupportedError: a plane that cannot attach a namespace.
    """
    planes = [namespace_plane(name) for name in spec.planes]
    uplink = BRIDGE if any(plane.bridged for plane in planes) else WIRE
    sites: dict[HostRole, Site] = {
        host: Site(host, f"pw-{token}-{host[0]}", uplink, spec.mtu_bytes) for host in HOSTS
    }

    def guest(host: HostRole, plane: Plane, index: int | None) -> Guest:
        role = "main" if index is None else "background"
        made = make_guest(token, host, role, index or 0, plane.name)  # type: ignore[arg-type]
        return plane.adopt(sites[host], made)

    return Topology(
        spec,
        sites,
        {host: guest(host, planes[0], None) for host in HOSTS},
        {
            host: tuple(guest(host, planes[-1], index) for index in range(spec.background_guests))
            for host in HOSTS
        },
    )


def plan_hosts(topology: Topology) -> Plan:
    """Every step that makes a testbed, in order. Pure."""
    steps: list[Step] = []
    for site in topology.sites.values():
        steps += new_namespace(site.netns)
    sender, responder = topology.sites["sender"], topology.sites["responder"]
    steps.append(
        AddVeth(
            sender.netns,
            WIRE,
            WIRE_INDEX,
            sender.wire_mac,
            responder.netns,
            WIRE,
            responder.wire_mac,
            topology.spec.mtu_bytes,
        )
    )
    planes = [namespace_plane(name) for name in topology.spec.planes]
    for site in topology.sites.values():
        if site.uplink == BRIDGE:
            steps += [
                AddBridge(site.netns, BRIDGE, site.bridge_mac, site.mtu_bytes),
                SetMaster(site.netns, WIRE, BRIDGE),
                SetUp(site.netns, BRIDGE),
            ]
        steps.append(SetUp(site.netns, WIRE))
        for plane in planes:
            steps += plane.prepare(site)
        for guest in (topology.main[site.host], *topology.background[site.host]):
            steps += new_namespace(guest.netns)
            steps += namespace_plane(guest.plane).attach(site, guest)
    for host, peer in zip(HOSTS, reversed(HOSTS), strict=True):
        main = topology.main[host]
        plane = namespace_plane(main.plane)
        steps += plane.acquaint(topology.sites[host], main, topology.main[peer])
    for host in HOSTS:
        steps += [AwaitUp(topology.sites[host].netns), AwaitUp(topology.main[host].netns)]
    return Plan(tuple(steps))


def new_namespace(name: str) -> tuple[Step, ...]:
    """A namespace that says nothing by itself: no link-local addresses, no router solicitations."""
    return (
        AddNamespace(name),
        SetSysctl(name, "net/ipv6/conf/default/addr_gen_mode", "1"),
        SetSysctl(name, "net/ipv6/conf/default/accept_ra", "0"),
    )


class _Testbed(ABC):
    """Builds a plan under a token of its own and removes it, whatever happens in between."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._ownership: Ownership | None = None
        self._signals: tuple[int, ...] = ()

    @abstractmethod
    def _plan(self, token: str) -> Plan:
        """What is to be made, with names under this token."""

    @abstractmethod
    def _hosts(self) -> list[LocalHost]:
        """Hosts that were used, to be closed; it is not built afterwards."""

    def __enter__(self) -> Self:
        netns.prepare_run()
        self._signals = signals.raise_on_signals()
        try:
            self._ownership = Ownership.take(self._what)
            plan = self._plan(self._ownership.token)
            thread = NamespaceThread("apply")
            try:
                apply(plan, thread)
            finally:
                thread.close()
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._tear_down()

    def _tear_down(self) -> None:
        try:
            with signals.uninterrupted():
                for host in self._hosts():
                    host.close()
                if self._ownership is not None:
                    self._remove(self._ownership)
                    self._ownership = None
        finally:
            signals.restore(self._signals)
            self._signals = ()

    def _remove(self, ownership: Ownership) -> None:
        names = [name for name in netns.names() if token_of(name) == ownership.token]
        netns.end_processes_in(names)
        stuck = []
        for name in names:
            try:
                netns.remove(name)
            except OSError as error:
                stuck.append(f"{name} ({error.strerror})")
        if stuck:
            # The token stays taken by nobody: `planewise clean` will find it.
            ownership.abandon()
            raise PlanewiseError(
                f"these namespaces could not be removed: {', '.join(stuck)}",
                remedy="`planewise clean` as root tries again",
            )
        ownership.release()


class NamespaceTestbed(_Testbed):
    """Sender host, responder host, the wire and the guests, as a context manager.

    Raises on entry:
        BadInputError: there is no such plane.
        UnsupportedError: no privilege, or this kernel has not what a plane needs.
    """

    def __init__(self, spec: TestbedSpec) -> None:
        super().__init__(f"testbed {spec.plane}, {spec.background_guests} background guests")
        self.spec = spec
        lay_out("0" * 8, spec)  # a wrong plane is said before anything is made
        self._topology: Topology | None = None

    @property
    def topology(self) -> Topology:
        """Names and addresses of everything in it; only inside the `with` block."""
        if self._topology is None:
            raise RuntimeError("the testbed is not built: use it in a with block")
        return self._topology

    @cached_property
    def hosts(self) -> Mapping[HostRole, LocalHost]:
        """`sender` and `responder`; processes without a namespace run in the host's own."""
        return {role: LocalHost(role, site.netns) for role, site in self.topology.sites.items()}

    @property
    def plan(self) -> Plan:
        """The steps that made it."""
        return plan_hosts(self.topology)

    def main(self, host: HostRole) -> Guest:
        """The measured guest of a host."""
        return self.topology.main[host]

    def background(self, host: HostRole) -> tuple[Guest, ...]:
        """The background guests of a host."""
        return self.topology.background[host]

    @property
    def capture_points(self) -> tuple[CapturePoint, ...]:
        """Where probe packets can be seen, along their way from the sender.

        `sender_guest` and `responder_guest` are missing for a plane without a host side.
        """
        points: list[CapturePoint] = []
        for host in HOSTS:
            site, guest = self.topology.sites[host], self.topology.main[host]
            port = namespace_plane(guest.plane).host_interface(guest)
            here = [CapturePoint(f"{host}_nic", host, site.netns, WIRE)]
            if port:
                here.insert(0, CapturePoint(f"{host}_guest", host, site.netns, port))
            points += here if host == "sender" else reversed(here)
        return tuple(points)

    @property
    def counter_points(self) -> tuple[CounterPoint, ...]:
        """Every interface on the way from the sender's main guest to the responder's."""
        points: list[CounterPoint] = []
        for host in HOSTS:
            site, guest = self.topology.sites[host], self.topology.main[host]
            port = namespace_plane(guest.plane).host_interface(guest)
            here = [CounterPoint(host, guest.netns, guest.interface)]
            if port:
                here.append(CounterPoint(host, site.netns, port))
            if site.uplink != WIRE:
                here.append(CounterPoint(host, site.netns, site.uplink))
            here.append(CounterPoint(host, site.netns, WIRE))
            points += here if host == "sender" else reversed(here)
        return tuple(points)

    @property
    def entrances(self) -> Mapping[HostRole, tuple[str, ...]]:
        """By host, the interfaces in its namespace where frames of the main guests enter it."""
        return {
            host: tuple(point.interface for point in self.capture_points if point.host == host)
            for host in HOSTS
        }

    @property
    def not_measurable(self) -> Mapping[Metric, str]:
        """Metrics that do not exist for the main guests' plane, with the reason."""
        return namespace_plane(self.spec.plane).not_measurable

    def trial_path(self, sender: HostRole = "sender") -> TrialPath:
        """From the main guest of `sender` to the other host's."""
        receiver: HostRole = "responder" if sender == "sender" else "sender"
        guest, peer = self.main(sender), self.main(receiver)
        plane = namespace_plane(guest.plane)
        return TrialPath(
            tx_netns=guest.netns,
            tx_interface=guest.interface,
            rx_netns=peer.netns,
            rx_interface=peer.interface,
            source_mac=guest.mac,
            next_hop_mac=plane.next_hop_mac(self.topology.sites[sender], guest, peer),
            source_ipv4=guest.ipv4,
            destination_ipv4=peer.ipv4,
            source_ipv6=guest.ipv6,
            destination_ipv6=peer.ipv6,
        )

    def _plan(self, token: str) -> Plan:
        self._topology = lay_out(token, self.spec)
        return plan_hosts(self._topology)

    def _hosts(self) -> list[LocalHost]:
        hosts = list(self.__dict__.pop("hosts", {}).values())
        self._topology = None
        return hosts


_GENERATOR_MACS = ("02:70:77:40:00:00", "02:70:77:40:00:01")
_ROUTER_MACS = ("02:70:77:50:00:00", "02:70:77:50:00:01")
_TX, _RX = "tg0", "tg1"
_ROUTER = ("rt0", "rt1")


def plan_router(token: str, mtu_bytes: int = 1500) -> Plan:
    """A generator with two ports and a router between them that forwards IPv4 and IPv6. Pure.

    The generator has no addresses: its kernel neither answers nor forwards what the router sends.
    """
    generator, router = f"pw-{token}-g", f"pw-{token}-f"
    steps: list[Step] = [*new_namespace(generator), *new_namespace(router)]
    steps += [
        SetSysctl(router, "net/ipv4/ip_forward", "1"),
        SetSysctl(router, "net/ipv6/conf/all/forwarding", "1"),
    ]
    for side, port in enumerate((_TX, _RX)):
        inside = _ROUTER[side]
        steps += [
            AddVeth(
                generator,
                port,
                WIRE_INDEX + side,
                _GENERATOR_MACS[side],
                router,
                inside,
                _ROUTER_MACS[side],
                mtu_bytes,
            ),
            SetUp(generator, port),
            SetUp(router, inside),
            SetAddress(router, inside, f"198.{18 + side}.0.1/16"),
            SetAddress(router, inside, f"2001:2:0:{1 + side}::1/64"),
            AddNeighbour(router, inside, f"198.{18 + side}.0.2", _GENERATOR_MACS[side]),
            AddNeighbour(router, inside, f"2001:2:0:{1 + side}::2", _GENERATOR_MACS[side]),
        ]
    steps += [AwaitUp(generator), AwaitUp(router)]
    return Plan(tuple(steps))


class RouterTestbed(_Testbed):
    """A generator and a forwarding host (the case of PASTRAMI), as a context manager.

    Raises on entry:
        UnsupportedError: no privilege, or this kernel has not what it needs.
    """

    def __init__(self, ip_version: IpVersion, mtu_bytes: int = 1500) -> None:
        super().__init__(f"IPv{ip_version} router")
        self.ip_version = ip_version
        self.mtu_bytes = mtu_bytes
        self._token = ""

    @property
    def token(self) -> str:
        """Its names start with `pw-<token>-`; only inside the `with` block."""
        if not self._token:
            raise RuntimeError("the testbed is not built: use it in a with block")
        return self._token

    @cached_property
    def hosts(self) -> Mapping[str, LocalHost]:
        """`generator` and `router`."""
        return {
            "generator": LocalHost("generator", f"pw-{self.token}-g"),
            "router": LocalHost("router", f"pw-{self.token}-f"),
        }

    @property
    def router_netns(self) -> str:
        """The router's namespace."""
        return f"pw-{self.token}-f"

    @property
    def entrances(self) -> tuple[str, ...]:
        """The router's interfaces, where frames enter it."""
        return _ROUTER

    @property
    def plan(self) -> Plan:
        """The steps that made it."""
        return plan_router(self.token, self.mtu_bytes)

    def trial_path(self) -> TrialPath:
        """From one port of the generator through the router to the other."""
        generator = f"pw-{self.token}-g"
        return TrialPath(
            tx_netns=generator,
            tx_interface=_TX,
            rx_netns=generator,
            rx_interface=_RX,
            source_mac=_GENERATOR_MACS[0],
            next_hop_mac=_ROUTER_MACS[0],
            source_ipv4="198.18.0.2",
            destination_ipv4="198.19.0.2",
            source_ipv6="2001:2:0:1::2",
            destination_ipv6="2001:2:0:2::2",
        )

    @property
    def counter_points(self) -> tuple[CounterPoint, ...]:
        """Every interface on the way of the frames."""
        generator, router = f"pw-{self.token}-g", f"pw-{self.token}-f"
        return (
            CounterPoint("generator", generator, _TX),
            CounterPoint("router", router, _ROUTER[0]),
            CounterPoint("router", router, _ROUTER[1]),
            CounterPoint("generator", generator, _RX),
        )

    def _plan(self, token: str) -> Plan:
        self._token = token
        return plan_router(token, self.mtu_bytes)

    def _hosts(self) -> list[LocalHost]:
        hosts = list(self.__dict__.pop("hosts", {}).values())
        self._token = ""
        return hosts
