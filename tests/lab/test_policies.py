"""The allocator's policies on the lab's hosts: planewised, igb's VFs, guests under requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from planewise.commands.clean import clean
from planewise.store.rundir import RunReader
from planewise.testbed.hosts.remote import LabHost
from tests.command import PLANEWISE

from .conftest import Run
from .test_hosted import HOSTS, come_back, states

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not os.environ.get("PLANEWISE_POLICIES"),
        reason="an allocator at work for minutes on emulated hosts: PLANEWISE_POLICIES=1 runs it",
    ),
]

DESIGN = """
title: policies
factors:
  plane: bridge
  background_guests: 4
  policy: [POLICIES]
alloc: {vfs: 1, group_pps: [10, 2], warmup_s: 8, duration_s: 12, change_s: 12, download_mib: 1}
blocks: 1
"""
MODULES = "lsmod | cut -d' ' -f1 | grep bonding; true"
DAEMONS = "pgrep -a planewised; true"


def run_of(directory: Path, policies: str) -> tuple[Path, Path]:
    design = directory / "design.yaml"
    design.write_text(DESIGN.replace("POLICIES", policies))
    return design, directory / "run"


def test_policies_are_measured_and_the_hosts_are_left_as_they_were(
    hosts: dict[str, LabHost], planewise: Run, tmp_path: Path, said: list[str]
) -> None:
    before = states(hosts)
    modules = hosts["b"].run(["sh", "-c", MODULES]).stdout
    design, out = run_of(tmp_path, "none, static, activity")
    done = planewise("run", str(design), *HOSTS, "--out", str(out), timeout_s=1200)
    assert done.returncode == 0, done.stderr
    trials = {str(trial.cell["policy"]): trial for trial in RunReader(out).trials()}
    assert {trial.reason for trial in trials.values()} == {""}
    results = {policy: trial.alloc for policy, trial in trials.items()}
    for policy, result in results.items():
        assert result is not None
        assert result.recording is not None
        held = {name: guest.held_s for name, guest in result.guests.items() if guest.held_s}
        assert len(held) == {"none": 0, "static": 1}.get(policy, len(held))
        assert sum(held.values()) <= 1.01 * result.vfs * result.window_s
        replayed = planewise(
            "alloc", "simulate", "--recording", str(out / result.recording), timeout_s=120
        )
        assert replayed.returncode == 0, replayed.stderr
        assert "every plan is the same" in replayed.stdout
        cpu, memory_mib = result.daemon.cpu, result.daemon.memory_bytes / 2**20
        said.append(f"policies: {policy}: daemon {cpu:.1%} of a CPU, {memory_mib:.1f} MiB")
        assert result.download is not None
        assert result.download.bytes >= 1 << 20
        assert result.download.guest == list(result.guests)[-1]
        said.append(f"policies: {policy}: download of 1 MiB {result.download.seconds:.1f} s")
    static = results["static"]
    assert static is not None
    (kept,) = (guest.held_s for guest in static.guests.values() if guest.held_s)
    assert kept == pytest.approx(static.window_s, abs=0.01), "it kept its VF throughout"
    assert {move.guest for move in static.moves if move.ending == "completed"} == {
        name for name, guest in static.guests.items() if guest.held_s
    }
    come_back(hosts, before)
    assert hosts["b"].run(["sh", "-c", MODULES]).stdout == modules
    assert hosts["b"].run(["sh", "-c", DAEMONS]).stdout == ""


def test_what_a_killed_run_leaves_is_removed_by_clean(
    hosts: dict[str, LabHost], tmp_path: Path
) -> None:
    before = states(hosts)
    design, out = run_of(tmp_path, "activity")
    argv = [*PLANEWISE, "run", str(design), *HOSTS, "--out", str(out)]
    holds = "ip -all netns exec ip -o link show pw-vf 2>/dev/null | grep pw-vf"
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        deadline = time.monotonic() + 600
        while hosts["b"].run(["sh", "-c", holds], timeout_s=120).exit_code:
            assert running.poll() is None, running.stderr and running.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(1)
        running.send_signal(signal.SIGKILL)
    assert not json.loads((out / "run.json").read_text()).get("finished")
    clean(dry_run=False, json_=False)
    come_back(hosts, before)
    assert hosts["b"].run(["sh", "-c", DAEMONS]).stdout == ""
