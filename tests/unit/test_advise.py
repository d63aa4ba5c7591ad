"""`planewise advise`: planes for described workloads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from planewise import cli
from planewise.advise.model import Chain, predict, profile_text, shipped
from planewise.advise.workload import Workload, advise, course, why_not
from planewise.errors import BadInputError

XL710 = shipped("xl710")
NORTH_SOUTH = Workload(Chain("north-south", 4, 64))
EAST_WEST = Workload(Chain("east-west", 6, 64))


def test_the_publications_three_recommendations_are_reproduced() -> None:
    assert advise(XL710, NORTH_SOUTH).best.plane == "vf-passthrough"
    assert advise(XL710, EAST_WEST).best.plane == "vhost-user"
    sockets = replace(NORTH_SOUTH, application="kernel")
    assert advise(XL710, sockets).best.plane == "virtio-bridge"


@pytest.mark.parametrize(
    ("workload", "best", "refused", "said"),
    [
        (replace(NORTH_SOUTH, live_migration=True), "vhost-user", "vf-passthrough", "migrated"),
        (replace(NORTH_SOUTH, vfs=3), "vhost-user", "vf-passthrough", "4 guests need 4 VFs, and 3"),
        (replace(EAST_WEST, spare_cores=0), "vf-passthrough", "vhost-user", "none is to spare"),
    ],
)
def test_another_demand_has_another_answer_and_a_reason(
    workload: Workload, best: str, refused: str, said: str
) -> None:
    advice = advise(XL710, workload)
    assert advice.best.plane == best
    assert said in why_not(advice, refused)
    assert not next(one for one in advice.ranking if one.plane == refused).possible
    # Giving the demand up again is named as what would change the answer.
    assert any("pass" in one.text or "vhost" in one.text for one in advice.changes)


def test_where_the_answer_changes_with_the_chain_is_found_by_the_model() -> None:
    advice = advise(XL710, replace(EAST_WEST, chain=Chain("east-west", 2, 64)))
    assert advice.best.plane == "vf-passthrough"
    (longer,) = [one.text for one in advice.changes if "functions on" in one.text]
    place = int(longer.split()[1])
    assert advise(XL710, Workload(Chain("east-west", place, 64))).best.plane == "vhost-user"
    assert advise(XL710, Workload(Chain("east-west", place - 1, 64))).best.plane != "vhost-user"


def test_among_planes_that_carry_the_rate_the_one_that_takes_no_core_is_best() -> None:
    few = replace(NORTH_SOUTH, rate_pps=50e3)
    best = advise(XL710, few).best
    assert best.meets
    assert best.host_cores == 0


def test_figures_of_an_emulated_host_are_never_given() -> None:
    real = advise(XL710, NORTH_SOUTH)
    emulated = advise(XL710.model_copy(update={"emulated": True}), replace(NORTH_SOUTH))
    assert [one.plane for one in emulated.ranking] == [one.plane for one in real.ranking]
    for one in emulated.ranking:
        assert (one.pps, one.low_pps, one.high_pps, one.gbps, one.meets) == (None,) * 5
        # What is known of virtio from a real host is in no ratio to them.
        assert (one.share is None) == (one.plane == "virtio-bridge")
    assert "pps" not in emulated.sentence
    vf = emulated.ranking[0]
    assert not any("pps" in statement.text for statement in vf.statements)


def test_every_statement_says_what_it_rests_on() -> None:
    for workload in (NORTH_SOUTH, EAST_WEST, replace(NORTH_SOUTH, application="kernel")):
        advice = advise(XL710, workload)
        for one in advice.ranking:
            assert one.statements
            assert all(statement.basis for statement in one.statements)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pattern", "up"], "no pattern up"),
        (["--pattern", "east-west", "--vnfs", "0"], "chain of 0"),
        (["--pattern", "east-west", "--vnfs", "1000000"], "chain of 1000000"),
        (["--pattern", "east-west", "--frame", "12"], "12 bytes"),
        (["--pattern", "east-west", "--rate", "-1"], "above zero"),
        (["--pattern", "east-west", "--vfs", "-1"], "-1 VFs"),
        (["--pattern", "east-west", "--application", "none"], "no application none"),
        (["--pattern", "east-west", "--why-not", "moon"], "moon was not weighed"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["planewise", "advise", "--profile", "xl710", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_json_holds_the_ranking_and_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--pattern", "east-west", "--vnfs", "6", "--why-not", "vf-passthrough", "--json"]
    monkeypatch.setattr("sys.argv", ["planewise", "advise", "--profile", "xl710", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    answer = json.loads(capsys.readouterr().out)
    assert answer["ranking"][0]["plane"] == "vhost-user"
    assert "NIC internal" in answer["why_not"]


def test_a_profile_that_is_not_there_is_said() -> None:
    with pytest.raises(BadInputError, match="no host profile nothing"):
        shipped("nothing")


def page(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = tmp_path / "advice.html"
    monkeypatch.setattr("sys.argv", ["planewise", "advise", *options, "--page", str(file)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    return file.read_text()


def test_the_page_shows_the_answer_and_the_course_over_the_chain_and_loads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = ["--pattern", "east-west", "--vnfs", "6"]
    text = page(["--profile", "xl710", *workload], tmp_path, monkeypatch)
    assert escape(advise(XL710, EAST_WEST).sentence) in text
    assert text.count("<svg") == 2
    for plane in ("vhost-user", "vf-passthrough", "virtio-bridge"):
        assert f'<th scope="row">{plane}</th>' in text
    assert not re.search(r'(?:src|href)="https?:', text)
    assert "<script" not in text


def test_the_page_of_an_emulated_host_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "emulated.toml"
    profile.write_text(profile_text(XL710.model_copy(update={"emulated": True})))
    text = page(["--profile", str(profile), "--pattern", "east-west"], tmp_path, monkeypatch)
    assert "of an emulated host" in text
    assert "<svg" not in text


def test_lines_of_a_chart_are_the_models() -> None:
    points = course(XL710, EAST_WEST)
    assert [one.chain.vnfs for one in points] == [*range(1, 9)] * 2
    assert points[5].pps == predict(XL710, "vf-passthrough", EAST_WEST.chain).pps
    assert course(XL710, replace(EAST_WEST, application="kernel")) == ()
