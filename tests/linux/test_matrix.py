"""The table of what can be measured: what works here is measured, what cannot be is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from planewise.measure.designs.matrix import MatrixCell, matrix
from planewise.measure.runs import stations
from planewise.measure.runs.stations import Stations
from tests.measured import (
    assert_sweep_and_search_are_measured,
    assert_trials_are_measured,
    cell_of,
    design,
    unavailable_reason,
)

pytestmark = [pytest.mark.linux, pytest.mark.timeout(600)]

CELLS = [cell for cell in matrix() if cell.place == "here"]
PAIRS = sorted({(cell.guest, cell.plane) for cell in CELLS if not cell.reason})
REFUSED = [cell for cell in CELLS if cell.reason]
RUN = {("container", plane) for plane in ("veth", "bridge", "macvlan", "docker-bridge")}
"""Those of the design that test_containers.py measures."""
ALIKE = {("container", plane) for plane in ("routed", "vxlan", "slirp4netns", "ovs-dpdk")}
"""They are attached as a namespace there, and as a container on veth, bridge and pasta."""
PROGRAMS = {"docker": "dockerd", "ovs": "ovs-vswitchd"}


@pytest.mark.parametrize(
    ("guest", "plane"),
    [
        pytest.param(*pair, marks=[pytest.mark.long] if pair in RUN | ALIKE else [])
        for pair in PAIRS
    ],
)
def test_what_the_table_says_to_work_here_is_measured(guest: str, plane: str) -> None:
    (cell,) = (cell for cell in CELLS if (cell.guest, cell.plane) == (guest, plane))
    if guest == "vm":
        pytest.skip("virtual machines boot for a while: tests/vm measures them")
    for need in cell.needs:
        if need in PROGRAMS and shutil.which(PROGRAMS[need]) is None:
            pytest.skip(f"this machine has no {PROGRAMS[need]}")
    if reason := unavailable_reason(guest, plane):
        pytest.skip(reason)
    assert_trials_are_measured(guest, plane)
    assert_sweep_and_search_are_measured(guest, plane)


@pytest.mark.parametrize("refused", REFUSED, ids=lambda cell: f"{cell.guest}-{cell.plane}")
def test_what_the_table_refuses_is_refused_before_anything_is_built(
    refused: MatrixCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> NoReturn:
        raise AssertionError("something was built")

    monkeypatch.setattr(stations, "local_pair", build)
    assert unavailable_reason(refused.guest, refused.plane) == refused.reason


@pytest.mark.skipif(shutil.which("ovs-vswitchd") is None, reason="there is no Open vSwitch here")
def test_the_result_says_which_datapath_open_vswitch_has() -> None:
    cell = cell_of("namespace", "ovs")
    with Stations(design("namespace", "ovs")) as opened:
        assert not opened.unavailable([cell])
        (plane, remarks), *others = opened.differences.items()
        assert (plane, others) == ("ovs", [])
        assert ("datapath netdev" in remarks[0]) != ("datapath system" in remarks[0])
        datapath = "netdev" if "netdev" in remarks[0] else "system"
        with opened.station(cell) as station:
            host = station.ends["sender"].host
            (database,) = Path(host.directory).glob("pw-*-ovs/db.sock")
            asked = ["ovs-vsctl", f"--db=unix:{database}", "get", "bridge", "br0v", "datapath_type"]
            assert host.run(asked).check().stdout.strip() == datapath


def test_no_cell_is_empty_without_a_reason() -> None:
    assert all(cell.reason.strip() for cell in matrix() if cell.reason)
    assert len({(c.guest, c.plane, c.place) for c in matrix()}) == len(list(matrix()))
