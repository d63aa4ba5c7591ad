"""Eight more kinds of synthetic systems, which no search was made for: for benches and tests.

Each kind draws independent systems by number. Unlike tests/adversaries.py, most of them lose
packets by a law that depends on the load. The truth is that of trials of 1 s: the load at which
half of many simulated trials lose no more than the goal's share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planewise.judge.curve import Run
from planewise.judge.headroom import exact_headroom
from planewise.judge.synthetic import MAX_LOAD_PPS, MIN_LOAD_PPS, Truth

Array = NDArray[np.float64]
Random = np.random.Generator
Lost = Callable[[Random, float, float, int], Array]
"""Packets that `count` independent trials lose, by random state, load [pps] and duration [s]."""

_SAMPLES = 2_001


@dataclass(frozen=True)
class Stranger:
    """One system."""

    name: str
    capacity_pps: float
    lost: Lost
    step: float = 0.0
    """The generator sends powers of 1 + `step` only; 0: any load."""
    slow_trials: int = 0
    slow_by: float = 0.0
    """The first trials ever find this share of the capacity gone."""

    def start(
        self,
        seed: int,
        *,
        min_load_pps: float = MIN_LOAD_PPS,
        max_load_pps: float = MAX_LOAD_PPS,
    ) -> StrangerSimulation:
        """A simulation that answers trials, reproducible by its seed."""
        return StrangerSimulation(self, seed, min_load_pps, max_load_pps)

    def truth(self, loss_ratio: float = 0.005, *, elapsed_s: float = 0.0) -> Truth:
        """NDR and PDR of trials of 1 s; None where they lie outside the range of loads."""
        return Truth(
            ndr_pps=self._edge(0.0),
            pdr_pps=self._edge(loss_ratio),
            expected_pdr_pps=None,
            saturation_pps=self.capacity_pps,
        )

    def headroom(self, loss_ratio: float = 0.005) -> float | None:
        """Headroom of the mean curve of trials of 1 s; None where PDR is not in sight."""

        def loss(loads: Array) -> Array:
            return np.array([self._lost_shares(load, 301).mean() for load in loads])

        return exact_headroom(loss, self.capacity_pps, loss_ratio, points=300)

    def _lost_shares(self, load: float, count: int = _SAMPLES) -> Array:
        sent = max(1, round(load))
        lost = self.lost(np.random.default_rng(0), load, 1.0, count)
        return np.round(np.clip(lost, 0, sent)) / sent

    def _edge(self, share: float) -> float | None:
        def mostly_good(load: float) -> bool:
            return float((self._lost_shares(load) <= share).mean()) >= 0.5

        low, high = MIN_LOAD_PPS, min(3 * self.capacity_pps, MAX_LOAD_PPS)
        if not mostly_good(low) or mostly_good(high):
            return None
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if mostly_good(middle) else (low, middle)
        return math.sqrt(low * high)


class StrangerSimulation:
    """A system that is being measured. Has the shape of a `Measurer`."""

    def __init__(
        self, system: Stranger, seed: int, min_load_pps: float, max_load_pps: float
    ) -> None:
        self.min_load_pps = min_load_pps
        self.max_load_pps = max_load_pps
        self._system = system
        self._random = np.random.default_rng(seed)
        self._trials = 0

    def trial(self, offered_pps: float, duration_s: float) -> Run:
        """One trial of constant load."""
        system = self._system
        if system.step:
            power = round(math.log(offered_pps) / math.log1p(system.step))
            offered_pps = (1 + system.step) ** power
        sent = max(1, round(offered_pps * duration_s))
        slow = system.slow_by if self._trials < system.slow_trials else 0.0
        lost = float(system.lost(self._random, offered_pps / (1 - slow), duration_s, 1)[0])
        if slow:
            lost = max(lost * (1 - slow), 0.0)
        self._trials += 1
        received = sent - min(max(round(lost), 0), sent)
        return Run(sent, received, duration_s, order=self._trials - 1)


def _capacity(draw: Random) -> float:
    return float(10 ** draw.uniform(5, 6.9))


def _noise(draw: Random) -> float:
    return float(10 ** draw.uniform(-3, -2))


def _overload(random: Random, load: float, capacity: float, noise: float, count: int) -> Array:
    """Packets a second beyond the capacity, which wavers from trial to trial."""
    factors = 1 + noise * random.standard_normal(count)
    return np.asarray(np.maximum(load - capacity * factors, 0))


def _gc(draw: Random) -> Stranger:
    """Pauses of 2 to 40 ms whose rate grows with the load, 0.3 to 5 a second at capacity."""
    capacity, noise = _capacity(draw), _noise(draw)
    rate, mean_s = float(10 ** draw.uniform(-0.5, 0.7)), float(10 ** draw.uniform(-2.7, -1.4))
    power, queue = float(draw.uniform(1, 3)), 2 ** int(draw.integers(7, 13))

    def lost(random: Random, load: float, duration_s: float, count: int) -> Array:
        pauses = random.poisson(rate * (load / capacity) ** power * duration_s, count)
        most = max(1, int(pauses.max()))
        length_s = random.exponential(mean_s, (count, most))
        each = np.maximum(load * length_s - queue, 0) * (np.arange(most) < pauses[:, None])
        return np.asarray(
            each.sum(axis=1) + _overload(random, load, capacity, noise, count) * duration_s
        )

    return Stranger("gc", capacity, lost)


def _compete(draw: Random) -> Stranger:
    """A neighbour takes 20 to 80 % of the capacity in bursts of 50 ms, 0.3 to 6 a second."""
    capacity, noise = _capacity(draw), _noise(draw)
    rate, taken = float(10 ** draw.uniform(-0.5, 0.8)), float(draw.uniform(0.2, 0.8))
    queue = 2 ** int(draw.integers(7, 12))

    def lost(random: Random, load: float, duration_s: float, count: int) -> Array:
        bursts = random.poisson(rate * duration_s, count)
        burst_s = np.minimum(0.05 * bursts, duration_s)
        during = np.maximum(load - capacity * (1 - taken), 0) * burst_s - queue * bursts
        rest_s = duration_s - burst_s
        return np.asarray(
            np.maximum(during, 0) + _overload(random, load, capacity, noise, count) * rest_s
        )

    return Stranger("compete", capacity, lost)


def _constant_loss(name: str, low: float, high: float) -> Callable[[Random], Stranger]:
    def make(draw: Random) -> Stranger:
        capacity, noise, share = _capacity(draw), _noise(draw), float(draw.uniform(low, high))

        def lost(random: Random, load: float, duration_s: float, count: int) -> Array:
            beyond = _overload(random, load, capacity, noise, count) * duration_s
            return np.asarray(
                beyond + random.binomial(max(1, round(load * duration_s)), share, count)
            )

        return Stranger(name, capacity, lost)

    return make


def _token_bucket(draw: Random) -> Stranger:
    """A policer: a bucket of 5 to 300 ms is full when a trial begins."""
    capacity, bucket_s = _capacity(draw), float(10 ** draw.uniform(-2.3, -0.5))

    def lost(random: Random, load: float, duration_s: float, count: int) -> Array:
        passed = capacity * (duration_s + bucket_s)
        return np.full(count, max(load * duration_s - passed, 0.0))

    return Stranger("token-bucket", capacity, lost)


def _cold_start(draw: Random) -> Stranger:
    """The first 1 to 100 ms of each trial, or the first 2 to 8 trials, are slower."""
    capacity, noise, slow_s = _capacity(draw), _noise(draw), float(10 ** draw.uniform(-3, -1))
    cold, queue = float(draw.uniform(0.2, 0.8)), 2 ** int(draw.integers(7, 12))
    by_trial = draw.random() < 0.3

    def lost(random: Random, load: float, duration_s: float, count: int) -> Array:
        beyond = _overload(random, load, capacity, noise, count)
        if by_trial:
            return np.asarray(beyond * duration_s)
        early_s = min(slow_s, duration_s)
        early = max((load - cold * capacity) * early_s - queue, 0.0)
        return np.asarray(early + beyond * (duration_s - early_s))

    if by_trial:
        trials = int(draw.integers(2, 9))
        return Stranger("cold-start", capacity, lost, slow_trials=trials, slow_by=1 - cold)
    return Stranger("cold-start", capacity, lost)


def _soft_knee(draw: Random) -> Stranger:
    """Throughput bends smoothly: R = C·(1 + (C/O)^k)^(−1/k), k from 4 to 40."""
    capacity, noise, bend = _capacity(draw), _noise(draw), float(10 ** draw.uniform(0.6, 1.6))

    def lost(random: Random, load: float, duration_s: float, count: int) -> Array:
        relative = load / (capacity * (1 + noise * random.standard_normal(count)))
        passed = (1 + relative**bend) ** (-1 / bend)
        return random.binomial(max(1, round(load * duration_s)), 1 - passed).astype(np.float64)

    return Stranger("soft-knee", capacity, lost)


def _stepping(draw: Random) -> Stranger:
    """The generator knows rates 0.3 to 3.5 % apart only."""
    capacity, noise, step = _capacity(draw), _noise(draw), float(draw.uniform(0.003, 0.035))

    def lost(random: Random, load: float, duration_s: float, count: int) -> Array:
        return _overload(random, load, capacity, noise, count) * duration_s

    return Stranger("stepping", capacity, lost, step=step)


KINDS: Mapping[str, Callable[[Random], Stranger]] = {
    "gc": _gc,
    "compete": _compete,
    "loss-0.6%": _constant_loss("loss-0.6%", 0.0056, 0.008),
    "token-bucket": _token_bucket,
    "cold-start": _cold_start,
    "soft-knee": _soft_knee,
    "stepping": _stepping,
    "loss-0.3%": _constant_loss("loss-0.3%", 0.001, 0.0042),
}
"""A kind's place decides its systems: a new one goes to the end."""


def draw(kind: str, index: int) -> Stranger:
    """System number `index` of a kind."""
    return KINDS[kind](np.random.default_rng([index, 77, list(KINDS).index(kind)]))
