"""A router that is a virtual machine, and the ring of its NIC as a factor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planewise.measure.runs.sut import RouterUnderTest, SutMeasurer
from planewise.store.rundir import RunReader
from planewise.testbed.guests.vms.platform import VmPlatform
from tests.command import planewise
from tests.linux.test_runs import nothing_is_left


@pytest.mark.parametrize("ip_version", [4, 6])
def test_a_router_in_a_virtual_machine_brings_every_frame_and_leaves_nothing(
    platform: VmPlatform, ip_version: int
) -> None:
    sut = RouterUnderTest(ip_version, platform="vm")  # type: ignore[arg-type]
    with SutMeasurer(sut, 84) as measurer:
        assert measurer.cell["platform"] == "vm"
        assert bool(measurer.built.emulated) == (platform.accelerator.name == "tcg")
        result = measurer.trial(500, 1)
    assert (result.sent, result.received) == (500, 500)
    assert nothing_is_left()


def test_a_campaign_of_rings_is_labelled_with_what_its_machines_cpus_are(
    platform: VmPlatform, tmp_path: Path
) -> None:
    design, out = tmp_path / "campaign.yaml", tmp_path / "out"
    design.write_text(
        "sut: router\nfactors: {platform: vm, nic_ring: [256, 1024], duration_s: 0.2, runs: 2}\n"
        "offered_pps: [200, 1000, 100000]\nrepetitions: 1\n"
    )
    finished = planewise("run", design, "--out", out, "--json", report=False)
    assert finished.returncode == 0, finished.stderr
    curves = json.loads(finished.stdout)["curves"]
    # On a busy machine the generator may limit every trial of a curve, which is then told of.
    failed = finished.stderr.count(" failed: ")
    assert len(curves) + failed == 2
    if not failed:
        assert {curve["aspects"]["nic_ring"] for curve in curves} == {256, 1024}
    for directory in out.glob("router-*"):
        reader = RunReader(directory)
        assert bool(reader.info.emulated) == (platform.accelerator.name == "tcg")
        lost = {part.where for trial in reader.trials() for part in trial.loss}
        assert lost, "a hundred thousand packets a second are more than one virtual CPU forwards"
    assert nothing_is_left()
