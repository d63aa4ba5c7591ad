"""A router between two ports of a generator, for sweeps and searches. Knows no measurement.

The plan is pure; the testbed performs it and removes all of it again: on success, on error, on
Ctrl-C and on SIGTERM. After a kill -9 the names are leftovers that `planewise clean` finds.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import cached_property
from typing import Literal, Self

from planewise.testbed.guests.docker import Docker, name_networks
from planewise.testbed.hosts import netns, signals
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.ledger import Ownership
from planewise.testbed.hosts.xdp import XDP_ROUTER, attach
from planewise.testbed.model import (
    BRIDGE,
    GUEST_INTERFACE,
    WIRE_INDEX,
    CounterPoint,
    Guest,
    IpVersion,
    TrialPath,
)
from planewise.testbed.plan import (
    Plan,
    Step,
    add_bridge,
    add_forwarding,
    add_neighbour,
    add_tap,
    add_veth,
    await_up,
    new_namespace,
    set_address,
    set_master,
    set_sysctl,
    set_up,
)
from planewise.testbed.switches.router_machine import RouterMachine

_GENERATOR_MACS = ("02:70:77:40:00:00", "02:70:77:40:00:01")
_ROUTER_MACS = ("02:70:77:50:00:00", "02:70:77:50:00:01")
_TX, _RX = "tg0", "tg1"
_ROUTER = ("rt0", "rt1")
_MACHINE_MAC = "02:70:77:50:00:02"
_TAP, _TAP_MAC = "rtvm", "02:70:77:60:00:00"
_BRIDGE_MAC = "02:70:77:60:00:01"


Forwarding = Literal["kernel", "xdp", "bridge"]
"""Forwarder in a router under test."""
RouterPlatform = Literal["namespace", "container", "vm"]
"""Kind of a router under test."""


def plan_router(
    token: str,
    mtu_bytes: int = 1500,
    forwarding: Forwarding = "kernel",
    platform: RouterPlatform = "namespace",
) -> Plan:
    """A generator with two ports and a host between them that forwards IPv4 and IPv6. Pure.

    Docker makes the namespace of a router that is a container before this plan. A virtual machine
    starts after it: its one NIC is the tap, on a bridge with both ports.

    The generator has no addresses, so that its kernel neither answers nor forwards frames of the
    router. An XDP program routes by the kernel's addresses and neighbours; a bridge has none.
    """
    generator, router = f"pw-{token}-g", f"pw-{token}-f"
    steps: list[Step] = [*new_namespace(generator)]
    if platform != "container":
        steps += new_namespace(router)
    bridged = forwarding == "bridge" or platform == "vm"
    if bridged:
        steps += [add_bridge(router, BRIDGE, _BRIDGE_MAC, mtu_bytes), set_up(router, BRIDGE)]
    else:
        steps += [
            set_sysctl(router, "net/ipv4/ip_forward", "1"),
            set_sysctl(router, "net/ipv6/conf/all/forwarding", "1"),
        ]
    for side, port in enumerate((_TX, _RX)):
        inside = _ROUTER[side]
        steps += [
            add_veth(
                generator,
                port,
                WIRE_INDEX + side,
                _GENERATOR_MACS[side],
                router,
                inside,
                _ROUTER_MACS[side],
                mtu_bytes,
            ),
            set_up(generator, port),
            set_up(router, inside),
        ]
        if bridged:
            steps += [
                set_master(router, inside, BRIDGE),
                add_forwarding(router, inside, _GENERATOR_MACS[side]),
            ]
            continue
        steps += [
            set_address(router, inside, f"198.{18 + side}.0.1/16"),
            set_address(router, inside, f"2001:2:0:{1 + side}::1/64"),
            add_neighbour(router, inside, f"198.{18 + side}.0.2", _GENERATOR_MACS[side]),
            add_neighbour(router, inside, f"2001:2:0:{1 + side}::2", _GENERATOR_MACS[side]),
        ]
        if forwarding == "xdp":
            steps.append(attach(router, inside, XDP_ROUTER))
    steps += [await_up(generator), await_up(router)]
    if platform == "vm":
        steps += [
            *add_tap(router, _TAP, _TAP_MAC, mtu_bytes),
            set_master(router, _TAP, BRIDGE),
            set_up(router, _TAP),
            add_forwarding(router, _TAP, _MACHINE_MAC),
        ]
    return Plan(tuple(steps))


def _machine(token: str) -> tuple[Guest, Mapping[str, str]]:
    """A router that is a virtual machine, and its permanent neighbours. Pure."""
    guest = Guest(
        name="router",
        host="responder",
        role="main",
        index=0,
        plane="virtio-bridge",
        netns=f"pw-{token}-m",
        interface=GUEST_INTERFACE,
        mac=_MACHINE_MAC,
        ipv4="198.18.0.1",
        ipv6="2001:2:0:1::1",
    )
    neighbours = {
        address: mac
        for side, mac in enumerate(_GENERATOR_MACS)
        for address in (f"198.{18 + side}.0.2", f"2001:2:0:{1 + side}::2")
    }
    return guest, neighbours


class RouterTestbed:
    """A generator and a forwarding host (the case of PASTRAMI), as a context manager.

    Raises on entry:
        UnsupportedError: no privilege, or this machine lacks something.
        PlanewiseError: it could not be built.
    """

    def __init__(
        self,
        ip_version: IpVersion,
        mtu_bytes: int = 1500,
        forwarding: Forwarding = "kernel",
        platform: RouterPlatform = "namespace",
        *,
        cpus: tuple[int, ...] = (),
        nic_ring: int | None = None,
    ) -> None:
        """`cpus` and `nic_ring` are a virtual machine's: where it may run (empty: anywhere), and
        the packets of its NIC's receive ring (None: QEMU's default)."""
        self.forwarding: Forwarding = forwarding
        self.platform: RouterPlatform = platform
        self.ip_version = ip_version
        self.mtu_bytes = mtu_bytes
        self.emulated = ""
        """Why its times are not those of hardware, once it is built; empty where they are."""
        self._cpus, self._nic_ring = cpus, nic_ring
        self._guests = ExitStack()
        self._ownership: Ownership | None = None
        self._signals: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        netns.prepare_run()
        self._signals = signals.raise_on_signals()
        try:
            self._ownership = Ownership.take(f"IPv{self.ip_version} router")
            if self.platform == "container":
                self._start_container()
            with closing(LocalHost("this machine")) as host:
                host.perform(self.plan)
            if self.platform == "vm":
                self._start_machine()
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._tear_down()

    def _tear_down(self) -> None:
        try:
            with signals.uninterrupted(), ExitStack() as last:
                if self._ownership is not None:
                    last.callback(self._ownership.remove)
                for host in self.__dict__.pop("hosts", {}).values():
                    last.callback(host.close)
                last.callback(self._guests.close)
        finally:
            self._ownership = None
            signals.restore(self._signals)
            self._signals = ()

    @property
    def token(self) -> str:
        """Its names start with `pw-<token>-`; only inside the `with` block."""
        if self._ownership is None:
            raise RuntimeError("the testbed is not built: use it in a with block")
        return self._ownership.token

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
    def _next_hop_mac(self) -> str:
        if self.platform == "vm":
            return _MACHINE_MAC
        return _GENERATOR_MACS[1] if self.forwarding == "bridge" else _ROUTER_MACS[0]

    @property
    def _inside(self) -> tuple[str, ...]:
        """The router's interfaces, in the order in which frames pass them."""
        machine = (_TAP,) if self.platform == "vm" else ()
        return (_ROUTER[0], *machine, _ROUTER[1])

    @property
    def plan(self) -> Plan:
        """The steps that made it."""
        return plan_router(self.token, self.mtu_bytes, self.forwarding, self.platform)

    def trial_path(self) -> TrialPath:
        """From one port of the generator through the router to the other."""
        generator = f"pw-{self.token}-g"
        return TrialPath(
            tx_netns=generator,
            tx_interface=_TX,
            rx_netns=generator,
            rx_interface=_RX,
            source_mac=_GENERATOR_MACS[0],
            next_hop_mac=self._next_hop_mac,
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
            *(CounterPoint("router", router, name) for name in self._inside),
            CounterPoint("generator", generator, _RX),
        )

    def _start_container(self) -> None:
        host = LocalHost("docker")
        self._guests.callback(host.close)
        docker = self._guests.enter_context(Docker(host, self.token))
        docker.run(self.router_netns)
        name_networks(host, docker, [self.router_netns])

    def _start_machine(self) -> None:
        guest, neighbours = _machine(self.token)
        machine = RouterMachine(self.hosts["router"], self._cpus)
        self._guests.enter_context(machine).start(
            guest, neighbours, _TAP, self.mtu_bytes, self._nic_ring
        )
        self.emulated = machine.emulated
