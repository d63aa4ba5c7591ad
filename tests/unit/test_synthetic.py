"""The synthetic systems keep to their formulas, their seeds, and their stated truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import BadInputError
from planewise.judge import synthetic
from tests import shapes

LADDER = [1e6 * step / 10 for step in range(2, 18)]


def test_an_ideal_system_saturates_at_its_capacity_and_pdr_follows_from_the_formula():
    truth = shapes.make("ideal", capacity_pps=2e6).truth(0.005)
    assert truth.pdr_pps == pytest.approx(2e6 / 0.995, rel=1e-5)
    assert truth.expected_pdr_pps == pytest.approx(2e6 / 0.995, rel=1e-6)
    assert truth.ndr_pps == pytest.approx(2e6, rel=1e-5)


def test_noise_leaves_the_median_where_it_is_and_lowers_the_expected_pdr():
    truth = synthetic.by_name("ideal-3pct").truth(0.005)
    assert truth.pdr_pps == pytest.approx(1e6 / 0.995, rel=1e-4)
    assert truth.expected_pdr_pps is not None
    assert truth.expected_pdr_pps < 0.99e6


def test_the_realistic_curve_has_the_end_points_of_the_paper():
    curve = synthetic.realistic(early_loss=1e-7, loss_at_saturation=0.01)
    low, at, beyond = curve(np.array([0.5, 1.0, 2.0]))
    assert 1e-8 < low < 1e-6
    assert at == pytest.approx(0.01, rel=1e-3)
    assert beyond == pytest.approx(1 - 0.99 / 2, rel=1e-4)


def test_thrashing_throughput_falls_linearly_to_zero():
    curve = synthetic.thrashing(trash_at=1.5, fall_over=1.0)
    loads = np.array([1.2, 1.4, 2.0, 2.5, 3.0])
    rates = loads * (1 - curve(loads))
    assert rates[0] == pytest.approx(rates[1])
    assert rates[2] == pytest.approx(rates[0] / 2)
    assert rates[3] == rates[4] == pytest.approx(0)


def test_zero_loss_needs_smaller_loads_the_longer_the_trial():
    sut = synthetic.by_name("realistic")
    short = sut.truth(trial_duration_s=1.0).ndr_pps
    long = sut.truth(trial_duration_s=60.0).ndr_pps
    assert short is not None
    assert long is not None
    assert long < short < 1e6


def test_pdr_of_a_non_monotone_system_lies_below_the_bump():
    sut = synthetic.by_name("non-monotone")
    truth = sut.truth(0.005)
    assert truth.pdr_pps is not None
    assert truth.pdr_pps < 0.55e6
    assert sut.expected_loss_ratio(np.array([0.9e6]))[0] == pytest.approx(0, abs=1e-6)


def test_a_load_range_that_ends_below_the_crossing_has_no_pdr():
    truth = synthetic.by_name("ideal").truth(max_load_pps=0.9e6)
    assert truth.ndr_pps is None
    assert truth.pdr_pps is None


def test_headroom_of_the_exact_curves():
    headroom = {name: sut.headroom() for name, sut in synthetic.catalogue().items()}
    assert headroom["ideal"] == pytest.approx(0, abs=1e-6)
    # PDR at 0.5^(1/40) of saturation, where 99 % of it pass.
    assert headroom["realistic"] == pytest.approx(0.99 / (0.5 ** (1 / 40) * 0.995) - 1, abs=1e-3)
    assert headroom["thrashing"] == pytest.approx(headroom["realistic"])
    # 1.6 at the ceiling, 1.01 · 0.995 at PDR, where 0.6 of what exceeds 1 pass.
    assert headroom["gradual"] == pytest.approx(1.6 / (0.4 / 0.395 * 0.995) - 1, abs=1e-3)
    assert headroom["non-monotone"] > 0.9


def test_truth_agrees_with_a_long_simulation_for_every_system_that_does_not_drift():
    for name, sut in synthetic.catalogue().items():
        if sut.drift_per_s or sut.correlation:
            continue
        load = sut.truth(0.005).pdr_pps
        assert load is not None
        simulation = sut.start(5)
        good = [simulation.trial(load, 1.0).plr <= 0.005 for _ in range(800)]
        assert np.mean(good) == pytest.approx(0.5, abs=0.08), name


def test_simulated_loss_has_the_expected_mean():
    for kind in ("ideal", "realistic", "bursty", "spikes", "gradual"):
        sut = shapes.make(kind, noise_sd=0.01)
        simulation = sut.start(3)
        mean = np.mean([simulation.trial(1.02e6, 1.0).plr for _ in range(2000)])
        expected = sut.expected_loss_ratio(np.array([1.02e6]))[0]
        assert mean == pytest.approx(expected, rel=0.1), kind


def test_autocorrelated_capacity_is_correlated_between_trials_and_white_noise_is_not():
    def correlation(sut):
        simulation = sut.start(11)
        rates = np.array([simulation.trial(1.5e6, 0.2).received for _ in range(3000)])
        return np.corrcoef(rates[:-1], rates[1:])[0, 1]

    assert correlation(synthetic.by_name("autocorrelated")) == pytest.approx(0.8, abs=0.05)
    assert correlation(synthetic.by_name("ideal-3pct")) == pytest.approx(0.0, abs=0.06)


def test_a_drifting_system_loses_capacity_with_traffic_time():
    sut = synthetic.by_name("drifting")
    simulation = sut.start(1)
    first = simulation.trial(2e6, 1.0).received
    for _ in range(100):
        last = simulation.trial(2e6, 1.0).received
    assert last / first == pytest.approx(0.9, abs=0.01)
    assert sut.truth(elapsed_s=100).saturation_pps == pytest.approx(0.9e6)


def test_the_same_seed_gives_the_same_trials_and_another_seed_others():
    sut = shapes.make("spikes", noise_sd=0.03, seed=4)
    runs = [[sut.start(seed).trial(1e6, 0.5) for _ in range(3)] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_unknown_names_and_impossible_trials_say_what_is_known():
    with pytest.raises(BadInputError, match="no synthetic system 'nonsense'"):
        synthetic.by_name("nonsense")
    with pytest.raises(BadInputError, match="positive load"):
        synthetic.by_name("ideal").start(1).trial(0.0, 1.0)


def test_a_sweep_is_a_curve_with_all_runs_at_each_load():
    curve = synthetic.by_name("realistic-1pct").start(2).sweep(LADDER, runs=5, duration_s=0.1)
    assert curve.counts.sum() == 5 * len(LADDER)
    assert curve.first_over(0.005) is not None


@given(
    kind=st.sampled_from(list(synthetic.KINDS)),
    shape=st.integers(0, 2**32),
    noise=st.floats(0, 0.2),
    relative=st.floats(0.001, 50),
    duration=st.floats(0.001, 60),
)
def test_any_system_answers_any_trial_with_possible_counts(kind, shape, noise, relative, duration):
    sut = shapes.make(kind, capacity_pps=3e5, noise_sd=noise, seed=shape)
    run = sut.start(shape).trial(3e5 * relative, duration)
    assert run.sent >= 1
    assert 0 <= run.received <= run.sent


def test_half_of_the_trials_meet_the_goal_at_pdr_where_few_large_clumps_are_lost():
    sut = synthetic.SyntheticSut(
        "clumps", synthetic.realistic(), capacity_pps=1e5, mean_burst_packets=1000
    )
    simulation = sut.start(1)
    load = sut.truth().pdr_pps
    good = [simulation.trial(load, 1.0).plr <= 0.005 for _ in range(2000)]
    # Four deviations; a normal law about the mean loss would put PDR where 59 % are good.
    assert abs(sum(good) / 2000 - 0.5) < 0.045
