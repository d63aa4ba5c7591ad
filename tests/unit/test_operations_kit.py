"""Alert rules and dashboard ask for metrics that the daemon has, and Prometheus takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.documents import ROOT

RULES = ROOT / "packaging" / "prometheus" / "planewise.rules.yaml"
TESTS = ROOT / "packaging" / "prometheus" / "planewise.test.yaml"
DASHBOARD = ROOT / "packaging" / "grafana" / "planewise.json"
PROMTOOL = shutil.which("promtool")
BY_OTHERS = {"up"}
"""Metrics that Prometheus itself makes."""

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool on this machine; `scripts/setup test` installs it"
)


def promtool(*arguments: str | Path) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def panels() -> list[dict[str, object]]:
    return [one for one in json.loads(DASHBOARD.read_text())["panels"] if one["type"] != "row"]


def dashboard_expressions() -> list[str]:
    """What the dashboard asks, with Grafana's variables replaced as it does."""
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]  # type: ignore[attr-defined]
    return [text.replace("$__rate_interval", "5m").replace("$instance", ".*") for text in asked]


def rule_expressions() -> list[str]:
    groups = YAML(typ="safe").load(RULES.read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def documented_metrics() -> set[str]:
    """The metrics of docs/reference/alloc.md, which test_alloc_daemon.py holds to the daemon's."""
    text = (ROOT / "docs" / "reference" / "alloc.md").read_text()
    section = text.split("\n## Metrics\n")[1].split("\n## ")[0]
    names: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE):
        full = ""
        for name in re.findall(r"`([^`]+)`", row):
            # "…" stands for what the row's first name begins with.
            prefix = re.match(r"planewise_(?:guest|pool)", full)
            full = full if name.startswith("…") else name
            names.add(f"{prefix[0]}{name[1:]}" if name.startswith("…") and prefix else name)
    return names


@needs_promtool
def test_prometheus_takes_the_rules_and_their_tests_pass() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", TESTS)


def test_every_alert_has_a_test_in_which_it_fires_and_a_line_in_the_guide() -> None:
    groups = YAML(typ="safe").load(RULES.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    fired = {
        case["alertname"]
        for test in YAML(typ="safe").load(TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fired == alerts
    guide = (ROOT / "docs" / "guide" / "operate.md").read_text()
    assert set(re.findall(r"^\| `(Planewise\w+)`", guide, flags=re.MULTILINE)) == alerts


@needs_promtool
def test_prometheus_can_parse_all_that_the_dashboard_asks(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(dashboard_expressions())
    ]
    assert len(rules) > 12
    file = tmp_path / "rules.yaml"
    with file.open("w") as handle:
        YAML(typ="safe").dump({"groups": [{"name": "dashboard", "rules": rules}]}, handle)
    promtool("check", "rules", file)


@pytest.mark.parametrize("expression", [*rule_expressions(), *dashboard_expressions()])
def test_the_daemon_has_every_metric_that_is_asked_for(expression: str) -> None:
    asked = set(re.findall(r"\b(?:planewise|process)_\w+|\bup\b", expression))
    asked = {re.sub(r"_bucket$", "", name) for name in asked}
    assert asked
    assert asked <= documented_metrics() | BY_OTHERS


def test_the_dashboard_is_what_its_program_writes() -> None:
    program = ROOT / "packaging" / "grafana" / "dashboard.py"
    code = f"import runpy; print(runpy.run_path({str(program)!r})['written'](), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == DASHBOARD.read_text(), f"run python {program.relative_to(ROOT)}"


def test_panels_lie_side_by_side_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert isinstance(place, dict)
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        assert panel["description"]
