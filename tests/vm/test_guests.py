"""Virtual machines as guests: what can be done in them, and what happens when they break."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from planewise.boot.process import processes
from planewise.errors import PlanewiseError
from planewise.measure.runs.stations import SECOND_WIRE
from planewise.measure.station import End, Place, Station
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.load_one_process import Generator
from planewise.testbed.guests.vms.hypervisor import GuestGoneError, HypervisorGoneError
from planewise.testbed.guests.vms.kind import VirtualMachines
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts import ledger, netns
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.pair import local_pair
from planewise.testbed.loads.background import BackgroundLoad, LoadSpec
from planewise.testbed.model import HOSTS
from planewise.testbed.setting import Arrangement, Setting, TrafficPath
from planewise.testbed.testbed import Testbed

from .conftest import TWO_AND_TWO

SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
WAIT_S = 120.0
"""For conditions that are waited for: an overloaded machine is no failure."""


@pytest.fixture
def standing(up: Testbed) -> Iterator[Arrangement]:
    """A main guest and a background guest on each host, awake."""
    with up.arrange(TWO_AND_TWO) as arrangement:
        yield arrangement


def test_processes_in_a_guest_take_input_and_tell_output_and_exit_code(
    standing: Arrangement,
) -> None:
    host, guest = standing.hosts["sender"], standing.main("sender")
    argv = ["sh", "-c", "cat; echo oops >&2; exit 3"]
    finished = host.run(argv, netns=guest.netns, stdin=b"hello")
    assert (finished.stdout, finished.stderr, finished.exit_code) == ("hello", "oops\n", 3)
    with host.start(["sleep", "1000"], netns=guest.netns) as process:
        assert process.running
    assert process.wait(0).exit_code == 128 + signal.SIGINT
    with pytest.raises(PlanewiseError, match="nonexistent"):
        host.run(["/nonexistent"], netns=guest.netns).check()


def test_files_of_a_guest_are_its_own(standing: Arrangement) -> None:
    host, guest = standing.hosts["sender"], standing.main("sender")
    host.run(["sh", "-c", "head -c 3000000 /dev/zero >/tmp/big"], netns=guest.netns).check()
    assert host.read("/tmp/big", netns=guest.netns) == bytes(3_000_000)
    host.run(["rm", "/tmp/big"], netns=guest.netns).check()
    with pytest.raises(PlanewiseError, match="/tmp/big cannot be read"):
        host.read("/tmp/big", netns=guest.netns)


@pytest.mark.parametrize("path", ["north-south", "east-west"])
def test_guests_reach_their_peers_and_resolve_no_address(up: Testbed, path: TrafficPath) -> None:
    with up.arrange(replace(TWO_AND_TWO, path=path)) as standing:
        host = standing.hosts["sender"]
        mains = standing.main("sender"), standing.main("responder")
        backgrounds = standing.background("sender")[0], standing.background("responder")[0]
        for sender, responder in (mains, backgrounds):
            argv = [host.probe, "ping", responder.ipv4, "--count", "20", "--rate", "100"]
            counts = host.run(argv, netns=sender.netns).json()["counts"]
            assert (counts["sent"], counts["received"]) == (20, 20)
            arp = host.read_text("/proc/net/arp", netns=sender.netns).splitlines()[1:]
            known = [line.split()[:4] for line in arp]
            permanent = "0x6"
            assert [responder.ipv4, "0x1", permanent, responder.mac] in known
            assert {entry[2] for entry in known} == {permanent}


def test_guests_keep_reaching_each_other_as_the_nic_goes_from_one_switch_to_another(
    up: Testbed,
) -> None:
    if not shutil.which("ovs-vswitchd", path=SBIN):
        pytest.skip("there is no Open vSwitch here (scripts/setup nfv installs it)")
    for plane in ("virtio-bridge", "virtio-ovs", "virtio-routed", "virtio-bridge", "virtio-ovs"):
        for path in ("north-south", "east-west"):
            with up.arrange(Setting("vm", plane, plane, 0, path)) as standing:
                host = standing.hosts["sender"]
                sender, responder = standing.main("sender"), standing.main("responder")
                for address in (responder.ipv4, responder.ipv6):
                    argv = [host.probe, "ping", address, "--count", "10", "--rate", "100"]
                    counts = host.run(argv, netns=sender.netns).json()["counts"]
                    assert counts["received"] == 10, (plane, path, address, counts)


def test_every_frame_of_a_load_trial_between_guests_is_accounted_for(
    standing: Arrangement,
) -> None:
    mains = {role: standing.main(role) for role in HOSTS}
    ends = {
        role: End(
            standing.hosts[role], main.netns, main.name, main.interface, main.ipv4, machine=True
        )
        for role, main in mains.items()
    }
    station = Station(
        standing.hosts,
        ends,
        path=standing.trial_path(),
        counter_points=standing.counter_points,
        generator=Generator(standing.hosts["sender"], netns=mains["sender"].netns),
        refused="lost",
    )
    # More than an emulated guest can send or take.
    trial = LoadTrial("load", offered_pps=50_000, size_bytes=64, duration_s=0.5)
    record = station.measure(trial, Place("load", {}, 0, 0), lambda _: None).record
    assert record.counts is not None
    assert record.counts.sent == record.counts.received + record.counts.lost
    assert record.counts.received > 0
    explained = sum(part.count for part in record.loss)
    # What the network lost is in a counter; frames may be on their way when the receiver ends.
    assert explained <= record.counts.lost
    assert record.counts.lost == 0 or record.limits
    assert not record.latency


@pytest.mark.parametrize("kind", ["cpu", "network"])
def test_background_guests_make_load(standing: Arrangement, kind: str) -> None:
    spec = LoadSpec(type=kind, cpu_share=0.2, rate_pps=100, burst=10)  # type: ignore[arg-type]
    with BackgroundLoad(standing, spec) as load:
        before = load.work()
        time.sleep(1.0)
        load.check()
        achieved = load.achieved(before)
    assert achieved is not None
    assert len(achieved.guests) == 1
    assert achieved.achieved > 0 if kind == "cpu" else achieved.received_pps


def test_guests_that_are_not_needed_sleep_and_wake_up_as_they_were(up: Testbed) -> None:
    with up.arrange(TWO_AND_TWO) as standing:
        background = standing.background("responder")[0]
        standing.hosts["responder"].run(["touch", "/tmp/kept"], netns=background.netns).check()
    with up.arrange(replace(TWO_AND_TWO, background_guests=0)) as standing:
        assert standing.background("responder") == ()
        machines = up._states["responder"].guests["vm"]
        assert isinstance(machines, VirtualMachines)
        assert machines.libvirt.states()[background.netns] == "paused"
    with up.arrange(TWO_AND_TWO) as standing:
        assert standing.background("responder") == (background,)
        standing.hosts["responder"].run(["ls", "/tmp/kept"], netns=background.netns).check()


def test_a_guest_that_crashes_is_told_of_and_replaced(up: Testbed) -> None:
    with up.arrange(TWO_AND_TWO) as standing:
        host, guest = standing.hosts["sender"], standing.main("sender")
        process = host.start(["sleep", "1000"], netns=guest.netns)
        crash = ["sh", "-c", "sleep 0.2; echo c >/proc/sysrq-trigger"]
        host.start(crash, netns=guest.netns)
        with pytest.raises(GuestGoneError, match=r"sender-main ended.*Kernel panic"):
            until(lambda: host.read_text("/proc/uptime", netns=guest.netns) == "")
        assert process.wait(0).exit_code == 128 + signal.SIGKILL
    with up.arrange(TWO_AND_TWO) as standing:
        assert standing.main("sender").netns != guest.netns
        guest = standing.main("sender")
        argv = [
            host.probe,
            "ping",
            standing.main("responder").ipv4,
            "--count",
            "5",
            "--rate",
            "100",
        ]
        assert host.run(argv, netns=guest.netns).json()["counts"]["received"] == 5


def test_a_libvirt_that_goes_away_is_told_of_and_started_again(up: Testbed) -> None:
    with up.arrange(TWO_AND_TWO) as standing:
        host, guest = standing.hosts["responder"], standing.main("responder")
        kept = standing.main("sender")
        daemons = [pid for pid in own_processes(host) if "libvirtd" in argv_of(pid)[0]]
        for pid in daemons:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(HypervisorGoneError, match=r"libvirt on pw-.* does not answer"):
            until(lambda: host.read_text("/proc/uptime", netns=guest.netns) == "")
    with up.arrange(TWO_AND_TWO) as standing:
        assert standing.main("sender").netns == kept.netns
        assert standing.main("responder").netns != guest.netns
        assert host.read_text("/proc/uptime", netns=standing.main("responder").netns)


def test_a_guest_that_never_boots_is_said_with_its_last_words(
    platform: VmPlatform, tmp_path: Path
) -> None:
    before = set(netns.names())
    (tmp_path / "initrd").write_bytes(b"this is no archive")
    broken = replace(platform.image, initrd=tmp_path / "initrd")
    setting = replace(TWO_AND_TWO, plane="macvtap-bridge", background_guests=0)
    with local_pair(1500, SECOND_WIRE) as pair, Testbed(pair, 1500) as testbed:
        testbed.platforms.update(dict.fromkeys(HOSTS, replace(platform, image=broken)))
        said = r"(sender|responder)-main ended.*console.*panic"
        with pytest.raises(PlanewiseError, match=said), testbed.arrange(setting):
            pass
    until(lambda: not set(netns.names()) - before - namespaces_of_others())
    assert not [one for one in processes() if str(tmp_path) in str(one.argv)]


def test_nothing_is_left_of_a_testbed(platform: VmPlatform) -> None:
    setting = replace(TWO_AND_TWO, plane="e1000-bridge", background_guests=0)
    with (
        local_pair(1500, SECOND_WIRE) as pair,
        Testbed(pair, 1500) as testbed,
        testbed.arrange(setting) as standing,
    ):
        pids = [pid for host in HOSTS for pid in own_processes(standing.hosts[host])]
        names = [machine.netns for machine in pair.machines.values()]
        directory = standing.hosts["sender"].directory
        assert len(pids) >= 4  # a libvirtd and a QEMU each
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not set(names) & set(netns.names())
    assert not Path(directory).exists()
    assert not [one for one in ledger.leftovers() if one.token in names[0]]


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def namespaces_of_others() -> set[str]:
    """Namespaces that other programs of this machine have made, by what they wrote down."""
    names = netns.names()  # first: what has a name has a file already
    tokens = set()
    for file in ledger.STATE.glob("*.json"):
        with suppress(OSError, ValueError):  # it goes with its run
            if json.loads(file.read_text())["pid"] != os.getpid():
                tokens.add(file.stem)
    return {name for name in names if ledger.token_of(name) in tokens}


def own_processes(host: Host) -> list[int]:
    """Processes in the namespace that stands for a host."""
    return list(netns.processes_in([host.place]))


def argv_of(pid: int) -> list[str]:
    """A process' command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
