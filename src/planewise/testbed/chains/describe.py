"""The steps that build a chain, for people, before anything is built. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import cycle

from planewise.testbed.chains import ends
from planewise.testbed.chains.dpdk import Driver, memory_bytes, uplinks
from planewise.testbed.chains.ends import CABLES, Ends, macs_of, netns
from planewise.testbed.chains.functions import guest_command, vf_command, vhost_command
from planewise.testbed.chains.guests import (
    attach_in_machine,
    attach_to_namespaces,
    peers,
    router_scripts,
)
from planewise.testbed.chains.model import SWITCH, Chain, Placement
from planewise.testbed.chains.routing import function_settings, new_function, routing
from planewise.testbed.model import BRIDGE, GUEST_INTERFACE
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
    macs = macs_of(chain)
    if chain.on_vfs:
        macs = {number: f"<MAC of vnf{number}>" for number in macs}
    functions: list[object] = []
    if huge_pages_bytes := memory_bytes(chain):
        functions.append(f"take {huge_pages_bytes >> 20} MiB of huge pages from the kernel")
    functions += [
        *_create_functions(chain, nic),
        *_create_switch(chain, placement, chain_ends, nic, uplink),
    ]
    functions += _start_functions(chain, placement, macs, chain_ends)
    if chain.plane == "vhost-user":
        functions.append("forward " + ", ".join(f"{a} to {b}" for a, b in chain.hops))
    if not nic:
        return tuple(map(str, (*ends.cables(_TOKEN), *functions)))
    names = [netns(_TOKEN, place) for place in ends.PLACES]
    return (
        *(f"sender: ip netns add {name}" for name in names),
        *(f"sender: {_vf_move(nic, name)}" for name in names),
        *(f"responder: {step}" for step in functions),
    )


def _vf_move(nic: str, name: str) -> str:
    return (
        f"planewised vf move <VF of {nic}> --to {name} --name {GUEST_INTERFACE} "
        f"--mtu {ends.MTU_BYTES}"
    )


def _create_functions(chain: Chain, nic: str) -> list[object]:
    """Steps that make the functions, before they have ports."""
    lines: list[object] = []
    for number in chain.numbers:
        name = netns(_TOKEN, f"v{number}")
        if chain.kind == "container":
            lines += [
                f"docker run --network none --name {name}",
                f"ip netns attach {name} <its process>",
            ]
        if chain.kind == "vm" or chain.polls:
            if chain.by_vfio:
                lines.append(f"planewised vf bind <VF of {nic}> vfio-pci")
            continue
        lines += function_settings(name) if chain.kind == "container" else new_function(name)
        if chain.on_vfs:
            lines.append(_vf_move(nic, name))
    return lines


def _create_switch(
    chain: Chain, placement: Placement, chain_ends: Ends, nic: str, uplink: Driver | None
) -> list[object]:
    """Steps that make the switch and its ports."""
    if chain.on_vfs:
        return []
    if chain.plane != "vhost-user":
        name = netns(_TOKEN, "b") if nic else BRIDGE
        site = ends.site_of(name, chain_ends, "<directory>")
        return [
            *ends.switch_of(chain).described(site),
            *ends.ports(_TOKEN, chain, site, chain_ends),
        ]
    cpus = placement.cpus(SWITCH)
    turns = cycle(cpus)
    ports = ", ".join(f"{name} (polled by CPU {next(turns)})" for name in chain.names)
    up = "".join(
        f", and {port.name}: {port.options['dpdk-devargs']}"
        for port in (uplinks(uplink, chain_ends, cpus) if uplink else ())
    )
    return [
        f"start ovs-vswitchd-dpdk with {SWITCH_BYTES >> 20} MiB, polling on "
        f"CPU{'s' if len(cpus) > 1 else ''} {', '.join(map(str, cpus))}",
        f"add the vhost-user ports {ports} to a bridge with datapath_type=netdev{up}",
    ]


def _start_functions(
    chain: Chain, placement: Placement, macs: Mapping[int, str], chain_ends: Ends
) -> list[object]:
    """Steps that start the functions, each with the destination of its frames."""
    if chain.kind == "vm":
        scripts = router_scripts(chain, macs, chain_ends)
        if chain.polls:
            scripts = {
                number: (
                    "unbind the NIC from its kernel's driver, bind it to uio_pci_generic",
                    shlex.join(guest_command(f"<address of vnf{number}'s NIC>", 0, peer, "vnf")),
                )
                for number, peer in peers(chain, macs, chain_ends.macs[1]).items()
            }
        elif chain.forwards == "xdp":
            scripts = {number: (*lines, attach_in_machine()) for number, lines in scripts.items()}
        return [
            line
            for number in macs
            for line in (
                _vm_start(chain, number, placement.cpu(f"vnf{number}")),
                *(f"in {netns(_TOKEN, f'v{number}')}: {words}" for words in scripts[number]),
            )
        ]
    if not chain.polls:
        programs = attach_to_namespaces(chain, _TOKEN) if chain.forwards == "xdp" else ()
        steps = routing(chain, lambda number: netns(_TOKEN, f"v{number}"), macs, chain_ends.macs)
        return [*steps, *programs]
    lines: list[object] = []
    for number, peer in peers(chain, macs, chain_ends.macs[1]).items():
        name, cpu = f"vnf{number}", placement.cpu(f"vnf{number}")
        if chain.on_vfs:
            lines.append(shlex.join(vf_command(f"<address of {name}'s VF>", cpu, peer, name)))
        else:
            lines.append(shlex.join(vhost_command(f"{name}.sock", cpu, peer, name)))
    return lines


def _vm_start(chain: Chain, number: int, cpu: int) -> str:
    """The step that starts a virtual machine."""
    nic = f"a virtio NIC on {ends.port_of(_TOKEN, number)}"
    if chain.on_vfs:
        nic = "that VF"
    elif chain.plane == "vhost-user":
        nic = f"shared memory and a vhost-user NIC at vnf{number}.sock"
    name = netns(_TOKEN, f"v{number}")
    return f"start the virtual machine {name} on CPU {cpu}, with {nic}"
