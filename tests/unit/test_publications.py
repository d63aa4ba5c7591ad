"""What the publications claim, asked of runs and data whose answers are known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Literal

import pytest

from planewise.errors import BadInputError
from planewise.publications import figures, page
from planewise.publications.answers import Answer, Word, answers, best, evidence_of, load, merged
from planewise.publications.claims import Check, Claim, publications
from planewise.publications.evidence import AskedRun, PublishedTables, Recordings, read_run
from planewise.report import theme
from planewise.report.figure import Missing
from planewise.store.models import (
    AllocResult,
    ChainResult,
    CoreUse,
    Counts,
    DaemonUse,
    Latency,
    Level,
    SwitchPhase,
    TrialRecord,
)
from tests.command import invoked
from tests.documents import ROOT
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp
from tests.unit.published_data import FOLDER, labels, needs_published_data, nfv_brief
from tests.unit.vega_schema import fits_schema

CLAIMS = {claim.id: claim for one in publications() for claim in one.claims}
Truth = Literal["true", "false", "undecidable"]
BLOCKS = 8


def latency(ns: float) -> Latency:
    """A distribution around a median; its spread is a tenth of it."""
    return Latency(
        count=100, min_ns=int(ns / 2), mean_ns=ns, p50_ns=ns, p90_ns=1.1 * ns, p99_ns=1.3 * ns,
        p999_ns=1.4 * ns, max_ns=int(2 * ns),
    )  # fmt: skip


def written(path: Path, trials: list[TrialRecord], emulated: str = "") -> AskedRun:
    path.mkdir(parents=True)
    info = made_up_run.info("planted", emulated).model_copy(update={"run": path.name})
    (path / "run.json").write_text(info.model_dump_json())
    lines = [trial.model_dump_json(exclude_defaults=True) for trial in trials]
    (path / "trials.jsonl").write_text("\n".join(lines) + "\n")
    return read_run(path)


def planted(
    path: Path,
    a: Mapping[str, Level],
    b: Mapping[str, Level],
    ratios: list[float],
    emulated: str = "",
) -> AskedRun:
    """A run in which `a` takes so many times as long as `b`, a ratio a block."""
    trials = [
        made_up_run.trial(
            f"{block}-{name}", "rtt", cell, block, order=2 * block,
            counts=Counts(sent=100, received=100, lost=0), latency={"rtt_user": latency(ns)},
        )
        for block, ratio in enumerate(ratios)
        for name, cell, ns in (("a", a, 1e5 * ratio), ("b", b, 1e5))
    ]  # fmt: skip
    return written(path, trials, emulated)


def daemons(path: Path, shares: list[float]) -> AskedRun:
    """A run whose daemon takes these shares of a CPU, a trial a block."""
    trials = [
        made_up_run.trial(
            str(block), "alloc", {"plane": "bridge", "policy": "switch"}, block,
            alloc=AllocResult(
                vfs=1, window_s=1, guests={}, daemon=DaemonUse(cpu=share, memory_bytes=1)
            ),
        )
        for block, share in enumerate(shares)
    ]  # fmt: skip
    return written(path, trials)


VM = {"guest": "vm", "load_type": "none"}
IN = {
    "guest": "container",
    "background_plane": "bridge",
    "load_type": "network",
    "load_location": "sender",
}
PAIRS: Mapping[str, tuple[dict[str, Level], dict[str, Level]]] = {
    "K1": ({**VM, "plane": "virtio-bridge"}, {**VM, "plane": "e1000-bridge"}),
    "K2": (
        {"guest": "vm", "plane": "virtio-bridge", "background_guests": 0, "load_type": "cpu"},
        {"guest": "vm", "plane": "virtio-bridge", "background_guests": 8, "load_type": "cpu"},
    ),
    "K6": ({**VM, "frequency_pps": 100.0}, {**VM, "frequency_pps": 900.0}),
    "K9": ({**VM, "plane": "macvtap-vf"}, {**VM, "plane": "virtio-bridge"}),
    "K11": ({**VM, "plane": "vf-passthrough"}, {**VM, "plane": "macvtap-vf"}),
    "D1": ({**IN, "plane": "vf"}, {**IN, "plane": "bridge"}),
    "D3": ({**IN, "plane": "vf"}, {**IN, "plane": "bridge"}),
    "D4": ({**IN, "plane": "vf"}, {**IN, "plane": "vf", "load_location": "responder"}),
    "F4": (
        {"policy": "activity", "frequency_pps": 40.0},
        {"policy": "none", "frequency_pps": 40.0},
    ),
}


def ratios(claim: Claim, truth: Truth) -> list[float]:
    """Of the first level's times to the second's, for a claim about lower times."""
    wobble = [1.0, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998, 1.0]
    if claim.check.same is not None:
        centres = {"true": (1.0, 1.0), "false": (1.6, 1.6), "undecidable": (1.4, 0.7)}
    elif claim.check.times > 1:
        centres = {"true": (0.05, 0.05), "false": (0.5, 0.5), "undecidable": (0.02, 0.3)}
    else:
        centres = {"true": (0.6, 0.6), "false": (1.6, 1.6), "undecidable": (1.5, 0.6)}
    return [centres[truth][block % 2] * wobble[block] for block in range(BLOCKS)]


def planted_truths() -> Iterator[tuple[str, Truth]]:
    yield from product((*PAIRS, "F8"), ("true", "false", "undecidable"))


WORD: Mapping[Truth, Word] = {"true": "held", "false": "did not hold", "undecidable": "not decided"}


@pytest.mark.parametrize(("name", "truth"), list(planted_truths()))
def test_a_planted_truth_is_found(name: str, truth: Truth, tmp_path: Path) -> None:
    claim = CLAIMS[name]
    if name == "F8":
        shares = {"true": [0.002], "false": [0.05], "undecidable": [0.002, 0.05]}[truth]
        run = daemons(tmp_path / "run", (shares * BLOCKS)[:BLOCKS])
    else:
        run = planted(tmp_path / "run", *PAIRS[name], ratios(claim, truth))
    (answer,) = answers(claim, [run])
    assert answer.word == WORD[truth], answer.measured


@pytest.mark.parametrize(("of_vf", "word"), [([1.0], "held"), ([1.0, 1.0, 1.0], "did not hold")])
def test_cores_of_chains_are_summed_over_functions_and_switch(
    of_vf: list[float], word: Word, tmp_path: Path
) -> None:
    chains = {
        plane: ChainResult(
            offered_pps=1, delivered_pps=1, tx_pps=1, tx_bps=1, frame_bytes=64, vnfs=(),
            cores=(
                CoreUse(cpu=9, tasks=("generator",), used=1.0),
                *(CoreUse(cpu=cpu, tasks=("vnf1",), used=used) for cpu, used in enumerate(cores)),
            ),
            limit="generator", why="",
        )
        for plane, cores in (("vf", of_vf), ("vhost-user", [1.0, 0.9]))
    }  # fmt: skip
    trials = [
        made_up_run.trial(
            f"{block}-{plane}", "chain", {"plane": plane, "path": "north-south"}, block, chain=chain
        )
        for block in range(BLOCKS)
        for plane, chain in chains.items()
    ]
    (answer,) = answers(CLAIMS["N20"], [written(tmp_path / "run", trials)])
    assert answer.word == word, answer.measured


def only(claim: Claim, *runs: AskedRun) -> Answer:
    return best(claim, answers(claim, runs))


def test_thirty_truths_are_planted() -> None:
    assert len(list(planted_truths())) == 30


def test_an_answer_has_its_interval_and_its_run(tmp_path: Path) -> None:
    claim = CLAIMS["K1"]
    answer = only(claim, planted(tmp_path / "one", *PAIRS["K1"], ratios(claim, "true")))
    assert "virtio-bridge is better than e1000-bridge" in answer.measured
    assert "95 %" in answer.measured
    assert answer.source == "one"


def test_too_few_blocks_decide_nothing(tmp_path: Path) -> None:
    claim = CLAIMS["K2"]
    answer = only(claim, planted(tmp_path / "one", *PAIRS["K2"], ratios(claim, "true")[:3]))
    assert answer.word == "not decided"
    assert "in all 3 blocks; 6 blocks are needed to put a confidence on it" in answer.measured


def test_a_claim_without_its_cells_names_the_hardware_or_the_run(tmp_path: Path) -> None:
    run = planted(tmp_path / "one", *PAIRS["K1"], ratios(CLAIMS["K1"], "true"))
    assert only(CLAIMS["K11"], run) == Answer(
        "K11", "needs hardware", "a NIC with SR-IOV, an IOMMU and servers with KVM."
    )
    answer = only(CLAIMS["K2"], run)
    assert (answer.word, answer.source) == ("not decided", "")
    assert answer.measured == (
        "No run has what it compares: "
        "`planewise run experiments/publications/kvm-rtt.yaml --out RUN`."
    )


def test_emulated_hosts_answer_only_what_emulation_does_not_decide(tmp_path: Path) -> None:
    for name, word in (("D1", "held"), ("D3", "needs hardware"), ("K1", "held")):
        claim = CLAIMS[name]
        emulated = planted(tmp_path / name, *PAIRS[name], ratios(claim, "true"), "TCG")
        answer = only(claim, emulated)
        assert answer.word == word
        if word == "held":
            assert page.measured(claim, answer).endswith(f"Emulated hosts: {claim.trust}.")


def test_emulation_that_favours_the_other_side_can_only_bear_a_claim_out(tmp_path: Path) -> None:
    claim = CLAIMS["K1"]
    emulated = planted(tmp_path / "here", *PAIRS["K1"], ratios(claim, "false"), "TCG")
    answer = only(claim, emulated)
    assert (answer.word, answer.source) == ("needs hardware", "here")
    assert "virtio-bridge is worse than e1000-bridge" in answer.measured
    assert "Emulation favours this outcome. Needed: servers with KVM" in answer.measured
    real = planted(tmp_path / "servers", *PAIRS["K1"], ratios(claim, "false"))
    assert only(claim, emulated, real).word == "did not hold"


def test_a_run_that_does_not_decide_is_shown_beside_what_would(tmp_path: Path) -> None:
    claim = CLAIMS["D1"]
    run = planted(tmp_path / "lab", *PAIRS["D1"], ratios(claim, "undecidable"), "TCG")
    answer = only(claim, run)
    assert (answer.word, answer.source) == ("needs hardware", "lab")
    assert answer.measured.startswith("vf and bridge are not distinguishable")
    assert answer.measured.endswith("Needed: a NIC with SR-IOV.")


def test_hardware_is_better_evidence_than_emulation(tmp_path: Path) -> None:
    claim = CLAIMS["D1"]
    emulated = planted(tmp_path / "lab", *PAIRS["D1"], ratios(claim, "false"), "TCG")
    real = planted(tmp_path / "servers", *PAIRS["D1"], ratios(claim, "true"))
    answer = only(claim, real, emulated)
    assert (answer.word, answer.source) == ("held", "servers")


def test_runs_that_contradict_each_other_decide_nothing_and_are_named(tmp_path: Path) -> None:
    claim = CLAIMS["D1"]
    one = planted(tmp_path / "one", *PAIRS["D1"], ratios(claim, "true"))
    other = planted(tmp_path / "other", *PAIRS["D1"], ratios(claim, "false"))
    answer = only(claim, one, other)
    assert answer.word == "not decided"
    assert answer.measured == (
        "The runs contradict each other: held in one and did not hold in other."
    )


def test_a_claim_about_other_guests_is_not_asked(tmp_path: Path) -> None:
    run = planted(tmp_path / "one", *PAIRS["K1"], ratios(CLAIMS["K1"], "true"))
    assert answers(CLAIMS["D1"], [run]) == []


def test_kept_answers_stay_until_their_run_or_their_question_changes(tmp_path: Path) -> None:
    claim = CLAIMS["D1"]
    run = planted(tmp_path / "one", *PAIRS["D1"], ratios(claim, "true"))
    pages = tmp_path / "pages"
    invoked("publications", run.path, "-o", pages, raising=True)
    kept = load(pages)
    assert best(claim, kept).word == "held"
    other = planted(tmp_path / "again" / "one", *PAIRS["D1"], ratios(claim, "false"))
    assert best(claim, merged(kept, answers(claim, [other]))).word == "did not hold"
    asked = claim.model_copy(update={"check": claim.check.model_copy(update={"times": 3.0})})
    assert best(asked, kept).word == "needs hardware"
    (pages / "answers.json").write_text("[{}]")
    with pytest.raises(BadInputError, match="kept answers cannot be read"):
        load(pages)


def test_bad_evidence_is_one_sentence(tmp_path: Path) -> None:
    for words, said in (
        ([], "no run to check"),
        (["--recordings", str(tmp_path)], "no recorded experiments"),
        (["--tables", str(tmp_path)], "no published table"),
        ([str(tmp_path / "none")], "run"),
    ):
        with pytest.raises(BadInputError, match=said):
            invoked("publications", *words, raising=True)
    assert answers(CLAIMS["N1"], [PublishedTables(tmp_path)]) == []


def test_every_claim_has_its_place_one_question_and_a_way_to_its_answer() -> None:
    counted = {one.key[0]: len(one.claims) for one in publications()}
    assert counted["k"] >= 14
    assert min(counted["d"], counted["f"], counted["n"]) >= 9
    assert counted["p"] >= 8
    assert len(CLAIMS) == sum(counted.values()) >= 49
    for claim in CLAIMS.values():
        assert claim.section
        assert claim.published
        assert claim.design or claim.needs or claim.id[0] in "NP"
        if claim.design:
            assert (ROOT / claim.design.split()[0]).exists()
            assert claim.trust or "--lab" not in claim.design
    with pytest.raises(ValueError, match="better and than, or same, or at_least"):
        Check(metric="rtt")


def test_the_plan_names_design_cells_blocks_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    said = invoked("publications", "--plan", raising=True).stdout
    assert "K11  needs a NIC with SR-IOV" in said
    assert "F9  planewise run experiments/publications/flexvf-switch.yaml --lab: 1 cell, 8" in said
    assert all(f"{name}  " in said for name in CLAIMS)


def test_the_page_has_a_row_a_claim_the_decided_ones_first(tmp_path: Path) -> None:
    run = planted(tmp_path / "one", *PAIRS["K2"], ratios(CLAIMS["K2"], "true"))
    publication = publications()[0]
    claims = tuple((one, only(one, run)) for one in publication.claims)
    text = page.text(page.PublicationAnswers(publication, claims, (run,)), [])
    rows = [line for line in text.splitlines() if line.startswith("| K")]
    assert len(rows) == len(publication.claims)
    assert rows[0].startswith("| K2 | RTT rises with the number of VMs that burn CPU | 4.1, RTT | ")
    assert "| held | " in rows[0]
    assert "Run one." in rows[0]
    assert "planewise run experiments/publications/kvm-rtt.yaml --out RUN" in text


def test_the_committed_pages_are_what_their_answers_say(tmp_path: Path) -> None:
    """Written anew without any run, as after a change of wording: figures and titles stay."""
    results = ROOT / "docs" / "results"
    kept = load(results)
    for one in publications():
        claims = tuple((claim, best(claim, kept)) for claim in one.claims)
        folder = shutil.copytree(results / one.key, tmp_path / one.key)
        page.write(page.PublicationAnswers(one, claims), tmp_path)
        committed = results / one.key / "index.md"
        assert (folder / "index.md").read_text() == committed.read_text(), "make publications"
        assert len(list(folder.glob("*.svg"))) <= page.MOST_FIGURES


def measured(tmp_path: Path) -> AskedRun:
    """Twelve blocks in which macvlan is faster than the bridge."""
    wanted = MadeUp(
        planes=("macvlan", "bridge"), guests=(0,), load_types=("none",), blocks=12,
        frequencies_pps=(1000.0, 20000.0), load_blocks=0, packets=60, failed=0,
        with_recommendation=False,
    )  # fmt: skip
    return read_run(made_up_run.write(tmp_path / "one", wanted))


def test_the_command_writes_a_folder_each_and_a_front_page(tmp_path: Path) -> None:
    out = tmp_path / "pages"
    run = planted(tmp_path / "one", *PAIRS["K2"], ratios(CLAIMS["K2"], "true"))
    done = invoked("publications", run.path, "-o", out, raising=True)
    assert "K2  RTT rises with the number of VMs that burn CPU: held." in done.stdout
    assert "On servers: planewise run experiments/kvm-rtt.yaml" in done.stdout
    front = (out / "index.md").read_text()
    assert f"{len(CLAIMS)} claims, 1 of them answered" in front
    for one in publications():
        assert (out / one.key / "index.md").exists()
        assert f"({one.key}/index.md)" in front
    drawn = sorted((out / "kvm-rtt").glob("*.svg"))
    assert drawn
    text = (out / "kvm-rtt" / "index.md").read_text()
    assert all(f'<img src="{figure.name}"' in text for figure in drawn)
    again = invoked(
        "publications", measured(tmp_path / "b").path, "-o", out, "--json", raising=True
    )
    said = json.loads(again.stdout[: again.stdout.rindex("]") + 1])
    assert next(one["word"] for one in said if one["claim"] == "K2") == "held", "it is kept"


def test_what_a_plane_saves_is_drawn_by_packet_rate_with_its_intervals(tmp_path: Path) -> None:
    run = measured(tmp_path)
    (drawn,) = figures.of_boost(run)
    assert drawn.title == "Round-trip time that macvlan saves over bridge, by packet rate"
    assert fits_schema(drawn.whole())
    assert len(drawn.table.rows) == 2
    assert not isinstance(drawn.table.rows[0][3], Missing)
    assert theme.interval("1 %", "2 %")
    assert answers(CLAIMS["F1"], [run]) == [], "macvlan is no VF"


def test_a_router_of_ours_is_on_pastramis_page_with_its_curve(
    tmp_path: Path,
) -> None:
    wanted = MadeUp(planes=("veth",), load_types=("none",), blocks=0, generator_limited=False)
    run = made_up_run.write(tmp_path / "one", wanted)
    lines = (run / "trials.jsonl").read_text().replace('"plane":"veth"', '"plane":"router"')
    (run / "trials.jsonl").write_text(lines)
    out = tmp_path / "pages"
    invoked("publications", run, "-o", out, raising=True)
    text = (out / "pastrami" / "index.md").read_text()
    (curve,) = (out / "pastrami").glob("*.svg")
    assert f'<img src="{curve.name}" alt="' in text


def test_the_published_tables_answer_publication_n_in_all_their_settings() -> None:
    tables = PublishedTables(nfv_brief())
    publication = next(one for one in publications() if one.key == "nfv-brief")
    assert evidence_of(publications()[0], [tables]) == []
    words = {}
    for claim in publication.claims:
        found = answers(claim, evidence_of(publication, [tables]))
        words[claim.id] = best(claim, found).word
    assert words.pop("N17") == "did not hold", "at 512 bytes virtio carries half of a VF"
    assert words.pop("N20") == "needs hardware"
    assert set(words.values()) == {"held"}
    (answer,) = answers(CLAIMS["N1"], [tables])
    assert answer.measured.endswith("vf against vhost-user: 1.07 to 3.12 times in 48 settings.")
    for figure in figures.of_tables(tables):
        assert fits_schema(figure.whole())


@needs_published_data
def test_the_recordings_answer_publication_p() -> None:
    good = sum(row["as_written"] == "GOOD" for row in labels())
    (answer,) = answers(CLAIMS["P1"], [Recordings(FOLDER)])
    assert answer.word == "held"
    assert f"{100 * good / len(labels()):.1f} %" in answer.measured
    for name, counted in (("P7", "In 2 of 7 configurations"), ("P9", "In 1 of 5 configurations")):
        (answer,) = answers(CLAIMS[name], [Recordings(FOLDER)])
        assert answer.word == "did not hold"
        assert counted in answer.measured


@pytest.mark.parametrize(("sent", "word"), [(300, "held"), (40, "not decided")])
def test_no_lost_request_counts_for_as_much_as_requests_were_sent(
    sent: int, word: Word, tmp_path: Path
) -> None:
    phase = SwitchPhase(
        name="before", begin_s=0, end_s=1, counts=Counts(sent=sent, received=sent, lost=0)
    )
    trials = [
        made_up_run.trial(
            str(block), "alloc", {"plane": "bridge", "policy": "switch"}, block,
            alloc=AllocResult(
                vfs=1, window_s=1, guests={}, daemon=DaemonUse(cpu=0, memory_bytes=1),
                switch=(phase,),
            ),
        )
        for block in range(6)
    ]  # fmt: skip
    if sent == 40:
        trials = trials[:1]
    (answer,) = answers(CLAIMS["F10"], [written(tmp_path / "run", trials)])
    assert answer.word == word, answer.measured
