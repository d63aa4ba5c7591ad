"""Designs: what is accepted, what is refused and how, and the schedule that comes of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import BadInputError
from planewise.judge.statistics.flips import least_blocks
from planewise.measure.designs.cells import Cell, cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.design_file import load_any, load_design
from planewise.measure.designs.ladders import ladder_around
from planewise.measure.designs.schedule import make_schedule
from planewise.measure.trials.load import LoadTrial

GOOD = """\
title: which plane is fastest here?
factors:
  plane: [veth, bridge]
  load_type: [none, cpu, network]
  background_guests: [0, 8]
rtt:
  packets: 100
sweep:
  offered_pps: [1000, 2000, 3000]
blocks: 4
seed: 11
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "design.yaml"
    path.write_text(text)
    return path


def test_a_good_design_is_read_whole(tmp_path: Path) -> None:
    design = load_design(write(tmp_path, GOOD))
    assert design.factors.plane == ("veth", "bridge")
    assert design.sweep is not None
    assert design.sweep.offered_pps == (1000.0, 2000.0, 3000.0)
    assert design.factors.frequency_pps == (1000.0,)


def test_a_single_level_may_stand_without_brackets(tmp_path: Path) -> None:
    assert load_design(write(tmp_path, "factors: {plane: veth}")).factors.plane == ("veth",)


def test_what_a_design_leaves_out_is_not_measured(tmp_path: Path) -> None:
    only_loads = load_design(write(tmp_path, "factors: {plane: veth}\nsweep: {}"))
    assert only_loads.rtt is None
    only_times = load_design(write(tmp_path, "factors: {plane: veth}\nrtt: {}"))
    assert only_times.sweep is None
    neither = load_design(write(tmp_path, "factors: {plane: veth}"))
    assert neither.rtt is not None


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD.replace("title", "titel"), 1, "unknown key `titel`"),
        (GOOD.replace("load_type", "loadtype"), 4, "unknown key `loadtype`"),
        (
            GOOD.replace("[none, cpu, network]", "[none, disk]"),
            4,
            "`disk` is none of `none`, `cpu`, `network`, `cache`",
        ),
        (GOOD.replace("sweep:", "sweep:\n  until_verdict: true"), 9, "and the design has none"),
        (GOOD.replace("[none, cpu, network]", "[none, cache]"), 4, "does not say how much"),
        (
            GOOD.replace("[veth, bridge]", "[e1000-bridge]")
            .replace("factors:\n", "factors:\n  guest: vm\n")
            .replace("[none, cpu, network]", "[none, memory]")
            + "background: {per_guest: {memory_mib: 64}}\n",
            13,
            "no 64 MiB for memory load beside its kernel",
        ),
        (GOOD.replace("[veth, bridge]", "[]"), 3, "at least 1"),
        (GOOD.replace("[0, 8]", "[0, -8]"), 5, "`-8` must be at least 0"),
        (GOOD.replace("[0, 8]", "[0]"), 2, "needs background guests"),
        (GOOD.replace("packets: 100", "packets: many"), 7, "integer"),
        (GOOD.replace("blocks: 4", "blocks: 0"), 10, "`0` must be at least 1"),
        (GOOD.replace("[veth, bridge]", "[veth, veth]"), 2, "names a level twice"),
        (GOOD.replace("[1000, 2000, 3000]", "[1000, .nan]"), 9, "offered_pps.1: "),
        (GOOD + "background: {cpu_share: 1.5}\n", 12, "`1.5` must be at most 1"),
        (GOOD + "background: {per_guest: {cpu_share: 0}}\n", 12, "`0` must be above 0"),
        (
            GOOD + "background: {per_guest: {cpu_share: 0.1, busy_threads: 1}}\n",
            12,
            "either a cpu_share or busy_threads",
        ),
        (
            GOOD + "background: {rate_pps: 10, per_guest: {rate_pps: 1}}\n",
            12,
            "rate_pps what all do together: give one of them",
        ),
        (
            GOOD + "background: {per_guest: {rate_pps: fast}}\n",
            12,
            "`fast` is neither `max` nor a number",
        ),
        ("- a\n- b\n", 1, "a design is a mapping"),
        ("", 1, "a design is a mapping"),
        ("factors: [\n", 2, "not YAML"),
        ("blocks: 3\n", 1, "`factors` is missing"),
    ],
)
def test_a_bad_design_is_refused_with_file_line_and_cause(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        load_design(write(tmp_path, text))
    assert f"design.yaml:{line}: " in caught.value.what
    assert words in caught.value.what


def test_a_misspelt_key_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        load_design(write(tmp_path, GOOD.replace("load_type", "loadtype")))
    assert caught.value.remedy == "did you mean `load_type`?"


@pytest.mark.parametrize(
    ("part", "remedy"),
    [
        ("vm: {vcpu: 2}", "did you mean `vcpus`?"),
        ("functions: [{forwarder: xdp, plan: veth}]", "did you mean `plane`?"),
        ("alloc: {x: 1}", "known here: change_s, download_mib, duration_s, fair_turn_s"),
    ],
)
def test_the_keys_that_a_part_knows_are_its_own(part: str, remedy: str, tmp_path: Path) -> None:
    design = tmp_path / "design.yaml"
    design.write_text(f"factors: {{plane: veth}}\n{part}\n")
    with pytest.raises(BadInputError) as caught:
        load_design(design)
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith(remedy)


def test_a_design_that_explodes_is_refused_before_it_is_listed(tmp_path: Path) -> None:
    levels = ", ".join(str(n) for n in range(1000))
    text = f"factors:\n  plane: [veth]\n  background_guests: [{levels}]\nblocks: 100000\n"
    with pytest.raises(BadInputError, match="100,000,000 trials"):
        load_design(write(tmp_path, text))


def test_a_design_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "design.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInputError, match="not UTF-8"):
        load_design(path)


def make_design() -> Design:
    return Design.model_validate(
        {
            "factors": {
                "plane": ["veth", "bridge", "ipvlan"],
                "load_type": ["none", "cpu"],
                "load_location": ["sender", "responder"],
                "background_guests": [0, 8],
            },
            "sweep": {},
            "blocks": 5,
        }
    )


def lacking(design: Design) -> dict[Cell, str]:
    return {cell: "the kernel lacks it" for cell in cells_of(design) if cell.plane == "ipvlan"}


def test_an_idle_cell_has_no_load_location_and_a_load_needs_guests() -> None:
    cells = [cell for cell in cells_of(make_design()) if cell.plane == "veth"]
    assert cells == [
        Cell("veth", "none", "sender", 0),
        Cell("veth", "none", "sender", 8),
        Cell("veth", "cpu", "sender", 8),
        Cell("veth", "cpu", "responder", 8),
    ]


def test_every_block_holds_every_cell_once_in_an_order_of_its_own() -> None:
    design = make_design()
    ladders = dict.fromkeys(cells_of(design), (10.0, 20.0))
    schedule = make_schedule(design, ladders, lacking(design))
    assert {cell.plane for cell in schedule.skipped} == {"ipvlan"}
    orders = set()
    for block in range(design.blocks):
        cells = [visit.cell for visit in schedule.visits if visit.block == block]
        assert Counter(cells) == Counter(c for c in cells_of(design) if c.plane != "ipvlan")
        orders.add(tuple(cells))
    assert len(orders) > 1
    assert schedule == make_schedule(design, ladders, lacking(design))


def test_trial_names_are_unique_in_a_run() -> None:
    design = make_design()
    ladders = dict.fromkeys(cells_of(design), (10.0, 20.0))
    schedule = make_schedule(design, ladders, {})
    names = [trial.name for visit in schedule.visits for trial in visit.trials]
    assert len(names) == len(set(names)) == schedule.trials


@given(
    forwarded=st.floats(min_value=1, max_value=1e8),
    loads=st.integers(min_value=2, max_value=50),
    most=st.floats(min_value=1000, max_value=1e7),
)
def test_a_ladder_brackets_the_forwarded_rate_and_keeps_to_its_bound(
    forwarded: float, loads: int, most: float
) -> None:
    ladder = ladder_around(forwarded, loads, max_pps=most)
    assert list(ladder) == sorted(set(ladder))
    assert ladder[-1] <= most * (1 + 1e-9)
    if 1000 < forwarded < most / 1.7:
        assert ladder[0] < forwarded < ladder[-1]
        assert len(ladder) == loads


def test_a_ladder_is_readable_and_has_all_its_loads_below_the_generators_maximum() -> None:
    assert ladder_around(100_000, 3, 1e9) == (30_000, 95_000, 160_000)
    assert len(ladder_around(200_000, 9, 215_797)) == 9
    assert ladder_around(200_000, 9, 215_797)[-1] == 210_000


def test_a_ladder_is_what_the_schedule_offers() -> None:
    design = make_design()
    ladders = dict.fromkeys(cells_of(design), (100.0, 200.0))
    visit = make_schedule(design, ladders, {}).visits[0]
    offered = [t.offered_pps for t in visit.trials if isinstance(t, LoadTrial)]
    assert sorted(offered) == [100.0, 200.0]


def test_all_mistakes_of_a_design_are_told_in_the_order_of_its_lines(tmp_path: Path) -> None:
    text = "factors:\n  plane: bridge\n  load_typ: [cpu]\nrtt: {packets: many}\nbloks: 3\n"
    with pytest.raises(BadInputError) as caught:
        load_design(write(tmp_path, text))
    assert caught.value.where.endswith(":3")
    first, *others = caught.value.remedy.splitlines()
    assert first == "did you mean `load_type`?"
    assert [one.split(":")[0] for one in others] == ["also, line 4", "also, line 5"]
    assert others[1].endswith("unknown key `bloks`; did you mean `blocks`?")


def test_of_very_many_mistakes_the_first_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    text = "factors: {plane: bridge}\n" + "".join(f"wrong{n}: 1\n" for n in range(30))
    with pytest.raises(BadInputError) as caught:
        load_design(write(tmp_path, text))
    assert caught.value.remedy.splitlines()[-1] == "and 21 more"


EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.rglob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_design_that_compares_has_blocks_enough_to_conclude(file: Path) -> None:
    design = load_any(file)
    if isinstance(design, Design) and len(cells_of(design)) > 1:
        assert design.blocks >= least_blocks()
