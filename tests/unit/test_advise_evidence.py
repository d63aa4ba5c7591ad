"""Runs as evidence for an advice, and as what a profile is fitted to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planewise.advise.advice import advise, why_not
from planewise.advise.chain_rows import rows_of
from planewise.advise.evidence import Evidence, gather
from planewise.advise.model.capacity import ChainWorkload, predict, station_ns, visits
from planewise.advise.model.profile import load_profile, shipped
from planewise.advise.workload import Workload
from planewise.errors import BadInputError
from planewise.store.recommendation import RankedPlane
from planewise.store.rundir import RunReader
from tests.command import in_this_process
from tests.unit import made_up_chains, made_up_run
from tests.unit.made_up_chains import predicted_pps, trial
from tests.unit.made_up_run import MadeUp

XL710 = shipped("xl710")
ONE = ChainWorkload("north-south", 1, 64)
SMALL = MadeUp(
    planes=("vf-passthrough", "virtio-bridge"),
    hidden=("vf-passthrough",),
    blocks=3,
    packets=200,
    failed=0,
    drift=0.0,
    with_packets=False,
    with_recommendation=False,
)
TIMES = {
    "vf-passthrough": (3_000.0, 2_000.0, 3_000.0, 600_000.0),
    "virtio-bridge": (30_000.0, 2_000.0, 30_000.0, 300_000.0),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(made_up_run, "PLANES", {**made_up_run.PLANES, **TIMES})
    return made_up_run.write(tmp_path / "run", SMALL)


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(made_up_run, "PLANES", {**made_up_run.PLANES, **TIMES})
    return made_up_run.write(tmp_path / "emulated", replace(SMALL, emulated="CPUs by TCG"))


def evidence(path: Path) -> tuple[Evidence, ...]:
    reader = RunReader(path)
    return gather(str(path), reader.trials(), reader.info)


def latest(seen: Evidence) -> RankedPlane:
    return max(seen.tails, key=lambda tail: tail.value)


def test_a_measured_tail_above_the_goal_rules_a_plane_out_and_names_the_run(run: Path) -> None:
    seen = {one.plane: one for one in evidence(run)}
    fast, slow = (latest(seen[plane]) for plane in TIMES)
    between = (fast.value + slow.value) / 2
    asked = Workload(ONE, application="kernel", latency_ns=between)
    answer = advise(None, asked, tuple(seen.values()))
    assert answer.ranking[0].plane == "vf-passthrough"
    assert answer.ranking[0].meets_latency
    refused = next(one for one in answer.ranking if one.plane == "virtio-bridge")
    assert not refused.possible
    assert refused.rtt_p99_ns == slow.value
    said = refused.statements[-1]
    assert said.basis == "measurement"
    assert said.source == str(run)
    assert "the goal is" in said.text
    # What no run and no profile tells of comes behind what was measured.
    unknown = [one for one in answer.ranking if one.possible and not one.known]
    assert [one.plane for one in unknown] == ["vhost-user"]


def test_a_goal_that_was_missed_in_one_run_is_not_kept(run: Path) -> None:
    (kept,) = (one for one in evidence(run) if one.plane == "virtio-bridge")
    tail = latest(kept)
    worse = tail.model_copy(update={"value": 10 * tail.value})
    slow = replace(kept, run="slow", tails=(worse,))
    asked = Workload(ONE, application="kernel", latency_ns=2 * tail.value)
    for runs in ((kept, slow), (slow, kept)):
        answer = advise(None, asked, runs)
        refused = next(one for one in answer.ranking if one.plane == "virtio-bridge")
        assert not refused.possible
        assert refused.statements[-1].source == "slow"
    assert advise(None, asked, (kept,)).ranking[0].plane == "virtio-bridge"


def test_of_an_emulated_run_only_the_order_is_used(emulated: Path) -> None:
    asked = Workload(ONE, application="kernel", latency_ns=1_000.0)
    answer = advise(XL710, asked, evidence(emulated))
    # By literature alone virtio is the answer for sockets; by the run's order a VF.
    assert advise(XL710, Workload(ONE, application="kernel")).ranking[0].plane == "virtio-bridge"
    for one in answer.ranking:
        assert one.rtt_p99_ns is None
        assert not any(
            unit in said.text
            for said in one.statements
            if said.source.startswith(str(emulated))
            for unit in ("µs", "ms", "pps", "%")
        )
    vf = answer.ranking[0]
    assert vf.plane == "vf-passthrough"
    assert vf.place == 1
    assert any("the order alone counts" in said.source for said in vf.statements)
    assert any("CPUs by TCG" in note.text for note in answer.notes)


def test_measured_cpu_time_above_the_budget_rules_a_plane_out(run: Path) -> None:
    asked = Workload(ONE, application="kernel", rate_pps=50e6, spare_cores=0)
    answer = advise(None, asked, evidence(run))
    for plane in TIMES:
        refused = next(one for one in answer.ranking if one.plane == plane)
        assert not refused.possible
        assert any("kernel would take" in said.text for said in refused.statements)
        assert "kernel would take" in why_not(answer, plane)


def test_a_chain_that_was_measured_takes_the_predictions_place(tmp_path: Path) -> None:
    chain = ChainWorkload("east-west", 4, 64)
    rates = (20e6, 20.5e6, 21e6, 21e6, 21.5e6, 22e6)
    trials = [trial("vhost-user", chain, one, replicate=n) for n, one in enumerate(rates)]
    made_up_chains.write(tmp_path / "run", trials)
    answer = advise(XL710, Workload(chain, rate_pps=15e6), evidence(tmp_path / "run"))
    measured = next(one for one in answer.ranking if one.plane == "vhost-user")
    assert measured.measured
    assert measured.pps == pytest.approx(21e6)
    # Six replicates hold the median between them with 97 %.
    assert (measured.low_pps, measured.high_pps) == (20e6, 22e6)
    assert measured.bottleneck == "PMD core"
    assert measured.meets
    # Of another chain, frame size or number of functions it says nothing.
    other = advise(XL710, Workload(ChainWorkload("east-west", 5, 64)), evidence(tmp_path / "run"))
    assert not any(one.measured for one in other.ranking)


@pytest.mark.parametrize("pps", [1e6, 90e6])
def test_what_the_generator_held_back_is_a_lower_bound_only(tmp_path: Path, pps: float) -> None:
    chain = ChainWorkload("east-west", 4, 64)
    made_up_chains.write(tmp_path / "run", [trial("vhost-user", chain, pps, limit="generator")])
    answer = advise(XL710, Workload(chain, rate_pps=200e6), evidence(tmp_path / "run"))
    one = next(one for one in answer.ranking if one.plane == "vhost-user")
    predicted = predicted_pps(XL710, "vhost-user", chain)
    assert one.pps == pytest.approx(max(pps, predicted))
    assert any("at least" in said.text for said in one.statements)
    # It may carry more than the generator could send.
    assert one.meets is (None if pps > predicted else False)


def test_emulated_chains_give_no_figure(tmp_path: Path) -> None:
    chain = ChainWorkload("east-west", 4, 64)
    made_up_chains.write(
        tmp_path / "run", [trial("vhost-user", chain, 123e6)], emulated="CPUs by TCG"
    )
    answer = advise(XL710, Workload(chain), evidence(tmp_path / "run"))
    assert not any(one.measured for one in answer.ranking)
    assert not any("123" in said.text for one in answer.ranking for said in one.statements)


def test_for_sockets_planes_are_ranked_by_the_goodput_that_was_measured(tmp_path: Path) -> None:
    trials = [
        made_up_chains.tcp(plane, size, bps)
        for plane, factor in (("virtio-bridge", 1.0), ("vf-passthrough", 3.0))
        for size, bps in ((64, factor * 1e9), (1024, factor * 4e9))
    ]
    made_up_chains.write(tmp_path / "run", trials)
    asked = Workload(ONE, application="kernel")
    answer = advise(XL710, asked, evidence(tmp_path / "run"))
    assert advise(XL710, asked).ranking[0].plane == "virtio-bridge"
    assert answer.ranking[0].plane == "vf-passthrough"
    said = [one.text for one in answer.ranking[0].statements]
    assert "TCP by messages: 3 Gbit/s of 64 bytes, 12 Gbit/s of 1024 bytes." in said
    assert any("inside a virtual machine (kvm)" in note.text for note in answer.notes)


def test_a_run_without_planes_is_refused(tmp_path: Path) -> None:
    made_up_chains.write(tmp_path / "run", [])
    with pytest.raises(BadInputError, match="measured no plane"):
        evidence(tmp_path / "run")


def test_a_run_is_fitted_as_its_chains_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [
        *made_up_chains.predicted(XL710),
        trial("vhost-user", ChainWorkload("north-south", 8, 64), 1.0, limit="shared core"),
        trial("bridge", ChainWorkload("north-south", 2, 64), 5e5, limit="kernel"),
    ]
    made_up_chains.write(tmp_path / "run", trials)
    out = tmp_path / "host.toml"
    code, told, notes = in_this_process(
        capsys,
        monkeypatch,
        "calibrate",
        str(tmp_path / "run"),
        "-o",
        str(out),
        "--json",
    )
    assert code == 0
    answer = json.loads(told)
    assert answer["fitted"]["rows"] == 120
    assert answer["fitted"]["worst"] < 0.02
    assert "1 of 122 trials do not count: the limit was the shared core" in notes
    assert "the model does not know their planes" in notes
    fitted = load_profile(out)
    assert not fitted.emulated
    (core,) = (one for one in fitted.stations_of("vhost-user") if one.name == "switch core")
    (truth,) = (one for one in XL710.stations_of("vhost-user") if one.name == "switch core")
    chain = ChainWorkload("north-south", 8, 64)
    core_ns, truth_ns = (
        station_ns(one, visits("vhost-user", chain)[one.name]) for one in (core, truth)
    )
    assert core_ns == pytest.approx(truth_ns, rel=0.05)


def test_chains_of_another_run_are_held_against_what_the_fit_predicts_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The NFV brief's loop: a run is fitted, other chains are predicted and measured."""
    made_up_chains.write(tmp_path / "run", list(made_up_chains.predicted(XL710, ("vhost-user",))))
    unseen, seen = ChainWorkload("east-west", 2, 700), ChainWorkload("north-south", 2, 64)
    rates = {one: predicted_pps(XL710, "vhost-user", one) for one in (unseen, seen)}
    others = [
        trial("vhost-user", unseen, rates[unseen]),
        trial("vhost-user", seen, 1.5 * rates[seen]),
        trial("vhost-user", unseen, 1.0, limit="shared core", replicate=1),
    ]
    made_up_chains.write(tmp_path / "other", others, emulated="CPUs by TCG")
    words = ("calibrate", str(tmp_path / "run"), "--against", str(tmp_path / "other"))
    code, told, notes = in_this_process(capsys, monkeypatch, *words, "--json")
    assert code == 0, notes
    first, second = json.loads(told)["against"]
    assert (first["frame_bytes"], first["fitted"], first["inside"]) == (700, False, True)
    assert first["predicted_pps"] == pytest.approx(first["measured_pps"], rel=0.02)
    assert first["low_pps"] < first["predicted_pps"] < first["high_pps"]
    assert (second["frame_bytes"], second["fitted"], second["inside"]) == (64, True, False)
    notes = " ".join(notes.split())
    assert "other: 1 of 3 trials do not count" in notes
    assert "emulated: CPUs by TCG" in notes
    code, told, _ = in_this_process(capsys, monkeypatch, *words)
    assert "not fitted to: 1 chain, off by 0" in told
    assert "also fitted to: 1 chain, off by 33" in told
    assert "0 of 1 lie in their intervals" in told
    assert told.count("| vhost-user |") == 2


def test_what_is_fitted_to_an_emulated_run_is_emulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = list(made_up_chains.predicted(XL710, ("vhost-user",)))
    made_up_chains.write(tmp_path / "run", trials, emulated="CPUs by TCG")
    out = tmp_path / "host.toml"
    words = ("--profile", "xl710-documents")
    code, told, _ = in_this_process(
        capsys, monkeypatch, "calibrate", str(tmp_path / "run"), *words, "-o", str(out)
    )
    assert code == 0
    assert "CPUs by TCG" in told
    profile = load_profile(out)
    assert profile.emulated
    # No VF was measured: what the profile says of VFs stays what it was, and has no interval.
    assert profile.fitted_to("vf-passthrough") is None
    start = shipped("xl710-documents").stations_of("vf-passthrough")
    assert profile.stations_of("vf-passthrough") == start
    real = profile.model_copy(update={"emulated": False})
    unknown = predict(real, "vf-passthrough", ONE)
    assert unknown is not None
    assert unknown.interval is None
    assert unknown.bottleneck.basis != "measurement"


def test_a_run_that_tells_of_no_plane_is_one_sentence(tmp_path: Path) -> None:
    chain = ChainWorkload("north-south", 2, 64)
    held = [trial("vhost-user", chain, 1e6, limit="shared core", replicate=n) for n in range(3)]
    reader = made_up_chains.write(tmp_path / "held", held)
    with pytest.raises(BadInputError, match="3 of 3 trials do not count: the limit was the shared"):
        rows_of("held", reader.trials())
    other = RunReader(made_up_run.write(tmp_path / "other", SMALL_OTHER))
    with pytest.raises(BadInputError, match="no chain"):
        rows_of("other", other.trials())
    few = made_up_chains.write(tmp_path / "few", [trial("vhost-user", chain, 1e6)])
    assert len(rows_of("few", few.trials())[0]) == 1


def test_processes_and_containers_on_one_plane_are_no_replicates_of_one_another(
    tmp_path: Path,
) -> None:
    chain = ChainWorkload("north-south", 2, 64)
    processes = [trial("vhost-user", chain, 2e6, replicate=n) for n in range(3)]
    contained = [
        one.model_copy(
            update={"trial": f"{one.trial}c", "cell": {**one.cell, "guest": "container"}}
        )
        for one in (trial("vhost-user", chain, 1e6, replicate=n) for n in range(3))
    ]
    reader = made_up_chains.write(tmp_path / "both", [*processes, *contained])
    rows, left_out = rows_of("both", reader.trials())
    assert [row.pps for row in rows] == [pytest.approx(2e6)]
    assert any("3 of 6 trials" in why and "another kind" in why for why in left_out)
    [seen] = gather("both", list(reader.trials()), reader.info)
    assert [one.pps for one in seen.chains] == [pytest.approx(2e6)]


SMALL_OTHER = MadeUp(
    planes=("veth",),
    blocks=1,
    packets=10,
    failed=0,
    load_blocks=0,
    with_packets=False,
    with_recommendation=False,
)


def test_evidence_is_taken_from_the_command_line(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["advise", "--run", str(run), "--pattern", "north-south", "--application", "kernel"]
    code, told, _ = in_this_process(capsys, monkeypatch, *words)
    assert code == 0
    assert told.startswith("Use a VF passed through")
    assert f"[measurement; {run}]" in told
    code, told, _ = in_this_process(capsys, monkeypatch, *words, "--json")
    assert json.loads(told)["ranking"][0]["place"] == 1
