"""Functions that are virtual machines inside a lab's host, each with a VF whole.

Their CPUs are emulated by an emulated CPU: few packets, and no assertion about time.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planewise.store.rundir import RunReader
from planewise.testbed.hosts import ledger
from planewise.testbed.hosts.remote import LabHost

from .conftest import NESTED, Run
from .test_hosted import HOSTS, come_back, states
from .test_vms import guests_on, kill_after_a_trial

pytestmark = [pytest.mark.timeout(5400), NESTED]

WAIT_S = 2400
"""For what is waited for: a minute where nothing else runs, many on a busy machine."""

# North-south and east-west are one set of virtual machines that are told of other ways.
DESIGN = """
title: functions that hold VFs
factors:
  guest: vm
  plane: vf-passthrough
  path: [north-south, east-west]
  vnfs: 2
chain: {duration_s: 10, warmup_s: 0, offered_pps: 50}
blocks: 1
"""

POLLING = """
title: a function that polls its VF in a virtual machine
functions:
  - {forwarder: testpmd, guest: vm, plane: vf-passthrough}
factors: {path: north-south, vnfs: 1}
chain: {duration_s: 10, warmup_s: 0, offered_pps: 50, uplink: af_packet}
blocks: 1
"""


def test_functions_that_hold_vfs_pass_on_what_comes_over_the_cable_through_a_kill_and_leave_nothing(
    hosts: dict[str, LabHost], planewise: Run, tmp_path: Path, said: list[str]
) -> None:
    begun = time.monotonic()
    before = states(hosts)
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(DESIGN)
    responder = hosts["b"]
    argv = ["run", str(design), *HOSTS, "--out", str(out)]
    kill_after_a_trial(argv, out, {"b": responder})
    done = planewise("clean", timeout_s=600)
    assert done.returncode == 0, done.stderr
    come_back(hosts, before)
    assert not guests_on(responder)
    assert not [one for one in ledger.leftovers() if one.hosts]

    done = planewise("run", "--resume", str(out), timeout_s=WAIT_S)
    assert done.returncode == 0, done.stderr
    said.append(f"chains of virtual machines with VFs in {time.monotonic() - begun:.0f} s")
    info, trials = RunReader(out).info, RunReader(out).trials()
    assert info.status == "done"
    assert "no /dev/kvm on lab:t/b" in info.emulated
    assert sorted(str(one.cell["path"]) for one in trials) == ["east-west", "north-south"]
    for trial in trials:
        assert trial.status == "done", trial.reason
        assert trial.chain is not None
        assert trial.counts is not None
        # East-west what the second sent came from the first, through the NIC's own switch.
        assert all(one.tx_packets > 0 for one in trial.chain.vnfs)
        assert trial.counts.received > 0
    assert "vf-passthrough" in (out / "report.html").read_text()
    come_back(hosts, before)


def test_a_program_that_polls_in_a_virtual_machine_has_its_vf_for_itself_and_leaves_nothing(
    hosts: dict[str, LabHost], planewise: Run, tmp_path: Path, said: list[str]
) -> None:
    begun = time.monotonic()
    before = states(hosts)
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(POLLING)
    done = planewise("run", str(design), *HOSTS, "--out", str(out), timeout_s=WAIT_S)
    assert done.returncode == 0, done.stderr
    (trial,) = RunReader(out).trials()
    assert trial.status == "done", trial.reason
    assert (trial.cell["forwarder"], trial.cell["plane"]) == ("testpmd", "vf-passthrough")
    assert trial.chain is not None
    frames = trial.chain.frames
    assert frames is not None
    said.append(f"polled in {time.monotonic() - begun:.0f} s: {frames}")
    assert frames.received > 0
    assert frames.sent == frames.received + sum(frames.lost.values())
    assert all(one.tx_packets > 0 for one in trial.chain.vnfs)
    come_back(hosts, before)
    assert not guests_on(hosts["b"])
