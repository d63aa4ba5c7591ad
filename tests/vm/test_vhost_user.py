"""Main guests on a switch that polls: it rests while nobody wants it, and takes nothing along."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from planewise.boot.process import processes
from planewise.measure.runs.stations import SECOND_WIRE
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts.hugepages import POOL
from planewise.testbed.hosts.pair import local_pair
from planewise.testbed.model import HOSTS
from planewise.testbed.setting import Setting, TrafficPath
from planewise.testbed.switches.dpdk_switch import PROGRAM
from planewise.testbed.testbed import Testbed

pytestmark = pytest.mark.skipif(
    not shutil.which(PROGRAM), reason="there is no Open vSwitch with DPDK (scripts/setup nfv)"
)


def stopped(token: str) -> list[bool]:
    """Of each polling switch of a testbed, whether it is stopped (proc(5))."""
    ours = [
        one.pid
        for one in processes()
        if one.argv[:1] == (PROGRAM,) and f"pw-{token}" in " ".join(one.argv)
    ]
    status = [Path(f"/proc/{pid}/status").read_text() for pid in ours]
    return ["State:\tT" in text for text in status]


def test_guests_reach_each_other_as_the_nic_comes_to_a_switch_that_polls_and_goes(
    platform: VmPlatform,
) -> None:
    pages = int(POOL.read_text())
    with (
        local_pair(1500, SECOND_WIRE) as pair,
        Testbed(pair, 1500, VmOptions(shared_memory=True)) as testbed,
    ):
        testbed.platforms.update(dict.fromkeys(HOSTS, platform))

        def reached(plane: str, path: TrafficPath = "north-south", others: str = "") -> list[bool]:
            """Of the polling switches, which are stopped meanwhile."""
            setting = Setting("vm", plane, others or plane, len(others[:1]), path)
            with testbed.arrange(setting) as standing:
                mains = standing.main("sender"), standing.main("responder")
                pairs = [mains, *zip(*(standing.background(role) for role in HOSTS), strict=True)]
                for sender, responder in pairs:
                    argv = ["ping", responder.ipv4, "--count", "10", "--rate", "100"]
                    host = standing.hosts["sender"]
                    done = host.run([host.probe, *argv], netns=sender.netns)
                    assert done.json()["counts"]["received"] == 10, (setting, sender.name)
                meanwhile = stopped(pair.token)
            assert all(stopped(pair.token))
            return sorted(meanwhile)

        if shutil.which("ovs-vswitchd"):
            # Both forward in user space, of which a namespace has one datapath: it ends for the
            # other.
            assert reached("virtio-ovs") == []
        assert reached("vhost-user") == [False, False]
        assert reached("vhost-user", others="macvtap-bridge") == [False, False]
        assert reached("vhost-user", "east-west") == [False, True]
        assert reached("virtio-bridge") == [True, True]
        assert reached("vhost-user") == [False, False]
    assert int(POOL.read_text()) == pages
    assert stopped(pair.token) == []
