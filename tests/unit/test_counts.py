"""Bounds by counting hold for any system whose trials pass less often at higher loads."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.measure.search.counts import (
    Outcome,
    bound,
    confidence_of,
    lacking,
    lead_for,
)


def test_a_confidence_sets_the_lead():
    assert [lead_for(confidence) for confidence in (0.95, 0.82)] == [6, 4]
    assert confidence_of(6) == pytest.approx(0.948, abs=0.001)
    assert confidence_of(4) == pytest.approx(0.825, abs=0.001)


def passed_at(*loads, side=1):
    return [Outcome(at, side > 0, side) for at in loads]


def test_six_passes_make_the_lowest_of_their_loads_a_bound_and_a_fail_costs_three():
    six = passed_at(1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
    assert bound(six[1:], 1, 6) is None
    assert bound(six, 1, 6) == 1.0
    failed = [*six, Outcome(1.2, False, 1)]
    assert bound(failed, 1, 6) is None
    assert lacking(failed, [1.0], 1, 6)[0] == 3
    # A fail below the bound's load does not count for it, but for the lower loads.
    assert bound([*passed_at(*[2.0] * 6), Outcome(1.0, False, 1)], 1, 6) is None


def test_upper_bounds_mirror_lower_ones_and_trials_of_no_side_do_not_count():
    assert bound(passed_at(*[2.0] * 6, side=-1), -1, 6) == 2.0
    assert bound([Outcome(1.0, True, 0)] * 9, 1, 6) is None


def wrong_bounds(seed: int) -> tuple[bool, bool]:
    """Whether a search that tries hard to be wrong claims a false lower, or upper, bound.

    The chance of a pass falls with the load in steps of random height; loads, sides and the end
    are chosen by what was seen.
    """
    chance = random.Random(seed)
    steps = sorted((chance.random() for _ in range(chance.randint(1, 6))), reverse=True)
    loads = sorted(chance.random() for _ in steps)
    if chance.random() < 0.5:  # all as near to a half as can be, on the wrong sides
        steps = [0.5] * len(steps)

    def passes(at: float) -> bool:
        index = sum(at >= load for load in loads) - 1
        return chance.random() < (steps[index] if index >= 0 else max(steps[0], 0.5))

    edge = next((load for load, step in zip(loads, steps, strict=True) if step < 0.5), math.inf)
    first = next((load for load, step in zip(loads, steps, strict=True) if step <= 0.5), edge)
    seen: list[Outcome] = []
    low = high = None
    for _ in range(chance.randint(10, 90)):
        side = chance.choice((1, -1))
        last = [outcome for outcome in seen if outcome.side == side]
        # Stay where the last trial came out right, else move on: a gambler's choice.
        at = last[-1].at if last and last[-1].right else chance.random()
        seen.append(Outcome(at, passes(at), side))
        low, high = bound(seen, 1, 6), bound(seen, -1, 6)
        if low is not None and low > edge:
            return True, False
        if high is not None and high < first:
            return False, True
        if low is not None and high is not None and chance.random() < 0.1:
            break
    return False, False


def test_bounds_are_wrong_in_at_most_one_search_of_twenty_whatever_places_trials():
    count = 1500
    wrong = np.array([wrong_bounds(seed) for seed in range(count)]).any(axis=1).mean()
    # The promise, and what chance adds to it in so many searches (3 deviations).
    assert wrong <= 0.052 + 3 * math.sqrt(0.052 * 0.948 / count)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.sampled_from((-1, 0, 1)))))
def test_what_a_bound_lacks_agrees_with_the_bound(trials):
    outcomes = [Outcome(at, passed, side) for at, passed, side in trials]
    for side in (1, -1):
        claimed = bound(outcomes, side, 6)
        if claimed is not None:
            assert lacking(outcomes, [claimed], side, 6)[0] <= 0
