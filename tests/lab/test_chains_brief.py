"""The NFV brief's three interfaces in one run on the lab's hosts, and nothing left of them.

In a lab of its own: a DPDK switch wants a CPU beside the functions', and memory for its buffers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from planewise import lab
from planewise.testbed.remote import LabHost

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


@pytest.fixture
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


def test_one_run_has_functions_that_poll_vfs_and_vhost_user_and_machines_on_a_bridge(
    hosts: dict[str, LabHost], planewise: Run, tmp_path: Path, said: list[str]
) -> None:
    def left() -> tuple[str, str]:
        """Huge pages, and programs and interfaces of the functions' host."""
        look = "pgrep -l 'ovs|testpmd|qemu|libvirt'; ls /sys/class/net /run/netns; true"
        return (
            hosts["b"].read_text("/proc/sys/vm/nr_hugepages"),
            hosts["b"].run(["sh", "-c", look]).stdout,
        )

    before, had = states(hosts), left()
    (tmp_path / "chains.yaml").write_text(BRIEF)
    out = tmp_path / "run"
    between = ("--sender", "lab:brief/a", "--responder", "lab:brief/b", "--out", str(out))
    begun = time.monotonic()
    done = planewise("run", str(tmp_path / "chains.yaml"), *between, timeout_s=LIMIT_S)
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
    assert left() == had
