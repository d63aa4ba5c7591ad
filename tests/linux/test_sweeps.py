"""Sweeps of real systems: the namespace router (IPv6) and planes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planewise.store.rundir import RunReader
from tests.linux.test_runs import nothing_is_left, run

WORDS = {"GOOD", "BAD", "UNDECIDED"}


def test_a_sweep_until_the_verdict_on_the_ipv6_router(tmp_path: Path) -> None:
    out = tmp_path / "run"
    finished = run(
        *("sweep", "--router", "--ip", "6", "--until-verdict", "--runs", "4", "--steps", "6"),
        *("--duration", "0.1", "--out", out, "--json"),
    )
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert answer["verdict"] in WORDS
    assert answer["reason"]
    assert 0 <= answer["probability_good"] <= 1
    trials = RunReader(out).trials()
    assert len(trials) == answer["trials"]
    # The ladder may be made longer where it ends too early; each load's runs stay bounded.
    loads = {trial.load.intended_pps for trial in trials if trial.load}
    assert len(loads) >= 6
    for trial in trials:
        assert trial.cell["plane"] == "router"
        assert trial.counts is not None
        assert trial.counts.sent == trial.counts.received + trial.counts.lost
    assert "<html" in (out / "report.html").read_text()
    judged = run("judge", out, "--json")
    assert judged.returncode == 0, judged.stderr
    assert json.loads(judged.stdout)[0]["verdict"] == answer["verdict"]
    assert nothing_is_left()


def test_a_sweep_with_require_good_exits_3_when_it_is_not_good(tmp_path: Path) -> None:
    finished = run(
        *("sweep", "--plane", "veth", "--loads", "1000,2000,3000", "--runs", "2"),
        *("--duration", "0.05", "--out", tmp_path / "run", "--require-good"),
    )
    assert finished.returncode == 3, finished.stderr
    assert "UNDECIDED" in finished.stderr
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--plane", "nope"), "no plane called 'nope'"),
        ((), "give one of --plane, --router, or --tx with --rx"),
        (("--plane", "veth", "--router"), "give one of"),
        (("--tx", "a"), "--tx, --rx and --dst go together"),
        (("--router", "--ip", "5"), "no IP version 5"),
        (("--router", "--loads", "10k,fast"), "`fast` is no rate"),
        (("--router", "--loads", "10k"), "at least two loads"),
        (("--router", "--duration", "0"), "no duration"),
        (("--router", "--runs", "0"), "too few"),
        (("--router", "--size", "20"), "frame of 20 bytes is not possible"),
        (("--tx", "no-such-if", "--rx", "no-such-if", "--dst", "198.18.0.1"), "no-such-if"),
    ],
)
def test_bad_flags_of_a_sweep_get_one_clear_sentence(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    finished = run("sweep", *arguments, "--out", tmp_path / "run")
    assert finished.returncode in (1, 2)
    assert words in finished.stderr.replace("\n", " ")
    assert "Traceback" not in finished.stderr
    assert nothing_is_left()
