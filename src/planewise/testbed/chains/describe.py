"""The steps that build a chain, for people, before anything is built. Pure."""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import cycle

from planewise.testbed.chains import ends
from planewise.testbed.chains.dpdk import Driver, memory_bytes, uplinks
from planewise.testbed.chains.ends import CABLES, PLACES, Ends
from planewise.testbed.chains.forwarders import attach_in_machine, attach_to_namespaces
from planewise.testbed.chains.functions import command
from planewise.testbed.chains.model import SWITCH, Chain, Placement
from planewise.testbed.chains.routing import (
    function_guests,
    netns,
    peers,
    router_script,
    routing,
)
from planewise.testbed.model import BRIDGE, GUEST_INTERFACE, Guest
from planewise.testbed.plan import new_namespace
from planewise.testbed.planes import plane
from planewise.testbed.planes.plane import on_link
from planewise.testbed.switches.dpdk_switch import SWITCH_BYTES

_TOKEN = "0" * 8
_FAR = ("<MAC of the sending end>", "<MAC of the receiving end>")


def steps(
    chain: Chain, placement: Placement, nic: str = "", uplink: Driver | None = None
) -> tuple[str, ...]:
    """The steps that build a chain, in order; MACs of VFs, which are not known yet, are named.

    `nic` is that of both hosts; empty: both are this machine.
    """
    chain_ends = Ends(_FAR, (nic, nic)) if nic else CABLES
    functions = function_guests(_TOKEN, chain)
    if chain.on_vfs:
        functions = {
            number: replace(guest, mac=f"<MAC of {guest.name}>")
            for number, guest in functions.items()
        }
    lines: list[object] = []
    if huge_pages_bytes := memory_bytes(chain):
        lines.append(f"take {huge_pages_bytes >> 20} MiB of huge pages from the kernel")
    site = ends.site_of(netns(_TOKEN, "b") if nic else BRIDGE, chain_ends.nics)
    site, switch = replace(site, directory="<directory>"), ends.kernel_switch(chain)
    if chain.plane == "vhost-user":
        lines += _dpdk_switch(chain, placement, chain_ends, uplink)
    elif switch is not None:
        lines += (*switch.described(site), *ends.add_nics(switch, site, chain_ends.nics))
    for guest in functions.values():
        lines += _create(chain, guest, nic)
        if switch is not None:
            lines += plane(chain.plane).attach(site, guest)
    if switch is not None:
        lines += ends.entries(switch, site, functions, chain_ends)
    lines += _forward(chain, placement, functions, chain_ends.macs)
    if chain.plane == "vhost-user":
        lines.append("forward " + ", ".join(f"{a} to {b}" for a, b in chain.hops))
    if not nic:
        return tuple(map(str, (*ends.cables(_TOKEN), *lines)))
    names = [netns(_TOKEN, place) for place in PLACES]
    return (
        *(f"sender: ip netns add {name}" for name in names),
        *(f"sender: {_vf_move(nic, name)}" for name in names),
        *(f"responder: {line}" for line in lines),
    )


def _vf_move(nic: str, name: str) -> str:
    return (
        f"planewised vf move <VF of {nic}> --to {name} --name {GUEST_INTERFACE} "
        f"--mtu {ends.MTU_BYTES}"
    )


def _create(chain: Chain, guest: Guest, nic: str) -> list[object]:
    """Steps that make a function, before it has a port."""
    lines: list[object] = []
    if chain.kind == "container":
        lines += [
            f"docker run --network none --name {guest.netns}",
            f"ip netns attach {guest.netns} <its process>",
        ]
    if chain.by_vfio:
        lines.append(f"planewised vf bind <VF of {nic}> vfio-pci")
    if chain.kind == "vm" or chain.polls:
        return lines
    if chain.kind != "container":
        lines += new_namespace(guest.netns)
    return [*lines, _vf_move(nic, guest.netns), *on_link(guest)] if chain.on_vfs else lines


def _dpdk_switch(
    chain: Chain, placement: Placement, chain_ends: Ends, uplink: Driver | None
) -> list[object]:
    """Steps that make the switch and its ports."""
    cpus = placement.cpus(SWITCH)
    turns = cycle(cpus)
    ports = ", ".join(f"{name} (polled by CPU {next(turns)})" for name in chain.names)
    up = "".join(
        f", and {port.name}: {port.options['dpdk-devargs']}"
        for port in (uplinks(uplink, chain_ends.nics, cpus) if uplink else ())
    )
    return [
        f"start ovs-vswitchd-dpdk with {SWITCH_BYTES >> 20} MiB, polling on "
        f"CPU{'s' if len(cpus) > 1 else ''} {', '.join(map(str, cpus))}",
        f"add the vhost-user ports {ports} to a bridge with datapath_type=netdev{up}",
    ]


def _forward(
    chain: Chain, placement: Placement, functions: dict[int, Guest], far: tuple[str, str]
) -> list[object]:
    """Steps that start the functions, each with the destination of its frames."""
    if chain.kind != "vm" and not chain.polls:
        programs = attach_to_namespaces(chain, functions) if chain.forwards == "xdp" else ()
        return [*routing(chain, functions, far), *programs]
    routes, lines = routing(chain, functions, far), list[object]()
    for number, peer in peers(chain, functions, far[1]).items():
        guest, cpu = functions[number], placement.cpu(f"vnf{number}")
        words, name = list(router_script(routes, guest.netns)), guest.name
        if chain.kind != "vm":
            device = f"<address of {name}'s VF>" if chain.on_vfs else f"{name}.sock"
            lines.append(shlex.join(command(chain, device, cpu, peer, name)))
            continue
        if chain.polls:
            words = ["unbind the NIC from its kernel's driver, bind it to uio_pci_generic"]
            words.append(shlex.join(command(chain, f"<address of {name}'s NIC>", 0, peer, "vnf")))
        elif chain.forwards == "xdp":
            words.append(attach_in_machine())
        device = f"a virtio NIC on {guest.port}"
        if chain.on_vfs:
            device = "that VF"
        elif chain.plane == "vhost-user":
            device = f"shared memory and a vhost-user NIC at {name}.sock"
        lines.append(f"start the virtual machine {guest.netns} on CPU {cpu}, with {device}")
        lines += [f"in {guest.netns}: {line}" for line in words]
    return lines
