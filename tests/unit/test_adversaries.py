"""The adversaries' truth is what trials of the stated duration see."""

import numpy as np
import pytest

from planewise.errors import BadInputError
from tests.adversaries import FAMILIES, Adversary, CapacityFactors, draw


def share_of_good_trials(system, load, share, duration_s=1.0, trials=400):
    simulation = system.start(9)
    runs = [simulation.trial(load, duration_s) for _ in range(trials)]
    return np.mean([run.sent - run.received <= share * run.sent for run in runs])


def test_a_queue_lets_a_trial_pass_what_it_holds_beside_what_is_served():
    system = Adversary("queue", 1e6, ring_packets=4096)
    run = system.start(1).trial(1.1e6, 1.0)
    assert run.received == 1_000_000 + 4096
    truth = system.truth(0.005)
    assert truth.ndr_pps == pytest.approx(1e6 + 4096)
    assert truth.pdr_pps == pytest.approx((1e6 + 4096) / 0.995)
    shorter = system.truth(0.005, trial_duration_s=0.25).pdr_pps
    assert shorter == pytest.approx((1e6 + 4 * 4096) / 0.995)


def test_a_pause_loses_what_the_queue_cannot_hold():
    system = Adversary("pausing-queue", 1e6, ring_packets=100, pauses_per_s=20, pause_s=1e-3)
    runs = [system.start(seed).trial(0.5e6, 1.0) for seed in range(50)]
    # A pause of t loses 0.5e6·t − 100 where that is positive: exp(−0.2)·500 on average.
    lost = np.mean([run.sent - run.received for run in runs])
    assert lost == pytest.approx(20 * np.exp(-0.2) * 500, rel=0.1)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("lossless", "dead")])
def test_half_of_the_trials_meet_the_goal_at_the_truth(family):
    for index in range(2):
        system = draw(family, index)
        pdr = system.truth(0.005).pdr_pps
        assert pdr is not None
        tolerance = 0.2 if system.factors.stay else 0.09
        assert share_of_good_trials(system, pdr * 0.9999, 0.005) >= 0.5 - tolerance
        assert share_of_good_trials(system, pdr * 1.0001, 0.005) <= 0.5 + tolerance


def test_systems_of_a_family_differ_and_come_again_by_their_number():
    assert draw("markov", 3) == draw("markov", 3)
    assert draw("markov", 3) != draw("markov", 4)
    with pytest.raises(BadInputError, match="no family"):
        draw("magic", 1)


def test_two_states_far_apart_are_no_good_system_between_them():
    system = Adversary("two-states", 1e6, CapacityFactors((0.58, 1.0), (0.4, 0.6)))
    # Beyond 1 Mpps 0.832 pass on average; 0.5 % are lost where 0.4 (1 − 0.58/r) is so much.
    assert system.headroom() == pytest.approx(0.832 / (0.58 / 0.9875 * 0.995) - 1, abs=0.01)
    assert Adversary("steady", 1e6).headroom() == pytest.approx(0, abs=1e-6)


def test_disturbed_trials_lose_at_any_load():
    system = Adversary("disturbed", 1e6, disturbed=0.05)
    runs = [system.start(seed).trial(0.1e6, 1.0) for seed in range(400)]
    lost = np.array([1 - run.received / run.sent for run in runs])
    assert set(lost.round(6)) == {0.0, 0.6}
    assert 0.02 < np.mean(lost > 0) < 0.08
    assert system.headroom() is None
    assert system.truth().pdr_pps == pytest.approx(1e6 / 0.995)
