"""Chains whose functions are virtual machines on this machine's bridge: measured, killed, gone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from planewise.store.models import TrialRecord
from planewise.store.rundir import RunReader
from planewise.testbed.chains.model import Chain
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts import hugepages
from tests.lengths import either
from tests.linux.testbeds import chain_shortage

from .test_run import (
    clean_after,
    finished,
    guests_of,
    kill,
    namespaces_of,
    planewise,
    until,
)

LIMIT_S = 280

# Paced: an emulated CPU that is flooded answers no question for a while.
DESIGN = """
title: functions that are virtual machines
factors:
  guest: vm
  plane: virtio-bridge
  path: [north-south, east-west]
  vnfs: 2
chain: {duration_s: 1, warmup_s: 0, offered_pps: 200}
blocks: 1
"""


BESIDE = """
title: virtual machines beside processes on one kind of switch
functions:
  - {forwarder: kernel, guest: vm, plane: vhost-user}
  - {forwarder: testpmd, plane: vhost-user}
factors: {path: east-west, vnfs: 2, size_bytes: 64}
chain: {duration_s: 1, warmup_s: 0.2, uplink: af_packet, offered_pps: 200}
blocks: 1
"""


BY_XDP = """
title: XDP programs in virtual machines
functions:
  - {forwarder: xdp, guest: vm, plane: [PLANES]}
factors: {path: east-west, vnfs: 2, size_bytes: 512}
chain: {duration_s: 1, warmup_s: 0.2, uplink: af_packet, offered_pps: 200}
blocks: 1
"""


POLLING = """
title: programs that poll in virtual machines, on two planes
functions:
  - {forwarder: testpmd, guest: vm, plane: [vhost-user, virtio-bridge]}
factors: {path: [north-south, east-west], vnfs: 2, size_bytes: 64}
chain: {duration_s: 2, warmup_s: 0.2, uplink: af_packet, offered_pps: 200}
blocks: 1
"""


@pytest.fixture(autouse=True)
def _may_steer() -> None:
    if reason := chain_shortage(Chain("virtio-bridge", "east-west", 2, "vm")):
        pytest.skip(reason)


def test_functions_in_virtual_machines_pass_on_what_they_get_through_a_kill_that_leaves_nothing(
    tmp_path: Path, platform: VmPlatform, said: list[str]
) -> None:
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(DESIGN)
    begun = time.monotonic()
    with planewise("run", str(design), "--out", str(out)) as process:
        first: set[str] = set()

        def second_stands() -> bool:
            names = namespaces_of(process)
            first.update(names if not finished(out) else ())
            return bool(guests_of(names - first))

        until(second_stands, process)
        process.send_signal(signal.SIGSTOP)  # it removes nothing while we look
        ours = namespaces_of(process) - first
        kill(process)
    clean_after(ours)
    with planewise("run", "--resume", str(out)) as process:
        told, complaint = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, complaint
    said.append(f"two chains of two virtual machines took {time.monotonic() - begun:.0f} s")
    info, trials = RunReader(out).info, RunReader(out).trials()
    assert info.status == "done", told
    assert bool(info.emulated) == (platform.accelerator.name == "tcg")
    assert sorted(str(one.cell["path"]) for one in trials) == ["east-west", "north-south"]
    for trial in trials:
        assert trial.status == "done", trial.reason
        assert trial.counts is not None
        assert trial.counts.received > 0
        assert trial.chain is not None
        # East-west, what the second sent came from the first; each counts by itself.
        assert [one.name for one in trial.chain.vnfs] == ["vnf1", "vnf2"]
        assert all(one.tx_packets > 0 for one in trial.chain.vnfs)
        assert trial.chain.limit in ("generator", "VNF core", "shared core", "unknown")
    assert "virtio-bridge" in (out / "report.html").read_text()


def carried(text: str, folder: Path) -> list[TrialRecord]:
    """The trials of a design with machines on vhost-user, each of whose frames is accounted for."""
    if reason := chain_shortage(Chain("vhost-user", "east-west", 2)):
        pytest.skip(reason)
    design, out = folder / "design.yaml", folder / "run"
    design.write_text(text)
    with planewise("run", str(design), "--out", str(out), report=False) as process:
        _, complaint = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, complaint
    trials = RunReader(out).trials()
    for trial in trials:
        assert trial.status == "done", trial.reason
        assert trial.chain is not None
        frames = trial.chain.frames
        assert frames is not None
        assert frames.received > 0
        assert frames.sent == frames.received + sum(frames.lost.values())
    return trials


def test_virtual_machines_route_behind_a_switch_that_polls_beside_processes_that_poll(
    tmp_path: Path,
) -> None:
    trials = carried(BESIDE, tmp_path)
    assert sorted(str(one.cell["guest"]) for one in trials) == ["process", "vm"]
    for trial in trials:
        assert trial.chain is not None
        assert all(one.tx_packets > 0 for one in trial.chain.vnfs)


@either("planes", (["virtio-bridge"],), (["vhost-user", "virtio-bridge"],))
def test_an_xdp_program_forwards_in_virtual_machines_by_virtios_own_driver(
    tmp_path: Path, planes: list[str]
) -> None:
    trials = carried(BY_XDP.replace("PLANES", ", ".join(planes)), tmp_path)
    assert sorted(str(one.cell["plane"]) for one in trials) == planes
    for trial in trials:
        assert trial.chain is not None
        # Generic XDP would be a warning, and virtio's header is no part of a frame.
        assert not any("XDP" in words for words in trial.warnings)
        assert trial.chain.frame_bytes == pytest.approx(512, abs=0.01)


@pytest.mark.skipif(
    not os.environ.get("PLANEWISE_POLL_VM"),
    reason="eight virtual machines, in which a program takes all of an emulated CPU: "
    "PLANEWISE_POLL_VM=1 runs it",
)
@pytest.mark.timeout(1200)
def test_a_program_that_polls_in_a_virtual_machine_has_its_nic_on_either_plane(
    tmp_path: Path, said: list[str]
) -> None:
    if reason := chain_shortage(Chain("vhost-user", "east-west", 2)):
        pytest.skip(reason)
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(POLLING)
    pages = int(hugepages.POOL.read_text())
    begun = time.monotonic()
    with planewise("run", str(design), "--out", str(out)) as process:
        _, complaint = process.communicate(timeout=1000)
    assert process.returncode == 0, complaint
    said.append(f"four chains of two polling machines took {time.monotonic() - begun:.0f} s")
    trials = RunReader(out).trials()
    assert len(trials) == 4
    for trial in trials:
        assert trial.status == "done", trial.reason
        assert trial.cell["forwarder"] == "testpmd"
        chain = trial.chain
        assert chain is not None
        said.append(f"{trial.cell['plane']}, {trial.cell['path']}: {chain.frames}")
        assert chain.frames is not None
        assert chain.frames.received > 0
        assert chain.frames.sent == chain.frames.received + sum(chain.frames.lost.values())
        assert all(one.tx_packets > 0 for one in chain.vnfs)
        assert all(one.busy is not None for one in chain.vnfs)
        assert chain.frame_bytes == pytest.approx(64, abs=0.01)
    assert int(hugepages.POOL.read_text()) == pages
