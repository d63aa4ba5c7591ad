"""A fleet: who meets whom, what nodes add to their pairs, and what a killed coordinator resumes."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planewise.errors import BadInputError
from planewise.fleet import run as fleet_run
from planewise.fleet.analysis import Findings, find
from planewise.fleet.budget import within
from planewise.fleet.page import headline, render
from planewise.fleet.plan import Budget, Fleet, FleetPlan, read_nodes
from planewise.fleet.tournament import Match, meetings_of, tournament
from planewise.judge.statistics.nodes import determined, false_discovery, node_effects
from planewise.measure.designs.design import Design
from planewise.store.rundir import RunReader
from tests.command import invoked
from tests.unit import made_up_run
from tests.unit.vega_schema import fits_schema

DESIGN = Design.model_validate({"factors": {"plane": ["veth"]}, "rtt": {"packets": 10}})


@pytest.mark.parametrize(("nodes", "pairs"), [(2, 1), (7, 10), (8, 28), (9, 36), (40, 97)])
def test_a_tournament_lets_every_node_meet_as_many_others_and_nobody_twice(
    nodes: int, pairs: int
) -> None:
    matches = tournament(nodes, pairs, seed=3)
    assert [match.index for match in matches] == list(range(pairs))
    assert len({frozenset((match.sender, match.responder)) for match in matches}) == pairs
    met = meetings_of(nodes, matches)
    assert max(met) - min(met) <= (1 if nodes % 2 == 0 else 2)
    for number in {match.round for match in matches}:
        playing = [n for m in matches if m.round == number for n in (m.sender, m.responder)]
        assert len(set(playing)) == len(playing)
    sent = Counter(match.sender for match in matches)
    assert all(abs(2 * sent[node] - met[node]) <= 3 for node in range(nodes))


def test_the_same_seed_gives_the_same_pairs_and_another_seed_others() -> None:
    assert tournament(30, 60, 1) == tournament(30, 60, 1) != tournament(30, 60, 2)


def test_a_tournament_of_enough_pairs_lets_every_node_be_told_apart() -> None:
    # On rings of 9, 27 and 99 places rounds may fall into circles that never touch.
    for nodes, seed in [(nodes, seed) for nodes in (10, 28, 100) for seed in range(40)]:
        matches = tournament(nodes, 2 * nodes, seed)
        ends = np.array([(match.sender, match.responder) for match in matches])
        assert determined(nodes, ends).all(), (nodes, seed)


@pytest.mark.parametrize(("nodes", "pairs"), [(1, 1), (5, 0), (5, 11)])
def test_a_tournament_that_there_is_not_is_refused(nodes: int, pairs: int) -> None:
    with pytest.raises(BadInputError):
        tournament(nodes, pairs, 1)


def meetings(
    nodes: list[float], matches: tuple[Match, ...], noise: float, seed: int = 1
) -> list[tuple[int, int, float]]:
    rng = np.random.default_rng(seed)
    return [
        (
            match.sender,
            match.responder,
            nodes[match.sender] + nodes[match.responder] + noise * rng.standard_normal(),
        )
        for match in matches
    ]


def test_what_a_node_adds_is_told_from_what_its_partners_add() -> None:
    adds = [0.0] * 20
    adds[3], adds[4] = 0.5, 0.2
    effects = node_effects(20, meetings(adds, tournament(20, 60, 5), 0.0)).nodes
    assert [round(one.effect, 6) for one in effects] == adds
    assert [one.node for one in effects if one.p < 1e-3] == [3, 4]


def test_a_pair_that_is_slow_by_itself_accuses_neither_node() -> None:
    found = meetings([0.0] * 60, tournament(60, 120, 5), 0.02)
    found[17] = (*found[17][:2], 1.5)
    assert false_discovery([one.p for one in node_effects(60, found).nodes]).min() > 0.05


def test_of_nodes_that_cannot_be_told_apart_nothing_is_said() -> None:
    # 0-1 met nobody else; 2 and 3 are two sides of a square with 4 and 5; 6 was never measured.
    pairs = [(0, 1), (2, 4), (4, 3), (3, 5), (5, 2)]
    effects = node_effects(7, [(a, b, 1.0 + a) for a, b in pairs]).nodes
    assert all(math.isnan(one.effect) and one.p == 1 and one.why for one in effects)
    assert "needs more" in effects[0].why
    assert "none of its pairs" in effects[6].why


def test_without_residuals_no_error_is_made_up() -> None:
    triangle = node_effects(3, [(0, 1, 1.0), (1, 2, 2.0), (2, 0, 5.0)]).nodes
    assert {one.why for one in triangle} == {
        "no node met enough others to tell how far pairs deviate by themselves"
    }


def test_the_false_discovery_rate_is_that_of_benjamini_and_yekutieli() -> None:
    adjusted = false_discovery([0.001, 0.02, 0.5, 0.03])
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert adjusted[0] == pytest.approx(0.001 * 4 * harmonic)
    assert adjusted[1] == adjusted[3] == pytest.approx(0.03 * 4 / 3 * harmonic)
    assert adjusted[2] == 1.0


@pytest.mark.parametrize(("nodes", "fleets"), [(300, 2), (1000, 4)])
def test_three_slow_nodes_of_a_fleet_are_found_and_false_alarms_keep_to_the_promise(
    nodes: int, fleets: int
) -> None:
    slow = {7, 101, 250}
    false_share = []
    for seed in range(11, 11 + fleets):
        rng = np.random.default_rng(seed)
        adds = (0.015 * rng.standard_normal(nodes)).tolist()
        for node in slow:
            adds[node] += math.log(1.3)
        measured = meetings(adds, tournament(nodes, 2 * nodes, seed), 0.03, seed)
        found = node_effects(nodes, measured).nodes
        claims = np.flatnonzero(false_discovery([one.p for one in found]) <= 0.05)
        claimed = set(claims.tolist())
        assert slow <= claimed
        false_share.append(len(claimed - slow) / len(claimed))
    assert np.mean(false_share) <= 0.05


def plan(nodes: int, pairs: int, **more: object) -> FleetPlan:
    return FleetPlan.model_validate(
        {
            "nodes": tuple(f"local:n{number}" for number in range(nodes)),
            "pairs": [
                (match.round, match.sender, match.responder)
                for match in tournament(nodes, pairs, 4)
            ],
            "seed": 4,
            "design": DESIGN.model_dump(mode="json"),
            **more,
        }
    )


SLOW = 5
MINIMAL = made_up_run.MadeUp(
    planes=("veth",),
    load_types=("none",),
    guests=(0,),
    packets=50,
    hosts=("sender", "responder"),
    drift=0.0,
    failed=0,
    with_packets=False,
    with_recommendation=False,
)


def made_up(fleet: Fleet, match: Match, stop: threading.Event) -> str:
    """A pair's run directory with made-up numbers: node 5 is slow, and has an older kernel."""
    if match.index == 3:
        return "local:n1 does not answer"
    factor = 1.4 if SLOW in (match.sender, match.responder) else 1.0
    directory = fleet.directory(match)
    made_up_run.write(directory, replace(MINIMAL, seed=match.index, slower=factor))
    file = directory / "run.json"
    info = json.loads(file.read_text())
    for role, node in (("sender", match.sender), ("responder", match.responder)):
        info["hosts"][role]["kernel"] = "5.4.0" if node == SLOW else "6.12.0"
    file.write_text(json.dumps(info))
    return ""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Twelve nodes with six meetings each, measured, but for one pair that failed."""
    made = Fleet.create(tmp_path_factory.mktemp("fleet") / "f", plan(12, 36))
    done = fleet_run.run(made, made_up, lambda text: None)
    assert (done.measured, done.left) == (35, 1)
    return made


@pytest.fixture(scope="module")
def found(fleet: Fleet) -> Findings:
    """What the report says of it."""
    return find(fleet)


def test_a_slow_node_is_named_with_what_differs_there(found: Findings) -> None:
    assert [one.node for one in found.outliers] == [f"local:n{SLOW}"]
    kernel = next(one for one in found.outliers[0].differences if one.what == "kernel")
    assert (kernel.value, kernel.usual, kernel.shared_by, kernel.worse_of_these) == (
        "5.4.0",
        "6.12.0",
        1,
        1,
    )
    assert {ranking.metric.name for ranking in found.rankings} >= {"rtt", "throughput"}
    rtt = next(ranking for ranking in found.rankings if ranking.metric.name == "rtt")
    assert 0.35 < rtt.nodes[0].low < 0.4 < rtt.nodes[0].high < 0.45
    assert rtt.nodes[0].outcome == "worse"


def test_a_rate_is_worse_where_it_is_lower(found: Findings) -> None:
    rate = next(ranking for ranking in found.rankings if ranking.metric.name == "throughput")
    assert rate.nodes[0].node == f"local:n{SLOW}"
    assert rate.nodes[0].change == pytest.approx(1 / 1.4 - 1, abs=0.1)


def test_a_pair_that_failed_is_told_and_tried_again(fleet: Fleet, found: Findings) -> None:
    assert found.failures == {3: "local:n1 does not answer"}
    assert [match.index for match in fleet.matches if fleet.state(match) != "done"] == [3]
    tried: list[int] = []

    def measure(fleet: Fleet, match: Match, stop: threading.Event) -> str:
        tried.append(match.index)
        return "still not"

    fleet_run.run(Fleet.open(fleet.path), measure, lambda text: None)
    assert tried == [3]
    fleet.record_failure(fleet.matches[3], "local:n1 does not answer")


def test_the_page_names_the_node_and_its_figures_keep_to_the_schema(found: Findings) -> None:
    from planewise.fleet.map import fleet_map

    page = render(found)
    assert f'<h2 id="node-1">local:n{SLOW}</h2>' in page
    assert "Kernel is 5.4.0, on most nodes 6.12.0; no other node has that" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    for ranking in found.rankings:
        assert fits_schema(fleet_map(ranking, found.margin).whole())
    assert headline(found).startswith("of 12 nodes local:n5 is worse")


def test_the_report_command_prints_json(fleet: Fleet) -> None:
    done = invoked("fleet", "report", fleet.path, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["outliers"][0]["node"] == f"local:n{SLOW}"
    assert told["rankings"][0]["nodes"][0]["p_fleet"] <= told["alpha"] == 0.05


def test_another_plan_in_the_directory_is_not_overwritten(fleet: Fleet) -> None:
    assert Fleet.create(fleet.path, fleet.plan).plan == fleet.plan
    with pytest.raises(BadInputError, match="another fleet's plan"):
        Fleet.create(fleet.path, plan(12, 30))


def test_what_a_stopped_coordinator_measured_is_not_measured_again(tmp_path: Path) -> None:
    fleet = Fleet.create(tmp_path / "f", plan(6, 12))
    measured: list[int] = []
    stopped: list[int] = []

    def measure(fleet: Fleet, match: Match, stop: threading.Event) -> str:
        if match.index == 5 and not stopped:
            stopped.append(5)
            raise KeyboardInterrupt
        measured.append(match.index)
        info = RunReader(recorded(tmp_path)).info.model_dump(mode="json")
        fleet.directory(match).mkdir(parents=True)
        (fleet.directory(match) / "run.json").write_text(json.dumps(info))
        return ""

    with pytest.raises(KeyboardInterrupt):
        fleet_run.run(fleet, measure, lambda text: None)
    assert fleet_run.run(Fleet.open(fleet.path), measure, lambda text: None).left == 0
    assert sorted(measured) == list(range(12))


def recorded(directory: Path) -> Path:
    """A run directory that is done."""
    made = directory / "recorded"
    if not made.exists():
        made_up_run.write(made, MINIMAL)
    return made


def test_a_node_is_in_one_pair_at_a_time(tmp_path: Path) -> None:
    fleet = Fleet.create(tmp_path / "f", plan(6, 15))
    busy: set[int] = set()
    seen = threading.Lock()
    overlaps: list[int] = []

    def one(match: Match) -> None:
        with fleet.using(match):
            with seen:
                overlaps.extend(busy & {match.sender, match.responder})
                busy.update((match.sender, match.responder))
            threading.Event().wait(0.002)
            with seen:
                busy.difference_update((match.sender, match.responder))

    threads = [threading.Thread(target=one, args=(match,)) for match in fleet.matches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlaps


def test_a_node_rests_as_the_budget_of_time_wants(tmp_path: Path) -> None:
    fleet = Fleet.create(tmp_path / "f", plan(4, 6, budget={"time": 0.25}))
    first = fleet.matches[0]
    made_up(fleet, first, threading.Event())
    file = fleet.directory(first) / "run.json"
    info = json.loads(file.read_text())
    info |= {"started": "2026-01-01T00:00:00Z", "finished": "2026-01-01T00:01:00Z"}
    file.write_text(json.dumps(info))
    ended = 1_767_225_660.0
    other = next(m for m in fleet.matches[1:] if {m.sender, m.responder} & {first.sender})
    free = next(
        m
        for m in fleet.matches[1:]
        if not {m.sender, m.responder} & {first.sender, first.responder}
    )
    assert fleet.rest_s(other, ended + 10) == pytest.approx(170)
    assert fleet.rest_s(free, ended + 10) == 0
    assert fleet.rest_s(other, ended + 500) == 0


@pytest.mark.parametrize(
    ("design", "name"),
    [
        ({"factors": {"plane": ["veth"], "frequency_pps": [5000.0]}, "rtt": {}}, "frequency_pps"),
        ({"factors": {"plane": ["veth"]}, "sweep": {}}, "overload"),
        ({"factors": {"plane": ["veth"]}, "sweep": {"offered_pps": [100.0, 9000.0]}}, "9"),
        ({"factors": {"plane": ["veth"]}, "tcp": {}}, "as much as it can"),
        (
            {
                "factors": {
                    "plane": ["veth"],
                    "load_type": ["network"],
                    "background_guests": [2],
                }
            },
            "background.rate_pps",
        ),
    ],
)
def test_a_design_beyond_the_budget_is_refused_by_name(
    design: dict[str, object], name: str
) -> None:
    with pytest.raises(BadInputError, match=name):
        within(Design.model_validate(design, strict=False), Budget(pps=2000))


def test_background_load_beyond_the_budget_of_cpus_is_refused() -> None:
    burning = {"factors": {"plane": ["veth"], "load_type": ["cpu"], "background_guests": [2]}}
    with pytest.raises(BadInputError, match="cpu_share"):
        within(Design.model_validate(burning, strict=False), Budget(cpu=0.2))
    assert within(DESIGN, Budget(pps=2000, cpu=0.2)) == DESIGN


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ssh://a\nssh://a\n", "twice"),
        ("ssh://a\nlocal:b\n", "this machine alone"),
        ("ssh://a\nssh://b\n", "--nic"),
        ("ssh://a\nnonsense\n", ":2"),
        ("local:a\n", "two nodes"),
    ],
)
def test_nodes_that_cannot_meet_are_refused_in_one_sentence(
    tmp_path: Path, text: str, why: str
) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text(text)
    design = tmp_path / "design.yaml"
    design.write_text("factors: {plane: veth}\n")
    argv = ["fleet", "run", str(design), "--nodes", str(nodes), "--pairs", "1", "--dry-run"]
    done = invoked(*argv)
    assert isinstance(done.exception, BadInputError), done.output
    assert why in f"{done.exception} {done.exception.remedy}"


def test_a_comment_in_the_list_of_nodes_is_no_node(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("# rack 1\nlocal:a  # the old one\n\nlocal:b\n")
    assert read_nodes(nodes) == ("local:a", "local:b")
