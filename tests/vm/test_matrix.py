"""The table of what can be measured: planes of virtual machines that work here are measured."""

from __future__ import annotations

import pytest

from planewise.measure.designs.matrix import matrix
from tests.measured import assert_sweep_and_search_are_measured, assert_trials_are_measured

PLANES = sorted(
    {
        cell.plane
        for cell in matrix()
        if cell.guest == "vm" and cell.place == "here" and not cell.reason
    }
)

ELSEWHERE = ("e1000-bridge", "macvtap-bridge", "virtio-bridge", "virtio-ovs")
"""Planes that test_run.py measures, and the one that test_guests.py pings on."""


@pytest.mark.parametrize(
    "plane",
    [pytest.param(one, marks=[pytest.mark.long] if one in ELSEWHERE else []) for one in PLANES],
)
def test_a_trial_of_each_kind_is_measured_between_virtual_machines(plane: str) -> None:
    assert_trials_are_measured("vm", plane)


SWEPT = [PLANES[0], *(plane for plane in PLANES if plane == "vhost-user")]
"""One whose switch is the kernel's, and one whose switch polls."""


@pytest.mark.parametrize("plane", SWEPT)
def test_a_plane_of_virtual_machines_is_swept_and_searched(plane: str) -> None:
    assert_sweep_and_search_are_measured("vm", plane)
