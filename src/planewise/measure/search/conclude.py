"""The last part of the `planewise` search: results, corrected for the order of the trials."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from planewise.measure.search import model
from planewise.measure.search.fits import EdgePosterior, Fits
from planewise.measure.search.goals import Goal, GoalResult, ViolatedAssumption
from planewise.measure.search.locate import below_range
from planewise.measure.search.median import at_time, draw_median, rarer_state_share
from planewise.measure.search.particles import Law
from planewise.measure.search.residuals import OrderEffect, find_violations, order_effect
from planewise.measure.search.sides import Sides
from planewise.measure.search.skew import skewed_median
from planewise.units import percent_text


def results(fits: Fits, goals: tuple[Goal, ...]) -> tuple[GoalResult, ...]:
    """A result for each goal, in their order; violated assumptions become findings."""
    loosest = max(goals, key=lambda goal: goal.loss_ratio)
    # The loosest goal's trials tell most of drift and correlation.
    order: OrderEffect | None = None
    concluded: dict[Goal, GoalResult] = {}
    for goal in sorted(goals, key=lambda goal: goal != loosest):
        estimate = fits.estimate(goal)
        law, _, _, _ = fits.law(goal, fits.options.final_moves)
        if goal == loosest:
            order = _order(fits, estimate)
        concluded[goal] = _result(fits, _final(fits, estimate, law, order))
    _find_outliers(fits, fits.estimates[loosest])
    return tuple(concluded[goal] for goal in goals)


def unmeasured(goals: tuple[Goal, ...]) -> tuple[GoalResult, ...]:
    """Results of a search whose budget ended too early."""
    note = "the budget was spent before the edge of loss was measured"
    return tuple(GoalResult(goal, "undecided", None, note=note) for goal in goals)


def _final(
    fits: Fits, estimate: EdgePosterior, law: Law, order: OrderEffect | None
) -> EdgePosterior:
    """The final estimate of a goal.

    Its interval is that of a mixture of two distributions: the model's, corrected for the order of
    the trials, and that of the readings' median, which assumes no law of the noise and has the more
    weight the less plausible it is that the readings are normal. The estimate is what scatters
    least: the states' median where the capacity has two states, neither of them rare; the model's
    where a curve leads up to the edge or beyond; else that of a law with skew and strays.
    """
    tuning = fits.options.tuning
    random = np.random.default_rng(fits.options.seed)
    chosen = np.searchsorted(np.cumsum(law.weight), random.random(tuning.draws))
    draws = law.x[chosen.clip(0, law.x.size - 1)]
    if order is not None:
        draws = draws + order.draw(random, tuning.draws, float(draws.std()))
    middle = float(np.median(draws))
    draws = middle + _caution(fits, estimate, order) * (draws - middle)
    middle = float(np.median(draws))
    if not estimate.counted:
        trending = 0.0 if order is None else order.trending
        readings, (_, at_s) = fits.readings(estimate.goal), fits.times_s()
        free = draw_median(readings, random, tuning.draws, trending, at_s)
        if free is not None:
            draws = np.where(random.random(tuning.draws) < free[1], draws, free[0])
            if readings.states and rarer_state_share(readings) > tuning.stray_share:
                middle = float(np.median(free[0]))
            elif not (estimate.soft or estimate.flatter):
                skewed = skewed_median(at_time(readings, trending, at_s), readings.bound)
                middle = middle if skewed is None else skewed
    sides = sides_of(fits, estimate.goal)
    if sides is not None:
        support = sides.support(draws)
        if support < tuning.contradicted:
            # Neither is trusted: the interval spans both.
            draws = np.concatenate([draws, sides.draw(random, tuning.draws)])
        if support < tuning.misfit:
            fits.session.add_finding(
                ViolatedAssumption(
                    "misfit",
                    f"which trials met {estimate.goal.name} contradicts the curve that was fitted "
                    "to their losses: its interval spans what either says",
                )
            )
    low, high = (float(q) for q in np.quantile(draws, (0.025, 0.975)))
    return replace(estimate, low=low, middle=float(np.clip(middle, low, high)), high=high)


def sides_of(fits: Fits, goal: Goal) -> Sides | None:
    """The law of a goal's load by which trials met it; None where no trial tells.

    A trial of the goals' duration that begins like a short one which lost something does so, too:
    that tells that NDR was missed. A short trial that met a goal tells nothing.
    """
    telling = [
        trial
        for trial in fits.session.trials
        if trial.offered_pps <= fits.ceiling_pps
        and (
            trial.duration_s >= fits.options.goal_duration_s * (1 - 1e-9)
            or (goal.loss_ratio == 0 and trial.loss_ratio > 0)
        )
    ]
    if not telling:
        return None
    x = np.array([math.log(trial.achieved_pps / fits.reference_pps) for trial in telling])
    met = np.array([trial.loss_ratio <= goal.loss_ratio for trial in telling])
    return Sides.of(x, met, fits.lowest_clean() if goal.loss_ratio == 0 else math.inf)


def _order(fits: Fits, estimate: EdgePosterior) -> OrderEffect | None:
    """The effect of the order of a goal's trials; outliers and violations become findings."""
    session, tuning = fits.session, fits.options.tuning
    observations, offered = fits.all_trials()
    readings = model.readings(fits.posteriors[estimate.goal], observations)
    away, deviation = (np.median(part, axis=0) for part in (readings.away, readings.deviation))
    standard = away / deviation
    near = readings.informative & (offered <= fits.ceiling_pps)
    near &= observations.x < estimate.middle + tuning.far + 6 * estimate.noise
    # Bad trials found far less capacity than the others.
    bad = near & (standard < -tuning.outlying) & (away < -tuning.outlying_least)
    good = near & ~bad & (np.abs(away) < tuning.outlying_least + 6 * estimate.noise)
    losses = np.array([trial.loss_ratio for trial in fits.trials])
    if bad.any():
        worst = int(np.flatnonzero(bad)[np.argmin(away[bad])])
        session.add_finding(
            ViolatedAssumption(
                "outliers",
                f"{int(bad.sum())} of {int(near.sum())} trials near the edge found far less "
                f"capacity than the rest; one lost {percent_text(losses[worst])} at "
                f"{offered[worst]:.0f} packet/s",
            )
        )
    for finding in find_violations(standard[near], losses[near]):
        session.add_finding(finding)
    time_s, at_s = fits.times_s()
    order = np.flatnonzero(good).astype(np.float64)
    return order_effect(away[good], deviation[good], time_s[good], at_s, order)


def _caution(fits: Fits, estimate: EdgePosterior, order: OrderEffect | None) -> float:
    """Factor by which intervals are too narrow where the model is an approximation.

    Fitted to simulated systems other than the benches'; it depends on findings of the search
    alone.
    """
    tuning = fits.options.tuning
    factor = 1.0
    if estimate.soft and fits.clump > tuning.clumped:
        factor = tuning.caution_clumped
    if order is not None and order.correlated > 0.5:
        factor = max(factor, tuning.caution_correlated)
    return factor


def _find_outliers(fits: Fits, estimate: EdgePosterior) -> None:
    """Trials that miss the loosest goal clearly below its load."""
    tuning = fits.options.tuning
    below_pps = fits.load_pps(estimate.low - tuning.window / 2 - 3 * estimate.noise)
    tolerated = max(estimate.goal.loss_ratio, tuning.tolerated)
    below = [t for t in fits.session.trials if t.achieved_pps < below_pps]
    bad = [t for t in below if t.loss_ratio > tolerated]
    if bad:
        worst = max(bad, key=lambda t: t.loss_ratio)
        fits.session.add_finding(
            ViolatedAssumption(
                "outliers",
                f"{len(bad)} of {len(below)} trials below the edge lost far more than the "
                f"rest, up to {percent_text(worst.loss_ratio)} at "
                f"{worst.offered_pps:.0f} packet/s",
            )
        )


def _result(fits: Fits, estimate: EdgePosterior) -> GoalResult:
    low, pps, high = (fits.load_pps(x) for x in (estimate.low, estimate.middle, estimate.high))
    lowest, highest = fits.session.min_load_pps, fits.session.max_load_pps
    if pps > highest:
        return GoalResult(estimate.goal, "above-range", highest, min(low, highest), None)
    if pps < lowest:
        return below_range(estimate.goal, lowest)
    return GoalResult(estimate.goal, "found", pps, max(low, lowest), min(high, highest))
