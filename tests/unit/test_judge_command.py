"""`planewise judge` as a user and as a program meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from planewise.errors import BadInputError, VerdictNotGoodError
from planewise.store import importers
from tests.command import invoked, planewise
from tests.unit import importer_samples as samples

KEYS = {
    "file",
    "format",
    "rule",
    "verdict",
    "headroom_low",
    "disturbed_at_most",
    "pdr_pps",
    "ndr_pps",
    "saturation_pps",
    "warnings",
}
TRIALS = samples.trials(32, samples.FINE)


def published_data() -> Path:
    """PASTRAMI's files: where the environment says, or in a folder `shared` of a parent."""
    if "PLANEWISE_PASTRAMI_DATA" in os.environ:
        return Path(os.environ["PLANEWISE_PASTRAMI_DATA"])
    places = [parent / "shared/data/pastrami" for parent in Path(__file__).resolve().parents]
    return next((place for place in places if place.is_dir()), places[0])


PASTRAMI = published_data()


def invoke(*arguments: str | Path) -> Result:
    return invoked("judge", *arguments)


def judged(*arguments: str | Path) -> list[dict[str, Any]]:
    result = invoke(*arguments, "--json")
    assert result.exception is None, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, list)
    return found


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: what the shell sees."""
    return planewise("judge", *arguments)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "good.txt"
    file.write_text(samples.pastrami(TRIALS))
    return file


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """Half of every packet above 600 kpps is lost: throughput still rises."""
    file = tmp_path / "bad.csv"
    lossy = [
        samples.Trial(
            load, load * 10, load * 10 if load <= 600_000 else 6_000_000 + (load - 600_000) * 5 - k
        )
        for load in samples.COARSE
        for k in range(10)
    ]
    file.write_text(samples.csv_rows(lossy))
    return file


@pytest.mark.parametrize("name", samples.every(TRIALS))
def test_every_format_gives_one_object_a_file_with_the_promised_keys(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "results"
    file.write_bytes(samples.every(TRIALS)[name])

    (found,) = judged(file)

    assert found.keys() >= KEYS
    assert found["file"] == str(file)
    assert found["verdict"] in {"GOOD", "BAD", "UNDECIDED"}
    assert isinstance(found["warnings"], list)
    for key in ("pdr_pps", "ndr_pps"):
        assert found[key] > 0


def test_the_same_trials_get_the_same_verdict_from_every_format(tmp_path: Path) -> None:
    verdicts = set()
    for name, data in samples.every(TRIALS).items():
        file = tmp_path / name
        file.write_bytes(data)
        if name != "csit":
            (found,) = judged(file)
            verdicts.add((found["verdict"], round(found["pdr_pps"]), found["ndr_pps"]))

    # 800 kpps get through; PDR at 0.5 % is read between 800 kpps (no loss) and 1 Mpps (20 %).
    assert len(verdicts) == 1
    verdict, pdr_pps, ndr_pps = verdicts.pop()
    assert verdict == "GOOD"
    assert 800_000 < pdr_pps < 810_000
    assert ndr_pps == 700_000


def test_numbers_are_numbers_and_what_is_unknown_is_null(tmp_path: Path) -> None:
    file = tmp_path / "lossless.csv"
    file.write_text("offered_pps,sent,received\n1000,10000,10000\n2000,20000,20000\n")

    (found,) = judged(file)

    assert found["verdict"] == "UNDECIDED"
    assert found["saturation_pps"] is None
    assert found["pdr_high_pps"] is None
    assert found["pdr_pps"] == 2000


def test_a_table_has_one_line_a_file(good: Path, bad: Path) -> None:
    result = invoke(good, bad)

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "2 curves, judged by the rule planewise: 1 GOOD, 1 BAD." in lines[3:]
    assert [line.split()[0] for line in lines[1:3]] == ["GOOD", "BAD"]
    assert ["good.txt" in line for line in lines[1:3]] == [True, False]


def test_a_single_file_is_told_in_plain_words(bad: Path) -> None:
    result = invoke(bad)

    assert "\nBAD: throughput beyond PDR still rises by " in result.stdout
    assert "Stability: " in result.stdout
    assert "PDR at 0.5 % loss: " in result.stdout
    assert "PASTRAMI's rule says BAD: not saturated: " in result.stdout
    assert "Δ_UCL95 there: " in result.stdout


def test_every_rule_is_named_in_its_answer(bad: Path) -> None:
    for rule in ("planewise", "as-written", "as-published", "as-coded-intent"):
        (found,) = judged(bad, "--rule", rule)
        assert (found["rule"], found["verdict"]) == (rule, "BAD")


def test_pdr_follows_the_loss_that_is_allowed(good: Path) -> None:
    strict, lax = (judged(good, "--plr", plr)[0]["pdr_pps"] for plr in ("0.001", "0.05"))

    assert strict < lax


def test_a_bad_file_does_not_keep_the_others_from_being_judged(good: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.txt"
    broken.write_text("[[300, 0], [3000, 3000, 0]]\n[[600, 0], [6000, \n")

    result = run(broken, good, "--json")

    assert result.returncode == BadInputError.exit_code == 2
    assert [one["file"] for one in json.loads(result.stdout)] == [str(good)]
    assert f"error: {broken}:2: not valid JSON" in result.stderr
    assert "Traceback" not in result.stderr


def test_require_good_is_content_with_good(good: Path) -> None:
    assert run(good, "--require-good").returncode == 0


def test_require_good_exits_with_three_for_any_other_verdict(good: Path, bad: Path) -> None:
    result = run(good, bad, "--require-good")

    assert result.returncode == VerdictNotGoodError.exit_code == 3
    assert "1 of 2 verdicts are not GOOD: bad.csv is BAD" in result.stderr


def test_without_require_good_a_bad_verdict_is_a_success(bad: Path) -> None:
    assert run(bad).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "there is nothing to judge"),
        (("nothing-here.txt",), "nothing-here.txt: cannot be read"),
        (("x", "--rule", "mine"), "--rule: mine is not a rule"),
        (("x", "--from", "ixia"), "--from: there is no format 'ixia'"),
        (("x", "--plr", "5"), "--plr: 5 is not a share"),
        (("--example", "unicorn"), "there is no synthetic system 'unicorn'"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_two(
    arguments: tuple[str, ...], sentence: str
) -> None:
    result = run(*arguments)

    assert result.returncode == 2
    assert sentence in result.stderr
    assert "hint: " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_search_without_trials_is_undecided_and_says_why(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(samples.nfvbench_without_iterations())

    (found,) = judged(file)

    assert found["verdict"] == "UNDECIDED"
    assert found["headroom_low"] is None
    assert (found["ndr_pps"], found["pdr_pps"]) == (800_000, 804_000)
    assert "kept no iterations" in found["warnings"][0]


def test_what_a_tool_reports_is_never_mixed_with_what_was_computed(tmp_path: Path) -> None:
    file = tmp_path / "nfvbench.json"
    lossy = [samples.Trial(load, load * 10, load * 9) for load in (400_000, 600_000, 800_000)]
    file.write_text(samples.nfvbench(lossy))

    (found,) = judged(file)

    assert (found["ndr_pps"], found["pdr_pps"]) == (None, None)
    assert found["reported"] == {"ndr_pps": 800_000, "pdr_pps": 804_000}


@pytest.mark.parametrize(
    "text",
    [
        "[[300000, 0], [3000000, 2900000, 0], [3000000, 2900000, 0]]",  # one load
        "[[300000, 0], [3000000, 3000000, 0]]\n[[600000, 0], [6000000, 3000000, 0]]",  # one run
        "[[300000, 0], [3000000, 2900000, 0]]",  # one trial
        "[[300000, 0], [3000000, 0, 0]]\n[[600000, 0], [6000000, 0, 0]]",  # nothing came through
        "[[1, 0], [1, 1, 0]]\n[[1e17, 0], [1e17, 1e17, 0]]",
        "[[1000, 0], [10000, 10000, 0]]\n[[2000, 0], [4000, 3000, 0]]",  # mixed durations
        "[[1000, 0], [10, 10, 0]]\n[[1000, 0], [10, 9, 0]]",  # the same load twice
    ],
)
def test_too_little_to_judge_is_never_called_good(text: str, tmp_path: Path) -> None:
    file = tmp_path / "thin.txt"
    file.write_text(text)

    (found,) = judged(file)

    assert found["verdict"] != "GOOD"
    assert found["warnings"] or found["next_loads_pps"]


def test_a_million_different_loads_are_grouped_and_judged(tmp_path: Path) -> None:
    file = tmp_path / "measured.csv"
    loads = (100_000 + i * 7919 % 500_000 for i in range(500_000))  # each once, mixed
    rows = (f"{load},{load},{min(load, 400_000)}" for load in loads)
    file.write_text("offered_pps,sent,received\n" + "\n".join(rows))

    (found,) = judged(file)

    assert found["loads"] < 500
    assert found["runs"] == 500_000
    assert any("different loads" in warning for warning in found["warnings"])
    assert found["verdict"] == "GOOD"
    assert found["pdr_pps"] == pytest.approx(400_000, rel=0.02)


def test_an_example_tells_the_truth_beside_the_verdict() -> None:
    result = invoke("--example", "gradual")

    assert result.exit_code == 0
    assert "\nBAD: " in result.stdout
    assert "The truth: BAD, headroom 58.8 %, NDR 1 Mpps, PDR 1.0" in result.stdout


def test_a_binary_search_leads_with_what_it_shows(tmp_path: Path) -> None:
    file = tmp_path / "search.csv"
    rows = ["8000,80000,50000", "4000,40000,40000", "6000,60000,50000", "5000,50000,49990"]
    file.write_text("offered_pps,sent,received\n" + "\n".join(rows))

    lines = invoke(file).stdout.splitlines()
    lines = lines[lines.index("NDR: 4 kpps.") - 1 :]

    assert lines[0].startswith("PDR at 0.5 % loss: ")
    assert lines[1] == "NDR: 4 kpps."
    assert lines[2].startswith("Headroom: 0 % ")
    assert lines[3] == "The generator limited 0 of 4 trials."
    assert lines[4].startswith(("GOOD", "UNDECIDED"))


def test_what_is_exported_is_judged_the_same(good: Path, bad: Path, tmp_path: Path) -> None:
    file = tmp_path / "exported.csv"
    originals = judged(good, bad, "--export", file)

    again = judged(file)

    differing = {"file", "curve"}
    for original, copy in zip(originals, again, strict=True):
        assert copy["file"] == str(file)
        assert {k: v for k, v in copy.items() if k not in differing} == {
            k: v for k, v in original.items() if k not in differing
        }


def test_figures_are_drawn_each_under_a_name_of_its_own(good: Path, tmp_path: Path) -> None:
    same_name = tmp_path / "elsewhere" / good.name
    same_name.parent.mkdir()
    same_name.write_bytes(good.read_bytes())
    figures = tmp_path / "figures"

    result = invoke(good, same_name, "--figures", figures)

    assert result.exit_code == 0
    assert {file.name for file in figures.iterdir()} == {
        f"{stem}.{ending}" for stem in ("good", "good-2") for ending in ("svg", "pdf", "png")
    }
    assert "PDR" in (figures / "good.svg").read_text()


def test_an_export_of_another_kind_is_refused(good: Path) -> None:
    result = run(good, "--export", "trials.xlsx")

    assert result.returncode == 2
    assert ".xlsx is not CSV" in result.stderr


TEXT = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.tuples(st.integers(1, 10**7), st.integers(1, 10**8), st.floats(0, 1)),
        min_size=1,
        max_size=30,
    ).map(
        lambda rows: (
            "offered_pps,sent,received\n"
            + "".join(f"{load},{sent},{round(sent * share)}\n" for load, sent, share in rows)
        ).encode()
    ),
)


@given(data=TEXT)
def test_whatever_stands_in_a_file_is_answered(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_bytes(data)

    result = invoke(file, "--json")

    assert result.exit_code in (0, 2), result.output
    assert result.exit_code == 2 or {*json.loads(result.stdout)[0]} >= KEYS


@pytest.mark.skipif(
    not (PASTRAMI / "labels.tsv").exists(),
    reason="the published data are not here: name their folder in PLANEWISE_PASTRAMI_DATA",
)
class TestPublishedData:
    def labels(self) -> tuple[list[Path], list[dict[str, str]]]:
        header, *rows = (
            line.split("\t") for line in (PASTRAMI / "labels.tsv").read_text().splitlines()
        )
        labels = [dict(zip(header, row, strict=True)) for row in rows]
        return [PASTRAMI / label["file"] for label in labels], labels

    @pytest.mark.parametrize("rule", ["as-published", "as-coded-intent", "as-written"])
    def test_every_published_label_is_reproduced(self, rule: str) -> None:
        files, labels = self.labels()

        found = judged(*files, "--rule", rule)

        assert [one["verdict"] for one in found] == [
            label[rule.replace("-", "_")] for label in labels
        ]
        for one, label in zip(found, labels, strict=True):
            assert one["format"] == "pastrami"
            assert one["loads"] == int(label["loads"])

    def test_every_file_is_recognised_and_read_without_a_note(self) -> None:
        files, _ = self.labels()

        for file in files:
            (trials,) = importers.read(file)
            assert trials.notes == ()
            assert trials.duration_s is not None
            assert len(set(trials.duration_s.tolist())) == 1


def test_judging_text_loads_none_of_the_slow_libraries(good: Path) -> None:
    script = (
        "import sys\n"
        "from planewise.cli import app\n"
        f"app(['judge', {str(good)!r}, '--json'], standalone_mode=False)\n"
        "slow = {'altair', 'polars', 'scipy.stats', 'vl_convert'}\n"
        "print(sorted(slow & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )

    assert result.stderr.strip() == "[]"


def test_a_ladder_that_is_too_short_is_counted_apart_from_what_runs_would_decide(
    tmp_path: Path,
) -> None:
    lossless = tmp_path / "lossless.csv"
    lossless.write_text("offered_pps,sent,received\n1000,10000,10000\n2000,20000,20000\n")
    result = invoke(lossless, lossless)
    assert "2 UNDECIDED (of these 2 LADDER TOO SHORT)." in result.stdout
    assert "UNDECIDED (LADDER TOO SHORT)" in result.stdout.splitlines()[1]


def test_the_json_has_headroom_pastramis_conditions_and_what_may_hide(good: Path) -> None:
    (found,) = judged(good)
    assert 0 <= found["headroom_low"] <= found["headroom_high"] < 0.1
    assert found["pastrami"] == "GOOD"
    assert found["pastrami_reason"].startswith("saturated from ")
    assert 0 < found["delta_ucl95"] < 0.1
    # 32 runs at each of the three loads that decide, none disturbed.
    assert (found["runs_that_decide"], found["disturbed_runs"]) == (96, 0)
    assert found["disturbed_at_most"] == pytest.approx(1 - 0.05 ** (1 / 96))
