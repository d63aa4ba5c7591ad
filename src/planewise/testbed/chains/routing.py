"""Functions as guests, their addresses, and the steps that make a kernel a router."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from planewise.errors import PlanewiseError
from planewise.testbed.chains.model import Chain
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import GUEST_INTERFACE, Guest
from planewise.testbed.plan import Step, add_neighbour, add_route, set_sysctl

SOURCE, TARGET = "198.18.0.2", "198.19.0.2"
"""Addresses of the chain's two ends."""
SOURCES = "198.18.0.0/24"
TARGETS = "198.19.0.0/16"
"""Networks of the two ends, by which functions route."""
_PORT_INDEX = 24_000
_SCRIPT_S = 600.0
"""A guest whose emulated CPU is emulated once more takes seconds for each program it starts."""


def address(number: int) -> str:
    """Address of the `number`th function, from 1."""
    return f"198.18.1.{number}"


def target(number: int) -> str:
    """Destination of frames for the `number`th function alone."""
    return f"198.19.{number}.2"


def netns(token: str, place: str) -> str:
    """A namespace of a chain: `c` and `d` the ends, `v1`, `v2`, … the functions."""
    return f"pw-{token}-{place}"


def mac_of(number: int) -> str:
    """MAC of the `number`th function without a VF; `remove_traces` removes such from a NIC."""
    return f"02:70:77:0f:00:{number:02x}"


def function_guests(token: str, chain: Chain) -> dict[int, Guest]:
    """A chain's functions by number, each with its MAC where it has no VF."""
    return {
        number: Guest(
            name=f"vnf{number}",
            host="responder",
            role="main",
            index=number,
            plane=chain.plane,
            netns=netns(token, f"v{number}"),
            interface=GUEST_INTERFACE,
            mac=mac_of(number),
            ipv4=address(number),
            ipv6=f"2001:2:0:3::{number:x}",
            port=f"pw{token}f{number}",
            port_index=_PORT_INDEX + number,
        )
        for number in chain.numbers
    }


def router_settings(netns: str, interface: str) -> tuple[Step, ...]:
    """Steps that make a kernel route between peers on one interface. Pure."""
    return (
        set_sysctl(netns, "net/ipv4/ip_forward", "1"),
        # Frames go back to the link they came from, for which the kernel would send redirects.
        set_sysctl(netns, "net/ipv4/conf/all/send_redirects", "0"),
        set_sysctl(netns, f"net/ipv4/conf/{interface}/send_redirects", "0"),
        set_sysctl(netns, "net/ipv4/conf/all/rp_filter", "0"),
        set_sysctl(netns, f"net/ipv4/conf/{interface}/rp_filter", "0"),
    )


def routing(chain: Chain, functions: Mapping[int, Guest], ends: Sequence[str]) -> tuple[Step, ...]:
    """Settings and routes of all functions, which share one segment with the two ends. Pure.

    Without IPv6: chains carry IPv4, and a kernel with IPv6 would send multicast among their frames
    (MLD). `ends` are the MACs of the chain's ends.
    """
    steps: list[Step] = []
    for number, guest in functions.items():
        last = number == chain.vnfs or not chain.through
        onward = None if last else functions[number + 1]
        back = functions[number - 1] if chain.through and number > 1 else None
        steps += router_settings(guest.netns, GUEST_INTERFACE)
        steps.append(set_sysctl(guest.netns, f"net/ipv6/conf/{GUEST_INTERFACE}/disable_ipv6", "1"))
        steps += _route(guest.netns, TARGETS, onward, ends[1], (TARGET, target(number)))
        steps += _route(guest.netns, SOURCES, back, ends[0], (SOURCE,))
    return tuple(steps)


def _route(
    netns: str, destination: str, hop: Guest | None, end_mac: str, ends: Sequence[str]
) -> tuple[Step, ...]:
    """The route to `destination`: over another function, or directly to the end by its MAC."""
    if hop is not None:
        return (
            add_neighbour(netns, GUEST_INTERFACE, hop.ipv4, hop.mac),
            add_route(netns, destination, GUEST_INTERFACE, hop.ipv4),
        )
    return (
        add_route(netns, destination, GUEST_INTERFACE),
        *(add_neighbour(netns, GUEST_INTERFACE, end, end_mac) for end in ends),
    )


def router_script(steps: Sequence[Step], name: str) -> tuple[str, ...]:
    """The lines of shell that make a guest a router. Pure.

    `steps` make namespaces routers, `name` is the guest's among them. Routes to the same
    destinations are replaced.
    """
    lines = []
    for step in steps:
        if step.netns != name:
            continue
        neighbour = re.fullmatch(r"neighbour replace (\S+) lladdr (.+) dev (\S+) .*", step.words)
        if neighbour is not None:  # busybox' ip adds none
            lines.append(f"arp -i {neighbour[3]} -s {neighbour[1]} {neighbour[2]}")
        elif step.words.startswith("route add "):
            onward = step.words.removeprefix("route add ").removesuffix(" onlink")
            lines.append(f"ip route replace {onward}")
        else:
            lines.append(step.words)
    return tuple(lines)


def run_script(host: Host, guest: Guest, lines: Sequence[str]) -> str:
    """Runs lines of shell in a virtual machine that shall forward; returns their output.

    Raises:
        PlanewiseError: a line failed.
    """
    text = "set -e\n" + "\n".join(lines) + "\n"
    done = host.run(["sh", "-s"], netns=guest.netns, stdin=text.encode(), timeout_s=_SCRIPT_S)
    if done.exit_code:
        raise PlanewiseError(f"{guest.name} cannot forward: {done.last_line}")
    return done.stdout.strip()


def peers(chain: Chain, functions: Mapping[int, Guest], end: str) -> dict[int, str]:
    """By number, the MAC that each polling function sends to; `end` is behind the last."""
    last = chain.vnfs
    return {
        number: functions[number + 1].mac if chain.through and number < last else end
        for number in functions
    }
