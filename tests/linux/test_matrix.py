"""The table of what can be measured: what works here is measured, what cannot be is refused."""

from __future__ import annotations

import shutil
from typing import NoReturn

import pytest

from planewise.measure import station as stations
from planewise.measure.cells import Cell
from planewise.measure.design import Design
from planewise.measure.matrix import MEASUREMENTS, MatrixCell, matrix
from planewise.measure.schedule import LoadTrial, RttTrial, TcpTrial
from planewise.measure.search.goals import Goal
from planewise.measure.search.run import algorithm_named, run_search
from planewise.measure.sense import find_problem
from planewise.measure.stage import Place
from planewise.measure.stages import Stages
from planewise.measure.sut import PlaneUnderTest, SutMeasurer

pytestmark = [pytest.mark.linux, pytest.mark.timeout(600)]

CELLS = [cell for cell in matrix() if cell.place == "here"]
PAIRS = sorted({(cell.guest, cell.plane) for cell in CELLS if not cell.reason})
REFUSED = [cell for cell in CELLS if cell.reason]
PROGRAMS = {"docker": "dockerd", "ovs": "ovs-vswitchd"}


def cell_of(guest: str, plane: str) -> Cell:
    return Cell(plane=plane, guest=guest)  # type: ignore[arg-type]


def design(guest: str, plane: str, part: str = "rtt") -> Design:
    return Design.model_validate({"factors": {"plane": plane, "guest": guest}, part: {}})


def stages(guest: str, plane: str) -> Stages:
    return Stages(design(guest, plane))


@pytest.mark.parametrize(("guest", "plane"), PAIRS)
def test_what_the_table_says_to_work_here_is_measured(guest: str, plane: str) -> None:
    if guest == "vm":
        pytest.skip("virtual machines boot for a while: tests/vm measures them")
    measurable = {
        cell.measurement: cell for cell in CELLS if (cell.guest, cell.plane) == (guest, plane)
    }
    for need in measurable["rtt"].needs:
        if shutil.which(PROGRAMS[need]) is None:
            pytest.skip(f"this machine has no {PROGRAMS[need]}")
    cell = cell_of(guest, plane)
    with stages(guest, plane) as stage:
        if reason := stage.unavailable([cell]).get(cell):
            pytest.skip(reason)
        with stage.station(cell) as station:
            for trial in (
                RttTrial("rtt", 500, 64, 20),
                LoadTrial("load", 1000, 64, 0.1),
                TcpTrial("tcp", 1000, 1.0, 0, 1),
            ):
                place = Place(trial.name, cell.levels(), 0, 0)
                record = trial.measure_on(station, place, lambda _: None).record
                if record.tcp is not None:
                    assert record.tcp.goodput_bps > 0
                else:
                    assert record.counts is not None
                    assert record.counts.received > 0.9 * record.counts.sent > 0
    with SutMeasurer(PlaneUnderTest(plane, guest=guest), 64) as measurer:  # type: ignore[arg-type]
        assert measurer.trial(2000, 0.1).received > 0
        goals, algorithm = (Goal.parse("pdr:0.5"),), algorithm_named("binary")
        found = run_search(measurer, goals, algorithm, budget_s=1.0, with_verdict=False)
        assert found.goals
    assert set(measurable) == set(MEASUREMENTS)


@pytest.mark.parametrize(
    "refused", REFUSED, ids=lambda cell: f"{cell.guest}-{cell.plane}-{cell.measurement}"
)
def test_what_the_table_refuses_is_refused_before_anything_is_built(
    refused: MatrixCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> NoReturn:
        raise AssertionError("something was built")

    monkeypatch.setattr(stations, "local_pair", build)
    # As `planewise run` asks: what the design rules out comes before what this machine lacks.
    problem = find_problem(design(refused.guest, refused.plane, refused.measurement))
    if problem is not None:
        reason = problem.what
    else:
        cell = cell_of(refused.guest, refused.plane)
        with stages(refused.guest, refused.plane) as stage:
            reason = stage.unavailable([cell]).get(cell, "")
    assert reason.lower() == refused.reason.lower()


def test_no_cell_is_empty_without_a_reason() -> None:
    assert all(cell.reason.strip() for cell in matrix() if cell.reason)
    assert len({(c.guest, c.plane, c.place, c.measurement) for c in matrix()}) == len(
        list(matrix())
    )
