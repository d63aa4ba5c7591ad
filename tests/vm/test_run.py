"""`planewise run` on virtual machines: to a report, and through a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from planewise.boot.process import processes
from planewise.measure.trials.stamps import parts_ns
from planewise.store.rundir import RunReader
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts import ledger, netns
from planewise.testbed.hosts.ledger import token_of
from tests.command import PLANEWISE, UNREPORTED

PLANES = ("e1000-bridge", "virtio-bridge", "macvtap-bridge")
POINTS = {
    f"{role}_{place}" for role in ("sender", "responder") for place in ("inside", "guest", "nic")
}

DESIGN = """
title: a reduced kvm-rtt
factors:
  guest: vm
  plane: [e1000-bridge, virtio-bridge, macvtap-bridge]
  background_guests: [0, 1]
  load_type: [none, cpu, network]
constraints:
  - when: {load_type: none}
    require: {background_guests: 0}
rtt: {packets: 200, guest_stamps: true}
background: {cpu_share: 0.3, rate_pps: 100, burst_packets: 10}
blocks: 1
"""


def test_a_design_of_virtual_machines_is_measured_to_a_report(
    tmp_path: Path, platform: VmPlatform, said: list[str]
) -> None:
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(DESIGN)
    begun = time.monotonic()
    with planewise("run", str(design), "--out", str(out)) as process:
        told, complaint = process.communicate(timeout=280)
    assert process.returncode == 0, complaint
    reader = RunReader(out)
    assert reader.info.status == "done", told
    assert bool(reader.info.emulated) == (platform.accelerator.name == "tcg")
    assert set(reader.info.differences) == set(PLANES)
    trials = list(reader.trials())
    assert sorted({str(trial.cell["plane"]) for trial in trials}) == sorted(PLANES)
    assert len(trials) == 9
    for trial in trials:
        assert trial.status == "done", trial.reason
        assert {capture.point for capture in trial.captures} == POINTS
        assert {"rtt_user", "overhead", "response"} <= set(trial.latency)
        assert trial.packets is not None
        packets = pl.read_parquet(out / trial.packets)
        assert_parts_add_up(packets)
    medians = {
        str(trial.cell["plane"]): trial.latency["rtt_user"].p50_ns / 1e6
        for trial in trials
        if trial.cell["load_type"] == "none"
    }
    said.append(
        f"a reduced kvm-rtt took {time.monotonic() - begun:.0f} s; idle median RTT [ms]: "
        + ", ".join(f"{plane} {value:.2f}" for plane, value in medians.items())
    )
    page = (out / "report.html").read_text()
    for plane in PLANES:
        assert plane in page
    if reader.info.emulated:
        assert "emulated" in page


def assert_parts_add_up(packets: pl.DataFrame) -> None:
    """Overhead, wire and response are all of the RTT, packet by packet, and each is there."""
    complete = packets.drop_nulls(
        ["user_tx_ns", "user_rx_ns", "sender_nic_reply_ns", "responder_nic_reply_ns"]
    )
    assert complete.height > 0
    parts = parts_ns(complete)
    rtt = (complete["user_rx_ns"] - complete["user_tx_ns"]).to_numpy()
    wire = (
        (complete["sender_nic_reply_ns"] - complete["sender_nic_request_ns"])
        - (complete["responder_nic_reply_ns"] - complete["responder_nic_request_ns"])
    ).to_numpy()
    assert np.array_equal(parts["overhead"] + wire + parts["response"], rtt)
    for part in (wire, parts["response"], parts["sender_stack"], parts["responder_stack"]):
        assert part.min() > 0


SMALLEST = """
title: one cell, many times
factors:
  guest: vm
  plane: virtio-bridge
sweep: {offered_pps: [500], duration_s: 0.5}
blocks: 50
"""


def test_a_killed_run_of_load_trials_leaves_nothing_once_it_is_cleaned(tmp_path: Path) -> None:
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(SMALLEST)
    with planewise("run", str(design), "--out", str(out)) as process:
        deadline = time.monotonic() + 280
        while not (out / "trials.jsonl").exists() or not (out / "trials.jsonl").read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        ours = namespaces_of(process)
        guests = guests_of(ours)
        assert len(guests) >= 2
        kill(process)
    trial = next(iter(RunReader(out).trials()))
    assert (trial.kind, trial.status) == ("load", "done"), trial.reason
    assert trial.counts is not None
    assert trial.counts.received > 0
    assert trial.counts.sent == trial.counts.received + trial.counts.lost
    clean_after(ours)


def kill(process: subprocess.Popen[str]) -> None:
    """Ends a run so that it can do nothing about it."""
    process.kill()
    process.wait()


def clean_after(ours: set[str]) -> None:
    """What a killed run left in its namespaces goes, the guests by themselves."""
    # The kernel ends libvirt and the guests with planewise; nobody needs to find them.
    deadline = time.monotonic() + 60
    while guests_of(ours):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cleaned = subprocess.run(
        [*PLANEWISE, "clean", "--json"], capture_output=True, text=True, timeout=120, check=True
    )
    told = json.loads(cleaned.stdout)["leftovers"]
    assert {name for one in told for name in one["namespaces"]} >= ours
    assert not ours & set(netns.names())  # taps, macvtaps and bridges were in these


def guests_of(names: set[str]) -> list[str]:
    """Virtual machines whose names have the tokens of these namespaces."""
    tokens = {token_of(name) for name in names}
    found = []
    for process in processes():
        name = (process.option("-name") or "").partition("guest=")[2].partition(",")[0]
        if name and token_of(name) in tokens:
            found.append(name)
    return found


@contextmanager
def planewise(*argv: str, report: bool = True) -> Iterator[subprocess.Popen[str]]:
    """The command line; ended with the block."""
    program = PLANEWISE if report else UNREPORTED
    process = subprocess.Popen(
        [*program, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGINT)
            process.wait(60)


FAULTS = """
title: faults
factors:
  guest: vm
  plane: virtio-bridge
  frequency_pps: 500
rtt: {packets: 2000}
blocks: 5
"""


def test_a_run_outlives_a_guest_that_is_killed_and_a_libvirt_that_is_ended(
    tmp_path: Path,
) -> None:
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(FAULTS)
    with planewise("run", str(design), "--out", str(out)) as process:
        until(lambda: finished(out) >= 1 and measuring(process), process)
        (guest,) = (one for one in pids_of(process) if one.name.endswith("-sm0"))
        os.kill(guest.pid, signal.SIGKILL)
        until(lambda: finished(out) >= 3 and measuring(process), process)
        os.kill(libvirtd_of(process), signal.SIGKILL)
        told, complaint = process.communicate(timeout=280)
    assert "Traceback" not in complaint
    trials = list(RunReader(out).trials())
    states = [trial.status for trial in sorted(trials, key=lambda one: one.order)]
    assert states == ["done", "failed", "done", "failed", "done"], complaint
    killed, ended = (trial.reason for trial in trials if trial.status == "failed")
    assert "the virtual machine sender-main ended" in killed
    assert "libvirt on " in ended
    assert "does not answer" in ended
    # Each trial after a fault says what was started anew for it.
    anew = [" ".join(trial.warnings) for trial in trials if trial.status == "done"]
    assert "restarted" not in anew[0]
    assert "sender-main had ended and was restarted" in anew[1]
    assert "restarted" in anew[2]
    assert RunReader(out).info.status == "done", told
    assert "failed" in told + complaint
    assert (out / "report.html").exists()
    assert not namespaces_of(process)


def finished(out: Path) -> int:
    """Trials that the run has written down."""
    try:
        return (out / "trials.jsonl").read_text().count("\n")
    except FileNotFoundError:
        return 0


def namespaces_of(process: subprocess.Popen[str]) -> set[str]:
    """Namespaces that a planewise has made, by what it wrote down; they may outlive it."""
    tokens = set()
    for file in ledger.STATE.glob("*.json"):
        with suppress(OSError, ValueError):  # it goes with its run
            if json.loads(file.read_text())["pid"] == process.pid:
                tokens.add(file.stem)
    return {name for name in netns.names() if token_of(name) in tokens}


def measuring(process: subprocess.Popen[str]) -> bool:
    """Whether a trial runs: its taps capture."""
    ours = sorted(namespaces_of(process))
    return any("tap" in argv_of(pid) for pid in netns.processes_in(ours))


@dataclass(frozen=True)
class Vm:
    """A QEMU of libvirt's."""

    pid: int
    name: str


def pids_of(process: subprocess.Popen[str]) -> list[Vm]:
    """The virtual machines of a planewise."""
    tokens = {token_of(name) for name in namespaces_of(process)}
    found = []
    for one in processes():
        name = (one.option("-name") or "").partition("guest=")[2].partition(",")[0]
        if name and token_of(name) in tokens:
            found.append(Vm(one.pid, name))
    return found


def libvirtd_of(process: subprocess.Popen[str]) -> int:
    """The libvirt of a planewise' responder."""
    (there,) = (name for name in namespaces_of(process) if name.endswith("-r"))
    (pid,) = (pid for pid in netns.processes_in([there]) if argv_of(pid)[0].endswith("libvirtd"))
    return pid


def argv_of(pid: int) -> list[str]:
    """A process' command line; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return [""]


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Waits for a condition while the run goes on."""
    deadline = time.monotonic() + 280
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
