"""`planewise search` on systems whose truth is known."""

import json

import pytest

from planewise.errors import BadInputError, VerdictNotGoodError
from tests.command import invoked


def run(*arguments):
    return invoked("search", *arguments)


def test_json_has_goals_costs_trials_and_the_truth():
    done = run("--synthetic", "ideal", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [goal["goal"] for goal in result["goals"]] == ["ndr", "pdr:0.005"]
    for goal in result["goals"]:
        assert goal["low_pps"] <= goal["pps"] <= goal["high_pps"]
        assert goal["pps"] == pytest.approx(result["truth"][goal["goal"]], rel=0.01)
    assert result["verdict"] == "GOOD"
    assert result["trials"] == len(result["trial_list"])
    assert result["total_seconds_s"] == pytest.approx(
        result["trial_seconds_s"] + 0.5 * result["trials"]
    )


def test_the_table_shows_verdict_goals_and_cost():
    done = run("--synthetic", "gradual", "--goal", "pdr:0.01", "--goal", "ndr")
    assert done.exit_code == 0, done.output
    assert "BAD:" in done.stdout
    assert "PDR at 1 % loss" in done.stdout
    assert "95 % interval" in done.stdout
    assert "s of traffic" in done.stdout


def test_other_algorithms_and_a_budget_can_be_chosen():
    done = run("--synthetic", "ideal", "--algorithm", "binary", "--no-verdict", "--json")
    assert json.loads(done.stdout)["algorithm"] == "binary"
    done = run("--synthetic", "ideal", "--budget", "3", "--json")
    result = json.loads(done.stdout)
    assert result["stopped"] == "budget"
    assert result["total_seconds_s"] <= 3


def test_a_lower_confidence_takes_fewer_trials():
    usual, lower = (
        json.loads(run("--synthetic", "ideal", *more, "--no-verdict", "--json").stdout)
        for more in ((), ("--confidence", "0.82"))
    )
    assert [goal["interval"] for goal in lower["goals"]] == ["82%", "82%"]
    assert lower["trials"] < usual["trials"]


def test_require_good_fails_for_a_system_that_pdr_does_not_stand_for():
    done = run("--synthetic", "gradual", "--require-good")
    assert isinstance(done.exception, VerdictNotGoodError)


def test_the_catalogue_is_listed():
    done = run("--synthetic", "list")
    assert "realistic-3pct" in done.stdout
    assert "capacity noise 3 %" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--synthetic", "nothing"),
        ("--synthetic", "ideal", "--goal", "maximum"),
        ("--synthetic", "ideal", "--algorithm", "guess"),
        ("--synthetic", "ideal", "--precision", "7"),
        ("--synthetic", "ideal", "--confidence", "95"),
        ("--synthetic", "ideal", "--budget", "-1"),
        ("--synthetic", "ideal", "--router"),
    ],
)
def test_wrong_usage_is_one_sentence_and_what_to_do(arguments):
    done = run(*arguments)
    assert isinstance(done.exception, BadInputError)
    assert done.exception.what
