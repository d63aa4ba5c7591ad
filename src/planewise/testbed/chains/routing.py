"""Addresses of functions that route, and the steps that make a kernel a router. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planewise.testbed.chains.model import Chain
from planewise.testbed.model import GUEST_INTERFACE
from planewise.testbed.plan import (
    Step,
    add_neighbour,
    add_route,
    new_namespace,
    set_address,
    set_sysctl,
)

SOURCE, TARGET = "198.18.0.2", "198.19.0.2"
"""Addresses of the chain's two ends."""
SOURCES = "198.18.0.0/24"
TARGETS = "198.19.0.0/16"
"""Networks of the two ends, by which functions route."""


def address(number: int) -> str:
    """Address of the `number`th function, from 1."""
    return f"198.18.1.{number}"


def target(number: int) -> str:
    """Destination of frames for the `number`th function alone."""
    return f"198.19.{number}.2"


def new_function(netns: str) -> tuple[Step, ...]:
    """A namespace that routes, without an interface yet."""
    return (*new_namespace(netns), *function_settings(netns))


def router_settings(netns: str, interface: str = "default") -> tuple[Step, ...]:
    """Steps that make a kernel route; `interface` is an existing one."""
    return (
        set_sysctl(netns, "net/ipv4/ip_forward", "1"),
        # Frames go back to the link they came from, for which the kernel would send redirects.
        set_sysctl(netns, "net/ipv4/conf/all/send_redirects", "0"),
        set_sysctl(netns, f"net/ipv4/conf/{interface}/send_redirects", "0"),
        set_sysctl(netns, "net/ipv4/conf/all/rp_filter", "0"),
        set_sysctl(netns, f"net/ipv4/conf/{interface}/rp_filter", "0"),
    )


def function_settings(netns: str, interface: str = "default") -> tuple[Step, ...]:
    """`router_settings` of a chain's function, without IPv6: chains carry IPv4, and a kernel with
    IPv6 would send multicast among their frames (MLD)."""
    silent = set_sysctl(netns, f"net/ipv6/conf/{interface}/disable_ipv6", "1")
    return (*router_settings(netns, interface), silent)


def routing(
    chain: Chain,
    netns: Callable[[int], str],
    macs: Mapping[int, str],
    ends: Sequence[str],
) -> tuple[Step, ...]:
    """Addresses and routes of all functions, which share one segment with the two ends. Pure.

    `netns` names the namespace of the `number`th function, from 1, and `macs` its MAC; `ends` are
    the MACs of the chain's ends.
    """
    steps: list[Step] = []
    for number in chain.numbers:
        namespace = netns(number)
        onward = number + 1 if chain.through and number < chain.vnfs else None
        back = number - 1 if chain.through and number > 1 else None
        steps.append(set_address(namespace, GUEST_INTERFACE, f"{address(number)}/32"))
        steps += _route(namespace, TARGETS, onward, macs, ends[1], (TARGET, target(number)))
        steps += _route(namespace, SOURCES, back, macs, ends[0], (SOURCE,))
    return tuple(steps)


def _route(
    netns: str,
    destination: str,
    next_number: int | None,
    macs: Mapping[int, str],
    end_mac: str,
    ends: Sequence[str],
) -> tuple[Step, ...]:
    """The route to `destination`: over another function, or directly to the end by its MAC."""
    if next_number is not None:
        return (
            add_neighbour(netns, GUEST_INTERFACE, address(next_number), macs[next_number]),
            add_route(netns, destination, GUEST_INTERFACE, address(next_number)),
        )
    return (
        add_route(netns, destination, GUEST_INTERFACE),
        *(add_neighbour(netns, GUEST_INTERFACE, end, end_mac) for end in ends),
    )
