"""A testbed is laid out and planned without touching any kernel."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import BadInputError, UnsupportedError
from planewise.testbed.hosts.ledger import token_of
from planewise.testbed.model import Site, make_guest
from planewise.testbed.plan import Step, namespaces_of, new_namespace, set_master, set_up
from planewise.testbed.planes import PLANES as ALL
from planewise.testbed.planes import plane, plane_for, plane_names, planes_of
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.switches.router import plan_router
from planewise.testbed.testbed import impossible
from tests.unit.recorded import TOKEN, build

PLANES = [
    plane.name
    for plane in ALL
    if "namespace" in plane.guests and not plane.needs and not plane.is_host
]
DOCS = Path(__file__).parents[2] / "docs"
IPV4 = ipaddress.ip_network("198.18.0.0/15")
IPV6 = ipaddress.ip_network("2001:2::/48")


def setting(plane: str, background: str | None = None, guests: int = 0) -> Setting:
    return Setting("namespace", plane, background or plane, guests, "north-south")


settings = st.builds(
    Setting,
    kind=st.just("namespace"),
    plane=st.sampled_from(PLANES),
    background_plane=st.sampled_from(PLANES),
    background_guests=st.integers(0, 40),
    path=st.sampled_from(["north-south", "east-west"]),
)


def everyone(standing: Arrangement) -> list[object]:
    return [
        *standing.mains.values(),
        *(guest for guests in standing.backgrounds.values() for guest in guests),
    ]


def plan_of(wanted: Setting) -> list[Step]:
    return build(wanted)[1]


@given(settings)
def test_no_two_guests_share_a_name_a_namespace_or_an_address(wanted: Setting) -> None:
    guests = everyone(build(wanted)[0])
    for attribute in ("name", "netns", "ipv4", "ipv6"):
        values = [getattr(guest, attribute) for guest in guests]
        assert len(set(values)) == len(values), attribute


@given(settings)
def test_every_address_is_from_the_benchmarking_ranges(wanted: Setting) -> None:
    for guest in everyone(build(wanted)[0]):
        assert ipaddress.ip_address(guest.ipv4) in IPV4  # type: ignore[attr-defined]
        assert ipaddress.ip_address(guest.ipv6) in IPV6  # type: ignore[attr-defined]


def test_the_last_possible_guest_still_has_an_address_of_its_own_host() -> None:
    standing, _ = build(setting("bridge", None, 1024))
    for host, guests in standing.backgrounds.items():
        site = standing.sites[host]
        last = guests[-1]
        assert ipaddress.ip_address(last.ipv4) in ipaddress.ip_network(site.guests_ipv4)
        assert ipaddress.ip_address(last.ipv6) in ipaddress.ip_network(site.guests_ipv6)
        assert last.ipv4 != site.gateway_ipv4
        assert last.ipv6 != site.gateway_ipv6
        assert len({guest.mac for guest in guests}) == 1024


@given(settings)
def test_a_plan_uses_a_namespace_only_after_it_made_it(wanted: Setting) -> None:
    made = {"", f"pw-{TOKEN}-s", f"pw-{TOKEN}-r"}
    for step in plan_of(wanted):
        if new := namespaces_of([step]):
            assert not made.intersection(new)
            made.update(new)
        assert {step.netns, step.other} <= made, str(step)


@given(settings)
def test_every_namespace_of_a_plan_carries_the_token(wanted: Setting) -> None:
    names = namespaces_of(plan_of(wanted))
    assert len(names) == 2 + 2 * wanted.background_guests
    assert {token_of(name) for name in names} == {TOKEN}


@given(settings)
def test_interface_names_fit_into_the_kernels_fifteen_letters(wanted: Setting) -> None:
    for step in plan_of(wanted):
        for name in re.findall(r"link add (\S+)|name (\S+)", step.words):
            assert len("".join(name)) <= 15


@given(settings)
def test_the_same_setting_and_token_give_the_same_plan(wanted: Setting) -> None:
    assert plan_of(wanted) == plan_of(wanted)


def test_a_setting_that_stands_is_asked_for_again_without_a_step() -> None:
    wanted = setting("bridge", "macvlan", 3)
    assert build(wanted, times=2)[1] == plan_of(wanted)


def test_a_step_prints_as_the_command_that_does_the_same() -> None:
    steps = (*new_namespace("pw-x-s"), set_up("pw-x-s", "wire0"), set_master("a", "b", "br0"))
    assert list(map(str, steps)) == [
        "ip netns add pw-x-s",
        "ip netns exec pw-x-s ip link set lo up",
        "ip netns exec pw-x-s sysctl -w net.ipv6.conf.default.addr_gen_mode=1",
        "ip netns exec pw-x-s sysctl -w net.ipv6.conf.default.accept_ra=0",
        "ip -n pw-x-s link set wire0 up",
        "ip -n a link set b master br0",
    ]


def test_a_bridge_anywhere_makes_the_wire_a_port_of_it() -> None:
    def ports_of(steps: list[Step]) -> set[str]:
        found = (re.fullmatch(r"link set (\S+) master br0", step.words) for step in steps)
        return {match[1] for match in found if match}

    assert not ports_of(plan_of(setting("macvlan")))
    ports = ports_of(plan_of(setting("macvlan", "bridge", 1)))
    assert "wire0" in ports
    assert len(ports) == 3


def test_a_background_plane_without_background_guests_changes_nothing() -> None:
    assert plan_of(setting("veth", "bridge", 0)) == plan_of(setting("veth"))


def test_guests_of_an_ipvlan_share_the_mac_of_the_wire() -> None:
    standing, _ = build(setting("ipvlan", None, 2))
    for host, site in standing.sites.items():
        macs = {guest.mac for guest in (standing.main(host), *standing.background(host))}
        assert macs == {site.wire_mac}


def test_an_unknown_plane_is_refused_with_the_nearest_name_and_the_list() -> None:
    with pytest.raises(BadInputError) as caught:
        plane_for("macvlna", "namespace")
    assert "macvlna" in caught.value.what
    assert "did you mean macvlan?" in caught.value.remedy
    assert "veth" in caught.value.remedy


@pytest.mark.parametrize("name", [one.name for one in ALL if "namespace" not in one.guests])
def test_a_plane_that_namespaces_cannot_have_says_why(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plane_for(name, "namespace")
    assert name in caught.value.what
    assert caught.value.remedy
    assert impossible(setting(name))


def test_the_documents_list_every_plane_and_no_other() -> None:
    def named(text: str) -> set[str]:
        return set(re.findall(r"`([a-z0-9-]+)`", text))

    words = (DOCS / "design.md").read_text().partition("\n| plane |")[2].partition("\n")[0]
    assert named(words) == set(plane_names())
    designs = (DOCS / "reference" / "designs.md").read_text()
    rows = dict(re.findall(r"\n\| `(namespace|process|vm)` \| (.*) \|", designs))
    assert {kind: named(row) for kind, row in rows.items()} == {
        kind: set(planes_of(kind)) for kind in ("namespace", "process", "vm")
    }
    testbed = (DOCS / "reference" / "testbed.md").read_text()
    assert [name for name in plane_names() if f"\n| `{name}` |" not in testbed] == []


BY_STEPS = [name for name in PLANES if plane(name).by_steps]


@pytest.mark.parametrize("name", BY_STEPS)
def test_a_plane_that_acts_by_steps_gives_a_guest_its_interface(name: str) -> None:
    site = Site("sender", "pw-0-s", "wire0", 1500)
    guest = make_guest("0", "sender", "main", 0, name)
    assert any(step.other == guest.netns for step in plane(name).attach(site, guest))


def test_the_host_itself_is_one_guest_with_the_nics_interface() -> None:
    standing, steps = build(setting("host"))
    assert {guest.netns for guest in standing.mains.values()} == {f"pw-{TOKEN}-{r}" for r in "sr"}
    assert {guest.interface for guest in standing.mains.values()} == {"wire0"}
    assert len([step for step in steps if "198.1" in step.words and "address" in step.words]) == 2
    for refused in (setting("host", "host", 1), replace(setting("host"), path="east-west")):
        assert "one guest" in impossible(refused, local=True)
    assert not impossible(setting("host", "bridge", 1), local=True)


def test_the_generator_of_a_router_testbed_has_no_address_that_could_answer() -> None:
    addresses = [line for line in map(str, plan_router(TOKEN)) if " address add " in line]
    assert addresses
    assert all(f"pw-{TOKEN}-f " in line for line in addresses)


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("pw-0badcafe-s", "0badcafe"),
        ("pw-0badcafe-rb127", "0badcafe"),
        ("pw-mine", None),
        ("pw-0badcafe", None),
        ("pw-0badcafe-", None),
        ("pw-0BADCAFE-s", None),
        ("pw-0badcafe-s/../x", None),
        ("xpw-0badcafe-s", None),
        ("pwA1", None),
    ],
)
def test_only_names_of_our_own_shape_are_ours(name: str, token: str | None) -> None:
    assert token_of(name) == token
