"""`planewise advise`: planes for described workloads."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.advise.advice import advise, course, why_not
from planewise.advise.forecast import PlaneForecast, hold_to_rate
from planewise.advise.model.capacity import ChainWorkload, Pattern
from planewise.advise.model.profile import load_profile, shipped
from planewise.advise.toml_text import toml_text
from planewise.advise.workload import Application, Isolation, Workload
from planewise.errors import BadInputError
from tests.command import in_this_process
from tests.unit.made_up_chains import predicted_pps

XL710 = shipped("xl710")
NORTH_SOUTH = Workload(ChainWorkload("north-south", 4, 64))
EAST_WEST = Workload(ChainWorkload("east-west", 6, 64))


def test_the_publications_three_recommendations_are_reproduced() -> None:
    assert advise(XL710, NORTH_SOUTH).ranking[0].plane == "vf-passthrough"
    assert advise(XL710, EAST_WEST).ranking[0].plane == "vhost-user"
    sockets = replace(NORTH_SOUTH, application="kernel")
    assert advise(XL710, sockets).ranking[0].plane == "virtio-bridge"


@pytest.mark.parametrize(
    ("workload", "best", "refused", "said"),
    [
        (replace(NORTH_SOUTH, live_migration=True), "vhost-user", "vf-passthrough", "migrated"),
        (replace(NORTH_SOUTH, vfs=3), "vhost-user", "vf-passthrough", "4 guests need 4 VFs, and 3"),
        (replace(EAST_WEST, spare_cores=0), "vf-passthrough", "vhost-user", "none to spare"),
        (replace(EAST_WEST, cores=6), "vf-passthrough", "vhost-user", "need 7 cores, and"),
        (replace(EAST_WEST, isolation=("memory",)), "vf-passthrough", "vhost-user", "memory was"),
        (replace(NORTH_SOUTH, isolation=("filtering",)), "vhost-user", "vf-passthrough", "kernel"),
        (replace(NORTH_SOUTH, guests=65), "vhost-user", "vf-passthrough", "the NIC has 64"),
        (replace(NORTH_SOUTH, guests=9, vfs=8), "vhost-user", "vf-passthrough", "and 8 are free"),
    ],
)
def test_another_demand_has_another_answer_and_a_reason(
    workload: Workload, best: str, refused: str, said: str
) -> None:
    advice = advise(XL710, workload)
    assert advice.ranking[0].plane == best
    assert said in why_not(advice, refused)
    assert not next(one for one in advice.ranking if one.plane == refused).possible
    # Giving the demand up again is named as what would change the answer.
    assert any("pass" in one.text or "vhost" in one.text for one in advice.changes)


@pytest.mark.parametrize(
    ("workload", "before", "after"),
    [
        # Both carry it: the one with the lower round-trip time by the studies, not by the cores.
        (replace(EAST_WEST, rate_pps=5e6, latency_ns=1e5), "vf-passthrough", "vf-passthrough"),
        (Workload(ChainWorkload("north-south", 1, 64), "kernel"), "virtio-bridge", "virtio-bridge"),
        (
            Workload(ChainWorkload("north-south", 1, 64), "kernel", latency_ns=1e5),
            "vf-passthrough",
            "virtio-bridge",
        ),
        # What shares the polling core comes behind what does not.
        (replace(EAST_WEST, isolation=("load",)), "vf-passthrough", "vhost-user"),
    ],
)
def test_a_demand_that_rules_nothing_out_reranks(
    workload: Workload, before: str, after: str
) -> None:
    advice = advise(XL710, workload)
    assert advice.ranking[0].plane == before
    others = [one for one in advice.ranking if one.plane != "virtio-bridge"]
    assert all(one.possible for one in others)
    without = replace(workload, isolation=(), latency_ns=None)
    assert advise(XL710, without).ranking[0].plane == after


def test_no_latency_below_work_and_wires_is_promised() -> None:
    advice = advise(XL710, replace(EAST_WEST, latency_ns=700.0))
    slow = next(one for one in advice.ranking if one.plane == "vhost-user")
    assert not slow.possible
    assert slow.floor_ns is not None
    assert slow.floor_ns > 700
    assert "Work and wires alone" in why_not(advice, "vhost-user")
    nothing = advise(XL710, replace(EAST_WEST, latency_ns=10.0))
    assert not any(one.possible for one in nothing.ranking)
    assert nothing.sentence.startswith("No plane meets all")
    assert any("Without the latency goal" in one.text for one in nothing.changes)


def test_queues_that_stay_full_keep_no_latency_goal() -> None:
    advice = advise(XL710, replace(NORTH_SOUTH, rate_pps=20e6, latency_ns=1e6))
    refused = next(one for one in advice.ranking if one.plane == "vhost-user")
    assert refused.meets is False
    assert not refused.possible
    assert advice.ranking[0].plane == "vf-passthrough"


def test_what_another_number_of_functions_would_change_keeps_to_the_other_demands() -> None:
    many = Workload(ChainWorkload("east-west", 6, 256), guests=200, vfs=63, isolation=("memory",))
    advice = advise(XL710, many)
    assert advice.ranking[0].plane == "virtio-bridge"
    # With 200 guests and 63 VFs no number of functions makes VFs possible.
    assert not any("function" in one.text for one in advice.changes)


def test_a_rate_that_no_plane_carries_is_said() -> None:
    advice = advise(XL710, replace(NORTH_SOUTH, rate_pps=500e6))
    assert "No plane that is possible here carries the 500 Mpps" in advice.sentence
    assert "carries the" not in advise(XL710, replace(NORTH_SOUTH, rate_pps=1e6)).sentence


def test_demands_that_only_together_are_too_much_are_given_up_together() -> None:
    workload = replace(EAST_WEST, cores=6, isolation=("memory",))
    advice = advise(XL710, workload)
    assert advice.ranking[0].plane == "vf-passthrough"
    assert any(
        one.text.startswith("Without the limit of cores and isolation: vhost")
        for one in advice.changes
    )


def test_a_profile_that_was_never_measured_says_so_and_promises_no_rate() -> None:
    advice = advise(shipped("xl710-documents"), replace(NORTH_SOUTH, rate_pps=1e6))
    assert any("never compared with measurements" in one.text for one in advice.notes)
    assert all(one.meets is None for one in advice.ranking if one.plane != "virtio-bridge")
    assert advise(XL710, NORTH_SOUTH).notes == ()


@given(
    st.sampled_from(("north-south", "east-west")),
    st.integers(1, 64),
    st.sampled_from(("polling", "kernel")),
    st.none() | st.floats(1, 1e12),
    st.none() | st.floats(1, 1e12),
    st.booleans(),
    st.lists(st.sampled_from(("memory", "filtering", "load")), max_size=3),
    st.none() | st.integers(0, 200),
    st.none() | st.integers(0, 200),
    st.none() | st.integers(0, 3),
)
def test_every_workload_gets_an_answer_and_every_refusal_a_reason(
    pattern: Pattern,
    vnfs: int,
    application: Application,
    rate: float | None,
    latency: float | None,
    migration: bool,
    isolation: list[Isolation],
    vfs: int | None,
    cores: int | None,
    spare: int | None,
) -> None:
    workload = Workload(
        ChainWorkload(pattern, vnfs, 64), application, rate, latency, migration, tuple(isolation),
        None, vfs, cores, spare,
    )  # fmt: skip
    advice = advise(XL710, workload)
    assert {one.plane for one in advice.ranking} == {
        "vf-passthrough", "vhost-user", "virtio-bridge",
    }  # fmt: skip
    possible = [one.possible for one in advice.ranking]
    assert possible == sorted(possible, reverse=True)
    bare = advise(XL710, Workload(ChainWorkload(pattern, vnfs, 64), application))
    for one in advice.ranking:
        if not one.possible:
            before = next(other for other in bare.ranking if other.plane == one.plane)
            assert len(one.statements) > len(before.statements)
        assert why_not(advice, one.plane)


def test_where_the_answer_changes_with_the_chain_is_found_by_the_model() -> None:
    advice = advise(XL710, replace(EAST_WEST, chain=ChainWorkload("east-west", 2, 64)))
    assert advice.ranking[0].plane == "vf-passthrough"
    (longer,) = [one.text for one in advice.changes if "functions on" in one.text]
    place = int(longer.split()[1])
    assert (
        advise(XL710, Workload(ChainWorkload("east-west", place, 64))).ranking[0].plane
        == "vhost-user"
    )
    assert (
        advise(XL710, Workload(ChainWorkload("east-west", place - 1, 64))).ranking[0].plane
        != "vhost-user"
    )


def test_among_planes_that_carry_the_rate_the_one_that_takes_no_core_is_best() -> None:
    few = replace(NORTH_SOUTH, rate_pps=50e3)
    best = advise(XL710, few).ranking[0]
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
        (["--pattern", "east-west", "--vnfs", "0"], "64 network functions, not 0"),
        (["--pattern", "east-west", "--vnfs", "1000000"], "64 network functions, not 1e+06"),
        (["--pattern", "east-west", "--frame", "12"], "12 bytes"),
        (["--pattern", "east-west", "--rate", "-1"], "above zero"),
        (["--pattern", "east-west", "--vfs", "-1"], "vfs cannot be -1"),
        (["--pattern", "east-west", "--rate", "nan"], "above zero"),
        (["--pattern", "east-west", "--latency", "0"], "above zero"),
        (["--pattern", "east-west", "--isolation", "moon"], "no isolation moon"),
        (["--pattern", "east-west", "--cores", "-1"], "cores cannot be -1"),
        (["--pattern", "east-west", "--vnfs", "4", "--guests", "3"], "3 guests are fewer than 4"),
        ([], "needs a pattern"),
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
    arguments = ("advise", "--profile", "xl710", *options)
    code, _, err = in_this_process(capsys, monkeypatch, *arguments)
    assert code == 2
    assert said in err


def test_json_holds_the_ranking_and_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--pattern", "east-west", "--vnfs", "6", "--why-not", "vf-passthrough", "--json"]
    arguments = ("advise", "--profile", "xl710", *options)
    code, out, _ = in_this_process(capsys, monkeypatch, *arguments)
    assert not code
    answer = json.loads(out)
    assert answer["ranking"][0]["plane"] == "vhost-user"
    assert "NIC internal" in answer["why_not"]


def test_a_shipped_profile_is_shown_as_a_file_that_is_read_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def show(*words: str) -> str:
        arguments = ("advise", *words, "--show-profile")
        code, out, _ = in_this_process(capsys, monkeypatch, *arguments)
        assert not code
        return out

    assert show().split() == ["no-nic", "xl710", "xl710-documents"]
    copy = tmp_path / "mine.toml"
    copy.write_text(show("--profile", "xl710"))
    assert load_profile(copy) == XL710


def asked(
    options: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str, str]:
    return in_this_process(capsys, monkeypatch, "advise", *options)


def test_a_workload_is_read_from_a_file_and_options_override_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("pattern: east-west\nvnfs: 6\nisolation: [memory]\nlatency_us: 50\n")
    options = [str(file), "--profile", "xl710", "--json"]
    code, out, _ = asked(options, capsys, monkeypatch)
    assert code == 0
    answer = json.loads(out)
    assert answer["workload"]["latency_ns"] == 50_000
    assert answer["ranking"][0]["plane"] == "vf-passthrough"
    code, out, _ = asked([*options, "--vnfs", "3"], capsys, monkeypatch)
    assert json.loads(out)["workload"]["chain"]["vnfs"] == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a mapping"),
        ("pattern: [", "w.yaml:"),
        ("pattern: up", "no pattern up"),
        ("hops: 3", "no key hops"),
        ("pattern: east-west\nvnfs: many", "vnfs: "),
        ("a: &a [1]\nb: *c", "not YAML"),
        ("pattern: east-west\nrate_mpps: .nan", "above zero"),
        ("x" * 70_000, "too long"),
        ("\x00", "not YAML"),
    ],
)
def test_a_workload_that_is_none_is_one_sentence(
    text: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(text)
    code, _, err = asked([str(file), "--profile", "xl710"], capsys, monkeypatch)
    assert code == 2
    assert said in err


def test_an_advice_needs_a_host(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A run of `make quick` in the checkout would be evidence.
    monkeypatch.chdir(tmp_path)
    code, _, err = asked(["--pattern", "east-west"], capsys, monkeypatch)
    assert code == 2
    assert "xl710" in err


def test_a_profile_that_is_not_there_is_said() -> None:
    with pytest.raises(BadInputError, match="no host profile nothing"):
        shipped("nothing")


def page(
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    file = tmp_path / "advice.html"
    code, _, _ = asked([*options, "--page", str(file)], capsys, monkeypatch)
    assert not code
    return file.read_text()


def test_the_page_shows_the_answer_and_the_course_over_the_chain_and_loads_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = ["--pattern", "east-west", "--vnfs", "6"]
    text = page(["--profile", "xl710", *workload], tmp_path, capsys, monkeypatch)
    assert escape(advise(XL710, EAST_WEST).sentence) in text
    assert text.count("<svg") == 1
    for plane in ("vhost-user", "vf-passthrough", "virtio-bridge"):
        assert f'<th scope="row">{plane}</th>' in text
    assert not re.search(r'(?:src|href)="https?:', text)
    assert "<script" not in text


def test_the_page_of_an_emulated_host_draws_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "emulated.toml"
    profile.write_text(toml_text(XL710.model_copy(update={"emulated": True})))
    text = page(
        ["--profile", str(profile), "--pattern", "east-west"], tmp_path, capsys, monkeypatch
    )
    assert "of an emulated host" in text
    assert "<svg" not in text


def test_lines_of_a_chart_are_the_models() -> None:
    points = course(XL710, EAST_WEST)
    assert [one.chain.vnfs for one in points] == [*range(1, 9)] * 2
    assert points[5].pps == predicted_pps(XL710, "vf-passthrough", EAST_WEST.chain)
    assert course(XL710, replace(EAST_WEST, application="kernel")) == ()


RATES = st.floats(1e3, 1e8)


@given(
    pps=RATES,
    asked=RATES,
    ends=st.none() | st.tuples(st.floats(0.5, 1), st.floats(1, 2)),
    at_least=st.booleans(),
    measured=st.booleans(),
)
def test_a_rate_without_an_interval_and_a_bound_are_never_taken_as_exact(
    pps: float,
    asked: float,
    ends: tuple[float, float] | None,
    at_least: bool,
    measured: bool,
) -> None:
    low, high = (None, None) if ends is None else (pps * ends[0], pps * ends[1])
    one = PlaneForecast(
        "vf", True, None, pps, low, None if at_least else high, None, None,
        measured=measured, at_least=at_least,
    )  # fmt: skip
    hold_to_rate(one, replace(NORTH_SOUTH, rate_pps=asked), "measurement")
    meets = one.meets
    known_low = low if low is not None else pps if at_least else None
    assert (meets is True) == (known_low is not None and asked <= known_low)
    assert (meets is False) == (one.high_pps is not None and asked > one.high_pps)


def test_what_plain_virtio_carried_at_most_rules_a_rate_out_and_never_in() -> None:
    def virtio(rate_pps: float) -> bool | None:
        ranking = advise(XL710, replace(NORTH_SOUTH, rate_pps=rate_pps)).ranking
        return next(one.meets for one in ranking if one.plane == "virtio-bridge")

    assert virtio(1e3) is None
    assert virtio(500e6) is False
