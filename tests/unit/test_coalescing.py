"""Interrupt coalescing of NICs: read, set where it differs, given back, refused elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from planewise.measure.designs.cells import Cell, expand
from planewise.measure.designs.design import Design
from planewise.measure.designs.sense import find_problem
from planewise.measure.runs.stations import Stations
from planewise.measure.trials.rtt import RttTrial
from planewise.testbed.hosts import pair
from planewise.testbed.hosts.coalescing import read_rx_usecs, set_rx_usecs
from planewise.testbed.hosts.host import FinishedProcess, LocalHost
from planewise.testbed.hosts.ledger import HostNote
from planewise.testbed.plan import Plan

# As ethtool 6.1 prints it of the lab's igb, and of a driver that has the call but not this value.
IGB = """Coalesce parameters for pf0:
Adaptive RX: n/a  TX: n/a
stats-block-usecs:\tn/a
rx-usecs:\t3
rx-frames:\tn/a
rx-usecs-irq:\tn/a
tx-usecs:\t3
"""
OTHER = IGB.replace("rx-usecs:\t3", "rx-usecs:\tn/a")


@dataclass
class Server:
    """A host whose NIC says `told`; keeps what it was asked to do."""

    told: str
    done: list[str] = field(default_factory=list)

    @property
    def host(self) -> LocalHost:
        server = self

        class Answering(LocalHost):
            def run(self, argv: Sequence[str], **_: object) -> FinishedProcess:
                if argv[0] == "ip":
                    server.done.append(" ".join(argv))
                return FinishedProcess(tuple(argv), 0, server.told, "")

            def perform(self, plan: Plan) -> None:
                server.done.append(str(plan))

        return Answering("server")


@pytest.mark.parametrize(("told", "usecs"), [(IGB, 3), (OTHER, None), ("", None)])
def test_what_a_driver_does_not_tell_is_not_taken_for_none(told: str, usecs: int | None) -> None:
    assert read_rx_usecs(Server(told).host, "pf0") == usecs


def test_interrupts_are_set_by_a_plan_where_they_differ_alone() -> None:
    server = Server(IGB)
    set_rx_usecs(server.host, "pf0", 3)
    assert server.done == []
    set_rx_usecs(server.host, "pf0", 100)
    assert server.done == ["ethtool -C pf0 rx-usecs 100"]


def test_a_nic_gets_back_what_was_noted_of_its_interrupts() -> None:
    server = Server(IGB)
    note = HostNote("ssh://server", "pf0", up=True, mtu_bytes=1500, rx_usecs=50)
    pair.return_nics([server.host], [note])
    assert server.done == ["ip link set pf0 mtu 1500 up", "ethtool -C pf0 rx-usecs 50"]


def test_a_server_gets_back_the_kernel_settings_that_a_design_may_vary() -> None:
    server, key = Server(""), "net/bridge/bridge-nf-call-iptables"
    note = HostNote("ssh://server", "pf0", up=True, mtu_bytes=1500, sysctls={key: "1"})
    pair.return_nics([server.host], [note])
    assert server.done[-1] == "sysctl -w net.bridge.bridge-nf-call-iptables=1"


def design(levels: object, **more: object) -> Design:
    factors = {"plane": ["bridge"], "rx_usecs": levels}
    return Design.model_validate({"factors": factors, **({"rtt": {}} | more)})


def test_each_level_is_a_trial_of_its_own_and_no_level_stays_as_runs_from_before_have_it() -> None:
    (traffic,) = expand(design([0, 100])).values()
    assert [one["rx_usecs"] for one in traffic["rtt"]] == [0, 100]
    assert RttTrial("t", 1000, 64, 10, rx_usecs=100).traffic()["rx_usecs"] == 100
    assert "rx_usecs" not in RttTrial("t", 1000, 64, 10).traffic()


def test_veth_pairs_have_no_interrupts_and_other_trials_no_say_in_them() -> None:
    with Stations(design([0, 100])) as stages:
        cell = Cell(plane="bridge")
        assert "has no interrupts" in stages.unavailable([cell])[cell]
    problem = find_problem(design(100, sweep={}))
    assert problem is not None
    assert "not in those of `sweep`" in problem.what
    with pytest.raises(ValueError, match="cannot be combined"):
        design(["as-is", 100])
