"""The draws behind GOOD and BAD."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from planewise.judge import curve_draws
from planewise.judge.curve import Curve, LoadPoint, RunTable
from planewise.judge.curve_draws import BAD, GOOD, OPEN

SENT = 10_000_000


def curve(plr: dict[float, list[float]]) -> Curve:
    """A curve whose runs lose the given shares."""
    return Curve(
        "made up",
        tuple(
            LoadPoint(
                load,
                RunTable(
                    np.full(len(runs), SENT),
                    np.round(SENT * (1 - np.array(runs))).astype(np.int64),
                ),
            )
            for load, runs in plr.items()
        ),
    )


def test_lag_one_correlation_of_a_worked_series() -> None:
    # Mean 2; products of neighbours (-1)(0) + (0)(1) + (1)(0) = 0 over squares 1 + 0 + 1 + 0.
    assert curve_draws.lag1(np.array([1.0, 2.0, 3.0, 2.0])) == pytest.approx(0.0)
    # Mean 0; neighbours -1 each, three of them, over four squares.
    assert curve_draws.lag1(np.array([1.0, -1.0, 1.0, -1.0])) == pytest.approx(-0.75)
    assert curve_draws.lag1(np.ones(5)) == 0.0


def test_runs_that_resemble_their_predecessors_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    white = rng.standard_normal(400)
    resembling = np.empty(400)
    resembling[0] = white[0]
    for i in range(1, 400):
        resembling[i] = 0.8 * resembling[i - 1] + 0.6 * white[i]
    assert curve_draws.inflation(white) < 1.4
    # (1 + 0.8) / (1 − 0.8) is 9.
    assert 4 < curve_draws.inflation(resembling) < 14
    assert curve_draws.inflation(-white[:3]) == pytest.approx(1.5)
    # Runs that alternate would narrow it; that is not believed.
    assert 1.0 <= curve_draws.inflation(np.tile([1.0, -1.0], 50)) < 1.1


def test_one_or_two_runs_are_not_taken_at_their_word() -> None:
    twice = curve_draws.moments(curve({100: [0.05, 0.05], 200: [0.4, 0.4]}))
    assert (twice.deviation == 0).all()
    assert (twice.scale > 0.0025).all()
    often = curve_draws.moments(curve({100: [0.05] * 50, 200: [0.4] * 50}))
    assert (often.scale < 0.0005).all()


def test_the_interval_of_a_mean_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        runs = rng.normal(0.2, 0.004, size=(3, 6))
        moments = curve_draws.moments_of(np.array([1.0, 2.0, 3.0]), list(runs))
        reach = stats.t.ppf(0.975, moments.degrees[1]) * moments.scale[1]
        held += abs(moments.mean[1] - 0.2) < reach
    assert 0.93 < held / 400 <= 1.0


@pytest.mark.parametrize(
    ("plr", "outcome"),
    [
        ({100: [0.0], 200: [0.0], 300: [0.0]}, OPEN),
        ({100: [0.0], 200: [0.0], 300: [0.2]}, OPEN),
        ({100: [0.3], 150: [0.53], 200: [0.65]}, OPEN),
        ({100: [0.0], 175: [0.0], 200: [0.1], 300: [0.4], 400: [0.55]}, GOOD),
        ({100: [0.0], 200: [0.1], 300: [0.4], 400: [0.55]}, OPEN),
        ({100: [0.0], 200: [0.1], 300: [0.2], 400: [0.4]}, BAD),
        ({100: [0.02], 200: [0.03], 300: [0.35]}, BAD),
        ({100: [0.02]}, OPEN),
    ],
    ids=[
        "no load crosses",
        "only the last crosses",
        "the first crosses and nothing is seen to rise",
        "saturated from the crossing on",
        "the same, but PDR lies between loads far apart",
        "throughput still rises after the crossing",
        "the first crosses and throughput still rises",
        "one load",
    ],
)
def test_many_equal_runs_leave_no_doubt(plr: dict[float, list[float]], outcome: int) -> None:
    sure = curve({load: runs * 60 for load, runs in plr.items()})
    draws = curve_draws.draw(curve_draws.moments(sure), plr=0.005)
    assert draws.share(outcome) > 0.99


def test_what_the_ladder_does_not_show_counts_half() -> None:
    short = curve_draws.moments(curve({100: [0.0] * 30, 200: [0.2] * 30}))
    draws = curve_draws.draw(short, plr=0.005)
    assert draws.share(OPEN) == 1.0
    assert draws.share_good == 0.5


def test_noise_on_a_finely_stepped_plateau_is_not_taken_for_rising_throughput() -> None:
    """Each TIR alone has a deviation of 0.4; that the largest of ten exceeds 0.1 is no news."""
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(30):
        plr = {80.0: [0.0] * 6, 90.0: [0.0] * 6}
        for load in np.arange(100.0, 160.0, 5.0):
            plr[float(load)] = (1 - 95 * (1 + rng.normal(0, 0.01, 6)) / load).tolist()
        draws = curve_draws.draw(curve_draws.moments(curve(plr)), plr=0.005, draws=500)
        wrong += draws.share_good < 0.05
    assert wrong == 0


def test_precise_runs_are_not_drawn_together() -> None:
    """A single step that rises, after the first, stays BAD however flat the others are."""
    plr = {100.0: [0.0], 200.0: [0.25]}
    for step, load in enumerate(np.arange(300.0, 1000.0, 100.0)):
        throughput = 152.0 if step < 3 else 182.0
        plr[float(load)] = [1 - throughput / load]
    noisy = curve(
        {
            load: (np.array(value * 30) + 1e-4 * np.tile([-1.0, 1.0], 15)).clip(0).tolist()
            for load, value in plr.items()
        }
    )
    draws = curve_draws.draw(curve_draws.moments(noisy), plr=0.005)
    assert draws.share(BAD) > 0.99


def test_throughput_that_falls_at_last_does_not_make_the_plateau_before_it_doubtful() -> None:
    plr = {80.0: [0.0] * 10, 90.0: [0.0] * 10}
    rng = np.random.default_rng(9)
    for load in np.arange(100.0, 200.0, 5.0):
        throughput = 95 if load < 150 else 95 - (load - 150)
        plr[float(load)] = (1 - throughput * (1 + rng.normal(0, 1e-4, 10)) / load).tolist()
    draws = curve_draws.draw(curve_draws.moments(curve(plr)), plr=0.005)
    assert draws.share(GOOD) > 0.95


def test_loads_that_lie_close_are_pooled() -> None:
    loads = np.array([100.0, 101.0, 101.9, 110.0, 120.0, 121.0])
    assert curve_draws.groups(loads) == [slice(0, 3), slice(3, 4), slice(4, 6)]
    moments = curve_draws.moments(curve({100: [0.0, 0.0], 101.5: [0.03], 120: [0.5]}))
    assert moments.offered_pps == pytest.approx([100.5, 120.0])
    assert moments.count.tolist() == [3, 1]
    assert moments.mean[0] == pytest.approx(0.01)


def test_what_pooled_loads_lose_because_they_are_higher_is_no_noise() -> None:
    plateau = {load: [1 - 100 / load] * 4 for load in (150.0, 151.0, 152.0)}
    moments = curve_draws.moments(curve(plateau))
    assert moments.mean[0] == pytest.approx(1 - 100 / 151, abs=1e-4)
    assert moments.deviation[0] < 1e-4


def test_a_ladder_of_countless_loads_is_pooled_to_a_hundred() -> None:
    found = curve_draws.groups(np.geomspace(1.0, 1e12, 5000))
    assert 40 < len(found) <= 100
    assert found[0].start == 0
    assert found[-1].stop == 5000


def test_a_disturbed_run_counts_by_how_often_all_loads_saw_one() -> None:
    calm = {load: [0.001] * 20 for load in (100.0, 200.0)}
    one = {**calm, 300.0: [0.001] * 19 + [0.301]}
    moments = curve_draws.moments(curve(one))
    assert moments.disturbed.tolist() == [0, 0, 1]
    assert moments.ordinary_mean[2] == pytest.approx(0.001)
    assert moments.depth[2] == pytest.approx(0.3, abs=0.01)
    draws = curve_draws.draw(moments, plr=0.005, draws=20_000)
    # One of 60 runs in all: at its own load (1 + 10/60) of (20 + 10), elsewhere (10/60) of 30.
    assert draws.plr[:, 2].mean() == pytest.approx(0.001 + 0.3 * 0.0389, rel=0.05)
    assert draws.plr[:, 0].mean() == pytest.approx(0.001 + 0.3 * 0.0056, rel=0.1)


def test_runs_go_where_the_verdict_is_open() -> None:
    """Whether a tenth more comes through at 400 pps decides; what 100 pps lose does not."""
    plr = {
        100.0: [0.0] * 8,
        190.0: [0.0] * 8,
        200.0: [0.01] * 8,
        300.0: [1 - 200 / 300] * 8,
        400.0: [1 - rate / 400 for rate in (205, 235, 210, 228, 217, 219, 224, 207)],
    }
    moments = curve_draws.moments(curve(plr))
    draws = curve_draws.draw(moments, plr=0.005)
    gain = curve_draws.sensitivity(draws, moments)
    assert gain.argmax() == 4
    assert gain[4] > 10 * gain[0]


def interleaved(capacity: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Places and PLR of trials at three saturated loads in turn, capacity trial by trial."""
    place = np.arange(float(capacity.size))
    return (
        [place[i::3] for i in range(3)],
        [1 - capacity[i::3] / over for i, over in enumerate((1.2, 1.5, 2.0))],
    )


def wavering(rng: np.random.Generator, size: int, rho: float) -> np.ndarray:
    state = rng.standard_normal()
    capacity = np.empty(size)
    for i in range(size):
        state = rho * state + np.sqrt(1 - rho**2) * rng.standard_normal()
        capacity[i] = 1 + 0.02 * state
    return capacity


def test_a_trend_of_capacity_is_seen_when_loads_are_interleaved() -> None:
    rng = np.random.default_rng(2)
    capacity = (1 - 0.08 * np.arange(60) / 60) * (1 + rng.normal(0, 0.003, 60))
    drift = curve_draws.sweep_drift(*interleaved(capacity))
    assert drift is not None
    assert drift.material
    assert drift.change == pytest.approx(-0.08, abs=0.015)


def test_no_trend_is_told_where_loads_were_measured_one_after_another() -> None:
    places = [np.arange(20.0) + 20 * i for i in range(3)]
    runs = [level + 0.01 * place / 60 for level, place in zip((0.1, 0.3, 0.5), places, strict=True)]
    assert curve_draws.sweep_drift(places, runs) is None


def test_a_slow_wavering_is_no_certain_trend() -> None:
    rng = np.random.default_rng(4)
    material = 0
    for _ in range(100):
        drift = curve_draws.sweep_drift(*interleaved(wavering(rng, 90, 0.8)))
        material += drift is not None and drift.material
    assert material <= 5


def test_a_system_that_wavers_slowly_over_all_loads_widens_every_interval() -> None:
    rng = np.random.default_rng(6)
    loads = np.array([1.2, 1.5, 2.0])

    def widening(rho: float) -> float:
        places, runs = interleaved(wavering(rng, 60, rho))
        return float(curve_draws.moments_of(loads, runs, places).inflation.mean())

    white = np.mean([widening(0.0) for _ in range(10)])
    slow = np.mean([widening(0.95) for _ in range(10)])
    # Three loads in turn: the sum of 0.95^(3 |i − j|) over 20 x 20 visits, divided by 20, is 9.7.
    assert white < 1.5
    assert slow > 3
