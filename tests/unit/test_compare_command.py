"""`planewise compare`: what it prints, joins and refuses."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from planewise.errors import BadInputError
from planewise.store.rundir import RUN_FILE, RunReader
from tests.command import invoked
from tests.unit.made_up_run import MadeUp, write

SMALL = MadeUp(
    packets=200, blocks=6, load_blocks=3, locations=("sender", "responder"), failed=0, drift=0.2
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("compare") / "before", SMALL)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on another kernel, where everything is as it was."""
    path = write(tmp_path_factory.mktemp("compare") / "after", SMALL)
    file = path / RUN_FILE
    file.write_text(file.read_text().replace("6.1.0-18-amd64", "6.12.0-1-amd64"))
    return path


def compare(*arguments: object) -> Result:
    return invoked("compare", *arguments)


def answer(*arguments: object) -> dict[str, object]:
    done = compare(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_plain_sentences_end_the_output_and_every_comparison_has_its_line(run: Path) -> None:
    done = compare(run)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    (said,) = [
        line
        for line in lines
        if line.startswith("macvlan is better than bridge: its median round-trip time is")
    ]
    assert "% lower (95 %: -" in said
    for stratum in ("idle", "sender", "responder", "overall"):
        assert sum(line.startswith(stratum) for line in lines) == 3


def test_json_has_every_number_of_the_table(run: Path) -> None:
    found = answer(run, "--metric", "rtt", "--metric", "loss")
    rtt, loss = found["families"]  # type: ignore[misc]
    assert (rtt["metric"], loss["metric"]) == ("rtt", "loss")
    assert rtt["levels"] == ["bridge", "macvlan", "veth"]
    for one in rtt["comparisons"]:
        assert one["low"] <= one["change"] <= one["high"]
        assert one["least"] <= one["change"] <= one["most"]
        assert one["outcome"] in ("better", "worse", "practically the same", "not distinguishable")
        assert 0 < one["p_family"] <= 1
        assert one["sentence"].endswith(".")
    assert rtt["ranking"]["comparisons"] == 15
    assert {bar["level"] for bar in rtt["kendall"]} == {"bridge", "macvlan", "veth"}
    assert loss["scale"] == "difference"


def test_all_metrics_are_compared_and_what_cannot_be_measured_is_said(run: Path) -> None:
    done = compare(run, "--metric", "all")
    assert done.exit_code == 0, done.output
    assert "median overhead at the sender of macvlan is not measurable: the host" in done.stdout
    names = [family["metric"] for family in answer(run, "--metric", "all")["families"]]  # type: ignore[attr-defined]
    expected = {"rtt", "rtt_p99", "overhead", "response", "jitter", "loss", "throughput", "pdr"}
    assert expected | {"ndr", "cpu:shared", "cpu:shared:soft"} <= set(names)


def test_any_factor_can_be_compared(run: Path) -> None:
    (family,) = answer(run, "--factor", "load_type", "--by", "plane")["families"]  # type: ignore[misc]
    assert family["strata"] == ["bridge", "macvlan", "veth", "overall"]
    assert {one["outcome"] for one in family["comparisons"] if one["a"] == "none"} == {"better"}


def test_tails_are_metrics_like_others_and_pooled_tests_have_their_warning(run: Path) -> None:
    done = compare(run, "--tails", "--as-published", "--kendall")
    assert done.exit_code == 0, done.output
    for title in ("median", "99th percentile", "99.9th percentile"):
        assert title in done.stdout
    assert "warning: As published: every packet, and every trial's CPU reading" in done.stdout
    found = answer(run, "--tails", "--as-published")
    metrics = [family["metric"] for family in found["families"]]  # type: ignore[attr-defined]
    assert metrics == ["rtt", "rtt_p99", "rtt_p999"]
    tests = found["as_published"]["tests"]  # type: ignore[index]
    assert [test["metric"] for test in tests] == ["rtt"] * 12 + ["cpu:shared"] * 12
    # 3 planes in pairs, in each of 4 strata: packets of RTT, and one reading of the CPU a trial.
    overall = {test["metric"]: test["pairs"] for test in tests if test["stratum"] == "overall"}
    assert overall["rtt"] > 190 * overall["cpu:shared"]
    assert overall["cpu:shared"] == 5 * SMALL.blocks
    assert "cpu:shared  bridge – macvlan" in done.stdout


def test_runs_are_joined_and_what_differs_is_said(run: Path, after: Path) -> None:
    done = compare(run, after)
    assert done.exit_code == 0, done.output
    told = "The runs differ in kernel: before 6.1.0-18-amd64, after 6.12.0-1-amd64."
    assert told in done.stdout
    assert "may come from any of these" not in done.stdout
    both, alone = answer(run, after), answer(run)
    blocks = [found["families"][0]["comparisons"][-1]["blocks"] for found in (both, alone)]  # type: ignore[index]
    assert blocks[0] == 2 * blocks[1]


@pytest.mark.parametrize("factor", ["run", "kernel"])
def test_runs_are_compared_with_each_other_and_the_reader_warned(
    run: Path, after: Path, factor: str
) -> None:
    done = compare(run, after, "--factor", factor)
    assert done.exit_code == 0, done.output
    assert "are practically the same in median round-trip time" in done.stdout
    assert "A difference between runs may come from any of these" in done.stdout


def test_runs_that_are_alike_are_called_so(run: Path, tmp_path: Path) -> None:
    twin = write(tmp_path / "twin", SMALL)
    done = compare(run, twin, "--factor", "run")
    assert "hosts, designs and versions are alike" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--metric", "speed"), "there is no metric 'speed'"),
        (("--factor", "colour"), "there is no factor 'colour'"),
        (("--by", "colour"), "there is no factor 'colour'"),
        (("--factor", "size_bytes"), "size_bytes has a single level (64)"),
        (("--factor", "run"), "one run alone has no factor run"),
        (("--baseline", "vf"), "there is no level vf"),
        (("--margin", "0"), "0 is not a share"),
        (("--metric", "cpu:nobody"), "there is no CPU metric 'cpu:nobody'"),
        (("--metric", "cpu:shared:fast"), "there is no CPU metric"),
    ],
)
def test_wrong_usage_is_one_sentence_with_the_way_out(
    run: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = compare(run, *arguments)
    assert isinstance(done.exception, BadInputError)
    assert words in done.exception.what
    assert done.exception.remedy


def test_a_run_that_is_none_or_named_twice_or_empty_is_refused(run: Path, tmp_path: Path) -> None:
    for arguments, words in (
        ((tmp_path,), "not a run directory"),
        ((run, run), "a run is named twice"),
    ):
        done = compare(*arguments)
        assert isinstance(done.exception, BadInputError)
        assert words in done.exception.what
    empty = write(tmp_path / "empty", MadeUp(blocks=0, load_blocks=0, with_recommendation=False))
    done = compare(empty)
    assert isinstance(done.exception, BadInputError)
    assert "no trial reached its target" in done.exception.what


def test_an_rtt_run_has_no_throughput_and_says_what_it_has(tmp_path: Path) -> None:
    rtt = write(tmp_path / "rtt", MadeUp(packets=50, blocks=2, load_blocks=0))
    done = compare(rtt, "--metric", "throughput")
    assert isinstance(done.exception, BadInputError)
    assert "available metrics: rtt," in done.exception.remedy


def test_packets_that_were_not_kept_are_missed_only_where_they_are_needed(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare", MadeUp(packets=50, blocks=2, load_blocks=0, with_packets=False))
    assert RunReader(bare).trials()[0].packets is None
    assert compare(bare).exit_code == 0
    assert compare(bare, "--tails").exit_code == 0
    done = compare(bare, "--as-published")
    assert isinstance(done.exception, BadInputError)
    assert "no packets were kept" in done.exception.what


def test_series_join_the_planes_of_main_and_background_guests_as_published(tmp_path: Path) -> None:
    wanted = MadeUp(
        planes=("bridge", "macvlan"),
        background_planes=("bridge", "macvlan"),
        load_types=("cpu",),
        locations=("sender", "responder"),
        blocks=8,
        packets=50,
        load_blocks=0,
        failed=0,
        hidden=(),
    )
    path = write(tmp_path / "run", wanted)
    found: Any = answer(path, "--factor", "series", "--as-published", "--kendall")
    series = {
        "all on bridge",
        "all on macvlan",
        "bridge, others on macvlan",
        "macvlan, others on bridge",
    }
    (family,) = found["families"]
    assert set(family["levels"]) == series
    assert {bar["level"] for bar in family["kendall"]} == series
    tests = found["as_published"]["tests"]
    rtt = [one for one in tests if one["metric"] == "rtt"]
    at_sender = {(one["a"], one["b"]) for one in rtt if one["stratum"] == "sender"}
    assert at_sender == set(combinations(sorted(series), 2))
    assert {one["stratum"] for one in tests} >= {"sender", "responder"}


def test_a_plane_whose_trials_all_missed_their_rate_is_named_with_the_reason(
    run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "missed"
    shutil.copytree(run, path)
    trials = [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]
    for trial in trials:
        if trial["kind"] == "rtt" and trial["cell"]["plane"] != "macvlan":
            trial["load"]["achieved_pps"] = 0.9 * trial["load"]["intended_pps"]
    text = "".join(json.dumps(trial) + "\n" for trial in trials)
    (path / "trials.jsonl").write_text(text)

    found = compare(path, "--metric", "rtt").exception

    assert isinstance(found, BadInputError)
    assert (
        "missed its target by more than 1 % (rate of the probes: 900 pps of 1 kpps)" in found.what
    )
