"""The exit code of a run, and what is said of trials that failed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import typer

from planewise.commands.result import _value, print_result
from planewise.measure.runs.experiment import Outcome
from planewise.pipeline import FinishedRun
from planewise.store.models import RunStatus
from planewise.store.recommendation import RankedPlane, Recommendation
from planewise.store.rundir import RunReader
from tests.unit.made_up_run import MadeUp, write


def finished(path: Path, status: RunStatus, done: int, failed: int) -> FinishedRun:
    made = MadeUp(blocks=1, packets=2, load_blocks=0, with_recommendation=False)
    info = RunReader(write(path, made)).info.model_copy(update={"status": status})
    outcome = Outcome(done, failed, info)
    return FinishedRun(
        path, path / "report.html", outcome, Recommendation(plane=None, headline="-")
    )


def test_a_run_with_some_failed_trials_is_done_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(finished(tmp_path, "done", 3, 1), json=False)
    assert "1 of 4 trials failed" in capsys.readouterr().out


@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize(
    ("status", "done", "failed"), [("done", 0, 2), ("interrupted", 3, 0), ("failed", 0, 5)]
)
def test_a_run_that_was_cut_short_or_failed_whole_ends_with_1(
    tmp_path: Path, status: RunStatus, done: int, failed: int, json: bool
) -> None:
    with pytest.raises(typer.Exit) as caught:
        print_result(finished(tmp_path, status, done, failed), json)
    assert caught.value.exit_code == 1


def test_a_lower_bound_is_printed_as_one() -> None:
    place = RankedPlane(
        plane="veth", load_type="none", metric="forwarded", value=2e6, at_least=True
    )
    assert _value(place, 1e6) == "at least 2"


def test_tables_fit_80_columns_and_the_answer_three_reservations_and_the_report_come_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "run", MadeUp(blocks=6, packets=20))
    advice = RunReader(path).recommendation()
    assert advice is not None
    advice = advice.model_copy(update={"reservations": tuple(f"reservation {n}" for n in range(9))})
    done = finished(tmp_path / "other", "done", 3, 0)
    print_result(dataclasses.replace(done, recommendation=advice), json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "median RTT [µs]" in lines[1]
    table = lines[1 : lines.index(advice.headline)]
    assert max(map(len, table)) <= 80
    answer = lines.index(advice.headline)
    assert lines[answer + 1 : answer + 5] == [
        *(f"  - reservation {n}" for n in range(3)),
        "  6 more are in the report.",
    ]
    assert lines[-1].startswith("Report: ")
    print_result(dataclasses.replace(done, recommendation=advice), json=False, wide=True)
    assert "  - reservation 8" in capsys.readouterr().out
