"""Virtual machines inside the lab's hosts that really hold a VF, measured across the cable.

Their CPUs are emulated by an emulated CPU: few packets, and no assertion about time.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from planewise.store.rundir import RunReader
from planewise.testbed.hosts import ledger
from planewise.testbed.hosts.remote import LabHost
from tests.command import PLANEWISE

from .conftest import NESTED, Run
from .test_hosted import HOSTS, come_back, states

pytestmark = [pytest.mark.timeout(5400), NESTED]

WAIT_S = 2400
"""For what is waited for: a minute where nothing else runs, many on a busy machine."""

DESIGN = """
title: VFs of virtual machines
factors:
  guest: vm
  plane: [macvtap-vf, vf-passthrough]
  frequency_pps: 5
rtt: {packets: 10}
blocks: 1
seed: 1
"""
"""With this seed, vf-passthrough comes first."""

MIXED = """
title: VFs of virtual machines and of namespaces
factors:
  guest: [namespace, vm]
  plane: [vf, macvtap-vf]
  frequency_pps: 5
constraints:
  - {when: {guest: vm}, require: {plane: macvtap-vf}}
  - {when: {guest: namespace}, require: {plane: vf}}
rtt: {packets: 10}
blocks: 2
seed: 1
"""

HELD = "ls -l $(pgrep -f guest=pw- | sed 's,.*,/proc/&/fd,') 2>/dev/null | grep /dev/vfio/[0-9]"
"""Says which IOMMU groups virtual machines have."""


def test_guests_that_hold_vfs_are_measured_across_the_cable_through_a_kill_that_leaves_nothing(
    hosts: dict[str, LabHost], planewise: Run, tmp_path: Path, said: list[str]
) -> None:
    begun = time.monotonic()
    before = states(hosts)
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(DESIGN)
    kill_after_a_trial(["run", str(design), *HOSTS, "--out", str(out)], out, hosts)
    done = planewise("clean", timeout_s=600)
    assert done.returncode == 0, done.stderr
    come_back(hosts, before)
    assert not any(guests_on(host) for host in hosts.values())
    assert not [one for one in ledger.leftovers() if one.hosts]

    done = planewise("run", "--resume", str(out), timeout_s=WAIT_S)
    assert done.returncode == 0, done.stderr
    said.append(f"virtual machines with VFs: to a report in {time.monotonic() - begun:.0f} s")
    check_run(out)
    for plane in ("macvtap-vf", "vf-passthrough"):
        assert plane in (out / "report.html").read_text()
    # What is not measurable says so wherever it would stand.
    compared = planewise("compare", str(out), "--factor", "plane", "--metric", "overhead")
    assert "its frames pass the host by" in compared.stdout + compared.stderr
    assert "its frames pass the host by" in (out / "report.html").read_text()
    come_back(hosts, before)


def test_virtual_machines_and_namespaces_of_one_design_take_turns_at_the_nics(
    hosts: dict[str, LabHost], planewise: Run, tmp_path: Path, said: list[str]
) -> None:
    begun = time.monotonic()
    before = states(hosts)
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(MIXED)
    done = planewise("run", str(design), *HOSTS, "--out", str(out), timeout_s=WAIT_S)
    assert done.returncode == 0, done.stderr
    said.append(f"namespaces beside virtual machines: {time.monotonic() - begun:.0f} s")
    trials = list(RunReader(out).trials())
    assert [trial.reason for trial in trials if trial.status != "done"] == []
    measured = sorted((str(trial.cell["guest"]), trial.block) for trial in trials)
    assert measured == [("namespace", 0), ("namespace", 1), ("vm", 0), ("vm", 1)]
    assert all(trial.counts is not None and trial.counts.received > 0 for trial in trials)
    come_back(hosts, before)


def kill_after_a_trial(argv: list[str], out: Path, hosts: dict[str, LabHost]) -> None:
    """Kills a run that has measured its first guests, while they hold VFs by VFIO."""
    log = out.with_suffix(".said")
    with log.open("w+") as file:
        victim = subprocess.Popen([*PLANEWISE, *argv], stdout=file, stderr=file)
        try:
            deadline = time.monotonic() + WAIT_S
            while not (out / "trials.jsonl").exists() or not (out / "trials.jsonl").read_text():
                assert victim.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            victim.send_signal(signal.SIGSTOP)  # the guests stay while we look
            assert all(holds_a_vf(host) for host in hosts.values())
        finally:
            victim.kill()
            victim.wait()


def check_run(out: Path) -> None:
    """Both planes were measured, and what cannot be seen under passthrough is not made up."""
    info = RunReader(out).info
    assert info.status == "done"
    assert "QEMU" in info.emulated
    assert "no /dev/kvm on lab:t/a" in info.emulated
    trials = {str(trial.cell["plane"]): trial for trial in RunReader(out).trials()}
    assert set(trials) == {"macvtap-vf", "vf-passthrough"}
    for trial in trials.values():
        assert trial.status == "done", trial.reason
        assert trial.counts is not None
        assert trial.counts.received > 0
        assert trial.latency["rtt_user"].count == trial.counts.received
        assert set(trial.cpu) == {"sender", "responder"}
    seen, unseen = trials["macvtap-vf"], trials["vf-passthrough"]
    assert {"overhead", "response"} <= set(seen.latency)
    assert len(seen.captures) == 4
    assert not {"overhead", "response"} & set(unseen.latency)
    assert set(unseen.not_measurable) == {"overhead", "response"}
    assert unseen.captures == ()


def holds_a_vf(host: LabHost) -> bool:
    """Whether a virtual machine of a host has a VF by VFIO."""
    return host.run(["sh", "-c", HELD], timeout_s=300).exit_code == 0


def guests_on(host: LabHost) -> list[str]:
    """The virtual machines of a host that have been started."""
    look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep ^guest=pw- || true"
    return host.run(["sh", "-c", look], timeout_s=300).stdout.split()
