"""Background load on real namespaces: it starts in every guest, arrives, and ends."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from planewise.errors import PlanewiseError
from planewise.testbed.hosts import counters, netns
from planewise.testbed.loads.background import BackgroundLoad, LoadSpec, LoadType
from planewise.testbed.loads.crew import ProcessCrew, ShellCrew, StartCrew
from planewise.testbed.model import HOSTS, CounterPoint
from tests.linux.testbeds import here
from tests.running import until

pytestmark = pytest.mark.linux


@pytest.mark.parametrize("location", HOSTS)
def test_cpu_load_burns_in_every_background_guest(location: str) -> None:
    spec = LoadSpec("cpu", location, cpu_share=0.2)  # type: ignore[arg-type]
    with here("bridge", None, 8) as testbed:
        with BackgroundLoad(testbed, spec) as load:
            guests = testbed.background(spec.location)
            busy = netns.processes_in([guest.netns for guest in guests])
            assert sorted(busy.values()) == sorted(guest.netns for guest in guests)
            before = load.work()
            time.sleep(0.5)
            load.check()
            achieved = load.achieved(before)
        assert netns.processes_in([guest.netns for guest in guests]) == {}
    assert achieved
    assert len(achieved.guests) == 8
    assert 0 < achieved.achieved <= 0.25 * (os.cpu_count() or 1) + achieved.resolution


@pytest.mark.parametrize("start_crew", [ProcessCrew, ShellCrew])
@pytest.mark.parametrize("load_type", ["cache", "memory"])
def test_stress_takes_a_thread_of_every_background_guest_and_leaves_nothing(
    load_type: LoadType, start_crew: StartCrew
) -> None:
    if shutil.which("stress-ng") is None:
        pytest.skip("stress-ng is not here; `scripts/setup test` installs it")
    spec = LoadSpec(load_type, "responder", by_guest=True, cpu_share=None, memory_mib=8)
    with here("bridge", None, 2) as testbed:
        names = [guest.netns for guest in testbed.background("responder")]
        with BackgroundLoad(testbed, spec, start_crew) as load:
            before = load.work()
            assert set(netns.processes_in(names).values()) == set(names)
            time.sleep(0.3)
            load.check()
            achieved = load.achieved(before)
        until(lambda: netns.processes_in(names) == {})
    assert achieved is not None
    assert (achieved.unit, achieved.wanted) == ("cpus", None)
    assert len(achieved.guests) == 2
    # stress-ng itself waits: what was counted is what its workers burnt.
    assert all(0 < cpus <= 1.1 for cpus in achieved.guests.values())


@pytest.mark.parametrize(
    ("plane", "start_crew"),
    [("bridge", ProcessCrew), ("bridge", ShellCrew), ("macvlan", ProcessCrew)],
)
def test_network_load_arrives_at_its_location(plane: str, start_crew: StartCrew) -> None:
    spec = LoadSpec("network", "sender", rate_pps=4000, burst=20, payload_bytes=200)
    with here(plane, None, 4) as testbed, BackgroundLoad(testbed, spec, start_crew) as load:
        points = [
            CounterPoint("sender", guest.netns, guest.interface)
            for guest in testbed.background("sender")
        ]
        before = [counters.read(testbed.hosts["sender"], point) for point in points]
        work = load.work()
        time.sleep(0.5)
        for reading in before:
            now = counters.read(testbed.hosts["sender"], reading.point).since(reading)
            assert now["rx_packets"] >= 20
        achieved = load.achieved(work)
    assert achieved
    assert achieved.achieved > 0
    assert 0 < achieved.received_pps <= achieved.achieved + achieved.resolution


def test_a_load_that_died_is_noticed() -> None:
    spec = LoadSpec("cpu", "sender", limit_s=0.2)
    with here("veth", None, 2) as testbed, BackgroundLoad(testbed, spec) as load:
        time.sleep(0.6)
        with pytest.raises(PlanewiseError, match="stopped unexpectedly"):
            load.check()
