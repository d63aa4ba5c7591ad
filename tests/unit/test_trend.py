"""Change points of nightly runs: most steps are found soon, and few that are none."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from planewise.cli import app
from planewise.errors import BadInputError
from planewise.judge.trend import change_points, trends
from planewise.store.models import Figure
from planewise.store.rundir import RunWriter
from tests.unit.made_up_run import STARTED, info, trial

NIGHTS = 40


def test_a_step_of_5_percent_in_noise_of_2_is_found_within_3_runs() -> None:
    """100 series with a step, and 100 without; the acceptance lines of issue 47."""
    rng = np.random.default_rng(7)
    found = false = 0
    for _ in range(100):
        values = rng.normal(1, 0.02, NIGHTS + 3)
        false += bool(change_points(values))
        values[NIGHTS:] *= 1.05
        found += any(
            abs(point.at - NIGHTS) <= 3
            for nights in (1, 2, 3)
            for point in change_points(values[: NIGHTS + nights])
        )
    assert found >= 90
    assert false <= 5


def test_an_old_step_is_found_where_it_was_and_is_not_recent() -> None:
    values = np.random.default_rng(1).normal(1, 0.02, 40)
    values[15:] *= 0.9
    (point,) = change_points(values)
    assert (point.at, point.recent) == (15, False)
    assert point.change == pytest.approx(-0.1, abs=0.02)


def runs(folder: Path, step: float) -> list[Path]:
    """Twenty nightly runs of one cell; the last three are so much slower."""
    rng = np.random.default_rng(3)
    paths = []
    for night in range(20):
        about = info(f"night {night}").model_copy(
            update={"run": f"n{night}", "started": STARTED + timedelta(days=night)}
        )
        value = 50_000 * rng.normal(1, 0.01) * (1 + step * (night >= 17))
        figure = Figure(
            title="median time to connect", unit="ns", lower_is_better=True, resolution=1,
            value=value,
        )  # fmt: skip
        paths.append(folder / f"n{night}")
        with RunWriter.create(paths[-1], about) as writer:
            writer.append(trial("t", "other", {"plane": "veth"}, figures={"connect": figure}))
            writer.finish(about)
    return paths


def test_the_exit_status_tells_whether_a_change_is_new(tmp_path: Path) -> None:
    slower = [str(path) for path in reversed(runs(tmp_path / "slower", 0.1))]
    result = CliRunner().invoke(app, ["trend", *slower])
    assert result.exit_code == 1
    assert "median time to connect of veth changed by +1" in result.output
    same = [str(path) for path in runs(tmp_path / "same", 0)]
    assert CliRunner().invoke(app, ["trend", *same]).exit_code == 0


def test_few_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="too few"):
        trends(runs(tmp_path, 0)[:5])
