"""The second part of the `planewise` search: chooses the next trials, and when to stop."""

from __future__ import annotations

from planewise.measure.search.fits import EdgePosterior, Fits
from planewise.measure.search.goals import Goal, StopReason
from planewise.measure.search.median import open_above
from planewise.measure.search.tuning import Offsets


def measure(fits: Fits, goals: tuple[Goal, ...], measured: dict[Goal, int]) -> StopReason:
    """Measures in batches that grow, beside each goal's load, until every goal has enough.

    `measured` counts the trials spent on each goal; it is updated.
    """
    while True:
        estimates = [fits.estimate(goal) for goal in goals]
        unfinished = [e for e in estimates if _needs_trials(fits, e, measured[e.goal])]
        if not unfinished:
            if _climb(fits, estimates, measured):
                continue
            wide = any(_relative_width(fits, estimate) > 1 for estimate in estimates)
            return "trials" if wide else "precise"
        for estimate in _ready(fits, unfinished):
            for offered_pps, duration_s in _next_trials(fits, estimate, measured[estimate.goal]):
                fits.session.measure(offered_pps, duration_s)
                measured[estimate.goal] += 1


def _ready(fits: Fits, unfinished: list[EdgePosterior]) -> list[EdgePosterior]:
    """Those of the goals whose trials can be placed: a stricter goal's, once the loosest that still
    wants trials has a few near its load. Until then the stricter one is known by guess alone, and
    its trials would lie where nothing is lost and tell of neither."""
    loosest = max(unfinished, key=lambda estimate: estimate.goal.loss_ratio)
    if loosest.trials >= fits.options.min_trials:
        return unfinished
    return [estimate for estimate in unfinished if estimate.goal == loosest.goal]


def _climb(fits: Fits, estimates: list[EdgePosterior], measured: dict[Goal, int]) -> bool:
    """Measures above the highest forwarding rate so far, where the loosest goal's load may lie
    above every reading: the capacity may have a higher state that no trial has reached.

    Returns whether it measured; not after `Tuning.climbs` trials.
    """
    estimate = max(estimates, key=lambda estimate: estimate.goal.loss_ratio)
    goal, tuning = estimate.goal, fits.options.tuning
    if goal.loss_ratio == 0 or fits.climbed >= tuning.climbs:
        return False
    readings = fits.readings(goal)
    if not open_above(readings):
        return False
    load_pps = fits.load_pps(fits.highest_forwarded(goal) + fits.step_above(readings))
    if load_pps > fits.ceiling_pps:
        return False
    fits.session.measure(load_pps, fits.options.goal_duration_s)
    measured[goal] += 1
    fits.climbed += 1
    return True


def _relative_width(fits: Fits, estimate: EdgePosterior) -> float:
    """A goal's half interval in units of the precision asked for."""
    allowed = fits.options.precision * (1 if estimate.goal.loss_ratio > 0 else 2)
    return estimate.half_width / allowed


def _max_trials(fits: Fits, estimate: EdgePosterior) -> int:
    """Trials near a goal's edge (for NDR: spent on it) after which it is done."""
    most, tuning = fits.options.max_trials, fits.options.tuning
    if estimate.goal.loss_ratio == 0:
        if not estimate.soft:
            return round(most * tuning.hard_ndr_share)
        clumped = fits.clump > tuning.clumped
        return round(most * (tuning.clumped_ndr_share if clumped else tuning.soft_ndr_share))
    noise = estimate.noise / tuning.reference_noise
    share = min(max(noise, tuning.least_excess_noise), tuning.most_excess_noise)
    if fits.readings(estimate.goal).states:
        return round(most * share * tuning.states_share)
    noisier = max(noise / tuning.most_excess_noise, 1.0) ** tuning.noisier_growth
    share *= min(noisier, tuning.most_noisier)
    if estimate.soft:
        share *= tuning.soft_share
    elif estimate.flatter:
        share *= tuning.flatter_share
    return round(float(most * share))


def _needs_trials(fits: Fits, estimate: EdgePosterior, spent: int) -> bool:
    options, most = fits.options, _max_trials(fits, estimate)
    if spent >= most:
        return False
    noisy = estimate.noise > options.precision / 4
    if spent < 2 or estimate.trials < options.min_trials * (2 if noisy else 1):
        return True
    if estimate.goal.loss_ratio > 0 and estimate.trials >= most:
        return False
    one_sided = estimate.lowest_bad is not None or estimate.highest_good is not None
    return one_sided or _relative_width(fits, estimate) > 1


def _next_trials(fits: Fits, estimate: EdgePosterior, spent: int) -> list[tuple[float, float]]:
    """Load and duration of a goal's next batch: the more is known, the larger."""
    tuning, goal = fits.options.tuning, estimate.goal
    duration_s = fits.options.goal_duration_s
    if goal.loss_ratio == 0 and estimate.soft:
        middle = _unbracketed(fits)
        if middle is not None:
            return [(fits.load_pps(middle), duration_s)]
    offsets = _offsets(fits, estimate)
    above_pps = fits.above_states_pps(goal) if goal.loss_ratio > 0 else None
    remaining = _max_trials(fits, estimate) - spent
    if goal.loss_ratio > 0:
        remaining = min(remaining, _max_trials(fits, estimate) - estimate.trials)
    chosen: list[tuple[float, float]] = []
    for step in range(min(max(2, spent // 3), 8, max(remaining, 1))):
        if above_pps is not None:
            chosen.append((above_pps, duration_s))
            continue
        if goal.loss_ratio > 0 and not estimate.soft and (spent + step) % tuning.overloads == 0:
            offered_pps = fits.load_pps(estimate.middle + _overload(fits, estimate))
            chosen.append((min(offered_pps, fits.ceiling_pps), duration_s))
            continue
        deviations, halves = offsets[(spent + step) % len(offsets)]
        half_width = estimate.high - estimate.middle
        if halves < 0:
            half_width = estimate.middle - estimate.low
        x = estimate.middle + deviations * min(estimate.blur, tuning.widest_step)
        x += halves * min(half_width, tuning.window)
        # Where losses are counted, a trial anywhere near the edge tells something.
        if not estimate.counted:
            x = _past_one_side(x, estimate)
        chosen.append((fits.load_pps(x), duration_s))
    return chosen


def _offsets(fits: Fits, estimate: EdgePosterior) -> Offsets:
    tuning = fits.options.tuning
    if estimate.goal.loss_ratio > 0:
        return tuning.soft_places if estimate.soft else tuning.places
    return tuning.soft_ndr_places if estimate.soft else tuning.ndr_places


def _overload(fits: Fits, estimate: EdgePosterior) -> float:
    """How far above a goal's load, in ln(load), a trial tells the slope of the curve.

    If some trial forwarded more, it goes above that, too, once throughput is known to be constant
    there: a short one may have passed a queue's length besides, or the capacity has a higher state.
    """
    tuning = fits.options.tuning
    above = tuning.climb
    if estimate.trials >= fits.options.min_trials and not estimate.flatter:
        above += max(fits.highest_forwarded(estimate.goal) - estimate.middle, 0.0)
    most = tuning.climb * 2.0**tuning.doublings
    return min(max(above, tuning.overload * estimate.blur), most)


def _unbracketed(fits: Fits) -> float | None:
    """For NDR: the middle, as x, between the highest load without loss and the lowest with loss;
    None once these are near to each other."""
    observed, offered = fits.all_trials()
    usable = offered <= fits.ceiling_pps
    lossy = observed.x[usable & (observed.lost > 0)]
    if not lossy.size:
        return None
    # The highest clean load below which most trials are clean, too: losses may be rare. Before
    # there is one, the lowest that a short trial found clean.
    clean = observed.x[usable & (observed.lost <= 0)]
    low = float(clean.max()) if clean.size else fits.lowest_clean()
    above = lossy[lossy > low]
    if not above.size or float(above.min()) - low < fits.options.tuning.bracketed:
        return None
    return 0.5 * (low + float(above.min()))


def _past_one_side(x: float, estimate: EdgePosterior) -> float:
    """`x`, or further out where all trials near the edge met the goal, or none did."""
    if estimate.lowest_bad is not None:
        return min(x, estimate.lowest_bad) - 1.5 * abs(estimate.lowest_bad - estimate.middle)
    if estimate.highest_good is not None:
        ahead = abs(estimate.highest_good - estimate.middle)
        return max(x, estimate.highest_good) + 1.5 * ahead
    return x
