"""`planewise alloc simulate` hands over to `planewised` and turns its errors into ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planewise.cli import app
from planewise.errors import BadInputError


def test_a_simulation_is_printed_as_json() -> None:
    arguments = ["alloc", "simulate", "flapping", "--duration", "120", "--unbounded", "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    outcomes = {one["player"]: one for one in json.loads(done.stdout)["outcomes"]}
    assert list(outcomes) == ["paravirtual", "random", "fair", "activity", "benefit"]
    assert outcomes["paravirtual"]["moves_per_h"] == 0
    assert outcomes["benefit"]["mean_latency_us"] < outcomes["paravirtual"]["mean_latency_us"]


def test_a_scenario_that_makes_no_sense_is_refused_with_its_line(tmp_path: Path) -> None:
    scenario = tmp_path / "host.toml"
    scenario.write_text("vfs = 1\nnosuch = 2\n")
    with pytest.raises(BadInputError, match=r"host\.toml:2: unknown field `nosuch`"):
        CliRunner().invoke(
            app, ["alloc", "simulate", "--file", str(scenario)], catch_exceptions=False
        )
    with pytest.raises(BadInputError, match="there is no scenario"):
        CliRunner().invoke(app, ["alloc", "simulate", "nosuch"], catch_exceptions=False)
