"""pw-probe network on real namespaces: the network of a tiny guest, set by one process."""

from __future__ import annotations

import json

import pytest

from tests.linux.probe import Network, run

pytestmark = pytest.mark.linux


def test_an_interface_gets_its_addresses_its_mtu_and_neighbours_for_good(
    netns_pair: Network,
) -> None:
    end, words = (
        netns_pair.a,
        (
            "mtu=1400",
            "address=198.18.9.1/24",
            "address=2001:2:0:9::1/64",
            "neighbour=198.18.9.2,02:00:00:00:00:09",
        ),
    )
    for _ in range(2):  # twice is the same as once
        done = run("network", "--interface", end.interface, *words, netns=end.netns)
        assert done.code == 0, done.stderr
    (link,) = json.loads(end.run("ip", "-j", "address", "show", end.interface))
    assert link["mtu"] == 1400
    has = {(one["local"], one["prefixlen"]) for one in link["addr_info"]}
    assert {("198.18.9.1", 24), ("2001:2:0:9::1", 64)} <= has
    known = json.loads(end.run("ip", "-j", "neighbour", "show", "198.18.9.2"))
    assert [(one["lladdr"], one["state"]) for one in known] == [
        ("02:00:00:00:00:09", ["PERMANENT"])
    ]


@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        (("--interface", "none0", "--patience", "0.1"), "there is no network interface none0", 1),
        (("address=198.18.9.1",), "`address=198.18.9.1` is not a setting", 2),
    ],
)
def test_what_cannot_be_set_is_one_sentence(
    netns_pair: Network, words: tuple[str, ...], sentence: str, code: int
) -> None:
    refused = run("network", *words, netns=netns_pair.a.netns)
    assert (refused.code, sentence in refused.stderr) == (code, True), refused.stderr
