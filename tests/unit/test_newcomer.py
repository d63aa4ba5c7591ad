"""The first commands of somebody who knows none: `planewise`, and `planewise advise` alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planewise.errors import BadInputError
from planewise.store.newest import newest_run
from tests.command import invoked
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp

SMALL = MadeUp(planes=("veth", "bridge"), blocks=2, packets=50)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planewise(*arguments: str) -> str:
    done = invoked(*arguments, raising=True)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_a_run_the_next_command_measures() -> None:
    said = planewise()
    assert "Nothing has been measured here yet" in said
    assert "planewise quick" in said
    assert "planewise doctor" in said


def test_after_a_run_the_next_commands_use_it(folder: Path) -> None:
    made_up_run.write(folder / "runs" / "first", SMALL)
    said = planewise()
    assert "The newest run is runs/first: complete" in said
    assert "planewise advise" in said
    assert "--resume" not in said


def test_a_run_that_was_cut_short_can_be_continued(folder: Path) -> None:
    run = made_up_run.write(folder / "runs" / "first", SMALL)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "status": "interrupted"}))
    assert "planewise run --resume runs/first" in planewise()


def test_the_newest_run_is_that_which_began_last_whatever_its_name(folder: Path) -> None:
    for name, started in [
        ("z-old", "2026-01-01T00:00:00Z"),
        ("a-new", "2026-01-02T00:00:00+00:00"),
    ]:
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "run.json").write_text(json.dumps({"started": started}))
    (folder / "runs" / "no-run").mkdir()
    (folder / "runs" / "broken").mkdir()
    (folder / "runs" / "broken" / "run.json").write_text("[1")
    run = newest_run()
    assert run is not None
    assert (run.path, run.has_trials) == (Path("runs/a-new"), False)


def test_a_run_with_trials_comes_before_a_newer_one_without(folder: Path) -> None:
    made_up_run.write(folder / "runs" / "measured", SMALL)
    (folder / "runs" / "empty").mkdir()
    (folder / "runs" / "empty" / "run.json").write_text('{"started": "2099-01-01T00:00:00Z"}')
    run = newest_run()
    assert run is not None
    assert run.path == Path("runs/measured")


def test_advise_alone_says_what_the_newest_run_recommends(folder: Path) -> None:
    made_up_run.write(folder / "runs" / "first", SMALL)
    done = invoked("advise", raising=True)
    assert done.exit_code == 0
    assert "For namespaces and containers: veth" in done.stdout
    assert "median RTT" in done.stdout
    assert "runs/first, the newest run here" in done.stderr
    told = json.loads(planewise("advise", "--json"))
    assert told["run"] == "runs/first"
    assert told["recommendation"]["ranking"]


def test_advise_for_a_workload_takes_the_newest_run_as_evidence(folder: Path) -> None:
    made_up_run.write(folder / "runs" / "first", SMALL)
    assert "[measurement; runs/first]" in planewise("advise", "--pattern", "north-south")


def test_advise_without_a_run_names_the_one_command_that_makes_one() -> None:
    with pytest.raises(BadInputError) as caught:
        planewise("advise")
    assert "there is no measured run in runs/" in caught.value.what
    assert caught.value.remedy.startswith("measure it: planewise quick")


def test_a_report_without_a_run_is_of_the_newest_one(folder: Path) -> None:
    with pytest.raises(BadInputError, match="no measured run in runs/"):
        planewise("report")
    run = made_up_run.write(folder / "runs" / "first", SMALL)
    assert planewise("report").strip() == "runs/first/report.html"
    assert (run / "report.html").exists()
