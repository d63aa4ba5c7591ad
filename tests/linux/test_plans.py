"""What a plan leaves in the kernel: the same as the commands that it prints."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts import netns
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.ledger import Ownership
from planewise.testbed.plan import (
    Step,
    accept_address,
    add_bridge,
    add_forwarding,
    add_macvtap,
    add_neighbour,
    add_route,
    add_tap,
    add_veth,
    await_up,
    ip,
    new_namespace,
    run_program,
    set_address,
    set_master,
    set_mtu,
    set_sysctl,
    set_up,
)

pytestmark = [pytest.mark.linux, pytest.mark.apart]

MACVTAP_INDEX = 29_001


@pytest.fixture
def ownership() -> Iterator[Ownership]:
    netns.prepare_run()
    taken = Ownership.take("plans")
    try:
        yield taken
    finally:
        taken.remove()


@pytest.fixture
def host() -> Iterator[LocalHost]:
    with closing(LocalHost("here")) as opened:
        yield opened


def pair(a: str, b: str) -> tuple[Step, ...]:
    return (
        *new_namespace(a),
        *new_namespace(b),
        add_veth(a, "port0", 77, "02:70:77:50:00:01", b, "eth0", "02:70:77:50:00:02", 1600),
        set_up(a, "port0"),
        set_up(b, "eth0"),
        await_up(a),
        await_up(b, "eth0"),
    )


def links(a: str, b: str) -> tuple[Step, ...]:
    return (
        *pair(a, b),
        add_bridge(a, "br0", "02:70:77:50:00:03", 1500),
        set_up(a, "br0"),
        set_master(a, "port0", "br0"),
        await_up(a),
        add_forwarding(a, "port0", "02:70:77:50:00:04"),
        add_veth(a, "port1", 78, "02:70:77:50:00:05", b, "eth1", "02:70:77:50:00:06", 1500),
        set_master(a, "port1", "br0"),
        ip(a, "link set port1 nomaster"),
        ip(
            b,
            f"link add link eth0 name macvlan0 netns {a} address 02:70:77:50:00:07 "
            "type macvlan mode bridge",
            other=a,
            feature="macvlan",
        ),
        add_macvtap(b, "eth0", "tap0", MACVTAP_INDEX, "02:70:77:50:00:08"),
        add_macvtap(b, "eth1", "tap1", MACVTAP_INDEX + 1, "", "passthru"),
        *add_tap(a, "tap2", "02:70:77:50:00:09", 1400),
        *add_tap(a, "tap3", "02:70:77:50:00:0a", 1400, queues=2),
        ip(a, "link delete tap3"),
        ip(b, "link set eth0 address 02:70:77:50:00:0b"),
        set_mtu(b, "eth0", 1450),
        accept_address(b, "eth0", "02:70:77:50:00:0c"),
    )


def addresses(a: str, b: str) -> tuple[Step, ...]:
    link = (b, "eth0")
    return (
        *pair(a, b),
        set_sysctl(b, "net/ipv4/ip_forward", "1"),
        set_address(*link, "198.18.0.1/15"),
        set_address(*link, "198.18.0.2/32"),
        ip(b, "address delete 198.18.0.2/32 dev eth0"),
        set_address(*link, "2001:2:0:1::1/64"),
        set_address(*link, "fe80::1/64"),
        set_address(*link, "2001:2:0:1::2/64"),
        ip(b, "address delete 2001:2:0:1::2/64 dev eth0"),
        add_neighbour(*link, "198.18.0.3", "02:70:77:50:00:0d"),
        add_neighbour(*link, "198.18.0.3", "02:70:77:50:00:0e"),
        add_neighbour(*link, "2001:2:0:1::3", "02:70:77:50:00:0e"),
        add_route(b, "198.51.100.1/32", "eth0"),
        add_route(b, "198.51.100.0/24", "eth0"),
        ip(b, "route delete 198.51.100.0/24 dev eth0"),
        add_route(b, "0.0.0.0/0", "eth0", via="203.0.113.1"),
        add_route(b, "203.0.113.0/24", "eth0", via="198.51.100.9"),
        ip(b, "route delete 203.0.113.0/24 dev eth0"),
        add_route(b, "2001:2:0:7::/64", "eth0"),
        add_route(b, "2001:2:0:8::/64", "eth0", via="fe80::2"),
        ip(b, "route delete 2001:2:0:8::/64 dev eth0"),
        add_route(b, "::/0", "eth0", via="fe80::2"),
    )


def ask(*argv: str) -> list[dict[str, Any]]:
    printed = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    return json.loads(printed or "[]")  # type: ignore[no-any-return]


def picked(rows: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.get(key) for key in keys) for row in rows), key=repr)


def left_in(name: str) -> dict[str, list[tuple[Any, ...]]]:
    """What a plan decides of a namespace: nothing that counts, or that the kernel chose."""
    found = ask("ip", "-n", name, "-details", "-json", "link")
    for link in found:
        info = link.get("linkinfo", {})
        data = info.get("info_data", {})
        of_kind = ("mode", "stp_state", "mcast_snooping", "ageing_time", "multi_queue")
        link["kind"] = (info.get("info_kind"), *(data.get(key) for key in of_kind))
        link["up"] = "UP" in link["flags"]
    addressed = [
        {**one, "dev": link["ifname"]}
        for link in ask("ip", "-n", name, "-json", "address")
        for one in link["addr_info"]
    ]
    routes = [
        row
        for family in ("-4", "-6")
        for row in ask("ip", "-n", name, family, "-json", "route", "show", "table", "main")
    ]
    known = ask("ip", "-n", name, "-json", "neighbour", "show", "nud", "permanent")
    entries = ask("bridge", "-n", name, "-json", "fdb")
    ours = [one for one in entries if one["mac"].startswith("02:70:77")]
    return {
        "links": picked(found, "ifindex", "ifname", "address", "mtu", "up", "master", "kind"),
        "addresses": picked(addressed, "dev", "local", "prefixlen", "scope", "nodad"),
        "routes": picked(routes, "dst", "gateway", "dev", "scope", "metric", "flags"),
        "neighbours": picked(known, "dev", "dst", "lladdr", "state"),
        "entries": picked(ours, "ifname", "mac", "master", "state", "flags"),
    }


@pytest.mark.parametrize("steps", [links, addresses])
def test_the_script_leaves_what_the_printed_commands_leave_one_by_one(
    steps: Any, ownership: Ownership, host: LocalHost
) -> None:
    names = ownership.name("a"), ownership.name("b")
    made = steps(*names)

    def pasted(steps: Sequence[Step]) -> None:
        text = "\n".join(map(str, steps))
        subprocess.run(["sh", "-e", "-c", text], check=True, capture_output=True, timeout=60)

    def performed(
        perform: Callable[[Sequence[Step]], None],
    ) -> list[dict[str, list[tuple[Any, ...]]]]:
        perform(made)
        left = [left_in(name) for name in names]
        for name in names:
            netns.remove(name)
        return left

    by_script = performed(host.perform)
    assert by_script == performed(pasted)
    assert any(by_script[1].values())


def test_a_macvtap_is_in_the_mode_that_was_asked_for(ownership: Ownership, host: LocalHost) -> None:
    """The kernel's default is VEPA, where guests of one host do not reach each other."""
    names = ownership.name("a"), ownership.name("b")
    host.perform(links(*names))
    kinds = {row[1]: row[6] for row in left_in(names[1])["links"]}
    assert kinds["tap0"][:2] == ("macvtap", "bridge")
    assert kinds["tap1"][:2] == ("macvtap", "passthru")


def test_a_step_that_fails_is_named_with_the_reason(ownership: Ownership, host: LocalHost) -> None:
    name = ownership.name("a")
    steps = (*new_namespace(name), set_up(name, "lo"), set_mtu(name, "nothing", 1400))
    with pytest.raises(PlanewiseError, match=r"vanished.*link set nothing mtu 1400"):
        host.perform(steps)
    with pytest.raises(UnsupportedError, match="no setting net/ipv4/nothing"):
        host.perform([set_sysctl(name, "net/ipv4/nothing", "1")])
    with pytest.raises(PlanewiseError, match=r"`ip netns exec .* false` failed"):
        host.perform([run_program(name, ("true",)), run_program(name, ("false",))])
