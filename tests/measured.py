"""Measures a plane in every way that the table of what can be measured has."""

from __future__ import annotations

from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design
from planewise.measure.runs.stations import Stations
from planewise.measure.runs.sut import PlaneUnderTest, SutMeasurer
from planewise.measure.search.goals import Goal
from planewise.measure.search.run import algorithm_named, run_search
from planewise.measure.station import Place
from planewise.measure.trials.connect import ConnectTrial
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.loaded import LoadedPart, LoadedTrial
from planewise.measure.trials.rr import RrPart, RrTrial
from planewise.measure.trials.rtt import RttTrial
from planewise.measure.trials.tcp import TcpTrial
from planewise.testbed.planes import plane as named_plane


def cell_of(guest: str, plane: str) -> Cell:
    return Cell(plane=plane, guest=guest)  # type: ignore[arg-type]


def design(guest: str, plane: str) -> Design:
    return Design.model_validate(
        {"factors": {"plane": plane, "guest": guest}, "rtt": {}, "tcp": {}, "sweep": {}}
    )


def unavailable_reason(guest: str, plane: str) -> str:
    """Why there can be no such guests here, or an empty text."""
    cell = cell_of(guest, plane)
    with Stations(design(guest, plane)) as stations:
        return stations.unavailable([cell]).get(cell, "")


def assert_trials_are_measured(guest: str, plane: str) -> None:
    """A trial of each kind between main guests."""
    cell = cell_of(guest, plane)
    loaded = LoadedTrial("loaded", LoadedPart(duration_s=0.2))
    with Stations(design(guest, plane)) as stations:
        assert not stations.unavailable([cell])
        with stations.station(cell) as station:
            for trial in (
                RttTrial("rtt", 500, 64, 20),
                LoadTrial("load", 1000, 64, 0.1),
                TcpTrial("tcp", 1000, 1.0, 0, 1),
                ConnectTrial("connect", 20, 200),
                # libslirp loses most echo requests, often all, while TCP saturates it.
                *((loaded,) if plane != "slirp4netns" else ()),
                ConnectTrial("crr", 20, 200, 100),
                RrTrial("rr", RrPart(duration_s=0.2, per_s=500)),
            ):
                samples: list[object] = []
                place = Place(trial.name, cell.levels(), 0, 0)
                record = station.measure(trial, place, samples.append).record
                if record.tcp is not None:
                    assert record.tcp.goodput_bps > 0
                    assert samples
                elif record.figures:
                    for name, figure in record.figures.items():
                        assert (figure.value > 0) is not name.endswith("_failed"), name
                else:
                    assert record.counts is not None
                    told = f"{trial.name}: {record.counts}, {record.warnings}"
                    assert record.counts.received > 0.9 * record.counts.sent > 0, told
                if trial.name == "rtt":
                    parts = {"overhead", "response"} - set(named_plane(plane).not_measurable)
                    assert parts <= set(record.latency)


def assert_sweep_and_search_are_measured(guest: str, plane: str) -> None:
    """What a sweep and a search ask for."""
    with SutMeasurer(PlaneUnderTest(plane, guest=guest), 64) as measurer:  # type: ignore[arg-type]
        assert measurer.trial(2000, 0.1).received > 0
        goals, algorithm = (Goal.parse("pdr:0.5"),), algorithm_named("binary")
        found = run_search(measurer, goals, algorithm, budget_s=0.5, with_verdict=False)
        assert found.goals
