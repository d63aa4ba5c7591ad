"""Order, budget and dry run: what a run is going to do, and when it stops by itself."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from planewise.commands.dry_run import as_json, print_schedule
from planewise.errors import BadInputError, UnsupportedError
from planewise.judge.statistics.flips import least_blocks
from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.design_file import load_design
from planewise.measure.designs.schedule import (
    Schedule,
    blocks_within,
    estimate_s,
    make_schedule,
    visit_costs_s,
)
from planewise.measure.runs.experiment import run, schedule_for
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.rtt import RttTrial
from planewise.pipeline import QUICK_BLOCKS, Quick, check_budget, differences
from planewise.store.rundir import RunReader, RunWriter
from tests.unit.test_experiment import FakeStations, Silent
from tests.unit.test_run_directory import make_info

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def plan(design: Design, unavailable: str = "") -> Schedule:
    cells = cells_of(design)
    lacking = {cell: "not here" for cell in cells if cell.plane == unavailable}
    return make_schedule(design, dict.fromkeys(cells, (100.0, 200.0)), lacking)


def kvm() -> Design:
    return load_design(EXPERIMENTS / "kvm-rtt.yaml")


def test_publication_k_has_its_four_experiments() -> None:
    cells = cells_of(kvm())
    pairs = {(c.plane, c.background_plane) for c in cells if c.background_guests}
    assert pairs == {
        ("e1000-bridge", "same"),
        ("virtio-bridge", "same"),
        ("macvtap-vf", "virtio-bridge"),
        ("vf-passthrough", "virtio-bridge"),
        ("vf-passthrough", "same"),
        ("macvtap-vf", "same"),
        ("virtio-bridge", "vf-passthrough"),
    }
    assert len(cells) == len({replace(c, background_plane=c.background) for c in cells})
    of_vfs = {"macvtap-vf", "vf-passthrough"}
    assert not any(c.background in of_vfs for c in cells if c.background_guests == 128)
    assert sum(c.background_guests == 0 for c in cells) == 4


def test_the_cells_of_a_testbed_stay_together_where_that_is_asked_for() -> None:
    design = kvm()
    schedule = plan(design)
    orders = []
    for _, visits in schedule.by_block():
        assert sorted(v.cell for v in visits) == sorted(cells_of(design))
        runs = [testbed for testbed, _ in groupby(visits, key=lambda v: v.cell.testbed)]
        assert len(runs) == len(set(runs))
        orders.append(tuple(v.cell for v in visits))
    assert len(set(orders)) == design.blocks


def test_testbeds_that_stay_up_are_counted_once_a_block_and_others_at_every_change() -> None:
    raw = {
        "factors": {
            "plane": ["veth", "bridge"],
            "background_guests": [4, 8],
            "load_type": ["cpu", "network"],
        },
        "blocks": 10,
    }
    namespaces = plan(Design.model_validate(raw))
    costs = visit_costs_s(namespaces.visits)
    for first in range(0, 80, 8):  # four testbeds, each with two loads
        block = costs[first : first + 8]
        assert sum(cost > min(block) + 0.4 for cost in block) == 4
    raw["factors"] = {
        "plane": ["e1000-bridge", "virtio-bridge"],
        "guest": "vm",
        "background_guests": [4, 8],
    }
    machines = plan(Design.model_validate(raw))
    changes = sum(a.cell != b.cell for a, b in pairwise(machines.visits))
    costs = visit_costs_s(machines.visits)
    assert sum(cost > 10 for cost in costs) == 1 + changes


def test_warm_up_trials_are_run_first_and_leave_nothing(tmp_path: Path) -> None:
    design = Design.model_validate(
        {
            "factors": {"plane": "veth"},
            "rtt": {"warmup_packets": 7},
            "sweep": {"offered_pps": [100, 200], "warmup_s": 0.2},
            "blocks": 2,
        }
    )
    schedule = plan(design)
    rtt, load = schedule.visits[0].warmup
    assert isinstance(rtt, RttTrial)
    assert isinstance(load, LoadTrial)
    assert (rtt.packets, load.duration_s) == (7, 0.2)
    stage = FakeStations()
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        outcome = run(schedule, stage, writer, Silent())
    assert outcome.done == 2 * 3
    assert stage.ran[:2] == ["warm-up", "warm-up"]
    assert len(RunReader(tmp_path / "run").trials()) == 2 * 3


class Slow(FakeStations):
    """Every trial takes as long as the estimate has it, a hundred times quicker."""

    def rtt(self, trial: RttTrial, place: object) -> object:  # type: ignore[override]
        time.sleep(0.02)
        return super().rtt(trial, place)  # type: ignore[arg-type]


def budgeted(budget_s: float) -> Design:
    raw = {"factors": {"plane": ["veth", "bridge"]}, "blocks": 8, "budget_s": budget_s}
    return Design.model_validate(raw)


def test_a_budget_stops_after_whole_blocks_and_resume_takes_the_rest(tmp_path: Path) -> None:
    schedule, progress = plan(budgeted(1)), Silent()
    path = tmp_path / "run"
    with RunWriter.create(path, make_info()) as writer:
        outcome = run(schedule, Slow(), writer, progress, budget_s=0.12)
    trials = RunReader(path).trials()
    blocks = {trial.block for trial in trials}
    assert 1 <= len(blocks) < 8
    assert len(trials) == 2 * len(blocks)
    assert outcome.info.status == "done"
    left = 8 - len(blocks)
    assert outcome.info.reason == f"the time budget is spent: {left} of 8 blocks are left out"
    with RunWriter.resume(path) as writer:
        outcome = run(schedule, Slow(), writer, progress)
    assert len(RunReader(path).trials()) == 16
    assert outcome.info.reason == ""


def test_a_budget_is_foretold_and_refused_without_room_for_a_block() -> None:
    whole = plan(budgeted(1e6))
    assert check_budget(budgeted(1e6), whole) == ""
    half = estimate_s(whole) / 2
    blocks = blocks_within(whole, half)
    assert 1 <= blocks < 8
    assert f"fits about {blocks} of 8 blocks" in check_budget(budgeted(half), whole)
    with pytest.raises(BadInputError, match="budget_s: one block of the design takes about"):
        check_budget(budgeted(0.1), whole)


@pytest.mark.parametrize("pace", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("planes", [["macvlan"], ["veth", "routed", "bridge", "macvlan"]])
def test_quick_measures_as_much_as_eight_blocks_have_time_for(
    planes: list[str], pace: float
) -> None:
    quick = Quick(planes, time.monotonic() + 180)
    design = quick.fitted(quick.first(), pace)
    assert design.sweep is not None
    made_up = dict.fromkeys(cells_of(design), design.sweep.placeholders)
    block_s = estimate_s(schedule_for(design, made_up, {}), pace=pace) / design.blocks
    assert QUICK_BLOCKS * block_s <= quick.left_s
    assert design.blocks >= QUICK_BLOCKS
    slower = quick.fitted(quick.first(), 4 * pace)
    assert slower.sweep is not None
    assert (slower.sweep.duration_s, slower.blocks) <= (design.sweep.duration_s, design.blocks)
    assert slower.blocks >= least_blocks()


def test_quick_without_a_plane_says_who_knows_why() -> None:
    with pytest.raises(UnsupportedError, match="none of Planewise's planes"):
        Quick([], time.monotonic() + 180)


def test_a_dry_run_shows_cells_order_time_and_what_cannot_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    design = load_design(EXPERIMENTS / "reduced" / "docker-rtt.yaml")
    schedule = plan(design, unavailable="macvlan")
    print_schedule(design, schedule, json=False)
    said = capsys.readouterr().out
    assert "7 cells in 6 blocks: 84 trials, about " in said
    assert "In all cells: plane bridge, guest namespace" in said
    assert said.count("  block ") == 6
    assert "Cannot be run here: 7 cells." in said
    assert "not here:\n    macvlan: 7 cells" in said
    plain = as_json(design, schedule)
    assert len(plain["cells"]) == len(plain["skipped"]) == 7  # type: ignore[arg-type]
    assert plain["trials"] == 84
    print_schedule(kvm(), make_schedule(kvm(), {}, dict.fromkeys(cells_of(kvm()), "no VMs")), False)
    assert "No cell of this design can be run here." in capsys.readouterr().out


def test_a_dry_run_refuses_what_the_run_would_and_lists_twenty_blocks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(BadInputError, match="and the time budget is 1 ms"):
        print_schedule(budgeted(0.001), plan(budgeted(0.001)), json=False)
    many = budgeted(1e6).model_copy(update={"blocks": 23})
    print_schedule(many, plan(many), json=False)
    said = capsys.readouterr().out
    assert said.count("  block ") == 20
    assert "and so on: 3 more blocks" in said


def test_what_differs_between_two_looks_at_a_host_is_said() -> None:
    host = make_info().hosts["shared"]
    assert differences(host, host) == ()
    assert differences(None, host) == ()
    newer = host.model_copy(update={"kernel": "9.9", "hostname": "other"})
    assert differences(host, newer) == (
        f"host: {host.hostname} is now other",
        f"kernel: {host.kernel} is now 9.9",
    )
