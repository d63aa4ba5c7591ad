"""A search on the namespace router: the search knows a measurer only, and this is a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planewise.store.rundir import RunReader
from tests.command import planewise

pytestmark = pytest.mark.linux


def test_a_search_through_a_router_keeps_to_its_budget_and_says_what_it_knows(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    arguments = [
        "search",
        "--router",
        "--ip",
        "6",
        "--goal",
        "ndr",
        "--goal",
        "pdr:0.005",
        "--budget",
        "7",
        "--json",
        *("--out", str(out)),
    ]
    ran = planewise(*arguments)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert [goal["goal"] for goal in result["goals"]] == ["ndr", "pdr:0.005"]
    assert 0 < result["total_seconds_s"] <= 7
    assert result["verdict"] in ("GOOD", "BAD", "UNDECIDED")
    assert sum(trial["received"] for trial in result["trial_list"]) > 1000
    for goal in result["goals"]:
        assert goal["status"] in ("found", "above-range", "below-range", "undecided")
        if goal["status"] == "found" and goal["interval"] == "95%":
            assert goal["low_pps"] <= goal["pps"] <= goal["high_pps"]
    # What was measured is a run as a sweep's is: every trial, the result, a report, the curve.
    run = RunReader(out)
    trials = run.trials()
    assert len(trials) == result["trials"] == len(result["trial_list"])
    for trial, listed in zip(trials, result["trial_list"], strict=True):
        assert trial.counts is not None
        assert (trial.counts.sent, trial.counts.received) == (listed["sent"], listed["received"])
    assert run.info.status == "done"
    assert run.info.result["goals"] == result["goals"]
    assert "trial_list" not in run.info.result
    assert "<html" in (out / "report.html").read_text()
    judged = planewise("judge", out, "--json")
    assert json.loads(judged.stdout)[0]["runs"] == len(trials)
