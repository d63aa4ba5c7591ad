"""A run that is cut anywhere goes on: nothing finished is repeated, nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from planewise import pipeline
from planewise.errors import BadInputError
from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.schedule import Schedule
from planewise.measure.runs.experiment import run, schedule_for
from planewise.pipeline import changed_hosts, extended
from planewise.store.rundir import RunReader, RunWriter
from tests.unit.test_experiment import FakeStations, Silent, names
from tests.unit.test_run_directory import make_info


class KilledError(BaseException):
    """Nothing may catch this, as nothing catches a kill."""


def small_schedule() -> Schedule:
    design = Design.model_validate(
        {
            "factors": {"plane": ["veth", "bridge"]},
            "rtt": {},
            "sweep": {"offered_pps": [500]},
            "blocks": 2,
        }
    )
    return schedule_for(design, dict.fromkeys(cells_of(design), (500.0,)), {})


def whole_run(path: Path) -> Schedule:
    schedule = small_schedule()
    with RunWriter.create(path, make_info()) as writer:
        run(schedule, FakeStations(), writer, Silent())
    return schedule


def resumed(path: Path, schedule: Schedule) -> list[str]:
    """Continues the run; what was measured for it."""
    stage = FakeStations()
    with RunWriter.resume(path) as writer:
        outcome = run(schedule, stage, writer, Silent())
    assert outcome.info.status == "done"
    return stage.ran


def check_whole(path: Path, schedule: Schedule) -> None:
    reader = RunReader(path)
    trials = reader.trials()
    assert sorted(trial.trial for trial in trials) == sorted(names(schedule))
    assert len({trial.order for trial in trials}) == len(trials)
    for trial in trials:
        packets = reader.packets(trial)
        assert (packets is not None) == (trial.kind == "rtt")


def test_a_kill_at_any_write_loses_at_most_the_trial_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = small_schedule()
    cuts = 0
    while True:
        path = tmp_path / f"run{cuts}"
        calls = 0

        def dies(_: int, at: int = cuts) -> None:
            nonlocal calls
            calls += 1
            if calls > at:
                raise KilledError

        first = FakeStations()
        try:
            with monkeypatch.context() as patched:
                patched.setattr(os, "fsync", dies)
                with RunWriter.create(path, make_info()) as writer:
                    run(schedule, first, writer, Silent())
        except KilledError:
            pass
        else:
            break
        if (path / "run.json").exists():
            kept = {trial.trial for trial in RunReader(path).trials()}
            assert len(first.ran) - 1 <= len(kept) <= len(first.ran)
            again = resumed(path, schedule)
            assert not kept & set(again)
            check_whole(path, schedule)
        cuts += 1
    # run.json and its directory twice; an RTT trial's packets, their directory, its line; loads.
    assert cuts == 2 * 2 + 4 * 3 + 4


def test_a_line_cut_at_any_byte_is_measured_again_and_no_other(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    schedule = whole_run(whole)
    lines = (whole / "trials.jsonl").read_bytes()
    ends = [0, *(at + 1 for at, byte in enumerate(lines) if byte == 10)]
    for number, cut in enumerate(sorted({*range(0, len(lines) + 1, 61), *ends})):
        path = tmp_path / f"cut{number}"
        shutil.copytree(whole, path)
        (path / "trials.jsonl").write_bytes(lines[:cut])
        finished = sum(end <= cut for end in ends) - 1
        assert resumed(path, schedule) == names(schedule)[finished:]
        check_whole(path, schedule)


@pytest.mark.parametrize("left", [None, b"", b"PAR1", "half", "all but a byte", "zeros"])
def test_packets_that_did_not_reach_the_disk_are_measured_again(
    tmp_path: Path, left: bytes | str | None
) -> None:
    path = tmp_path / "run"
    schedule = whole_run(path)
    torn = next(trial for trial in RunReader(path).trials() if trial.packets)
    file = path / str(torn.packets)
    whole = file.read_bytes()
    file.unlink()
    contents = {
        "half": whole[: len(whole) // 2],
        "all but a byte": whole[:-1],
        "zeros": whole[:20] + bytes(len(whole) - 20),
    }
    if left is not None:
        file.write_bytes(left if isinstance(left, bytes) else contents[left])
    assert resumed(path, schedule) == [torn.trial]
    check_whole(path, schedule)


def test_failed_trials_of_a_finished_run_are_tried_again(tmp_path: Path) -> None:
    schedule = small_schedule()
    path = tmp_path / "run"
    with RunWriter.create(path, make_info()) as writer:
        outcome = run(schedule, FakeStations(fails=names(schedule)[2:3]), writer, Silent())
    assert (outcome.info.status, outcome.failed) == ("done", 1)
    assert resumed(path, schedule) == names(schedule)[2:3]
    check_whole(path, schedule)
    again = [json.loads(line)["trial"] for line in (path / "trials.jsonl").open()]
    assert again.count(names(schedule)[2]) == 2  # what failed is kept in the file


def test_a_host_that_changed_is_noticed_by_its_role_on_two_servers_too() -> None:
    before = make_info().hosts["shared"]
    now = before.model_copy(update={"kernel": "7.0.0"})
    said = f"kernel: {before.kernel} is now 7.0.0"
    assert changed_hosts({"shared": before}, {"shared": now}) == (said,)
    two = {"sender": before, "responder": before}
    assert changed_hosts(two, {"sender": before, "responder": now}) == (f"responder: {said}",)
    assert changed_hosts(two, two) == ()


def test_a_finished_run_gets_more_blocks_and_remembers_where_it_had_ended(tmp_path: Path) -> None:
    path = tmp_path / "run"
    whole_run(path)
    info = extended(RunReader(path), 3)
    assert (info.design["blocks"], info.ends) == (5, (2,))
    with RunWriter.resume(path) as writer, pytest.raises(BadInputError, match="not finished"):
        extended(RunReader(writer.path), 3)


def test_a_run_whose_blocks_measured_a_part_of_the_ladder_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `quick` of an earlier version began it."""
    raw = {"factors": {"plane": ["veth"]}, "rtt": {}, "sweep": {"loads": 6}, "blocks": 2}
    design = Design.model_validate(raw)
    (cell,) = cells_of(design)
    ladder = [1000.0 * step for step in range(1, 7)]
    stored = design.model_dump(mode="json") | {"ladders": {cell.name: ladder}}
    stored["sweep"]["loads_per_block"] = 3
    info = make_info().model_copy(update={"design": stored})
    with RunWriter.create(tmp_path / "run", info):
        pass
    monkeypatch.setattr(pipeline, "Stations", lambda *_: FakeStations())
    finished = pipeline.resume(tmp_path / "run", info.hosts["shared"], Silent())
    assert finished.outcome.info.status == "done"
    trials = RunReader(finished.directory).trials()
    loads = [trial.load.intended_pps for trial in trials if trial.kind == "load" and trial.load]
    assert sorted(loads) == sorted(ladder * 2)


def test_more_blocks_leave_the_blocks_before_them_as_they_were() -> None:
    design = Design.model_validate(
        {
            "factors": {"plane": ["veth", "bridge"]},
            "rtt": {},
            "sweep": {"offered_pps": "auto", "until_verdict": True},
            "blocks": 3,
        }
    )
    ladders = dict.fromkeys(cells_of(design), (1.0, 2.0))
    longer = design.model_copy(update={"blocks": 5})
    few, many = (names(schedule_for(one, ladders, {})) for one in (design, longer))
    assert many[: len(few)] == few
