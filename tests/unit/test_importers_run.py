"""Planewise's own run directories are results like any other's."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from planewise.errors import BadInputError
from planewise.judge.from_store import curve_from_trials, curves_from_trials
from planewise.store import importers
from planewise.store.importers.run import from_records
from planewise.store.models import Counts, HostState, Level, LossPart, OfferedLoad, TrialRecord
from planewise.store.rundir import RunReader, RunWriter
from tests.unit import made_up_run
from tests.unit.importer_samples import trials

STARTED = datetime(2026, 1, 1, tzinfo=UTC)


def record(place: int, offered_pps: float, received: int, **fields: object) -> TrialRecord:
    cell: dict[str, Level] = {"plane": "veth", "load_type": "none", "offered_pps": offered_pps}
    values: dict[str, object] = {
        "trial": f"veth#r0@{place}",
        "kind": "load",
        "cell": cell,
        "block": 0,
        "replicate": 0,
        "order": place,
        "started": STARTED,
        "duration_s": 1.0,
        "load": OfferedLoad(intended_pps=offered_pps, achieved_pps=offered_pps, size_bytes=64),
        "counts": Counts(sent=1000, received=received, lost=1000 - received),
    }
    return TrialRecord.model_validate({**values, **fields})


def test_every_cell_is_a_curve_and_the_load_is_not_part_of_the_cell() -> None:
    records = [
        record(1, 2000, 900),
        record(0, 1000, 1000),
        record(2, 1000, 1000, cell={"plane": "bridge", "load_type": "none"}),
    ]

    veth, bridge = from_records(records, Path("run"))

    assert veth.curve == "plane=veth"
    assert veth.offered_pps.tolist() == [2000, 1000]
    assert veth.order.tolist() == [1, 0]
    assert bridge.info["plane"] == "bridge"


def test_drops_cpu_and_limits_are_kept_and_unknown_ones_stay_unknown() -> None:
    (found,) = from_records(
        [
            record(
                0,
                1000,
                990,
                loss=(LossPart(where="responder:wire0", counter="rx_dropped", count=10),),
                cpu={"responder": {"usr": 0.25, "idle": 0.75}},
                limits=("generator",),
            ),
            record(1, 2000, 990),
        ],
        Path("run"),
    )

    assert found.drops is not None
    assert found.cpu is not None
    assert found.limited is not None
    assert found.drops.tolist()[0] == 10
    assert found.drops.tolist()[1] != found.drops.tolist()[1]
    assert found.cpu.tolist()[0] == 0.25
    assert found.limited.tolist() == [True, False]


def test_busy_cpus_are_the_curves_only_without_background_load() -> None:
    busy: dict[str, object] = {"cpu": {"shared": {"usr": 0.97, "idle": 0.03}}}
    curves = curves_from_trials(
        [
            record(0, 1000, 1000, cell={"plane": "router"}, **busy),
            record(1, 1000, 1000, cell={"plane": "veth", "load_type": "none"}, **busy),
            record(2, 1000, 1000, cell={"plane": "veth", "load_type": "cpu"}, **busy),
        ]
    )
    found = [curve.points[0].runs[0].busy for _, curve in curves]
    assert found == pytest.approx([0.97, 0.97, math.nan], nan_ok=True)


def test_what_other_programs_took_is_the_curves_whatever_the_load() -> None:
    hosts = {"shared": HostState(foreign_cpu=0.7)}
    loaded = record(0, 1000, 1000, cell={"plane": "veth", "load_type": "cpu"}, host=hosts)
    found = [c.points[0].runs[0] for _, c in curves_from_trials([loaded, record(1, 1000, 1000)])]
    assert [run.foreign for run in found] == pytest.approx([0.7, math.nan], nan_ok=True)


def test_time_of_no_mode_is_neither_busy_nor_idle() -> None:
    of_no_mode: dict[str, object] = {
        "cpu": {"shared": {"usr": 0.5, "idle": 0.4, "iowait": 0.03, "unaccounted": 0.07}}
    }
    (curve,) = (c for _, c in curves_from_trials([record(0, 1000, 1000, **of_no_mode)]))
    assert curve.points[0].runs[0].busy == pytest.approx(0.5)


def test_failed_trials_are_left_out_and_counted() -> None:
    (found,) = from_records(
        [record(0, 1000, 990), record(1, 2000, 0, status="failed", reason="no route")], Path("run")
    )

    assert len(found) == 1
    assert found.notes == ("1 load trial failed and left out",)


def test_a_run_directory_gives_the_curves_that_a_report_draws(tmp_path: Path) -> None:
    path = tmp_path / "run"
    made_up_run.write(path)
    expected = curves_from_trials(RunReader(path).trials())

    found = [curve_from_trials(one) for one in importers.read(path)]

    assert len(found) == len(expected) > 0
    for curve, (_, known) in zip(found, expected, strict=True):
        assert curve.offered_pps.tolist() == known.offered_pps.tolist()
        assert curve.plr.tolist() == known.plr.tolist()
        assert [p.limited for p in curve.points] == [p.limited for p in known.points]
        assert [p.drops for p in curve.points] == [p.drops for p in known.points]
        for point, other in zip(curve.points, known.points, strict=True):
            assert point.plr_per_run.tolist() == other.plr_per_run.tolist()


def test_a_run_without_load_trials_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run"
    made_up_run.write(path)
    reader = RunReader(path)
    other = tmp_path / "rtt-only"
    with RunWriter.create(other, reader.info) as writer:
        writer.append(next(one for one in reader.trials() if one.kind == "rtt"))

    with pytest.raises(BadInputError, match="1 trials, none of them a finished load trial"):
        importers.read(other)


def test_a_line_that_is_no_trial_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run"
    made_up_run.write(path)
    lines = (path / "trials.jsonl").read_text().splitlines(keepends=True)
    (path / "trials.jsonl").write_text(lines[0] + '{"trial": 1}\n' + "".join(lines[1:]))

    with pytest.raises(BadInputError, match=r"trials\.jsonl:2: not a trial record"):
        importers.read(path)


def test_the_samples_have_more_than_one_load() -> None:
    assert len({trial.offered_pps for trial in trials()}) == 5
