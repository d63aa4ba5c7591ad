"""A router between two ports of a generator, for sweeps and searches.

The plan is pure; the testbed performs it and removes all of it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Literal

from planewise.testbed.chains.routing import router_script, router_settings, run_script
from planewise.testbed.guests.docker import Docker, name_networks
from planewise.testbed.guests.kind import PlacedGuest
from planewise.testbed.guests.vms.booted import machines_on
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.platform import platform_of
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.machine import Machine, MachineState
from planewise.testbed.hosts.pair import owned
from planewise.testbed.hosts.xdp import XDP_ROUTER, attach
from planewise.testbed.model import (
    BRIDGE,
    GUEST_INTERFACE,
    WIRE_INDEX,
    CounterPoint,
    Guest,
    Site,
    TrialPath,
)
from planewise.testbed.plan import (
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

RING_PACKETS = (256, 512, 1024)
"""What QEMU takes for the receive ring of a virtio NIC (hw/net/virtio-net.c)."""

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
) -> list[Step]:
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
    return steps


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
        port=_TAP,
    )
    neighbours = {
        address: mac
        for side, mac in enumerate(_GENERATOR_MACS)
        for address in (f"198.{18 + side}.0.2", f"2001:2:0:{1 + side}::2")
    }
    return guest, neighbours


@dataclass(frozen=True)
class Router:
    """A generator and a forwarding host (the case of PASTRAMI)."""

    token: str
    hosts: Mapping[str, LocalHost]
    """`generator` and `router`."""
    forwarding: Forwarding
    platform: RouterPlatform
    emulated: str
    """Why its times are not those of hardware; empty where they are."""
    entrances = _ROUTER
    """The router's interfaces, where frames enter it."""

    @property
    def netns(self) -> str:
        """The router's namespace."""
        return f"pw-{self.token}-f"

    def trial_path(self) -> TrialPath:
        """From one port of the generator through the router to the other."""
        generator = f"pw-{self.token}-g"
        next_hop_mac = _GENERATOR_MACS[1] if self.forwarding == "bridge" else _ROUTER_MACS[0]
        return TrialPath(
            tx_netns=generator,
            tx_interface=_TX,
            rx_netns=generator,
            rx_interface=_RX,
            next_hop_mac=_MACHINE_MAC if self.platform == "vm" else next_hop_mac,
            source_ipv4="198.18.0.2",
            destination_ipv4="198.19.0.2",
            source_ipv6="2001:2:0:1::2",
            destination_ipv6="2001:2:0:2::2",
        )

    @property
    def counter_points(self) -> tuple[CounterPoint, ...]:
        """Every interface on the way of the frames."""
        machine = (_TAP,) if self.platform == "vm" else ()
        return (
            CounterPoint("generator", f"pw-{self.token}-g", _TX),
            *(
                CounterPoint("router", self.netns, name)
                for name in (_ROUTER[0], *machine, _ROUTER[1])
            ),
            CounterPoint("generator", f"pw-{self.token}-g", _RX),
        )


@contextmanager
def router_testbed(
    mtu_bytes: int = 1500,
    forwarding: Forwarding = "kernel",
    platform: RouterPlatform = "namespace",
    *,
    cpus: tuple[int, ...] = (),
    ring_packets: int | None = None,
) -> Iterator[Router]:
    """Builds a router between two ports of a generator.

    `cpus` and `ring_packets` are a virtual machine's: where it may run (empty: anywhere), and its
    NIC's receive ring (None: QEMU's default).

    Raises:
        UnsupportedError: no privilege, or this machine lacks something.
        PlanewiseError: it could not be built.
    """
    with owned("router") as (ownership, opened):
        token = ownership.token
        here = opened.enter_context(closing(LocalHost("this machine")))
        if platform == "container":
            docker = opened.enter_context(Docker(here, token))
            docker.run(f"pw-{token}-f")
            name_networks(here, docker, [f"pw-{token}-f"])
        here.perform(plan_router(token, mtu_bytes, forwarding, platform))
        hosts = {
            name: opened.enter_context(closing(LocalHost(name, f"pw-{token}-{suffix}")))
            for name, suffix in (("generator", "g"), ("router", "f"))
        }
        emulated = ""
        if platform == "vm":
            emulated = _start_machine(hosts["router"], opened, token, mtu_bytes, cpus, ring_packets)
        yield Router(token, hosts, forwarding, platform, emulated)


def _start_machine(
    host: LocalHost,
    opened: ExitStack,
    token: str,
    mtu_bytes: int,
    cpus: tuple[int, ...],
    ring_packets: int | None,
) -> str:
    """Starts the router that is a virtual machine; returns why its times are emulated."""
    guest, neighbours = _machine(token)
    platform, site = platform_of(host), Site("responder", "", BRIDGE, mtu_bytes)
    state = MachineState(Machine(host, "", "", "", netns=host.place), "responder", token)
    options = VmOptions(main_cpus=cpus, ring_packets=ring_packets)
    machines = machines_on(state, platform, options)
    opened.callback(machines.close)
    machines.prepare((), ())  # the plan has made its tap
    machines.wake([(PlacedGuest(guest, site), None)])
    machines.set_neighbours(guest, neighbours)
    ipv6 = set_sysctl(guest.netns, "net/ipv6/conf/all/forwarding", "1")
    steps = (*router_settings(guest.netns, GUEST_INTERFACE), ipv6)
    run_script(host, guest, router_script(steps, guest.netns))
    return platform.emulated
