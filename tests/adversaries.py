"""Synthetic systems that break the assumptions of searches and verdicts: for benches and tests.

A `family` draws independent systems: every parameter is random, within the ranges stated at its
function. Each system is a server of constant rate whose capacity has its own value in every trial,
behind a queue that holds packets, and that may pause. A trial of duration T sees the queue fill,
and what is left in it is served after the last packet was sent, and counts as received.

In a trial at load O with capacity factor m and no pause

    received = min(O·T, C·m·T + Q)

so a trial's own PDR is (C·m + Q/T)/(1 − share): it depends on T, and the truth is that of trials of
the stated duration (1 s), as half of them see it. Knows no search and no testbed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planewise.errors import BadInputError
from planewise.judge.curve import Run
from planewise.judge.headroom import exact_headroom
from planewise.judge.synthetic import MAX_LOAD_PPS, MIN_LOAD_PPS, Truth

Array = NDArray[np.float64]
Random = np.random.Generator

_SAMPLES = 20_001
"""Trials by which the truth is known where there is no formula: ± 0.9 % of the deviation between
trials. Odd, so that the median is one of them."""
_PAUSED_SAMPLES = 2_001
_BISECTIONS = 40


@dataclass(frozen=True)
class CapacityFactors:
    """The capacity factor m of successive trials: a mixture of states with noise.

    m = state · (1 + sd · ε), where ε has the law `noise`; a trial is in its predecessor's state
    with probability `stay` and else in one drawn by `weights` (a Markov chain whose stationary
    law is `weights`).
    """

    states: tuple[float, ...] = (1.0,)
    weights: tuple[float, ...] = (1.0,)
    stay: float = 0.0
    sd: float = 0.0
    noise: Literal["normal", "student", "exponential"] = "normal"
    degrees: float = 3.0
    """Of Student's t."""

    def draw_noise(self, random: Random, count: int) -> Array:
        """ε of that many trials; the exponential law is one-sided: capacity is only lost."""
        if self.noise == "student":
            return np.asarray(random.standard_t(self.degrees, count))
        if self.noise == "exponential":
            return -random.exponential(1.0, count)
        return random.standard_normal(count)

    def stationary(self, random: Random, count: int) -> Array:
        """m of that many unrelated trials."""
        states = random.choice(np.array(self.states), count, p=np.array(self.weights))
        return np.maximum(states * (1.0 + self.sd * self.draw_noise(random, count)), 1e-3)


@dataclass(frozen=True)
class Adversary:
    """One system; see the module for its law."""

    name: str
    capacity_pps: float
    factors: CapacityFactors = CapacityFactors()
    ring_packets: int = 0
    """What the queue holds."""
    pauses_per_s: float = 0.0
    pause_s: float = 0.0
    """Mean length of a pause, exponential; the server rests and the queue fills."""
    boost: float = 0.0
    boost_s: float = 0.0
    """For so long at a trial's beginning the server is faster by this share (turbo)."""
    disturbed: float = 0.0
    """Share of trials that lose `disturbed_loss`, or more, at whatever load."""
    disturbed_loss: float = 0.6

    def start(
        self,
        seed: int,
        *,
        min_load_pps: float = MIN_LOAD_PPS,
        max_load_pps: float = MAX_LOAD_PPS,
    ) -> AdversarySimulation:
        """A simulation that answers trials, reproducible by its seed."""
        return AdversarySimulation(self, seed, min_load_pps, max_load_pps)

    def truth(
        self, loss_ratio: float = 0.005, *, trial_duration_s: float = 1.0, elapsed_s: float = 0.0
    ) -> Truth:
        """NDR and PDR of trials of this duration; None where they exceed the range.

        `elapsed_s` is for the shape of `SyntheticSut`: nothing here changes for good.
        """
        random = np.random.default_rng(0)
        count = _PAUSED_SAMPLES if self.pauses_per_s else _SAMPLES
        rates = self._rates(random, count, trial_duration_s)
        pauses = self._pauses(random, count, trial_duration_s)
        spared = random.random(count) >= self.disturbed
        ndr, pdr = (
            float(np.median(spared * self._thresholds(rates, pauses, share, trial_duration_s)))
            for share in (0.0, loss_ratio)
        )
        return Truth(
            ndr_pps=ndr if ndr < MAX_LOAD_PPS else None,
            pdr_pps=pdr if pdr < MAX_LOAD_PPS else None,
            expected_pdr_pps=None,
            saturation_pps=float(np.median(rates)),
        )

    def headroom(self, loss_ratio: float = 0.005) -> float | None:
        """Headroom of the mean curve of trials of 1 s; None where PDR is not in sight."""
        random = np.random.default_rng(0)
        rates = self._rates(random, _PAUSED_SAMPLES, 1.0)
        pauses = self._pauses(random, _PAUSED_SAMPLES, 1.0)

        def loss(loads: Array) -> Array:
            shares = [self._lost(np.full_like(rates, load), rates, pauses, 1.0) for load in loads]
            each = np.array(shares) / loads[:, None]
            spoiled = np.maximum(each, self.disturbed_loss).mean(axis=1)
            mean = (1 - self.disturbed) * each.mean(axis=1) + self.disturbed * spoiled
            return np.asarray(mean)

        around = float(np.median(rates)) + self.ring_packets
        return exact_headroom(loss, around, loss_ratio, points=300)

    def lost_in(self, random: Random, offered_pps: float, factor: float, duration_s: float) -> int:
        """Packets lost in one trial."""
        rates = self._with_boost(np.array([factor]) * self.capacity_pps, duration_s)
        pauses = self._pauses(random, 1, duration_s)
        return round(float(self._lost(np.array([offered_pps]), rates, pauses, duration_s)[0]))

    def _rates(self, random: Random, count: int, duration_s: float) -> Array:
        """Mean rates of the server in that many trials [packet/s]."""
        return self._with_boost(
            self.capacity_pps * self.factors.stationary(random, count), duration_s
        )

    def _with_boost(self, rates: Array, duration_s: float) -> Array:
        return rates * (1.0 + self.boost * min(self.boost_s / duration_s, 1.0))

    def _pauses(self, random: Random, count: int, duration_s: float) -> tuple[Array, Array]:
        """Beginnings and lengths [s] of pauses, shape (count, most); unused ones begin at the
        trial's end."""
        numbers = random.poisson(self.pauses_per_s * duration_s, count)
        most = int(numbers.max()) if count else 0
        begins = random.uniform(0.0, duration_s, (count, most))
        begins = np.sort(np.where(np.arange(most) < numbers[:, None], begins, duration_s), axis=1)
        return begins, random.exponential(max(self.pause_s, 1e-12), (count, most))

    def _lost(
        self, loads: Array, rates: Array, pauses: tuple[Array, Array], duration_s: float
    ) -> Array:
        """Packets that found the queue full, by trial: a fluid queue, from pause to pause."""
        begins, lengths = pauses
        level, lost, now = (np.zeros(loads.shape) for _ in range(3))

        def flow(level: Array, lost: Array, seconds: Array, rate: Array) -> tuple[Array, Array]:
            filled = np.maximum(level + (loads - rate) * seconds, 0.0)
            over = np.maximum(filled - self.ring_packets, 0.0)
            return filled - over, lost + over

        for index in range(begins.shape[1]):
            begin = np.maximum(begins[:, index], now)
            level, lost = flow(level, lost, begin - now, rates)
            now = np.minimum(begin + lengths[:, index], duration_s)
            level, lost = flow(level, lost, now - begin, np.zeros_like(rates))
        level, lost = flow(level, lost, np.maximum(duration_s - now, 0.0), rates)
        return lost

    def _thresholds(
        self, rates: Array, pauses: tuple[Array, Array], share: float, duration_s: float
    ) -> Array:
        """The highest load at which each trial loses at most the share."""
        most = (rates + self.ring_packets / duration_s) / (1.0 - share)
        if not self.pauses_per_s:
            return most
        low, high = np.zeros_like(most), most
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            lost = self._lost(middle, rates, pauses, duration_s)
            good = lost <= share * middle * duration_s + 0.5
            low, high = np.where(good, middle, low), np.where(good, high, middle)
        return low


class AdversarySimulation:
    """A system that is being measured. Has the shape of a `Measurer`."""

    def __init__(
        self, system: Adversary, seed: int, min_load_pps: float, max_load_pps: float
    ) -> None:
        self.min_load_pps = min_load_pps
        self.max_load_pps = max_load_pps
        self._system = system
        self._random = np.random.default_rng(seed)
        self._state: float | None = None
        self._trials = 0

    def trial(self, offered_pps: float, duration_s: float) -> Run:
        """One trial of constant load. Loads and durations must be positive and finite."""
        if not (0 < offered_pps < math.inf and 0 < duration_s < math.inf):
            raise BadInputError(f"no trial has {offered_pps} packet/s for {duration_s} s")
        factors, random = self._system.factors, self._random
        if self._state is None or random.random() >= factors.stay:
            self._state = float(random.choice(factors.states, p=factors.weights))
        noise = float(factors.draw_noise(random, 1)[0])
        factor = max(self._state * (1.0 + factors.sd * noise), 1e-3)
        sent = max(1, round(offered_pps * duration_s))
        lost = min(self._system.lost_in(random, offered_pps, factor, duration_s), sent)
        if self._system.disturbed and random.random() < self._system.disturbed:
            lost = max(lost, round(self._system.disturbed_loss * sent))
        self._trials += 1
        return Run(sent, sent - lost, duration_s, order=self._trials - 1)


def _capacity(draw: Random) -> float:
    return float(10 ** draw.uniform(5, math.log10(10e6)))


def _queue(draw: Random) -> Adversary:
    """Rings of 128 to 8192 packets; the capacity wavers by up to 1 %."""
    return Adversary(
        "queue",
        _capacity(draw),
        CapacityFactors(sd=float(draw.uniform(0.0, 0.01))),
        ring_packets=2 ** int(draw.integers(7, 14)),
    )


def _pausing_queue(draw: Random) -> Adversary:
    """The same, with 1 to 100 pauses a second of 20 µs to 2 ms in the mean."""
    return Adversary(
        "pausing-queue",
        _capacity(draw),
        CapacityFactors(sd=float(draw.uniform(0.0, 0.01))),
        ring_packets=2 ** int(draw.integers(7, 14)),
        pauses_per_s=float(10 ** draw.uniform(0, 2)),
        pause_s=float(10 ** draw.uniform(-4.7, -2.7)),
    )


def _states(
    kind: str,
    draw: Random,
    lower: tuple[float, float],
    share: tuple[float, float],
    stay: tuple[float, float] | None = None,
) -> Adversary:
    """Two states of the capacity. Ranges that are drawn from: the factor of the lower state, the
    share of trials in it, the chance that a trial keeps its state (None: independent trials)."""
    low = float(draw.uniform(*share))
    capacity, factor = _capacity(draw), float(draw.uniform(*lower))
    kept = 0.0 if stay is None else float(draw.uniform(*stay))
    return Adversary(
        kind, capacity, CapacityFactors((factor, 1.0), (low, 1 - low), stay=kept, sd=_small(draw))
    )


def _two_states(draw: Random) -> Adversary:
    """Two states, the lower with 0.5 to 0.97 of the capacity, in 20 to 80 % of trials."""
    return _states("two-states", draw, lower=(0.5, 0.97), share=(0.2, 0.8))


def _markov(draw: Random) -> Adversary:
    """Two states, the lower with 0.9 to 0.98 of the capacity, kept by 30 to 80 % of trials."""
    return _states("markov", draw, lower=(0.9, 0.98), share=(0.3, 0.7), stay=(0.3, 0.8))


def _skewed(draw: Random) -> Adversary:
    """Each trial loses an exponential share of the capacity, 0.5 to 5 % in the mean."""
    sd = float(10 ** draw.uniform(-2.3, -1.3))
    return Adversary("skewed", _capacity(draw), CapacityFactors(sd=sd, noise="exponential"))


def _heavy_tailed(draw: Random) -> Adversary:
    """Student's t with 1.5 to 4 degrees of freedom, scale 0.3 to 2 %."""
    return Adversary(
        "heavy-tailed",
        _capacity(draw),
        CapacityFactors(
            sd=float(10 ** draw.uniform(-2.5, -1.7)),
            noise="student",
            degrees=float(draw.uniform(1.5, 4.0)),
        ),
    )


def _turbo(draw: Random) -> Adversary:
    """Up to 20 % faster for the first 0.05 to 0.5 s of each trial."""
    return Adversary(
        "turbo",
        _capacity(draw),
        CapacityFactors(sd=_small(draw)),
        boost=float(draw.uniform(0.02, 0.2)),
        boost_s=float(draw.uniform(0.05, 0.5)),
    )


def _throttled(draw: Random) -> Adversary:
    """One trial in ten to three has 60 to 95 % of the capacity, and the next often has, too."""
    return _states("throttled", draw, lower=(0.6, 0.95), share=(0.1, 0.35), stay=(0.0, 0.6))


def _sticky(draw: Random) -> Adversary:
    """Two states, the lower with 0.7 to 0.95 of the capacity, kept by 90 to 97 % of trials."""
    return _states("sticky", draw, lower=(0.7, 0.95), share=(0.3, 0.7), stay=(0.9, 0.97))


def _disturbed(draw: Random) -> Adversary:
    """5 to 15 % of trials lose 20 to 80 % of their packets, at whatever load."""
    return Adversary(
        "disturbed",
        _capacity(draw),
        CapacityFactors(sd=_small(draw)),
        disturbed=float(draw.uniform(0.05, 0.15)),
        disturbed_loss=float(draw.uniform(0.2, 0.8)),
    )


def _lossless(draw: Random) -> Adversary:
    """More capacity than the generator: no loss at any load."""
    return Adversary("lossless", float(draw.uniform(15e6, 40e6)), CapacityFactors(sd=0.005))


def _dead(draw: Random) -> Adversary:
    """Less capacity than the lowest load: total loss, or nearly."""
    return Adversary("dead", float(10 ** draw.uniform(0, 3.5)), CapacityFactors(sd=0.01))


def _small(draw: Random) -> float:
    """Noise of the capacity within a state: 0.1 to 1 %."""
    return float(10 ** draw.uniform(-3, -2))


FAMILIES: Mapping[str, Callable[[Random], Adversary]] = {
    "queue": _queue,
    "pausing-queue": _pausing_queue,
    "two-states": _two_states,
    "markov": _markov,
    "skewed": _skewed,
    "heavy-tailed": _heavy_tailed,
    "turbo": _turbo,
    "throttled": _throttled,
    "lossless": _lossless,
    "dead": _dead,
    "sticky": _sticky,
    "disturbed": _disturbed,
}
"""A family's place decides its systems: a new one goes to the end."""


def draw(family: str, index: int) -> Adversary:
    """System number `index` of a family; BadInputError for an unknown one."""
    if family not in FAMILIES:
        raise BadInputError(
            f"there is no family of adversaries '{family}'", remedy="known: " + ", ".join(FAMILIES)
        )
    order = list(FAMILIES).index(family)
    return FAMILIES[family](np.random.default_rng([index, order]))
