"""Every constant of the `planewise` search, with where it comes from.

A source is one of: a definition (of a goal, of MLRsearch or CSIT); a rule of statistics; a cost
(seconds of traffic against width of the interval); or a fit to simulated systems with other seeds
than the benches'. None depends on the kind of system that is searched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Offsets = tuple[tuple[float, float], ...]
"""Where around a goal's load trials are placed: in deviations of the edge, plus in half intervals
(to enclose the edge where there is little noise)."""


@dataclass(frozen=True)
class Tuning:
    """Constants of the search; loads relative to the edge are differences of ln(load)."""

    # -- locating the edge ------------------------------------------------------------------
    located_loss: float = 0.15
    """The edge is located when an overloaded trial loses less than this share. Cost: the curve is
    fitted to losses up to this (`widest_reach`), so a trial that loses more would not count."""
    step: float = 1.03
    """The next load on the way down: this times the forwarding rate just seen, so that it is
    slightly overloaded where throughput is constant. Not fitted."""
    checked: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.85)
    """Loads of the check for monotone loss, relative to the located edge. Cost: one short trial
    each; a bump narrower than their distance stays unseen."""
    approach: int = 6
    """Trials of the goals' duration on the way from the located load to the edge, at most. Cost."""
    near_loss: float = 0.04
    """The approach ends at a trial that loses less than this. As `high_share` for PDR at 0.5 %."""
    climb: float = 0.03
    """Growth of the load where such a trial loses nothing, doubled each time: enough to leave a low
    state of the capacity that short trials saw. Where the capacity has states, trials go so far
    above the highest: far enough to lose something in each of them. Not fitted."""
    doublings: int = 3
    """How often that step is doubled at most, as trials go on to lose nothing: to 24 %. Not
    fitted."""
    climbs: int = 6
    """Most trials that go `climb` above the highest forwarding rate, where the capacity may have a
    higher state. Rule: all of them miss a state that half of the trials are in with 1.6 %."""
    tolerated: float = 1e-3
    """Loss far below the edge that is taken for background, where the goals ask for less. A
    thousand times the early loss of PASTRAMI's curves (section IV-B, at most 1e-6)."""
    spread: float = 0.2
    """Prior deviation of a goal's load about the located one: two of it reach a state of the
    capacity that is a third lower. Not fitted."""
    ndr_spread: float = 0.3
    """The same for NDR: a loss that grows with the 40th power of the load, as PASTRAMI's realistic
    curve in `synthetic`, is a millionth at 80 % of saturation."""

    # -- which trials a fit uses ------------------------------------------------------------
    far: float = 0.1
    """Trials whose ln(load/edge) exceeds this by more than some noise are not part of the model:
    the curve has to be right near the goal only (`model`, discrepancy)."""
    window: float = 0.04
    """Trials within this of a goal's load count as near it; more when it is blurred. Fit."""
    low_share: float = 1 / 25
    """The curve is fitted to losses from the goal's share times this … Fit: a power of 25 to 120
    (`synthetic.RealisticCurve`) loses that within 3 to 13 % of load."""
    high_share: float = 10.0
    """… to the goal's share times this … Rule: PDR's trials that overload by `climb` lose 3.5 %."""
    noises: float = 4.5
    """… or to so many deviations of the loss above it: noise blurs the curve on that scale, and
    losses cut off nearer to it would tell neither slope nor noise. Rule: `overload`, and 93 % of a
    normal law."""
    widest_reach: float = 0.15
    """But no further, as ln(sent/received)."""
    hard: float = 0.03
    """For NDR at a hard edge the curve is fitted to losses up to this. As `high_share` for PDR."""
    hard_powers: tuple[float, float] = (math.log(60.0), math.log(3000.0))
    """Powers of the load by which packets may be lost below a hard edge. Fit: steeper than
    the steepest smooth curve's half."""
    least_blur: float = 5e-4
    """Noise of the capacity is taken to be at least this. Instrument: a generator's rate."""
    ndr_reach: float = 100.0
    """Trials that lose up to so many packets, or clumps of them, show that loss rises smoothly.
    Rule: counts above it tell the rate to 10 % and nothing of single packets."""

    # -- placing trials ---------------------------------------------------------------------
    places: Offsets = ((0.4, 0.25), (-0.4, -0.25))
    """Near the edge on both sides, where a reading hardly depends on the curve's slope."""
    overloads: int = 3
    """One trial in so many goes above the edge, by `overload` deviations and by `climb` at least:
    it tells the slope, and shows a higher state of the capacity, in which a trial at the edge loses
    nothing, as many others do. Rule: with one in three or four the edge's error was smallest at
    slopes of 1 and of 0.5, noise and slope unknown."""
    overload: float = 3.0
    """Deviations, so that losses tell both slope and noise. See `overloads`."""
    soft_places: Offsets = ((0.3, 0.0), (-0.3, -1.0), (0.5, 1.0))
    """The same where loss rises smoothly, as the curve beside the goal's share is known less."""
    ndr_places: Offsets = ((0.0, -1.0), (0.8, 0.0), (0.0, -0.5))
    """The same for NDR where the edge is hard: are packets really not lost further down?"""
    soft_ndr_places: Offsets = ((0.6, 0.0), (-0.5, 0.0), (1.4, 0.0), (0.0, 0.0), (-1.2, 0.0))
    """The same for NDR where loss rises smoothly: a trial that loses some packets tells how many
    one further down loses. Fit."""
    widest_step: float = 0.25
    """Trials are placed no further apart than this times their offsets. Fit."""
    bracketed: float = 0.06
    """NDR is located where a trial with and one without loss are so near to each other. Fit."""

    # -- when a goal is done ----------------------------------------------------------------
    reference_noise: float = 0.008
    """`max_trials` holds for this deviation of the capacity; more noise gets more, less noise less.
    Cost."""
    least_excess_noise: float = 0.85
    """… but at least by this factor. Cost: mlrsearch spends less there, too."""
    most_excess_noise: float = 1.25
    """… and at most by this. Cost: a third of mlrsearch's."""
    noisier_growth: float = 0.25
    """Where there is more noise than that, trials grow with this power of it … Cost: mlrsearch
    spends half as much again at a noise of 4 % as at one of 1 %."""
    most_noisier: float = 1.4
    """… and at most by this factor. Cost."""
    clumped: float = 8.0
    """Losses in larger clumps than this, in the mean, count as clumped. Fit."""
    hard_ndr_share: float = 0.15
    """Trials spent on NDR at a hard edge, as a share of `max_trials`; PDR's tell, too. Cost."""
    flatter_share: float = 1.5
    """Trials near PDR, as a share of `max_trials`, where throughput rises beyond saturation …
    Cost: mlrsearch spends more there, too."""
    states_share: float = 1.2
    """… where the capacity has states … Cost."""
    soft_share: float = 1.2
    """… and where loss rises smoothly. Cost."""
    soft_ndr_share: float = 1.45
    """Trials spent on NDR where loss rises smoothly … Cost."""
    clumped_ndr_share: float = 1.2
    """… and comes in clumps. Cost: mlrsearch spends less there, too."""

    # -- concluding -------------------------------------------------------------------------
    draws: int = 4000
    """Draws of the goal's load. Rule: ends at 2.5 % are then known to 0.25 % of probability."""
    contradicted: float = 0.2
    """A distribution is doubted where the loads it holds have, by which trials met the goal alone,
    less than this share of the mean likelihood of the loads that these trials leave. The interval
    then spans both, so that positive evidence suffices, odds of 5 (Kass and Raftery, 1995). Fit."""
    misfit: float = 0.05
    """Below this share the search says so: odds of 20 are strong."""
    stray_share: float = 0.2
    """A state of the capacity in which at most this share of readings lie holds strays: the law of
    `skew` knows them. Rule: the larger of its shares, 0.18. Fit."""
    caution_clumped: float = 1.25
    """Factor of the interval where loss rises smoothly and comes in clumps. Fit."""
    caution_correlated: float = 1.1
    """… and where successive trials are correlated. Fit."""
    outlying: float = 5.0
    """A bad trial found that many deviations less capacity than the others …  Rule: one in three
    million of a normal law."""
    outlying_least: float = 0.03
    """… and at least this much less."""
