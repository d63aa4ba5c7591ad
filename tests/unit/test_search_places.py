"""Where the planewise search places its trials, and what it reads from them."""

import numpy as np
import pytest

from planewise.judge import synthetic
from planewise.judge.curve import Run
from planewise.measure.search.conclude import sides_of
from planewise.measure.search.fits import Fits, PlanewiseOptions
from planewise.measure.search.goals import Goal, SearchTrial
from planewise.measure.search.run import run_search
from planewise.measure.search.session import Limits, SearchSession
from tests import shapes

NDR, PDR = Goal(0.0), Goal(0.005)


def gradual(seed: int) -> synthetic.SyntheticSut:
    """A system whose throughput still rises beyond saturation, by 30 to 80 % of the load."""
    return shapes.make("gradual", capacity_pps=1e6, noise_sd=0.01, seed=seed)


def test_pdr_is_not_too_high_where_throughput_rises_beyond_saturation() -> None:
    errors = []
    for seed in range(1, 17):
        truth = gradual(seed).truth().pdr_pps
        found = run_search(gradual(seed).start(seed), [NDR, PDR]).goal(PDR.name).pps
        assert truth is not None
        assert found is not None
        errors.append(found / truth - 1)
    # A deviation of 0.35 % each: their median exceeds 0.3 % with a probability of 3e-3.
    assert np.median(errors) < 0.003


@pytest.mark.parametrize("seed", [1, 8, 10])
def test_no_long_trial_lies_where_short_ones_lost_nothing_far_below_pdr(seed: int) -> None:
    sut = shapes.make("ideal", capacity_pps=1e6, noise_sd=0.01, seed=seed)
    result = run_search(sut.start(seed), [NDR, PDR])
    pdr = result.goal(PDR.name).pps
    assert pdr is not None
    assert all(t.offered_pps > 0.8 * pdr for t in result.trials if t.duration_s == 1.0)


def test_some_trials_overload_a_system_that_hardly_wavers() -> None:
    sut = shapes.make("ideal", capacity_pps=1e6, noise_sd=0.002, seed=1)
    result = run_search(sut.start(1), [NDR, PDR])
    assert sum(t.loss_ratio > 0.025 for t in result.trials if t.duration_s == 1.0) >= 3


def test_a_short_trial_that_lost_something_missed_ndr_and_tells_nothing_of_pdr() -> None:
    session = SearchSession(gradual(1).start(1), Limits())
    for load_pps, duration_s, lost in ((5e5, 0.2, 7), (6e5, 0.2, 0), (9e5, 1.0, 7), (1e6, 1.0, 9)):
        sent = round(load_pps * duration_s)
        session.trials.append(SearchTrial(load_pps, duration_s, Run(sent, sent - lost, duration_s)))
    fits = Fits(session, PlanewiseOptions())
    missed, met = sides_of(fits, NDR), sides_of(fits, PDR)
    assert missed is not None
    assert met is not None
    assert missed.edges.size == 3 + 2
    assert fits.load_pps(missed.edges[1]) == pytest.approx(5e5)
    assert met.edges.size == 2 + 2
