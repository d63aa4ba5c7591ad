"""Run directories that older code wrote are still read (each of old_runs/ was: see its README)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from planewise.store.rundir import RunReader
from tests.command import invoked

OLD = Path(__file__).with_name("old_runs")
NAMES = sorted(path.name for path in OLD.iterdir() if path.is_dir())


@pytest.fixture(params=NAMES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an old run: commands may write into it."""
    return Path(shutil.copytree(OLD / request.param, tmp_path / "run"))


def test_an_old_run_has_all_of_its_trials(run: Path) -> None:
    lines = (run / "trials.jsonl").read_text().splitlines()
    reader = RunReader(run)
    trials = list(reader.trials())
    assert len(trials) == len({json.loads(line)["trial"] for line in lines}) == 30
    assert {trial.kind for trial in trials} == {"rtt", "load"}
    assert [trial.status for trial in trials].count("failed") == 1


def test_an_old_run_is_reported(run: Path) -> None:
    done = invoked("report", run)
    assert done.exit_code == 0, done.output
    page = (run / "report.html").read_text()
    assert "veth" in page
    assert "bridge" in page


def test_an_old_run_is_judged_curve_by_curve(run: Path) -> None:
    done = invoked("judge", run, "--json")
    assert done.exit_code == 0, done.output
    curves = json.loads(done.stdout)
    assert len(curves) == 2
    for curve in curves:
        assert curve["saturation_pps"] > curve["pdr_pps"] > 400_000


def test_the_planes_of_an_old_run_are_compared(run: Path) -> None:
    done = invoked("compare", run, "--json")
    assert done.exit_code == 0, done.output
    assert {"veth", "bridge"} <= set(done.stdout.split('"'))
