"""Virtual machines as guests: what can be done in them, and what happens when they break."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from planewise.boot.process import processes
from planewise.errors import PlanewiseError
from planewise.measure.load import Generator
from planewise.measure.load_apart import measure_load_apart
from planewise.measure.schedule import LoadTrial
from planewise.measure.stage import Place
from planewise.measure.vms import load_path_of
from planewise.testbed import ledger, netns
from planewise.testbed.load import BackgroundLoad, LoadSpec
from planewise.testbed.model import HOSTS, TestbedSpec
from planewise.testbed.vms.guests import Platform
from planewise.testbed.vms.hypervisor import GuestGoneError, HypervisorGoneError
from planewise.testbed.vms.testbed import VmTestbed

WAIT_S = 120.0
"""For conditions that are waited for: an overloaded machine is no failure."""


def test_processes_in_a_guest_take_input_and_tell_output_and_exit_code(up: VmTestbed) -> None:
    host, guest = up.hosts["sender"], up.main("sender")
    argv = ["sh", "-c", "cat; echo oops >&2; exit 3"]
    finished = host.run(argv, netns=guest.netns, stdin=b"hello")
    assert (finished.stdout, finished.stderr, finished.exit_code) == ("hello", "oops\n", 3)
    with host.start(["sleep", "1000"], netns=guest.netns) as process:
        assert process.running
    assert process.wait(0).exit_code == 128 + signal.SIGINT
    with pytest.raises(PlanewiseError, match="nonexistent"):
        host.run(["/nonexistent"], netns=guest.netns).check()


def test_files_of_a_guest_are_its_own(up: VmTestbed, tmp_path: Path) -> None:
    host, guest = up.hosts["sender"], up.main("sender")
    host.run(["sh", "-c", "head -c 3000000 /dev/zero >/tmp/big"], netns=guest.netns).check()
    taken = host.take("/tmp/big", tmp_path, netns=guest.netns)
    assert taken.read_bytes() == bytes(3_000_000)
    host.run(["rm", "/tmp/big"], netns=guest.netns).check()
    with pytest.raises(PlanewiseError, match="/tmp/big cannot be opened"):
        host.take("/tmp/big", tmp_path, netns=guest.netns)


def test_main_guests_reach_each_other_and_resolve_no_address(up: VmTestbed) -> None:
    host, sender, responder = up.hosts["sender"], up.main("sender"), up.main("responder")
    argv = [host.probe, "ping", responder.ipv4, "--count", "20", "--rate", "100"]
    counts = host.run(argv, netns=sender.netns).json()["counts"]
    assert (counts["sent"], counts["received"]) == (20, 20)
    arp = host.read_text("/proc/net/arp", netns=sender.netns).splitlines()[1:]
    permanent = "0x6"
    assert [line.split()[:4] for line in arp] == [[responder.ipv4, "0x1", permanent, responder.mac]]


def test_every_frame_of_a_load_trial_between_guests_is_accounted_for(up: VmTestbed) -> None:
    mains = {role: up.main(role) for role in HOSTS}
    path = load_path_of(up.hosts, mains, up.counter_points)
    generator = Generator(up.hosts["sender"], netns=mains["sender"].netns)
    # More than an emulated guest can send or take.
    trial = LoadTrial("load", offered_pps=50_000, size_bytes=64, duration_s=0.5)
    record = measure_load_apart(path, trial, Place("load", {}, 0, 0), generator).record
    assert record.counts is not None
    assert record.counts.sent == record.counts.received + record.counts.lost
    assert record.counts.received > 0
    explained = sum(part.count for part in record.loss)
    # What the network lost is in a counter; frames may be on their way when the receiver ends.
    assert explained <= record.counts.lost
    assert record.counts.lost == 0 or record.limits
    assert not record.latency


@pytest.mark.parametrize("kind", ["cpu", "network"])
def test_background_guests_make_load(up: VmTestbed, kind: str) -> None:
    up.wake(1)
    spec = LoadSpec(type=kind, cpu_share=0.2, rate_pps=100, burst=10)  # type: ignore[arg-type]
    with BackgroundLoad(up, spec) as load:
        load.check()
    assert load.report is not None
    assert load.report.guests == 1
    assert load.report.cpu_s > 0 if kind == "cpu" else load.report.received > 0


def test_guests_that_are_not_needed_sleep_and_wake_up_as_they_were(up: VmTestbed) -> None:
    background = up.background("responder")[0]
    up.hosts["responder"].run(["touch", "/tmp/kept"], netns=background.netns).check()
    up.wake(0)
    assert up.background("responder") == ()
    assert up.hypervisor("responder").states()[background.netns] == "paused"
    up.wake(1)
    assert up.background("responder") == (background,)
    up.hosts["responder"].run(["ls", "/tmp/kept"], netns=background.netns).check()


def test_a_guest_that_crashes_is_told_of_and_replaced(up: VmTestbed) -> None:
    host, guest = up.hosts["sender"], up.main("sender")
    process = host.start(["sleep", "1000"], netns=guest.netns)
    crash = ["sh", "-c", "sleep 0.2; echo c >/proc/sysrq-trigger"]
    host.start(crash, netns=guest.netns)
    with pytest.raises(GuestGoneError, match=r"sender-main ended.*Kernel panic"):
        until(lambda: host.read_text("/proc/uptime", netns=guest.netns) == "")
    assert process.wait(0).exit_code == 128 + signal.SIGKILL
    assert up.wake(1) == (guest,)
    argv = [host.probe, "ping", up.main("responder").ipv4, "--count", "5", "--rate", "100"]
    assert host.run(argv, netns=guest.netns).json()["counts"]["received"] == 5


def test_a_libvirt_that_goes_away_is_told_of_and_started_again(up: VmTestbed) -> None:
    host, guest = up.hosts["responder"], up.main("responder")
    daemons = [pid for pid in own_processes(up, "responder") if "libvirtd" in argv_of(pid)[0]]
    for pid in daemons:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(HypervisorGoneError, match=r"libvirt on pw-.* does not answer"):
        until(lambda: host.read_text("/proc/uptime", netns=guest.netns) == "")
    assert {one.name for one in up.wake(1)} == {"responder-main", "responder-background0"}
    assert host.read_text("/proc/uptime", netns=guest.netns)


def test_a_guest_that_never_boots_is_said_with_its_last_words(
    platform: Platform, tmp_path: Path
) -> None:
    before = set(netns.names())
    (tmp_path / "initrd").write_bytes(b"this is no archive")
    broken = replace(platform.image, initrd=tmp_path / "initrd")
    spec = TestbedSpec("macvtap-bridge")
    with (
        pytest.raises(PlanewiseError, match=r"(sender|responder)-main ended.*console.*panic"),
        VmTestbed(spec, replace(platform, image=broken)),
    ):
        pass
    until(lambda: not set(netns.names()) - before - namespaces_of_others())
    assert not [one for one in processes() if str(tmp_path) in str(one.argv)]


def test_nothing_is_left_of_a_testbed(platform: Platform) -> None:
    with VmTestbed(TestbedSpec("e1000-bridge"), platform) as testbed:
        pids = [pid for host in ("sender", "responder") for pid in own_processes(testbed, host)]
        names = [site.netns for site in testbed.topology.sites.values()]
        directory = testbed.hosts["sender"].directory
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


def own_processes(testbed: VmTestbed, host: str) -> list[int]:
    """Processes in the namespace of one of the testbed's hosts."""
    site = testbed.topology.sites[host]  # type: ignore[index]
    return list(netns.processes_in([site.netns]))


def argv_of(pid: int) -> list[str]:
    """A process' command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
