"""Few short trials find PDR, and the ladder around it lets the judge decide."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.judge.curve import Curve, LoadPoint, Run
from planewise.judge.verdict import Verdict, judge
from planewise.measure.designs.ladders import ladder_at_pdr, loads_of_block
from planewise.measure.runs.pilots import MOST_PILOTS, Range, find_pdr
from planewise.pipeline import QUICK_SHAPES, QuickShape, quick_design

Pilot = tuple[float, float]
"""Loss ratio and forwarding rate."""
Measure = Callable[[float], Pilot]
CAPACITIES = st.floats(min_value=3e3, max_value=3e7)


def flat(capacity_pps: float, overloaded: float = 1.0) -> Measure:
    """Carries all up to its capacity, and far beyond it only the share `overloaded` of it."""

    def measure(load_pps: float) -> Pilot:
        carried_pps = min(load_pps, capacity_pps)
        if load_pps > 1.3 * capacity_pps:
            carried_pps *= overloaded
        return (1 - carried_pps / load_pps, carried_pps)

    return measure


@given(capacity_pps=CAPACITIES, overloaded=st.floats(min_value=0.65, max_value=1.0))
def test_pilots_find_a_knee_on_machines_of_any_speed(
    capacity_pps: float, overloaded: float
) -> None:
    measure = flat(capacity_pps, overloaded)
    most_pps = 20 * capacity_pps
    found = find_pdr(measure, measure(most_pps)[1], most_pps)
    assert 0.93 * capacity_pps < found < 1.08 * capacity_pps


@given(capacity_pps=CAPACITIES)
def test_pilots_go_down_where_throughput_rises_beyond_pdr(capacity_pps: float) -> None:
    def measure(load_pps: float) -> Pilot:
        over = max(0.0, load_pps - capacity_pps)
        carried_pps = load_pps - over + 0.3 * min(over, capacity_pps)
        return (1 - carried_pps / load_pps, carried_pps)

    found = find_pdr(measure, measure(20 * capacity_pps)[1], 20 * capacity_pps)
    assert 0.93 * capacity_pps < found < 1.12 * capacity_pps


def test_a_disturbed_pilot_does_not_bring_the_ladder_down() -> None:
    trials = 0

    def measure(load_pps: float) -> Pilot:
        nonlocal trials
        trials += 1
        if trials == 1:
            return (0.3, 0.7 * load_pps)
        return flat(100_000.0)(load_pps)

    assert 90_000 < find_pdr(measure, 100_000, 1e7) < 108_000
    assert trials <= MOST_PILOTS


def test_a_plane_that_carries_all_that_can_be_sent_has_no_pdr() -> None:
    assert math.isinf(find_pdr(flat(1e6), 1e5, 1e5))


def test_a_generator_that_cannot_send_says_nothing_of_the_plane() -> None:
    assert find_pdr(lambda _: None, 1e5, 1e6) == 1e5


def test_the_highest_loads_are_in_every_block_and_the_lowest_take_turns() -> None:
    ladder = (1.0, 2.0, 3.0, 10.0, 11.0, 12.0)
    blocks = [loads_of_block(ladder, block, 4) for block in range(4)]
    assert blocks == [(low, 10.0, 11.0, 12.0) for low in (1.0, 2.0, 3.0, 1.0)]
    assert loads_of_block(ladder, 1, None) == loads_of_block(ladder, 1, 6) == ladder


def judged(
    ladder: tuple[float, ...],
    per_block: int | None,
    capacity_pps: float,
    noise: float,
) -> Verdict:
    """The verdict on eight blocks of a system that is flat from its capacity on."""
    chance = random.Random(5)
    runs: dict[float, list[Run]] = {}
    for block in range(8):
        for load in loads_of_block(ladder, block, per_block):
            sent = round(load / 10)
            carried = round(min(load, capacity_pps * chance.gauss(1, noise)) / 10)
            runs.setdefault(load, []).append(Run(sent, carried))
    return judge(Curve("made up", tuple(LoadPoint(load, runs[load]) for load in sorted(runs))))


@pytest.mark.parametrize("capacity_pps", [30_000, 3_000_000])
@pytest.mark.parametrize(
    ("per_block", "off"),
    [(5, 1.0), (5, 1.06), *((many, off) for many in (6, 7) for off in (0.95, 1.0, 1.06))],
)
def test_a_ladder_at_pdr_lacks_no_load_though_pilots_are_a_little_off(
    capacity_pps: float, per_block: int, off: float
) -> None:
    ladder = ladder_at_pdr(off * capacity_pps, per_block + 3, per_block, 1e9)
    verdict = judged(ladder, per_block, capacity_pps, 0.01)
    assert verdict.open != "ladder too short", verdict.reason
    assert verdict.pdr is not None
    assert verdict.pdr.bounded


@pytest.mark.parametrize("shape", QUICK_SHAPES, ids=lambda shape: f"{shape.loads} loads")
@pytest.mark.parametrize("off", [1.0, 1.03])
def test_quick_decides_a_clear_curve_with_any_shape(shape: QuickShape, off: float) -> None:
    sweep = quick_design(["macvlan"], shape).sweep
    assert sweep is not None
    ladder = Range(1e6, 1e8, off * 1e6).ladder(sweep)
    verdict = judged(ladder, sweep.loads_per_block, 1e6, 0.005)
    assert verdict.verdict == "GOOD", verdict.reason


@given(
    pdr_pps=st.floats(min_value=1000, max_value=1e7),
    per_block=st.integers(min_value=4, max_value=12),
)
def test_a_ladder_at_pdr_has_what_the_judge_asks_for(pdr_pps: float, per_block: int) -> None:
    ladder = ladder_at_pdr(pdr_pps, per_block + 3, per_block, 1e9)
    assert len(ladder) == per_block + 3
    assert all(low < 0.99 * high for low, high in pairwise(ladder))
    assert ladder[0] <= pdr_pps / 3
    assert ladder[-1] > 1.6 * pdr_pps
    capped = ladder_at_pdr(pdr_pps, per_block + 3, per_block, pdr_pps)
    assert capped[-1] <= pdr_pps * (1 + 1e-9)
