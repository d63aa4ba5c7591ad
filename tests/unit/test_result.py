"""The exit code of a run, and what is said of trials that failed."""

from __future__ import annotations

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
    info = RunReader(write(path, MadeUp())).info.model_copy(update={"status": status})
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
    assert _value("forwarded", place) == "at least 2 Mpps"
