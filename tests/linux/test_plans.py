"""What a plan leaves in the kernel: by netlink the same as by the commands that it prints."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from planewise.testbed import script
from planewise.testbed.hosts import netns
from planewise.testbed.hosts.host import Host, LocalHost
from planewise.testbed.hosts.ledger import Ownership
from planewise.testbed.plan import (
    AcceptAddress,
    AddBridge,
    AddForwarding,
    AddMacvlan,
    AddMacvtap,
    AddNeighbour,
    AddRoute,
    AddTap,
    AddVeth,
    AwaitUp,
    DeleteLink,
    Plan,
    ReleaseMaster,
    RemoveAddress,
    RemoveRoute,
    SetAddress,
    SetLinkAddress,
    SetMaster,
    SetMtu,
    SetSysctl,
    SetUp,
    Step,
    new_namespace,
)
from planewise.testbed.rtnetlink import RouteSocket

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
        AddVeth(a, "port0", 77, "02:70:77:50:00:01", b, "eth0", "02:70:77:50:00:02", 1600),
        SetUp(a, "port0"),
        SetUp(b, "eth0"),
        AwaitUp(a),
        AwaitUp(b, "eth0"),
    )


def links(a: str, b: str) -> tuple[Step, ...]:
    return (
        *pair(a, b),
        AddBridge(a, "br0", "02:70:77:50:00:03", 1500),
        SetUp(a, "br0"),
        SetMaster(a, "port0", "br0"),
        AwaitUp(a),
        AddForwarding(a, "port0", "02:70:77:50:00:04"),
        AddVeth(a, "port1", 78, "02:70:77:50:00:05", b, "eth1", "02:70:77:50:00:06", 1500),
        SetMaster(a, "port1", "br0"),
        ReleaseMaster(a, "port1"),
        AddMacvlan(b, "eth0", a, "macvlan0", "02:70:77:50:00:07"),
        AddMacvtap(b, "eth0", "tap0", MACVTAP_INDEX, "02:70:77:50:00:08"),
        AddMacvtap(b, "eth1", "tap1", MACVTAP_INDEX + 1, "", "passthru"),
        AddTap(a, "tap2", "02:70:77:50:00:09", 1400),
        AddTap(a, "tap3", "02:70:77:50:00:0a", 1400, queues=2),
        DeleteLink(a, "tap3"),
        SetLinkAddress(b, "eth0", "02:70:77:50:00:0b"),
        SetMtu(b, "eth0", 1450),
        AcceptAddress(b, "eth0", "02:70:77:50:00:0c"),
    )


def addresses(a: str, b: str) -> tuple[Step, ...]:
    link = (b, "eth0")
    return (
        *pair(a, b),
        SetSysctl(b, "net/ipv4/ip_forward", "1"),
        SetAddress(*link, "198.18.0.1/15"),
        SetAddress(*link, "198.18.0.2/32"),
        RemoveAddress(*link, "198.18.0.2/32"),
        SetAddress(*link, "2001:2:0:1::1/64"),
        SetAddress(*link, "fe80::1/64"),
        SetAddress(*link, "2001:2:0:1::2/64"),
        RemoveAddress(*link, "2001:2:0:1::2/64"),
        AddNeighbour(*link, "198.18.0.3", "02:70:77:50:00:0d"),
        AddNeighbour(*link, "198.18.0.3", "02:70:77:50:00:0e"),
        AddNeighbour(*link, "2001:2:0:1::3", "02:70:77:50:00:0e"),
        AddRoute(b, "198.51.100.1/32", "eth0"),
        AddRoute(b, "198.51.100.0/24", "eth0"),
        RemoveRoute(b, "198.51.100.0/24", "eth0"),
        AddRoute(b, "0.0.0.0/0", "eth0", via="203.0.113.1"),
        AddRoute(b, "203.0.113.0/24", "eth0", via="198.51.100.9"),
        RemoveRoute(b, "203.0.113.0/24", "eth0"),
        AddRoute(b, "2001:2:0:7::/64", "eth0"),
        AddRoute(b, "2001:2:0:8::/64", "eth0", via="fe80::2"),
        RemoveRoute(b, "2001:2:0:8::/64", "eth0"),
        AddRoute(b, "::/0", "eth0", via="fe80::2"),
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
def test_netlink_leaves_what_the_printed_commands_leave(
    steps: Any, ownership: Ownership, host: LocalHost
) -> None:
    names = ownership.name("a"), ownership.name("b")
    plan = Plan(steps(*names))

    def performed(perform: Any) -> list[dict[str, list[tuple[Any, ...]]]]:
        perform(plan)
        left = [left_in(name) for name in names]
        for name in names:
            netns.remove(name)
        return left

    by_netlink = performed(host.perform)
    outside: Host = LocalHost("outside")
    with closing(outside):
        assert by_netlink == performed(lambda plan: script.perform(plan, outside))
    assert any(by_netlink[1].values())


def test_all_interfaces_are_listed_however_many_there_are(
    ownership: Ownership, host: LocalHost
) -> None:
    """A dump of more than one datagram."""
    name = ownership.name("a")
    macs = ("02:70:77:50:00:01", "02:70:77:50:00:02")
    pairs = [
        AddVeth(name, f"a{number}", 1000 + number, macs[0], name, f"b{number}", macs[1], 1500)
        for number in range(60)
    ]
    host.perform(Plan((*new_namespace(name), *pairs)))
    thread = netns.NamespaceThread("links")
    with closing(thread), closing(thread.call(name, RouteSocket)) as route:
        listed = {link.get_attr("IFLA_IFNAME") for link in route.links()}
    assert listed == {"lo"} | {f"{end}{number}" for number in range(60) for end in "ab"}
