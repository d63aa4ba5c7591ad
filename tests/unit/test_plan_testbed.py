"""A testbed is laid out and planned without touching any kernel."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import BadInputError, UnsupportedError
from planewise.testbed.ledger import token_of
from planewise.testbed.model import MAX_BACKGROUND_GUESTS, TestbedSpec
from planewise.testbed.namespaces import (
    NamespaceTestbed,
    RouterTestbed,
    lay_out,
    plan_hosts,
    plan_router,
)
from planewise.testbed.plan import AddNamespace, AddVeth, Plan, SetMaster, SetUp
from planewise.testbed.planes import ELSEWHERE, NAMESPACE_PLANES, known, namespace_plane

TOKEN = "0badcafe"
PLANES = [plane.name for plane in NAMESPACE_PLANES]
IPV4 = ipaddress.ip_network("198.18.0.0/15")
IPV6 = ipaddress.ip_network("2001:2::/48")

specs = st.builds(
    TestbedSpec,
    plane=st.sampled_from(PLANES),
    background_plane=st.none() | st.sampled_from(PLANES),
    background_guests=st.integers(0, 40),
)


def everyone(spec: TestbedSpec) -> list[object]:
    topology = lay_out(TOKEN, spec)
    return [
        *topology.main.values(),
        *(guest for guests in topology.background.values() for guest in guests),
    ]


@given(specs)
def test_no_two_guests_share_a_name_a_namespace_or_an_address(spec: TestbedSpec) -> None:
    guests = everyone(spec)
    for attribute in ("name", "netns", "ipv4", "ipv6"):
        values = [getattr(guest, attribute) for guest in guests]
        assert len(set(values)) == len(values), attribute


@given(specs)
def test_every_address_is_from_the_benchmarking_ranges(spec: TestbedSpec) -> None:
    for guest in everyone(spec):
        assert ipaddress.ip_address(guest.ipv4) in IPV4  # type: ignore[attr-defined]
        assert ipaddress.ip_address(guest.ipv6) in IPV6  # type: ignore[attr-defined]


def test_the_last_possible_guest_still_has_an_address_of_its_own_host() -> None:
    topology = lay_out(TOKEN, TestbedSpec("bridge", None, MAX_BACKGROUND_GUESTS))
    for host, guests in topology.background.items():
        site = topology.sites[host]
        last = guests[-1]
        assert ipaddress.ip_address(last.ipv4) in ipaddress.ip_network(site.guests_ipv4)
        assert ipaddress.ip_address(last.ipv6) in ipaddress.ip_network(site.guests_ipv6)
        assert last.ipv4 != site.gateway_ipv4
        assert last.ipv6 != site.gateway_ipv6
        assert len({guest.mac for guest in guests}) == MAX_BACKGROUND_GUESTS


@given(specs)
def test_a_plan_uses_a_namespace_only_after_it_made_it(spec: TestbedSpec) -> None:
    made = set()
    for step in plan_hosts(lay_out(TOKEN, spec)).steps:
        if isinstance(step, AddNamespace):
            assert step.name not in made
            made.add(step.name)
        else:
            used = {getattr(step, name, None) for name in ("netns", "peer_netns", "guest_netns")}
            assert used - {None} <= made, str(step)


@given(specs)
def test_every_namespace_of_a_plan_carries_the_token(spec: TestbedSpec) -> None:
    plan = plan_hosts(lay_out(TOKEN, spec))
    assert len(plan.namespaces) == 4 + 2 * spec.background_guests
    assert {token_of(name) for name in plan.namespaces} == {TOKEN}


@given(specs)
def test_interface_names_fit_into_the_kernels_fifteen_letters(spec: TestbedSpec) -> None:
    for step in plan_hosts(lay_out(TOKEN, spec)).steps:
        if isinstance(step, AddVeth):
            assert len(step.name) <= 15
            assert len(step.peer) <= 15


@given(specs)
def test_the_same_spec_and_token_give_the_same_plan(spec: TestbedSpec) -> None:
    assert plan_hosts(lay_out(TOKEN, spec)) == plan_hosts(lay_out(TOKEN, spec))


def test_a_step_prints_as_the_command_that_does_the_same() -> None:
    plan = Plan((AddNamespace("pw-x-s"), SetUp("pw-x-s", "wire0"), SetMaster("a", "b", "br0")))
    assert str(plan).splitlines() == [
        "ip netns add pw-x-s && ip -n pw-x-s link set lo up",
        "ip -n pw-x-s link set wire0 up",
        "ip -n a link set b master br0",
    ]


def test_a_bridge_anywhere_makes_the_wire_a_port_of_it() -> None:
    alone = plan_hosts(lay_out(TOKEN, TestbedSpec("macvlan")))
    mixed = plan_hosts(lay_out(TOKEN, TestbedSpec("macvlan", "bridge", 1)))
    assert not any(isinstance(step, SetMaster) for step in alone.steps)
    ports = {step.interface for step in mixed.steps if isinstance(step, SetMaster)}
    assert ports == {"wire0", "veth-b0"}


def test_a_background_plane_without_background_guests_changes_nothing() -> None:
    assert plan_hosts(lay_out(TOKEN, TestbedSpec("veth", "bridge", 0))) == plan_hosts(
        lay_out(TOKEN, TestbedSpec("veth"))
    )


def test_guests_of_an_ipvlan_share_the_mac_of_the_wire() -> None:
    topology = lay_out(TOKEN, TestbedSpec("ipvlan", None, 2))
    for host, site in topology.sites.items():
        macs = {guest.mac for guest in (topology.main[host], *topology.background[host])}
        assert macs == {site.wire_mac}


def test_an_unknown_plane_is_refused_with_the_nearest_name_and_the_list() -> None:
    with pytest.raises(BadInputError) as caught:
        NamespaceTestbed(TestbedSpec("macvlna"))
    assert "macvlna" in caught.value.what
    assert "did you mean macvlan?" in caught.value.remedy
    assert "veth" in caught.value.remedy


@pytest.mark.parametrize("name", [plane.name for plane in ELSEWHERE])
def test_a_plane_that_namespaces_cannot_have_says_why(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        namespace_plane(name)
    assert name in caught.value.what
    assert caught.value.remedy


def test_every_plane_of_the_designs_list_is_known() -> None:
    expected = (
        "veth bridge macvlan ipvlan docker-bridge vf e1000-bridge virtio-bridge "
        "macvtap-bridge macvtap-vf vf-passthrough vhost-user"
    )
    assert set(known()) == set(expected.split())


@pytest.mark.parametrize("guests", [-1, MAX_BACKGROUND_GUESTS + 1])
def test_an_impossible_number_of_guests_is_refused(guests: int) -> None:
    with pytest.raises(BadInputError, match="background guests"):
        TestbedSpec("veth", None, guests)


@pytest.mark.parametrize("mtu", [0, 1279, 70000])
def test_an_impossible_mtu_is_refused(mtu: int) -> None:
    with pytest.raises(BadInputError, match="MTU"):
        TestbedSpec("veth", mtu_bytes=mtu)


def test_a_testbed_that_is_not_built_says_so_to_its_programmer() -> None:
    with pytest.raises(RuntimeError, match="with block"):
        NamespaceTestbed(TestbedSpec("veth")).main("sender")
    with pytest.raises(RuntimeError, match="with block"):
        RouterTestbed(6).trial_path()


def test_the_generator_of_a_router_testbed_has_no_address_that_could_answer() -> None:
    addresses = [line for line in str(plan_router(TOKEN)).splitlines() if " address add " in line]
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
