"""What the publications claim, asked of runs whose answers are known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from planewise.advise.gain import Gain, GainRow, Interval
from planewise.errors import BadInputError
from planewise.judge.campaign import Figures
from planewise.publications import boost, page
from planewise.publications.answers import Answer, AskedRun, answers, read_run
from planewise.publications.claims import Claim, publications
from planewise.report import theme
from planewise.report.figure import Missing
from tests.command import invoked
from tests.documents import ROOT
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp
from tests.unit.published_data import FOLDER, labels, needs_published_data
from tests.unit.vega_schema import fits_schema

CLAIMS = {claim.id: claim for one in publications() for claim in one.claims}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> AskedRun:
    """Twelve blocks in which macvlan is faster than the bridge, and neighbours slow down both."""
    wanted = MadeUp(
        planes=("macvlan", "bridge"), guests=(0, 64), load_types=("cpu",), kinds=("vm",),
        blocks=12, load_blocks=0, packets=60, failed=0, with_recommendation=False,
    )  # fmt: skip
    return read_run(made_up_run.write(tmp_path_factory.mktemp("runs") / "one", wanted))


def renamed(run: AskedRun, tmp_path: Path, **planes: str) -> AskedRun:
    """The same run with its planes called otherwise."""
    lines = (run.path / "trials.jsonl").read_text()
    for plane, other in planes.items():
        lines = lines.replace(f'"plane":"{plane}"', f'"plane":"{other.replace("_", "-")}"')
    path = tmp_path / "run"
    path.mkdir()
    (path / "run.json").write_bytes((run.path / "run.json").read_bytes())
    (path / "trials.jsonl").write_text(lines)
    return read_run(path)


def only(claim: Claim, *runs: AskedRun) -> Answer:
    (answer,) = answers(claim, runs, ())
    return answer


def test_an_order_that_the_interval_bears_out_is_held(measured: AskedRun, tmp_path: Path) -> None:
    run = renamed(measured, tmp_path, macvlan="virtio_bridge", bridge="e1000_bridge")
    answer = only(CLAIMS["K1"], run)
    assert answer.word == "held"
    assert "virtio-bridge is better than e1000-bridge" in answer.measured
    assert "95 %" in answer.measured


def test_the_opposite_order_did_not_hold(measured: AskedRun, tmp_path: Path) -> None:
    run = renamed(measured, tmp_path, macvlan="e1000_bridge", bridge="virtio_bridge")
    assert only(CLAIMS["K1"], run).word == "did not hold"


def test_planes_that_are_alike_hold_no_order(measured: AskedRun, tmp_path: Path) -> None:
    run = renamed(measured, tmp_path, macvlan="e1000_bridge", bridge="virtio_bridge")
    twin = [
        trial.model_copy(update={"cell": trial.cell | {"plane": "e1000-bridge"}})
        for trial in run.trials
        if trial.cell["plane"] == "virtio-bridge"
    ]
    own = [trial for trial in run.trials if trial.cell["plane"] == "virtio-bridge"]
    lines = [one.model_dump_json(exclude_defaults=True) for one in (*own, *twin)]
    (run.path / "trials.jsonl").write_text("\n".join(lines) + "\n")
    assert only(CLAIMS["K1"], read_run(run.path)).word != "held"


def test_the_least_and_the_most_of_a_factor_are_those_of_the_run(
    measured: AskedRun, tmp_path: Path
) -> None:
    run = renamed(measured, tmp_path, macvlan="virtio_bridge")
    answer = only(CLAIMS["K2"], run)
    assert answer.word == "held"
    assert "Background guests: 0 is better than 64" in answer.measured


def test_too_few_blocks_hold_nothing(measured: AskedRun, tmp_path: Path) -> None:
    run = renamed(measured, tmp_path, macvlan="virtio_bridge", bridge="e1000_bridge")
    first = (run.path / "trials.jsonl").read_text().splitlines()
    kept = [line for line in first if json.loads(line).get("block", 0) < 3]
    (run.path / "trials.jsonl").write_text("\n".join(kept) + "\n")
    answer = only(CLAIMS["K1"], read_run(run.path))
    assert answer.word == "cannot be told here"
    assert "in all 3 blocks; 6 blocks are needed to put a confidence on it" in answer.measured


def test_a_claim_about_planes_that_no_run_has_cannot_be_told(measured: AskedRun) -> None:
    answer = only(CLAIMS["K8"], measured)
    assert answer == Answer(
        "cannot be told here", "no run has plane vf-passthrough and macvtap-vf (guest vm)", ""
    )


def test_a_claim_about_other_guests_is_not_asked(measured: AskedRun, tmp_path: Path) -> None:
    run = renamed(measured, tmp_path, macvlan="vf")
    assert only(CLAIMS["D1"], run).run == "", "the run has virtual machines, D has containers"


def test_a_stand_in_holds_no_claim(measured: AskedRun) -> None:
    answer = only(CLAIMS["F3"], measured)
    assert answer.word == "cannot be told here"
    assert answer.measured.startswith("macvlan stands in for vf; with it the claim would hold.")


def test_every_run_that_can_be_asked_answers(measured: AskedRun, tmp_path: Path) -> None:
    run = renamed(measured, tmp_path, macvlan="vf")
    assert len(answers(CLAIMS["F3"], [measured, run], ())) == 2


def test_every_claim_names_its_place_in_the_text_and_one_check() -> None:
    assert len(CLAIMS) == sum(len(one.claims) for one in publications())
    assert all(claim.section for claim in CLAIMS.values())
    with pytest.raises(ValueError, match="exactly one check"):
        Claim(id="X", section="1", text="nothing is asked")
    for one in publications():
        for design in (*one.designs, one.servers):
            if design.startswith("experiments/"):
                assert (ROOT / design.split()[0]).exists()


def test_the_page_has_the_claims_the_runs_and_how_to_do_it_again(measured: AskedRun) -> None:
    emulated = replace(
        measured, info=measured.info.model_copy(update={"emulated": "CPUs without KVM"})
    )
    publication = publications()[0]
    claims = tuple((one, (answers(one, [emulated], ())[0],)) for one in publication.claims)
    text = page.text(page.PublicationAnswers(publication, claims, (emulated,)), [])
    assert "| K2 | RTT rises with the number of VMs that burn CPU | 4.1, RTT | held | " in text
    assert "| CPUs without KVM |" in text
    assert "planewise run experiments/publications/kvm-rtt.yaml --out RUN" in text
    assert text.count("\n| K") == len(publication.claims)


def test_the_committed_pages_have_every_claim() -> None:
    for one in publications():
        text = (ROOT / "docs" / "results" / f"{one.key}.md").read_text()
        for claim in one.claims:
            assert f"| {claim.id} | {claim.text} | {claim.section} | " in text, "make publications"


def test_the_command_writes_a_page_each(measured: AskedRun, tmp_path: Path) -> None:
    out = tmp_path / "pages"
    done = invoked("publications", measured.path, "-o", out, raising=True)
    assert "K2  RTT rises with the number of VMs that burn CPU: held." in done.stdout
    assert sorted(file.name for file in out.glob("*.md")) == sorted(
        f"{one.key}.md" for one in publications()
    )
    figures = sorted(out.glob("*.svg"))
    assert figures
    written = "".join(file.read_text() for file in out.glob("*.md"))
    assert all(f'"{figure.name}"' in written for figure in figures)


def test_nothing_to_ask_is_one_sentence(tmp_path: Path) -> None:
    for words, said in (
        ([], "no run to check"),
        (["--recordings", str(tmp_path)], "no recorded experiments"),
    ):
        with pytest.raises(BadInputError, match=said):
            invoked("publications", *words, raising=True)


def gain() -> Gain:
    """A VF that saves more at 20 kpps than at 1 kpps, with an open interval there."""

    def row(pps: float, saved: float, low: float, high: float) -> GainRow:
        around = Interval(1e4, 9e3, 1.1e4)
        boost = Interval(saved, low, high)
        return GainRow(pps, 64, 8, around, around, boost, boost)

    rows = (row(1000, 0.2, 0.1, 0.3), row(20_000, 0.5, -math.inf, math.inf))
    return Gain("bridge", "vf", rows, (), (), "not known", ())


def test_what_a_vf_saves_is_drawn_by_packet_rate_with_its_intervals() -> None:
    drawn = boost.figure(gain())
    assert drawn.title == "Round-trip time that vf saves over bridge, by packet rate"
    assert drawn.lead == "Most is saved with 64 bytes at 20 kpps: 50 %."
    first, second = drawn.table.rows
    assert first[3] == theme.interval("10 %", "30 %")
    assert isinstance(second[3], Missing)
    assert fits_schema(drawn.whole())


def test_a_router_of_ours_is_on_pastramis_page_with_its_curve_and_its_table(
    tmp_path: Path,
) -> None:
    wanted = MadeUp(planes=("veth",), load_types=("none",), blocks=0, generator_limited=False)
    run = renamed(read_run(made_up_run.write(tmp_path / "one", wanted)), tmp_path, veth="router")
    out = tmp_path / "pages"
    done = invoked("publications", run.path, "-o", out, raising=True)
    assert done.exit_code == 0
    text = (out / "pastrami.md").read_text()
    assert "## Curves of ours by aspect" in text
    assert run.info.run in text
    (curve,) = out.glob("pastrami-*.svg")
    assert f'<img src="{curve.name}" alt="' in text
    assert run.info.run not in (out / "flexvf.md").read_text()


def test_rates_of_a_table_are_in_one_unit_and_never_wrap() -> None:
    text = page.rates_cell(Figures(55, 773_000.0, 304_200.0, 1_361_000.0))
    assert text == "773 kpps<br>(304 to 1360; 55)".replace(" ", "\N{NO-BREAK SPACE}")
    assert page.rates_cell(None) == "not known"


@needs_published_data
def test_the_recordings_are_on_the_page_by_aspect(tmp_path: Path) -> None:
    done = invoked("publications", "--recordings", FOLDER, "-o", tmp_path, raising=True)
    assert done.exit_code == 0
    text = (tmp_path / "pastrami.md").read_text()
    by_hand = sum("_k6.8_" in row["file"] for row in labels())
    assert f"| kernel | 6.8 | {by_hand} | " in text
    assert f"| platform | vm | {sum('_intel_vm' in row['file'] for row in labels())} | " in text
