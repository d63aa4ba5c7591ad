"""Many experiments summed up by what was varied."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from planewise.errors import BadInputError
from planewise.judge import synthetic
from planewise.judge.campaign import Campaign, CampaignCurve, campaign
from planewise.judge.verdict import judge
from tests.command import invoked
from tests.unit.published_data import FOLDER, labels, needs_published_data

LOADS = [0.5, 0.8, 0.9, 1.0, 1.05, 1.1, 1.2, 1.5, 2.0]


def experiment(name: str, seed: int = 1, **aspects: str | float) -> CampaignCurve:
    """A synthetic system, judged on exact curves; `seed` is its repetition."""
    sut = synthetic.by_name(name)
    curve = sut.start(seed=seed).sweep(
        [round(part * sut.capacity_pps) for part in LOADS], runs=30, duration_s=1
    )
    return CampaignCurve(f"{name} {seed}", aspects, (("repetition", seed),), judge(curve))


@pytest.fixture(scope="module")
def found() -> Campaign:
    return campaign(
        [
            experiment("gradual", kernel="5.6", ring=512),
            experiment("gradual", 2, kernel="5.6", ring=512),
            experiment("realistic", kernel="5.18", ring=512),
            experiment("realistic", kernel="5.18", ring=4096),
            experiment("realistic", kernel="6.8"),
        ]
    )


def test_words_are_counted_by_level_kernels_in_their_order(found: Campaign) -> None:
    kernels = {row.level: row for row in found.rows if row.aspect == "kernel"}
    assert list(kernels) == ["5.6", "5.18", "6.8"]
    assert kernels["5.6"].words == {"BAD": 2}
    assert "BAD" not in kernels["5.18"].words
    assert kernels["5.18"].curves == 2


def test_what_was_not_said_is_a_level_of_its_own_and_comes_last(found: Campaign) -> None:
    rings = [row.level for row in found.rows if row.aspect == "ring"]
    assert rings == [512, 4096, "not said"]


def test_figures_are_of_the_curves_that_have_them(found: Campaign) -> None:
    (row,) = [one for one in found.rows if one.level == "5.6"]
    assert row.pdr is not None
    pdrs = [one.verdict.pdr.pps for one in found.members[:2] if one.verdict.pdr]
    assert (row.pdr.known, row.pdr.low_pps, row.pdr.high_pps) == (2, min(pdrs), max(pdrs))


def test_repetitions_of_one_configuration_are_compared_and_no_others(found: Campaign) -> None:
    assert (found.agreement.configurations, found.agreement.pairs) == (1, 1)
    assert (found.agreement.agree, found.agreement.opposite) == (1, 0)
    opposite = campaign([experiment("gradual", ring=1), experiment("ideal", 2, ring=1)])
    assert opposite.agreement.agree == 0
    alone = campaign([experiment("gradual", ring=1), experiment("gradual", 2, ring=2)])
    assert alone.agreement.pairs == 0


def test_files_that_do_not_say_what_they_measured_are_no_repetitions() -> None:
    unnamed = campaign([experiment("gradual"), experiment("ideal")])
    assert unnamed.agreement.pairs == 0
    timed = campaign([experiment("gradual", duration_s=1), experiment("ideal", duration_s=1)])
    assert timed.agreement.pairs == 0
    assert "No configuration is known to be repeated" in timed.agreement.sentence


@needs_published_data
@pytest.mark.parametrize(
    ("aspect", "level", "in_name"),
    [("kernel", "6.8", "_k6.8_"), ("platform", "vm", "_intel_vm"), ("nic_ring", 4096, "buf_4096")],
)
def test_the_recordings_by_aspect_are_as_counted_by_hand(
    aspect: str, level: str | int, in_name: str
) -> None:
    files = [str(FOLDER / row["file"]) for row in labels()]
    asked = ["campaign", *files, "--by", aspect, "--rule", "as-written", "--json"]
    done = invoked(*asked, raising=True)
    rows = {one["level"]: one for one in json.loads(done.stdout)["rows"]}
    row = rows[level]
    by_hand = Counter(row["as_written"] for row in labels() if in_name in row["file"])
    assert row["words"] == dict(by_hand)
    assert row["curves"] == by_hand.total()
    assert row["pastrami_good"] == by_hand["GOOD"]


def test_an_aspect_that_no_curve_has_is_one_sentence(tmp_path: Path) -> None:
    results = tmp_path / "results.csv"
    results.write_text("offered_pps,sent,received\n1000,1000,1000\n2000,2000,1500\n")
    for flag in ("--by", "--repetition"):
        with pytest.raises(BadInputError, match="no curve has an aspect 'moon'"):
            invoked("campaign", results, flag, "moon", raising=True)


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_summed_up(tmp_path: Path) -> None:
    results = tmp_path / "results.csv"
    results.write_text("offered_pps,sent,received\n1000,1000,1000\n2000,2000,1500\n")
    done = invoked("campaign", results, tmp_path / "none.csv")
    assert done.exit_code == BadInputError.exit_code
    assert "1 curve." in done.stdout
    assert "none.csv" in done.stderr
