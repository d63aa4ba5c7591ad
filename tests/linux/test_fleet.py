"""A fleet of namespaces: pairs are measured, and a killed coordinator's fleet is resumed whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planewise.fleet.plan import Fleet
from planewise.store.rundir import RunReader
from planewise.testbed.hosts import ledger, scratch

pytestmark = [pytest.mark.linux, pytest.mark.apart]

PLANEWISE = (sys.executable, "-m", "planewise")


@pytest.mark.timeout(600)  # three pairs, each built and torn down twice
def test_a_killed_coordinator_leaves_a_fleet_that_is_resumed_whole(tmp_path: Path) -> None:
    design, nodes, out = tmp_path / "tiny.yaml", tmp_path / "nodes.txt", tmp_path / "fleet"
    design.write_text("factors: {plane: veth}\nrtt: {packets: 300}\nblocks: 2\n")
    nodes.write_text("local:a\nlocal:b\nlocal:c\n")
    argv = ["fleet", "run", str(design), "--nodes", str(nodes), "--pairs", "3", "--out", str(out)]
    process = subprocess.Popen([*PLANEWISE, *argv], stderr=subprocess.DEVNULL)
    first = out / "pairs" / "00000" / "trials.jsonl"
    deadline = time.monotonic() + 120
    while not first.exists() or not first.stat().st_size:
        assert process.poll() is None, "it ended before a trial was done"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    kept = RunReader(first.parent).trials()[0]

    # A pod of an Indexed Job measures the pair that its environment names.
    pod = [*PLANEWISE, "--quiet", "fleet", "run", "--resume", str(out)]
    indexed = {**os.environ, "JOB_COMPLETION_INDEX": "2"}
    subprocess.run(pod, check=True, timeout=240, env=indexed)
    fleet = Fleet.open(out)
    assert fleet.state(fleet.matches[2]) == "done"
    done = subprocess.run([*pod, "--json"], check=True, timeout=240, capture_output=True, text=True)
    assert json.loads(done.stdout)["measured"] == 2
    assert {fleet.state(match) for match in fleet.matches} == {"done"}
    assert RunReader(first.parent).trials()[0] == kept

    report = [*PLANEWISE, "fleet", "report", str(out), "--json"]
    told = subprocess.run(report, check=True, timeout=60, capture_output=True, text=True)
    assert json.loads(told.stdout)["measured"] == 3
    # The killed process of the pair was in a trial, which has a directory of its own.
    subprocess.run([*PLANEWISE, "clean"], check=True, timeout=60)
    assert ledger.leftovers() == ()
    assert scratch.leftovers() == ()
