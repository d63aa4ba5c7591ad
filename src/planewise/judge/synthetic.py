"""Synthetic systems under test whose truth is known: for tests, benches and for learning.

A `SyntheticSut` is a pure description: a loss curve, how its capacity wavers from trial to trial,
and how its losses clump. `SyntheticSut.start(seed)` gives a `Simulation` that answers trials;
`SyntheticSut.truth(…)` gives what a perfect measurement would find.

Words: `O` is the offered load, `C` the nominal saturation load, `m` the capacity factor of one
trial. Curves are in terms of the relative load r = O/(C·m): a trial with m = 0.97 is a trial of a
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from planewise.errors import BadInputError
from planewise.judge.curve import Curve, Run
from planewise.judge.headroom import exact_headroom
from planewise.units import percent_text

Array: TypeAlias = NDArray[np.float64]
Loss: TypeAlias = Callable[[Array], Array]
"""Expected loss ratio, 0 to 1, at relative loads; same shape."""

MIN_LOAD_PPS = 9001.0
"""Lowest load of a simulated generator: FD.io CSIT's."""
MAX_LOAD_PPS = 14.88e6
"""Highest load of a simulated generator: 10 Gbit/s of 64-byte frames."""

_QUANTILES = 501
"""Odd, so that the median is one of them."""
_CLUMP_NODES = 41
"""Values of the number of clumps that fit into the loss allowed, over which is summed."""


# --- loss curves --------------------------------------------------------------------------------


def ideal(r: Array) -> Array:
    """No loss up to saturation, then constant throughput (PASTRAMI, equation 3)."""
    return 1.0 - 1.0 / np.maximum(r, 1.0)


def realistic(
    early_loss: float = 1e-7, loss_at_saturation: float = 0.01, steepness: float = 40.0
) -> Loss:
    """Small loss early, growing smoothly up to saturation (PASTRAMI, section IV-B, figure 5).

    Up to saturation PLR(r) = early·r + p·r^steepness, with early loss of 1e-8 to 1e-6 and p of
    about 1 %; beyond, throughput stays what it is at saturation. The paper gives the end points
    only; the power between them is ours: 40 puts 1e-6 at 80 % of saturation.
    """

    def loss(r: Array) -> Array:
        below = np.minimum(r, 1.0)
        rising = early_loss * below + loss_at_saturation * below**steepness
        return 1.0 - (1.0 - rising) / np.maximum(r, 1.0)

    return loss


def thrashing(before: Loss | None = None, trash_at: float = 1.5, fall_over: float = 1.0) -> Loss:
    """A realistic curve whose throughput falls past `trash_at` (PASTRAMI, equations 4 and 5).

    T(r) = f·T_sat with f = 1 up to `trash_at`, then max(0, 1 − (r − trash_at)/fall_over); figure 4
    has 1.5 and 1.
    """
    of_before = before or realistic()

    def loss(r: Array) -> Array:
        return 1.0 - (1.0 - of_before(r)) * np.clip(1.0 - (r - trash_at) / fall_over, 0.0, 1.0)

    return loss


def gradual(gain: float = 0.6, ceiling: float = 1.6) -> Loss:
    """Loses early yet still gains throughput: PDR is no statement about such a system.

    Up to r = 1 no loss; beyond, a share `gain` of the added load still gets through, up to
    `ceiling` times the throughput at r = 1 (PASTRAMI, figure 6b: gradual transition).
    """

    def loss(r: Array) -> Array:
        beyond = np.maximum(r, 1.0)
        return 1.0 - np.minimum(1.0 + gain * (beyond - 1.0), ceiling) / beyond

    return loss


def non_monotone(centre: float = 0.55, width: float = 0.06, height: float = 0.02) -> Loss:
    """Ideal, with a Gaussian bump of loss at a middle load (as of a poll/interrupt mode switch).

    With a height above the goal's loss ratio, NDR and PDR lie on the bump's left flank: the
    definition asks for *every* lower load to be good.
    """

    def loss(r: Array) -> Array:
        bump = height * np.exp(-0.5 * ((r - centre) / width) ** 2)
        return np.maximum(ideal(r), np.where(bump < 1e-12, 0.0, bump))

    return loss


# --- systems ------------------------------------------------------------------------------------


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
    """A loss curve, wavering capacity and clumped losses; everything about it is known.

    The capacity factor of a trial is m = (1 + noise_sd·ε)·(1 − spike_depth·spike)·(1 +
    drift_per_s·t): ε is standard normal, white or AR(1) with `correlation` between successive
    trials, spike is 1 with `spike_probability`, and t is the traffic time so far [s].
    """

    name: str
    """In the catalogue."""
    loss: Loss
    summary: str = ""
    """One line for users."""
    capacity_pps: float = 1e6
    """Nominal saturation load C."""
    noise_sd: float = 0.0
    correlation: float = 0.0
    spike_probability: float = 0.0
    spike_depth: float = 0.0
    drift_per_s: float = 0.0
    mean_burst_packets: float = 1.0
    """Losses come in clumps of geometric length with this mean; 1: independent (binomial)."""

    def start(
        self,
        seed: int,
        *,
        min_load_pps: float = MIN_LOAD_PPS,
        max_load_pps: float = MAX_LOAD_PPS,
    ) -> Simulation:
        """A simulation of this system that answers trials, reproducible by its seed."""
        return Simulation(self, seed, min_load_pps, max_load_pps)

    def _around_pps(self, elapsed_s: float) -> float:
        """What drift leaves of the capacity at one time."""
        return self.capacity_pps * max(1.0 + self.drift_per_s * elapsed_s, 1e-3)

    def _loss_ratios(self, offered_pps: Array, elapsed_s: float) -> tuple[Array, Array]:
        """Loss ratio at each load and quantile of the capacity, and the quantiles' weights."""
        middle = (np.arange(_QUANTILES) + 0.5) / _QUANTILES if self.noise_sd else np.array([0.5])
        normal = 1.0 + self.noise_sd * special.ndtri(middle)
        factors = np.concatenate([normal, normal * (1.0 - self.spike_depth)])
        chances = (1.0 - self.spike_probability, self.spike_probability)
        weights = np.repeat(chances, normal.size) / normal.size
        kept = weights > 0
        capacity = np.maximum(factors[kept], 1e-3) * self._around_pps(elapsed_s)
        return self.loss(offered_pps[..., None] / capacity), weights[kept]

    def expected_loss_ratio(self, offered_pps: Array, elapsed_s: float = 0.0) -> Array:
        """Mean loss ratio over trials at each load (shape of `offered_pps`)."""
        loss, weights = self._loss_ratios(offered_pps, elapsed_s)
        return np.asarray(loss @ weights, dtype=np.float64)

    def _share_of_good_trials(
        self, offered_pps: Array, loss_ratio: float, duration_s: float, elapsed_s: float
    ) -> Array:
        """Probability that a trial loses at most `loss_ratio`, at each load.

        Exact for loss ratio 0 and for clumps; independent losses beyond are taken as normal about
        their mean, with a binomial's variance.
        """
        expected, weights = self._loss_ratios(offered_pps, elapsed_s)
        sent = np.maximum(np.round(offered_pps * duration_s), 1.0)[..., None]
        if self.mean_burst_packets > 1:
            good = _clumped_cdf(loss_ratio, sent, expected, self.mean_burst_packets)
        elif loss_ratio <= 0:
            good = np.exp(sent * np.log1p(-np.minimum(expected, 1.0 - 1e-12)))
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
        around = self._around_pps(elapsed_s)

        def mostly_good_up_to(goal: float) -> float | None:
            def excess(load: Array) -> Array:
                return 0.5 - self._share_of_good_trials(load, goal, trial_duration_s, elapsed_s)

            return _first_crossing(excess, around, max_load_pps)

        def beyond(load: Array) -> Array:
            return self.expected_loss_ratio(load, elapsed_s) - loss_ratio

        expected = _first_crossing(beyond, around, max_load_pps)
        return Truth(mostly_good_up_to(0.0), mostly_good_up_to(loss_ratio), expected, around)

    def goal_pps(self, loss_ratio: float) -> float | None:
        """The load of a search's goal: NDR where `loss_ratio` is 0, else PDR."""
        truth = self.truth(loss_ratio or 0.005)
        return truth.pdr_pps if loss_ratio else truth.ndr_pps

    def headroom(self, loss_ratio: float = 0.005, elapsed_s: float = 0.0) -> float | None:
        """Headroom of the exact mean curve; None where PDR is not in sight."""
        return exact_headroom(
            lambda loads: self.expected_loss_ratio(loads, elapsed_s),
            self._around_pps(elapsed_s),
            loss_ratio,
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


def _first_crossing(excess: Loss, around_pps: float, max_load_pps: float) -> float | None:
    """First load at which `excess` turns positive: a scan, then bisection."""
    last = max(max_load_pps / around_pps, 1.2)
    parts = (
        np.geomspace(0.02, 0.7, 100, endpoint=False),
        np.linspace(0.7, 1.1, 100, endpoint=False),
        np.geomspace(1.1, last, 50),
    )
    scan = around_pps * np.concatenate(parts)
    scan = np.append(scan[scan < max_load_pps], max_load_pps)
    positive = np.flatnonzero(excess(scan) > 0)
    if not positive.size:
        return None
    low, high = float(scan[max(positive[0] - 1, 0)]), float(scan[positive[0]])
    for _ in range(45):
        middle = 0.5 * (low + high)
        over = excess(np.array([middle]))[0] > 0
        low, high = (low, middle) if over else (middle, high)
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
        capacity_pps = self.sut.capacity_pps * self._next_factor(duration_s)
        sent = max(1, round(offered_pps * duration_s))
        loss_ratio = float(np.clip(self.sut.loss(np.array([offered_pps / capacity_pps]))[0], 0, 1))
        lost = self._draw_losses(sent, loss_ratio)
        return Run(sent=sent, received=sent - lost, duration_s=duration_s, order=self.trials - 1)

    def sweep(self, offered_pps: Iterable[float], *, runs: int, duration_s: float) -> Curve:
        """A load-loss curve: `runs` trials at each load, in rounds over all loads."""
        collected: dict[float, list[Run]] = {load: [] for load in offered_pps}
        for _ in range(runs):
            for load, of_load in collected.items():
                of_load.append(self.trial(load, duration_s))
        return Curve.from_runs(self.sut.name, collected, {"synthetic": self.sut.name})

    def _next_factor(self, duration_s: float) -> float:
        sut = self.sut
        fresh = self._random.standard_normal() * math.sqrt(1.0 - sut.correlation**2)
        self._previous = sut.correlation * self._previous + fresh
        factor = 1.0 + sut.noise_sd * self._previous
        if self._random.random() < sut.spike_probability:
            factor *= 1.0 - sut.spike_depth
        factor *= 1.0 + sut.drift_per_s * (self.elapsed_s + duration_s / 2)
        self.elapsed_s += duration_s
        self.trials += 1
        return max(factor, 1e-3)

    def _draw_losses(self, sent: int, loss_ratio: float) -> int:
        burst = self.sut.mean_burst_packets
        if burst <= 1:
            return int(self._random.binomial(sent, loss_ratio))
        bursts = int(self._random.poisson(sent * loss_ratio / burst))
        # The sum of n geometric lengths is n plus a negative binomial.
        length = bursts and bursts + int(self._random.negative_binomial(bursts, 1.0 / burst))
        return min(length, sent)


# --- the catalogue ------------------------------------------------------------------------------

KINDS = {
    system.name: system
    for system in (
        SyntheticSut("ideal", ideal, "no loss up to saturation, constant throughput beyond"),
        SyntheticSut(
            "realistic", realistic(), "a little loss early, growing smoothly to 1 % at saturation"
        ),
        SyntheticSut(
            "thrashing", thrashing(), "throughput falls once the load exceeds 1.5 times saturation"
        ),
        SyntheticSut(
            "gradual",
            gradual(),
            "loses early and still gains throughput: PDR says little about it",
        ),
        SyntheticSut(
            "non-monotone",
            non_monotone(),
            "2 % loss around half of the capacity, none just above",
        ),
        SyntheticSut(
            "bursty",
            realistic(early_loss=1e-6),
            "realistic, with losses in clumps of 200 packets",
            mean_burst_packets=200,
        ),
        SyntheticSut(
            "drifting",
            ideal,
            "capacity falls by 0.1 % with every second of traffic",
            drift_per_s=-0.001,
        ),
        SyntheticSut(
            "autocorrelated",
            ideal,
            "capacity wavers by 2 %, and a slow trial is followed by slow trials",
            noise_sd=0.02,
            correlation=0.8,
        ),
        SyntheticSut(
            "spikes",
            ideal,
            "one trial in ten finds a fifth of the capacity gone",
            spike_probability=0.1,
            spike_depth=0.2,
        ),
    )
}
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
        noise_sd=max(noise_sd, system.noise_sd),
        summary=f"{system.summary}; capacity noise {percent_text(round(noise_sd, 2))}",
    )


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
