"""The NFV brief's three interfaces in one run on the lab's hosts, and nothing left of them.

In a lab of its own: a DPDK switch wants a CPU beside the functions', and memory for its buffers.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from planewise import lab
from planewise.testbed.hosts.remote import LabHost
from tests.command import PLANEWISE

from .conftest import Run, Silence
from .test_hosted import come_back, states

pytestmark = [
    pytest.mark.timeout(3000),
    pytest.mark.skipif(
        not os.environ.get("PLANEWISE_POLL_LAB"),
        reason="what polls takes all of an emulated CPU, for minutes: PLANEWISE_POLL_LAB=1 runs it",
    ),
]

BRIEF = """
title: three interfaces in one run, fed over the cable
functions:
  - {forwarder: testpmd, plane: vf}
  - {forwarder: testpmd, plane: vhost-user}
  - {forwarder: kernel, guest: vm, plane: virtio-bridge}
factors: {path: [north-south, east-west], vnfs: [1, 2]}
chain: {duration_s: 5, warmup_s: 0, offered_pps: 100, uplink: af_packet}
blocks: 1
"""
LIMIT_S = 2400


POLLING = """
title: functions that poll, a VF and a switch
functions:
  - {{forwarder: testpmd, plane: {planes}}}
factors: {{path: north-south, vnfs: 1}}
chain: {{duration_s: {duration_s}, warmup_s: 0, offered_pps: 100, uplink: af_packet}}
blocks: 1
"""
BETWEEN = ("--sender", "lab:brief/a", "--responder", "lab:brief/b")
KILLS = int(os.environ.get("PLANEWISE_POLL_LAB_KILLS", "0"))


@pytest.fixture(scope="module")
def hosts(state_directory: Path) -> Iterator[dict[str, LabHost]]:
    """Two hosts of two CPUs each."""
    lab.up(lab.LabSpec("brief", memory_mib=3072, cpus=2), Silence())
    try:
        with ExitStack() as stack:
            yield {
                name: stack.enter_context(closing(LabHost("brief", name, name=name)))
                for name in lab.HOSTS
            }
    finally:
        lab.down("brief")


def left_on(host: LabHost) -> tuple[str, str]:
    """Huge pages, and programs and interfaces of the functions' host."""
    look = "pgrep -l 'ovs|testpmd|qemu|libvirt'; ls /sys/class/net /run/netns; true"
    return host.read_text("/proc/sys/vm/nr_hugepages"), host.run(["sh", "-c", look]).stdout


def await_nothing_left(host: LabHost, had: tuple[str, str], told: str = "") -> None:
    """What a killed run started ends once its connection is seen to be lost."""
    deadline = time.monotonic() + 300
    while (now := left_on(host)) != had and time.monotonic() < deadline:
        time.sleep(1.0)
    assert now == had, told


def test_one_run_has_functions_that_poll_vfs_and_vhost_user_and_machines_on_a_bridge(
    hosts: dict[str, LabHost], planewise: Run, tmp_path: Path, said: list[str]
) -> None:
    before, had = states(hosts), left_on(hosts["b"])
    (tmp_path / "chains.yaml").write_text(BRIEF)
    out = tmp_path / "run"
    begun = time.monotonic()
    argv = ("run", str(tmp_path / "chains.yaml"), *BETWEEN, "--out", str(out))
    done = planewise(*argv, timeout_s=LIMIT_S)
    said.append(f"nine chains of three interfaces took {time.monotonic() - begun:.0f} s")
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    for trial in trials:
        said.append(f"{trial['cell']}: {trial.get('reason') or trial['chain']['frames']}")
    assert len(trials) == 9  # a chain of one function is the same both ways
    for trial in trials:
        assert not trial.get("reason"), trial
        chain = trial["chain"]
        frames = chain["frames"]
        assert frames["received"] > 0
        assert frames["sent"] == frames["received"] + sum(frames.get("lost", {}).values())
        assert all(one["tx_packets"] > 0 for one in chain["vnfs"])
        assert chain["frame_bytes"] == pytest.approx(64, abs=0.01)
    page = (out / "report.html").read_text()
    assert all(plane in page for plane in ("vhost-user", "virtio-bridge"))
    come_back(hosts, before)
    await_nothing_left(hosts["b"], had)


def test_a_pf_that_goes_down_and_up_below_a_function_that_polls_is_said(
    hosts: dict[str, LabHost], tmp_path: Path
) -> None:
    before, had = states(hosts), left_on(hosts["b"])
    (tmp_path / "chains.yaml").write_text(POLLING.format(planes="vf", duration_s=120))
    out, log = tmp_path / "run", tmp_path / "said"
    argv = [*PLANEWISE, "run", str(tmp_path / "chains.yaml"), *BETWEEN, "--out", str(out)]
    with log.open("w") as file, subprocess.Popen(argv, stdout=file, stderr=file) as process:
        deadline = time.monotonic() + LIMIT_S / 2
        while not (out / "kpis.jsonl").exists() or not (out / "kpis.jsonl").read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        hosts["b"].run(["sh", "-c", "ip link set pf0 down; ip link set pf0 up"]).check()
        process.wait(LIMIT_S)
    (trial,) = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert "its PF went down and up" in trial.get("reason", ""), trial
    come_back(hosts, before)
    await_nothing_left(hosts["b"], had)


@pytest.mark.skipif(
    not KILLS, reason="PLANEWISE_POLL_LAB_KILLS=10 kills so many runs at random moments"
)
def test_runs_that_are_killed_at_random_moments_leave_nothing_on_either_host(
    hosts: dict[str, LabHost], planewise: Run, tmp_path: Path, said: list[str]
) -> None:
    before, had = states(hosts), left_on(hosts["b"])
    (tmp_path / "chains.yaml").write_text(POLLING.format(planes="[vf, vhost-user]", duration_s=2))
    argv = ("run", str(tmp_path / "chains.yaml"), *BETWEEN, "--out")
    begun = time.monotonic()
    whole = planewise(*argv, str(tmp_path / "whole"), timeout_s=LIMIT_S)
    assert whole.returncode == 0, whole.stderr
    takes_s, moments = time.monotonic() - begun, random.Random(20)
    for number in range(KILLS):
        after_s = moments.uniform(0.1, 0.95) * takes_s
        with subprocess.Popen(
            [*PLANEWISE, *argv, str(tmp_path / f"run{number}")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            begun = time.monotonic()
            if number == 0:
                # A killed switch leaves interfaces that no namespace takes along.
                there = ["test", "-e", "/sys/class/net/ovs-netdev"]
                while hosts["b"].run(there).exit_code:
                    assert time.monotonic() < begun + 2 * takes_s, "no switch was started"
                    time.sleep(0.5)
            else:
                time.sleep(after_s)
            process.kill()
            after_s = time.monotonic() - begun
        told = f"killed after {after_s:.0f} s of {takes_s:.0f} s"
        said.append(told)
        cleaned = planewise("clean", timeout_s=600)
        assert cleaned.returncode == 0, cleaned.stderr
        come_back(hosts, before, told)
        await_nothing_left(hosts["b"], had, told)
