"""The rules as published, coded and written."""

from __future__ import annotations

import pytest

from planewise.judge.curve import Curve, Run
from planewise.judge.rules import PUBLISHED_RULES, PublishedRule, apply_rule
from planewise.judge.verdict import judge
from tests.unit.published_data import labels, needs_published_data, recorded


def curve(*throughput: float) -> Curve:
    """Loads of 100, 200, … pps whose throughput is given."""
    return Curve.from_runs(
        "made up",
        {
            100.0 * (i + 1): [Run(100_000 * (i + 1), round(1000 * t))]
            for i, t in enumerate(throughput)
        },
    )


@pytest.mark.parametrize(
    ("throughput", "published", "intent", "written"),
    [
        ((100, 200, 250, 255, 258), True, True, True),
        ((100, 200, 250, 270, 275), True, True, False),
        ((100, 200, 250, 290, 295), True, False, False),
        ((100, 200, 250, 255, 275), False, False, False),
        ((100, 200, 300), False, False, False),
        ((100, 200, 250), False, False, False),
        ((100, 200, 250, 340), True, False, False),
        ((100, 200, 250, 240, 230), True, True, True),
    ],
    ids=[
        "saturated from the crossing on",
        "first step rises by 0.2",
        "first step rises by 0.4",
        "second step rises by 0.2",
        "no load crosses",
        "only the last load crosses",
        "the last but one crosses: its only step is not looked at by the published program",
        "throughput falls",
    ],
)
def test_the_three_rules_differ_in_the_first_step_only(
    throughput: tuple[float, ...], published: bool, intent: bool, written: bool
) -> None:
    results = [apply_rule(rule, curve(*throughput)).good for rule in PUBLISHED_RULES]
    assert results == [published, intent, written]


def test_a_loss_of_exactly_the_limit_does_not_cross_it() -> None:
    quarter = curve(100, 150, 300)
    assert apply_rule("as-written", quarter, plr=0.25).potential is None
    assert apply_rule("as-written", quarter, plr=0.249).potential == 1


def test_the_reason_names_the_step_that_breaks_the_rule() -> None:
    result = apply_rule("as-written", curve(100, 200, 250, 270, 275))
    assert result.potential == 2
    assert result.tir == pytest.approx((0.2, 0.05))
    assert result.reason == "not saturated: from 300 pps to 400 pps TIR is 0.200, not below 0.1"


@needs_published_data
@pytest.mark.parametrize("rule", PUBLISHED_RULES)
def test_all_published_labels_are_reproduced(rule: PublishedRule) -> None:
    rows = labels()
    assert len(rows) >= 62
    for row in rows:
        read = recorded(row["file"])
        verdict = judge(read, rule=rule)
        assert verdict.verdict == row[rule.replace("-", "_")], row["file"]
        assert verdict.rule == rule
        crossing = apply_rule(rule, read).potential
        assert crossing is not None
        assert read.offered_pps[crossing] == float(row["first_load_over_pdr"])
