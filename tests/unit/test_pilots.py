"""The trials that a run adds to its ladder let the judge decide, wherever pilots put the ladder."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.judge.curve import Run
from planewise.judge.verdict import Verdict, judge
from planewise.measure.designs.ladders import ladder_beyond
from planewise.measure.search.sequential import Placement, SequentialPlan
from tests.unit.test_sequential import Scripted

Carried = Callable[[float], float]
"""Forwarding rate by offered load, both as shares of the capacity."""


def judged(carried: Carried, off: float, noise: float, capacity_pps: float) -> tuple[Verdict, int]:
    """The verdict on eight blocks of both loads of the ladder and four further trials, and the
    number of all trials. `off`: what pilots forwarded as a share of the capacity."""
    chance = random.Random(5)

    def trial(load: float) -> Run:
        capacity = capacity_pps * chance.gauss(1, noise)
        return Run(round(load / 10), round(capacity * carried(load / capacity) / 10))

    ladder = ladder_beyond(off * capacity_pps, 1e9)
    placement = Placement(Scripted(None), ladder, SequentialPlan(), True, 5)
    for _ in range(8):
        for load in ladder:
            placement.add(load, trial(load))
        further: list[float] = []
        for _ in range(4):
            further = further or placement.next_loads()
            if further:
                placement.add(load := further.pop(0), trial(load))
    curve = placement.curve("made up")
    return judge(curve), sum(curve.counts)


@pytest.mark.parametrize("capacity_pps", [30_000, 1_000_000])
@pytest.mark.parametrize("off", [0.8, 0.93, 1.0, 1.06])
@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_a_flat_plane_is_good_though_pilots_are_off(
    capacity_pps: float, off: float, noise: float
) -> None:
    verdict, runs = judged(lambda load: min(load, 1.0), off, noise, capacity_pps)
    assert verdict.verdict == "GOOD", verdict.reason
    assert runs <= 8 * 6


@pytest.mark.parametrize("off", [0.8, 1.0, 1.1])
def test_a_plane_that_carries_ever_more_beyond_pdr_is_bad(off: float) -> None:
    verdict, _ = judged(lambda load: min(load, 0.7 + 0.3 * load), off, 0.01, 1e6)
    assert verdict.verdict == "BAD", verdict.reason


@given(
    pilot_pps=st.floats(min_value=100, max_value=1e7),
    most_pps=st.floats(min_value=100, max_value=1e8),
)
def test_a_ladder_that_grows_lies_within_what_can_be_sent(
    pilot_pps: float, most_pps: float
) -> None:
    ladder = ladder_beyond(pilot_pps, most_pps)
    assert 1 <= len(ladder) <= 2
    assert ladder[-1] <= most_pps
    if most_pps > 3 * pilot_pps:
        assert pilot_pps < ladder[0] < ladder[1] < 2.2 * pilot_pps
