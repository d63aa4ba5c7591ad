"""Synthetic systems under test whose truth is known: for tests, benches and for learning.

A `SyntheticSut` is a pure description: a loss curve, how its capacity wavers from trial to trial,
and how its losses clump. `SyntheticSut.start(seed)` gives a `Simulation` that answers trials;
`SyntheticSut.truth(…)` gives what a perfect measurement would find.

Words: `O` is the offered load, `C` the nominal saturation load, `m` the capacity factor of one
trial. Curves are in terms of the relative load O/(C·m): a trial with m = 0.97 is a trial of a
system that is 3 % slower throughout.

What "the truth" is
    NDR          the largest load up to which, at every load, at least half of all trials of the
                 given duration lose nothing. This is MLRsearch's NDR goal (loss ratio 0, exceed
                 ratio 0.5). Where a system loses a packet now and then, the duration matters.
    PDR@x        the same with "lose at most the share x" (MLRsearch's PDR goal, exceed ratio 0.5).
    expected PDR the first load at which the *mean* loss ratio over trials exceeds x (PASTRAMI,
                 section IV-C). Where the capacity is the same in all trials it equals PDR@x; where
                 it wavers by some per cent it lies lower (rare bad trials weigh in a mean).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from planewise.errors import BadInputError
from planewise.judge.curve import Curve, Run
from planewise.judge.headroom import exact_headroom
from planewise.units import percent_text

Array: TypeAlias = NDArray[np.float64]

MIN_LOAD_PPS = 9001.0
"""Lowest load of a simulated generator: FD.io CSIT's."""
MAX_LOAD_PPS = 14.88e6
"""Highest load of a simulated generator: 10 Gbit/s of 64-byte frames."""

_QUANTILES = 501
"""Odd, so that the median is one of them."""
_CLUMP_NODES = 41
"""Values of the number of clumps that fit into the loss allowed, over which is summed."""


class LossCurve(ABC):
    """Expected loss ratio of a system, by relative load."""

    @abstractmethod
    def loss_ratio(self, relative_load: Array) -> Array:
        """Loss ratio [0, 1] at relative loads r = O/(C·m); same shape."""


@dataclass(frozen=True)
class IdealCurve(LossCurve):
    """No loss up to saturation, then constant throughput (PASTRAMI, equation 3).

    PLR(r) = max(0, 1 − 1/r).
    """

    def loss_ratio(self, relative_load: Array) -> Array:
        return 1.0 - 1.0 / np.maximum(relative_load, 1.0)


@dataclass(frozen=True)
class RealisticCurve(LossCurve):
    """Small loss early, growing smoothly up to saturation (PASTRAMI, section IV-B, figure 5).

    Up to saturation PLR(r) = p_early·r + p_sat·r^g, with p_early 1e-8 to 1e-6 and p_sat about
    1 %; beyond, throughput is T_sat = O_sat·(1 − PLR(O_sat)), so PLR(r) = 1 − (1 − PLR(1))/r.
    The paper gives the end points only; the power between them is ours: g = 40 puts 1e-6 at
    80 % of saturation.
    """

    early_loss: float = 1e-7
    loss_at_saturation: float = 0.01
    steepness: float = 40.0

    def loss_ratio(self, relative_load: Array) -> Array:
        below, beyond = np.minimum(relative_load, 1.0), np.maximum(relative_load, 1.0)
        rising = self.early_loss * below + self.loss_at_saturation * below**self.steepness
        return 1.0 - (1.0 - rising) / beyond


@dataclass(frozen=True)
class TrashingCurve(LossCurve):
    """A realistic curve whose throughput falls past O_trash (PASTRAMI, equations 4 and 5).

    T(O) = f·T_sat with f = 1 up to O_trash, then max(0, 1 − (O − O_trash)/M). Figure 4 has
    O_trash = 1.5·O_sat and M = O_sat; both are given here relative to O_sat.
    """

    before: RealisticCurve = RealisticCurve()
    trash_at: float = 1.5
    fall_over: float = 1.0

    def loss_ratio(self, relative_load: Array) -> Array:
        fall = np.clip(1.0 - (relative_load - self.trash_at) / self.fall_over, 0.0, 1.0)
        return 1.0 - (1.0 - self.before.loss_ratio(relative_load)) * fall


@dataclass(frozen=True)
class GradualCurve(LossCurve):
    """Loses early yet still gains throughput: PDR is no statement about such a system.

    Up to r = 1 no loss; beyond, a share `gain` of the added load still gets through, up to
    `ceiling` times the throughput at r = 1 (PASTRAMI, figure 6b: gradual transition).
    R(r) = min(1 + gain·(r − 1), ceiling) for r > 1.
    """

    gain: float = 0.6
    ceiling: float = 1.6

    def loss_ratio(self, relative_load: Array) -> Array:
        beyond = np.maximum(relative_load, 1.0)
        return 1.0 - np.minimum(1.0 + self.gain * (beyond - 1.0), self.ceiling) / beyond


@dataclass(frozen=True)
class NonMonotoneCurve(LossCurve):
    """Ideal, with a bump of loss at a middle load (as of a poll/interrupt mode switch).

    PLR(r) = max(ideal, height·exp(−((r − centre)/width)²/2)). With a height above the goal's
    loss ratio, NDR and PDR lie on the bump's left flank: the definition asks for *every* lower
    load to be good.
    """

    centre: float = 0.55
    width: float = 0.06
    height: float = 0.02

    def loss_ratio(self, relative_load: Array) -> Array:
        bump = self.height * np.exp(-0.5 * ((relative_load - self.centre) / self.width) ** 2)
        return np.maximum(IdealCurve().loss_ratio(relative_load), np.where(bump < 1e-12, 0.0, bump))


@dataclass(frozen=True)
class Wavering:
    """How the capacity factor m differs from trial to trial.

    m = (1 + sd·ε)·(1 − depth·spike)·(1 + drift·t), where ε is standard normal, white or AR(1)
    with `correlation` between successive trials, spike is 1 with `spike_probability`, and t is
    the traffic time so far [s].
    """

    sd: float = 0.0
    correlation: float = 0.0
    spike_probability: float = 0.0
    spike_depth: float = 0.0
    drift_per_s: float = 0.0

    def drifted(self, elapsed_s: float) -> float:
        """What drift leaves of the capacity at one time."""
        return max(1.0 + self.drift_per_s * elapsed_s, 1e-3)

    def quantile_factors(self, elapsed_s: float) -> tuple[Array, Array]:
        """Points and weights of m's stationary distribution at one time."""
        middle = (np.arange(_QUANTILES) + 0.5) / _QUANTILES if self.sd > 0 else np.array([0.5])
        normal = 1.0 + self.sd * special.ndtri(middle)
        chances = (1.0 - self.spike_probability, self.spike_probability)
        factors = np.concatenate([normal, normal * (1.0 - self.spike_depth)])
        weights = np.repeat(chances, normal.size) / normal.size
        kept = weights > 0
        return np.maximum(factors * self.drifted(elapsed_s), 1e-3)[kept], weights[kept]


@dataclass(frozen=True)
class Truth:
    """What a perfect measurement would find; loads in packets a second.

    A value is None where it lies above the highest load of the range asked about.
    """

    ndr_pps: float | None
    pdr_pps: float | None
    expected_pdr_pps: float | None
    saturation_pps: float


@dataclass(frozen=True)
class SyntheticSut:
    """Curve × wavering × clumping; everything about it is known.

    Attributes:
        name: its name in the catalogue.
        capacity_pps: nominal saturation load C.
        curve: expected loss by relative load.
        wavering: how the capacity differs between trials.
        mean_burst_packets: losses come in clumps of geometric length with this mean; 1 means
            independent losses (binomial).
        summary: one line for users.
    """

    name: str
    capacity_pps: float
    curve: LossCurve
    wavering: Wavering = Wavering()
    mean_burst_packets: float = 1.0
    summary: str = ""

    def start(
        self,
        seed: int,
        *,
        min_load_pps: float = MIN_LOAD_PPS,
        max_load_pps: float = MAX_LOAD_PPS,
    ) -> Simulation:
        """A simulation of this system that answers trials, reproducible by its seed."""
        return Simulation(self, seed, min_load_pps, max_load_pps)

    def _loss_ratios(self, offered_pps: Array, elapsed_s: float) -> tuple[Array, Array]:
        """Loss ratio at each load and quantile of the capacity, and the quantiles' weights."""
        factors, weights = self.wavering.quantile_factors(elapsed_s)
        return self.curve.loss_ratio(offered_pps[..., None] / self.capacity_pps / factors), weights

    def expected_loss_ratio(self, offered_pps: Array, elapsed_s: float = 0.0) -> Array:
        """Mean loss ratio over trials at each load (shape of `offered_pps`)."""
        loss, weights = self._loss_ratios(offered_pps, elapsed_s)
        return np.asarray(loss @ weights, dtype=np.float64)

    def share_of_good_trials(
        self, offered_pps: Array, loss_ratio: float, duration_s: float, elapsed_s: float = 0.0
    ) -> Array:
        """Probability that a trial loses at most `loss_ratio`, at each load.

        Exact for loss ratio 0 and for clumps; independent losses beyond are taken as normal about
        their mean, with a binomial's variance.
        """
        expected, weights = self._loss_ratios(offered_pps, elapsed_s)
        sent = np.maximum(np.round(offered_pps * duration_s), 1.0)[..., None]
        if loss_ratio <= 0:
            if self.mean_burst_packets > 1:
                good = np.exp(-sent * expected / self.mean_burst_packets)
            else:
                good = np.exp(sent * np.log1p(-np.minimum(expected, 1.0 - 1e-12)))
        elif self.mean_burst_packets > 1:
            good = _clumped_cdf(loss_ratio, sent, expected, self.mean_burst_packets)
        else:
            variance = expected * (1.0 - expected) / sent
            distance = loss_ratio + 0.5 / sent - expected
            good = special.ndtr(distance / np.sqrt(np.maximum(variance, 1e-18)))
        return np.asarray(good @ weights, dtype=np.float64)

    def truth(
        self,
        loss_ratio: float = 0.005,
        *,
        trial_duration_s: float = 1.0,
        elapsed_s: float = 0.0,
        max_load_pps: float = MAX_LOAD_PPS,
    ) -> Truth:
        """NDR, PDR@`loss_ratio`, expected PDR and saturation, by numerics on the definitions.

        For a drifting system this is the truth at `elapsed_s` of traffic time: give half the
        search's time for the truth that a search could at best report.
        """
        around = self.capacity_pps * self.wavering.drifted(elapsed_s)

        def mostly_good_up_to(goal: float) -> float | None:
            def excess(load: Array) -> Array:
                return 0.5 - self.share_of_good_trials(load, goal, trial_duration_s, elapsed_s)

            return _first_crossing(excess, around, max_load_pps)

        return Truth(
            mostly_good_up_to(0.0),
            mostly_good_up_to(loss_ratio),
            _first_crossing(
                lambda load: self.expected_loss_ratio(load, elapsed_s) - loss_ratio,
                around,
                max_load_pps,
            ),
            around,
        )

    def goal_pps(self, loss_ratio: float) -> float | None:
        """The load of a search's goal: NDR where `loss_ratio` is 0, else PDR."""
        truth = self.truth(loss_ratio or 0.005)
        return truth.pdr_pps if loss_ratio else truth.ndr_pps

    def headroom(self, loss_ratio: float = 0.005, elapsed_s: float = 0.0) -> float | None:
        """Headroom of the exact mean curve; None where PDR is not in sight."""
        around = self.capacity_pps * self.wavering.drifted(elapsed_s)
        return exact_headroom(
            lambda loads: self.expected_loss_ratio(loads, elapsed_s), around, loss_ratio
        )


def _clumped_cdf(loss_ratio: float, sent: Array, expected: Array, burst: float) -> Array:
    """Probability that a trial loses at most `loss_ratio`, losses coming in geometric clumps.

    n clumps fit into k packets when k tosses of a coin that shows heads once in `burst` tosses
    show it n times. So the chance is that of a Poisson count, the clumps, being at most a binomial
    one. The binomial is summed over all its values where they are few, else over quantiles.
    """
    allowed = np.floor(loss_ratio * sent)
    middle = (np.arange(_CLUMP_NODES) + 0.5) / _CLUMP_NODES
    mean, spread = allowed / burst, np.sqrt(allowed * (1.0 - 1.0 / burst) / burst)
    heads = np.arange(float(_CLUMP_NODES))
    few = mean + 6.0 * spread < _CLUMP_NODES
    nodes = np.where(few, heads, np.maximum(mean + spread * special.ndtri(middle), 0.0))
    weights = np.where(few, stats.binom.pmf(heads, allowed, 1.0 / burst), 1.0 / _CLUMP_NODES)
    clumps = (sent * expected / burst)[..., None]
    # Shapes: loads × capacities × nodes; the chance of at most j of λ clumps is Q(j + 1, λ).
    at_most = special.gammaincc(nodes[..., None, :] + 1.0, clumps)
    return np.asarray((at_most * weights[..., None, :]).sum(axis=-1), dtype=np.float64)


def _first_crossing(
    excess: Callable[[Array], Array], around_pps: float, max_load_pps: float
) -> float | None:
    """First load at which `excess` turns positive: a scan, then bisection."""
    scan = around_pps * np.concatenate(
        [
            np.geomspace(0.02, 0.7, 100, endpoint=False),
            np.linspace(0.7, 1.1, 100, endpoint=False),
            np.geomspace(1.1, max(max_load_pps / around_pps, 1.2), 50),
        ]
    )
    scan = np.append(scan[scan < max_load_pps], max_load_pps)
    positive = np.flatnonzero(excess(scan) > 0)
    if not positive.size:
        return None
    low, high = float(scan[max(positive[0] - 1, 0)]), float(scan[positive[0]])
    for _ in range(45):
        middle = 0.5 * (low + high)
        if excess(np.array([middle]))[0] > 0:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


class Simulation:
    """A synthetic system being measured: keeps its random state and the traffic time so far.

    Has the shape of a `Measurer` (measure.search.measurer).
    """

    def __init__(
        self, sut: SyntheticSut, seed: int, min_load_pps: float, max_load_pps: float
    ) -> None:
        self.sut = sut
        self.min_load_pps = min_load_pps
        self.max_load_pps = max_load_pps
        self.elapsed_s = 0.0
        self.trials = 0
        self._random = np.random.default_rng(seed)
        self._previous = self._random.standard_normal()

    def trial(self, offered_pps: float, duration_s: float) -> Run:
        """One trial of constant load. Loads and durations must be positive and finite."""
        if not (0 < offered_pps < math.inf and 0 < duration_s < math.inf):
            raise BadInputError(
                f"a trial needs a positive load and duration, not {offered_pps} pps for "
                f"{duration_s} s"
            )
        factor = self._next_factor(duration_s)
        sent = max(1, round(offered_pps * duration_s))
        relative = np.array([offered_pps / (self.sut.capacity_pps * factor)])
        loss_ratio = float(np.clip(self.sut.curve.loss_ratio(relative)[0], 0.0, 1.0))
        lost = self._draw_losses(sent, loss_ratio)
        return Run(sent=sent, received=sent - lost, duration_s=duration_s, order=self.trials - 1)

    def sweep(self, offered_pps: Iterable[float], *, runs: int, duration_s: float) -> Curve:
        """A load-loss curve: `runs` trials at each load, in rounds over all loads."""
        loads = tuple(offered_pps)
        collected: dict[float, list[Run]] = {load: [] for load in loads}
        for _ in range(runs):
            for load in collected:
                collected[load].append(self.trial(load, duration_s))
        return Curve.from_runs(self.sut.name, collected, {"synthetic": self.sut.name})

    def _next_factor(self, duration_s: float) -> float:
        wavering = self.sut.wavering
        rho = wavering.correlation
        fresh = self._random.standard_normal()
        noise = rho * self._previous + math.sqrt(1.0 - rho * rho) * fresh
        self._previous = noise
        factor = 1.0 + wavering.sd * noise
        if self._random.random() < wavering.spike_probability:
            factor *= 1.0 - wavering.spike_depth
        factor *= 1.0 + wavering.drift_per_s * (self.elapsed_s + duration_s / 2)
        self.elapsed_s += duration_s
        self.trials += 1
        return max(factor, 1e-3)

    def _draw_losses(self, sent: int, loss_ratio: float) -> int:
        burst = self.sut.mean_burst_packets
        if burst <= 1:
            return int(self._random.binomial(sent, loss_ratio))
        bursts = int(self._random.poisson(sent * loss_ratio / burst))
        if bursts == 0:
            return 0
        # The sum of n geometric lengths is n plus a negative binomial.
        length = bursts + int(self._random.negative_binomial(bursts, 1.0 / burst))
        return min(length, sent)


KINDS = {
    system.name: system
    for system in (
        SyntheticSut(
            "ideal", 1e6, IdealCurve(),
            summary="no loss up to saturation, constant throughput beyond",
        ),
        SyntheticSut(
            "realistic", 1e6, RealisticCurve(),
            summary="a little loss early, growing smoothly to 1 % at saturation",
        ),
        SyntheticSut(
            "trashing", 1e6, TrashingCurve(),
            summary="throughput falls once the load exceeds 1.5 times saturation",
        ),
        SyntheticSut(
            "gradual", 1e6, GradualCurve(),
            summary="loses early and still gains throughput: PDR says little about it",
        ),
        SyntheticSut(
            "non-monotone", 1e6, NonMonotoneCurve(),
            summary="2 % loss around half of the capacity, none just above",
        ),
        SyntheticSut(
            "bursty", 1e6, RealisticCurve(early_loss=1e-6), mean_burst_packets=200,
            summary="realistic, with losses in clumps of 200 packets",
        ),
        SyntheticSut(
            "drifting", 1e6, IdealCurve(), Wavering(drift_per_s=-0.001),
            summary="capacity falls by 0.1 % with every second of traffic",
        ),
        SyntheticSut(
            "autocorrelated", 1e6, IdealCurve(), Wavering(sd=0.02, correlation=0.8),
            summary="capacity wavers by 2 %, and a slow trial is followed by slow trials",
        ),
        SyntheticSut(
            "spikes", 1e6, IdealCurve(), Wavering(spike_probability=0.1, spike_depth=0.2),
            summary="one trial in ten finds a fifth of the capacity gone",
        ),
    )
}  # fmt: skip
"""Each class at 1 Mpps, without noise."""

NOISE_LEVELS = (0.0, 0.01, 0.03)
"""Per-trial standard deviations of the capacity for which the catalogue has variants."""


def variant(kind: str, noise_sd: float) -> SyntheticSut:
    """A class at 1 Mpps, with white noise of the capacity added: its standard deviation between
    trials, relative. Of a class that wavers by itself (autocorrelated) the larger of both holds."""
    system = KINDS[kind]
    if noise_sd <= 0:
        return system
    return replace(
        system,
        name=f"{kind}-{noise_sd:.0%}".replace("%", "pct"),
        wavering=replace(system.wavering, sd=max(noise_sd, system.wavering.sd)),
        summary=f"{system.summary}; capacity noise {percent_text(round(noise_sd, 2))}",
    )


@lru_cache(maxsize=1)
def catalogue() -> dict[str, SyntheticSut]:
    """All named systems at 1 Mpps: each class, and its variants with 1 % and 3 % noise."""
    variants = (variant(kind, noise_sd) for kind in KINDS for noise_sd in NOISE_LEVELS)
    return {sut.name: sut for sut in variants}


def by_name(name: str) -> SyntheticSut:
    """A system of the catalogue."""
    systems = catalogue()
    if name not in systems:
        raise BadInputError(
            f"there is no synthetic system '{name}'", remedy="known: " + ", ".join(systems)
        )
    return systems[name]
