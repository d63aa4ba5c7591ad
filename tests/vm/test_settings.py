"""Settings that a virtual machine's NIC is made with."""

from __future__ import annotations

from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design import Design
from planewise.measure.runs.stations import Stations
from planewise.measure.station import Place
from planewise.measure.trials.rtt import RttTrial
from planewise.testbed.guests.vms.platform import VmPlatform, no_vhost


def design(*levels: str) -> Design:
    factors = {"plane": ["virtio-bridge", "macvtap-bridge"], "guest": "vm", "setting": list(levels)}
    return Design.model_validate({"factors": factors, "rtt": {}, "vm": {"vcpus": 2}})


def test_guests_have_as_many_queues_as_the_setting_says() -> None:
    wanted = design("queues=1", "queues=2")
    with Stations(wanted) as stations:
        cells = cells_of(wanted)
        assert not stations.unavailable(cells)
        for cell in cells:
            with stations.station(cell) as station:
                end = station.ends["sender"]
                argv = ["ls", f"/sys/class/net/{end.interface}/queues"]
                there = end.host.run(argv, netns=end.netns).check().stdout.split()
                assert f"queues={sum(name.startswith('rx-') for name in there)}" == cell.setting


def test_a_host_without_vhost_net_refuses_the_level_that_needs_it(platform: VmPlatform) -> None:
    wanted = design("vhost=on", "vhost=off")
    with Stations(wanted) as stations:
        cells = cells_of(wanted)
        refused = stations.unavailable(cells)
    reason = no_vhost(platform)
    expected = {cell: f"vhost: {reason}" for cell in cells if cell.setting == "vhost=on"}
    assert refused == (expected if reason else {})


def test_virtual_machines_send_ipv6_where_the_setting_says_so() -> None:
    wanted = design("ip_version=6")
    with Stations(wanted) as stations:
        for cell in cells_of(wanted):
            with stations.station(cell) as station:
                assert ":" in station.ends["responder"].address
                trial = RttTrial("rtt", 200, 128, 20)
                place = Place("rtt", cell.levels(), 0, 0)
                counts = station.measure(trial, place, lambda _: None).record.counts
                assert counts is not None
                assert counts.received == 20
