"""A search on the namespace router: the search knows a measurer only, and this is a real one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.linux


def test_a_search_through_a_router_keeps_to_its_budget_and_says_what_it_knows() -> None:
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
        "40",
        "--json",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "planewise", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert [goal["goal"] for goal in result["goals"]] == ["ndr", "pdr:0.005"]
    assert 0 < result["total_seconds_s"] <= 40
    assert result["verdict"] in ("GOOD", "BAD", "UNDECIDED")
    assert sum(trial["received"] for trial in result["trial_list"]) > 1000
    for goal in result["goals"]:
        assert goal["status"] in ("found", "above-range", "below-range", "undecided")
        if goal["status"] == "found" and goal["interval"] == "95%":
            assert goal["low_pps"] <= goal["pps"] <= goal["high_pps"]
