"""Quantiles of packets with bootstrap intervals, and the publications' pooled tests."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats
from scipy.signal import lfilter

from planewise.judge.statistics.bootstrap import Replicate, bootstrap_quantiles
from planewise.judge.statistics.pooled import log10_p, pooled_tests
from planewise.store.models import TrialRecord
from planewise.store.packets import read_rtts
from planewise.store.rundir import RunReader
from tests.unit.made_up_run import MadeUp, write


def replicates(
    rng: np.random.Generator, blocks: int, packets: int, states: np.ndarray, scale: float = 1.0
) -> list[Replicate]:
    """Blocks with a state of their own, packets that resemble their predecessors."""
    noise = rng.normal(0, 1, (blocks, packets))
    noise[:, 1:] *= math.sqrt(1 - 0.6**2)
    noise = lfilter([1.0], [1.0, -0.6], noise, axis=1)
    times = scale * 1e4 * np.exp(states[:, None] + 0.3 * noise)
    return [Replicate((("#block", block),), times[block]) for block in range(blocks)]


def test_the_intervals_cover_the_truth() -> None:
    rng = np.random.default_rng(1)
    runs, sd = 60, 0.05
    truth = 1e4 * np.exp(stats.norm.ppf([0.5, 0.99]) * math.hypot(0.3, sd))
    covered = {0.5: 0, 0.99: 0}
    one = 0
    for seed in range(runs):
        levels = {
            name: replicates(rng, 6, 400, rng.normal(0, sd, 6)) for name in ("veth", "bridge")
        }
        found = bootstrap_quantiles(levels, "overall", draws=150, seed=seed)
        for estimate in found.estimates:
            if estimate.level == "veth" and estimate.quantile in covered:
                true = truth[list(covered).index(estimate.quantile)]
                assert estimate.low is not None
                assert estimate.high is not None
                covered[estimate.quantile] += estimate.low <= true <= estimate.high
        ratio = next(one for one in found.ratios if one.quantile == 0.5)
        assert ratio.low is not None
        assert ratio.high is not None
        one += ratio.low <= 1 <= ratio.high
    assert min(*covered.values(), one) >= 0.88 * runs


def test_states_that_levels_share_do_not_blur_their_ratio() -> None:
    rng = np.random.default_rng(2)
    states = rng.normal(0, 0.5, 8)
    levels = {
        "a": replicates(rng, 8, 500, states),
        "b": replicates(rng, 8, 500, states, scale=1.25),
    }
    found = bootstrap_quantiles(levels, "overall", draws=200)
    ratio = next(one for one in found.ratios if one.quantile == 0.5)
    level = next(one for one in found.estimates if (one.level, one.quantile) == ("a", 0.5))
    assert ratio.ratio == pytest.approx(0.8, abs=0.05)
    assert ratio.low is not None
    assert ratio.high is not None
    assert level.low is not None
    assert level.high is not None
    assert ratio.high < 1
    assert ratio.high / ratio.low < level.high / level.low


def test_a_single_block_has_no_interval_and_too_few_packets_no_tail() -> None:
    rng = np.random.default_rng(3)
    found = bootstrap_quantiles({"a": replicates(rng, 1, 200, np.zeros(1))}, "overall", draws=50)
    assert [one.quantile for one in found.estimates] == [0.5]
    assert found.estimates[0].low is None
    assert found.ratios == ()


def test_the_same_seed_gives_the_same_interval() -> None:
    rng = np.random.default_rng(4)
    levels = {"a": replicates(rng, 5, 300, np.zeros(5))}
    first, second = (bootstrap_quantiles(levels, "x", draws=60, seed=7) for _ in range(2))
    assert first == second


def test_the_pooled_test_is_scipys_and_far_too_sure() -> None:
    rng = np.random.default_rng(5)
    shifts = np.round(rng.normal(0.1, 1, 500), 1)
    expected = stats.wilcoxon(shifts, correction=True, method="asymptotic").pvalue
    assert 10 ** log10_p(shifts) == pytest.approx(expected)
    # No difference at all between the levels, only blocks with states of their own.
    rejected = 0
    for _ in range(60):
        levels = {
            name: {one.block: one.values for one in replicates(rng, 6, 300, rng.normal(0, 0.1, 6))}
            for name in ("a", "b")
        }
        (test,) = pooled_tests(levels, "overall", "rtt")
        rejected += test.p < 0.05
    assert rejected / 60 > 0.4


def test_round_trip_times_are_read_in_their_order_and_without_the_lost(tmp_path: Path) -> None:
    reader = RunReader(write(tmp_path / "run", MadeUp(packets=300, blocks=2, load_blocks=0)))
    trials = [t for t in reader.trials() if t.kind == "rtt" and t.status == "done"]
    found = list(read_rtts(reader.path, trials, "rtt_user"))
    assert [one.trial for one in found] == trials
    for one in found:
        frame = reader.packets(one.trial)
        assert frame is not None
        times = (frame["user_rx_ns"] - frame["user_tx_ns"]).drop_nulls()
        assert one.rtt_ns == pytest.approx(times.to_numpy(), rel=1e-6)


def test_a_damaged_packet_file_costs_its_own_trial_alone(tmp_path: Path) -> None:
    reader = RunReader(write(tmp_path / "run", MadeUp(packets=100, blocks=2, load_blocks=0)))
    trials = [t for t in reader.trials() if t.kind == "rtt" and t.status == "done"]
    (reader.path / str(trials[1].packets)).write_bytes(b"no parquet")
    pl.DataFrame({"seq": [1]}).write_parquet(reader.path / str(trials[2].packets))
    gone = TrialRecord.model_validate(trials[3].model_dump() | {"packets": None})
    found = list(read_rtts(reader.path, [*trials[:3], gone, *trials[4:]], "rtt_user"))
    whys = [bool(one.why) for one in found]
    assert whys == [False, True, True, True] + [False] * (len(trials) - 4)
    assert "cannot be read" in found[1].why
    assert found[3].why == "its packets were not kept"
