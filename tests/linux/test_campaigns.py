"""A campaign of routers in namespaces, from one command to its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planewise.measure.runs.sut import RouterUnderTest, SutMeasurer
from planewise.testbed.guests.docker import why_no_docker
from tests.command import planewise
from tests.linux.test_runs import nothing_is_left


@pytest.mark.parametrize("forwarding", ["kernel", "xdp", "bridge"])
@pytest.mark.parametrize("ip_version", [4, 6])
def test_each_way_to_forward_brings_every_frame_of_a_low_load(
    forwarding: str, ip_version: int
) -> None:
    sut = RouterUnderTest(ip_version, forwarding)  # type: ignore[arg-type]
    with SutMeasurer(sut, 84) as measurer:
        result = measurer.trial(2000, 0.5)
    assert result.sent == 1000
    assert result.received == 1000


@pytest.mark.parametrize("forwarding", ["kernel", "xdp", "bridge"])
def test_a_router_in_a_container_brings_every_frame_and_leaves_nothing(forwarding: str) -> None:
    if reason := why_no_docker():
        pytest.skip(f"Docker: {reason}; `scripts/setup lab` installs it")
    sut = RouterUnderTest(6, forwarding, platform="container")  # type: ignore[arg-type]
    with SutMeasurer(sut, 84) as measurer:
        assert measurer.cell["platform"] == "container"
        result = measurer.trial(2000, 0.5)
    assert (result.sent, result.received) == (1000, 1000)
    assert nothing_is_left()


def test_a_campaign_is_measured_summed_up_and_gone_on_with(tmp_path: Path) -> None:
    design, out = tmp_path / "campaign.yaml", tmp_path / "out"
    design.write_text(
        "sut: router\nfactors: {forwarding: [kernel, bridge], "
        "duration_s: 0.2, runs: 2}\noffered_pps: [5000, 10000, 20000]\nrepetitions: 2\n"
    )
    finished = planewise("run", design, "--out", out, "--json", report=False)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    # On a busy machine the generator may limit every trial of a curve, which is then told of.
    failed = finished.stderr.count(" failed: ")
    assert len(found["curves"]) + failed == 4
    for curve in found["curves"]:
        assert curve["aspects"]["runs"] == 2
        assert curve["aspects"]["duration_s"] == 0.2
    if not failed:
        assert {row["aspect"] for row in found["rows"]} == {"forwarding"}
        assert all(row["curves"] == 2 for row in found["rows"])
        assert found["agreement"]["configurations"] == found["agreement"]["pairs"] == 2
    again = json.loads(planewise("run", design, "--out", out, "--json", report=False).stdout)
    kept = {curve["repetition"]["run"] for curve in again["curves"]}
    assert kept >= {curve["repetition"]["run"] for curve in found["curves"]}
    table = planewise(
        "campaign", *sorted(p.parent for p in out.glob("router-*/run.json")), "--by", "forwarding"
    )
    assert f"{len(again['curves'])} curves." in table.stdout
    assert nothing_is_left()
