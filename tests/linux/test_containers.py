"""Containers on this machine: two namespaces stand for the hosts, each with a Docker of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from planewise.testbed.hosts import ledger, netns
from planewise.testbed.hosts.steering import may_steer
from tests.command import UNREPORTED

pytestmark = pytest.mark.timeout(600)

DESIGN = """
factors:
  guest: container
  plane: [veth, bridge, macvlan, docker-bridge]
  background_plane: same
  background_guests: [0, 2]
  load_type: [cpu, network]
  path: [north-south, east-west]
constraints:
  - when: {plane: [veth, bridge, macvlan]}
    require: {background_guests: 0}
  - when: {path: east-west}
    require: {background_guests: 0, plane: bridge}
rtt: {packets: 20}
background: {rate_pps: 500, burst_packets: 4, payload_bytes: 64, cpu_share: 0.1}
blocks: 1
"""


@pytest.fixture(autouse=True)
def _docker() -> None:
    if shutil.which("dockerd") is None:
        pytest.skip("there is no dockerd on this machine (scripts/setup lab installs docker.io)")
    if os.geteuid() != 0 or not may_steer(Path("/proc/self/uid_map").read_text()):
        pytest.skip("dockerd needs root of the machine itself")


def token_of_run(process: subprocess.Popen[bytes]) -> str:
    """The token under which a run works: other runs may be alive on this machine."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for path in ledger.STATE.glob("*.json"):
            with suppress(OSError, ValueError):
                content = json.loads(path.read_text())
                if content["pid"] == process.pid and content["what"].startswith("two hosts"):
                    return path.stem
        time.sleep(0.02)
    raise AssertionError("the run took no token")


def traces(token: str) -> list[str]:
    """What is left of a run: namespaces, control groups, its note."""
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/pw-{token}*")]
    names = [name for name in netns.names() if token in name]
    return [*groups, *names, *map(str, ledger.STATE.glob(f"{token}*"))]


def daemons(of: int) -> list[int]:
    """What a process's threads started, and that must die with it."""
    children = Path(f"/proc/{of}/task").glob("*/children")
    return [int(word) for file in children for word in file.read_text().split()]


def test_containers_are_measured_on_every_plane_and_nothing_is_left(tmp_path: Path) -> None:
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(DESIGN)
    argv = [*UNREPORTED, "run", str(design), "--out", str(out)]
    with (tmp_path / "said").open("w+") as said:
        running = subprocess.Popen(argv, stdout=said, stderr=said)
        token = token_of_run(running)
        assert running.wait(500) == 0, (tmp_path / "said").read_text()
    trials = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert {trial.get("reason", "") for trial in trials} == {""}
    assert len(trials) == 7
    assert all(trial["counts"]["received"] > 0 for trial in trials)
    assert traces(token) == []


def test_after_a_kill_clean_finds_the_hosts_and_their_containers(tmp_path: Path) -> None:
    design = tmp_path / "design.yaml"
    design.write_text(DESIGN)
    argv = [sys.executable, "-m", "planewise", "run", str(design), "--out", str(tmp_path / "run")]
    victim = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    token = token_of_run(victim)
    trials = tmp_path / "run" / "trials.jsonl"
    deadline = time.monotonic() + 300
    while not (trials.exists() and trials.read_text()) and time.monotonic() < deadline:
        assert victim.poll() is None
        time.sleep(0.05)
    started = daemons(victim.pid)
    assert started
    victim.kill()
    victim.wait()
    clean = [sys.executable, "-m", "planewise", "clean"]
    subprocess.run(clean, check=True, capture_output=True, timeout=120)
    while any(map(alive, started)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, started))
    assert traces(token) == []


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody asked about its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
