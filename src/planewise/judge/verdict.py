"""The verdict: may PDR, a single number, stand for a load-loss curve? Knows no testbed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.special import betaincinv

from planewise.errors import BadInputError
from planewise.judge import probability
from planewise.judge.curve import Curve, Floats
from planewise.judge.diagnose import Caution, diagnose, host_busy
from planewise.judge.probability import BAD, GOOD, OPEN, Draws, Drift, Moments
from planewise.judge.rules import ETA, PUBLISHED_RULES, PublishedRule, apply_rule
from planewise.units import percent_text, rate_text

Rule = Literal["planewise", "as-published", "as-coded-intent", "as-written"]
RULES: tuple[Rule, ...] = get_args(Rule)
Word = Literal["GOOD", "BAD", "UNDECIDED"]

GOOD_AT = 0.95
"""Probability of GOOD from which the verdict is GOOD."""
BAD_AT = 0.05
"""Probability of GOOD up to which the verdict is BAD."""
BORDER = 0.1
"""A mean loss within this share of the limit is on the border: more runs would hardly tell."""
_BEYOND = (1.1, 1.25)
"""Loads to try next where the ladder ends too early, as multiples of its last load."""


@dataclass(frozen=True)
class Estimate:
    """An offered load [packet/s] with an interval of 95 %."""

    pps: float
    low_pps: float
    high_pps: float
    """Infinite where the ladder ends before the interval does."""

    @property
    def bounded(self) -> bool:
        """Whether the interval ends within the ladder."""
        return math.isfinite(self.high_pps)


@dataclass(frozen=True)
class Saturation:
    """Where saturation begins and what passes then."""

    offered_pps: float
    """First measured load from which on every TIR is below the limit."""
    throughput_pps: float
    """R there: T_sat = O_sat · (1 − PLR(O_sat)) (PASTRAMI, equation 4)."""
    low_pps: float
    high_pps: float
    """95 % interval of the throughput."""


@dataclass(frozen=True)
class Step:
    """One step of the ladder."""

    from_pps: float
    to_pps: float
    tir: float
    low: float
    high: float
    """95 % interval of TIR."""


@dataclass(frozen=True)
class Headroom:
    """How much more than at PDR comes through at most: (highest throughput − that at PDR) / that at
    PDR. Unlike TIR it does not depend on how far apart the loads of the ladder are."""

    share: float
    low: float
    high: float
    """95 % interval."""


Open = Literal["", "ladder too short", "borderline", "drift", "other"]
"""What an UNDECIDED verdict wants: other loads, a decision of the reader's, more runs."""


@dataclass(frozen=True)
class Verdict:
    """What the judge says about one curve."""

    verdict: Word
    rule: Rule
    reason: str
    """One plain sentence."""
    open: Open
    """Of UNDECIDED: which kind; else empty."""
    headroom: Headroom | None
    """None where the ladder does not go from below PDR to beyond it."""
    disturbed_at_most: float
    """Share of runs that may be disturbed for all that was seen at the loads that decide (95 %)."""
    probability_good: float
    """That the curve's true means fulfil the written rule, whatever `rule` decided; what the
    ladder is too short to show counts half."""
    probability_open: float
    """That the ladder ends, or begins, too early to tell, however many runs it has."""
    pdr: Estimate | None
    """Highest load up to which no more than the limit is lost, interpolated; None when the
    first load already loses more, or nothing was `tested`. Infinite `high_pps`: no load loses
    more."""
    first_crossing: Estimate | None
    """First measured load that loses more than the limit, as the paper has it; None: no load."""
    ndr: Estimate | None
    """Highest measured load up to which no run lost a packet; its interval reaches to the first
    load that lost one. None when the first load loses."""
    saturation: Saturation | None
    """None where saturation is not seen to begin and last."""
    trashing: Caution | None
    """Throughput falls with load; also among the warnings."""
    steps: tuple[Step, ...]
    """TIR of each step of the ladder."""
    warnings: tuple[Caution, ...]
    next_loads: tuple[float, ...]
    """Offered loads [packet/s] where further trials would decide most, most first."""
    plr: float = 0.005
    """The loss limit of PDR and verdict."""
    tested: bool = True
    """False when the SUT limited none of the trials: then no number describes it, and `pdr`,
    `ndr`, `first_crossing` and `saturation` are None."""

    @property
    def no_pdr(self) -> str:
        """Why there is no PDR; empty when there is."""
        return self._missing(self.pdr, "the first load already loses more")

    @property
    def no_ndr(self) -> str:
        """Why there is no NDR; empty when there is."""
        return self._missing(self.ndr, "the first load already loses packets")

    def _missing(self, estimate: Estimate | None, below: str) -> str:
        if estimate is not None:
            return ""
        return below if self.tested else "no trial was limited by the system itself"


def judge(
    curve: Curve,
    rule: Rule = "planewise",
    plr: float = 0.005,
    *,
    eta: float = ETA,
    good_at: float = GOOD_AT,
    bad_at: float = BAD_AT,
    draws: int = 6_000,
    seed: int = 1,
) -> Verdict:
    """Judges a curve. Deterministic for a seed; never raises for a valid curve.

    `rule` decides the word; intervals, probability and warnings are the same for all rules.
    `plr` is a ratio (0.005 is 0.5 %), `eta` the TIR below which a step counts as saturated (the
    published rules have their own), `draws` the number of drawn curves. BadInputError for an
    unknown rule or a limit that is no ratio.
    """
    _check(rule, plr)
    whole, curve = curve, curve.tested
    ladder = probability.moments(curve)
    drawn = probability.draw(ladder, plr=plr, eta=eta, draws=draws, seed=seed)
    good = drawn.probability_good
    drift = probability.curve_drift(curve)
    if rule in PUBLISHED_RULES:
        word, reason = _published(rule, curve, plr)
    else:
        word = "GOOD" if good >= good_at else "BAD" if good <= bad_at else "UNDECIDED"
        erratic = word == "BAD" and not rise_is_shown(drawn, ladder, eta, 1 - bad_at)
        if erratic or (drift is not None and drift.material):
            word = "UNDECIDED"
        reason = _reason(word, drawn, ladder, plr, eta, drift, erratic=erratic)
        if word == "BAD" and (busy := host_busy(curve)):
            word, reason = "UNDECIDED", f"{reason}; but {busy[0].text}"
        if curve.untested:
            word, reason = "UNDECIDED", _UNTESTED
    seen, runs = deciding_runs(ladder, plr)
    warnings = (*_loads_left_out(whole, curve), *diagnose(curve, ladder, drawn, plr, drift))
    tested = not curve.untested
    return Verdict(
        verdict=word,
        rule=rule,
        reason=reason,
        open=_open(word, ladder, drawn, drift, plr),
        headroom=_headroom(ladder, drawn, plr) if tested else None,
        disturbed_at_most=disturbed_at_most(seen, runs),
        probability_good=good if tested else 0.5,
        probability_open=drawn.share(OPEN) if tested else 1.0,
        pdr=_pdr(ladder, drawn, plr) if tested else None,
        first_crossing=_first_crossing(ladder, drawn, plr) if tested else None,
        ndr=_ndr(curve) if tested else None,
        saturation=_saturation(ladder, drawn, plr, eta) if tested else None,
        trashing=next((warning for warning in warnings if warning.code == "trashing"), None),
        steps=_steps(ladder, drawn),
        warnings=warnings,
        next_loads=next_loads(ladder, drawn) if word == "UNDECIDED" and tested else (),
        plr=plr,
        tested=tested,
    )


def deciding_runs(ladder: Moments, plr: float) -> tuple[int, int]:
    """Disturbed runs and all runs at the loads that decide GOOD: the last one below the limit and
    all beyond."""
    over = np.flatnonzero(ladder.mean > plr)
    start = max(0, int(over[0]) - 1) if over.size else 0
    return int(ladder.disturbed[start:].sum()), int(ladder.count[start:].sum())


def disturbed_at_most(seen: int, runs: int) -> float:
    """The largest share of disturbed runs that `seen` among `runs` leave possible: one-sided 95 %
    bound of Clopper and Pearson (1934)."""
    return float(betaincinv(seen + 1, runs - seen, 0.95)) if runs > seen else 1.0


def _open(word: Word, ladder: Moments, drawn: Draws, drift: Drift | None, plr: float) -> Open:
    if word != "UNDECIDED":
        return ""
    if drift is not None and drift.material:
        return "drift"
    if drawn.share(OPEN) > max(drawn.share(GOOD), drawn.share(BAD)):
        return "ladder too short"
    if (np.abs(ladder.mean - plr) <= BORDER * plr).any():
        return "borderline"
    return "other"


def _headroom(ladder: Moments, drawn: Draws, plr: float) -> Headroom | None:
    """From the same draws as the verdict; throughput at PDR is PDR · (1 − limit)."""
    size = ladder.offered_pps.size
    inner = (drawn.first_over > 0) & (drawn.first_over < size)
    mean = ladder.mean[None, :]
    at_pdr = float(_crossings(ladder.offered_pps, mean, plr)[0][0]) * (1 - plr)
    if inner.mean() < 0.95 or not 0 < at_pdr < math.inf:
        return None
    means, forwarded = drawn.plr[inner], drawn.forwarded_pps[inner]
    lower, upper = (ends * (1 - plr) for ends in _crossings(ladder.offered_pps, means, plr))
    beyond = np.arange(size) >= drawn.first_over[inner][:, None]
    highest = np.where(beyond, forwarded, -np.inf).max(axis=1)
    least = np.maximum(highest - upper, 0) / upper
    most = np.maximum(highest - lower, 0) / lower
    over = np.flatnonzero(ladder.mean > plr)
    best = float((ladder.offered_pps * (1 - ladder.mean))[over].max()) if over.size else at_pdr
    share = max(0.0, best - at_pdr) / at_pdr
    low, high = float(np.quantile(least, 0.025)), float(np.quantile(most, 0.975))
    return Headroom(share, min(low, share), max(high, share))


def rise_is_shown(drawn: Draws, ladder: Moments, eta: float, at: float) -> bool:
    """Whether throughput rises between some two loads beyond PDR, with probability `at`.

    That some step of many rises is probable wherever the runs vary much, too: every draw of an
    erratic curve has a step that does, each another. That proves nothing about the system.
    """
    offered, forwarded = ladder.offered_pps, drawn.forwarded_pps
    for low in range(offered.size - 1):
        beyond = (drawn.first_over <= low)[:, None]
        rise = forwarded[:, low + 1 :] - forwarded[:, [low]]
        over = rise >= eta * (offered[low + 1 :] - offered[low])
        if float((over & beyond).mean(axis=0).max()) >= at:
            return True
    return False


_UNTESTED = (
    "every trial was limited by the generator, the sink or the clock: of the system itself nothing "
    "is known"
)


def _loads_left_out(whole: Curve, tested: Curve) -> tuple[Caution, ...]:
    """Says which loads count for nothing, because the SUT limited none of their trials."""
    if whole is tested:
        return ()
    kept = {point.offered_pps for point in tested.points}
    left_out = [point.offered_pps for point in whole.points if point.offered_pps not in kept]
    return (
        Caution(
            "loads-left-out",
            f"{len(left_out)} of {len(whole.points)} loads count for nothing, the lowest "
            f"{rate_text(min(left_out))}: there every run was limited by the generator, the sink "
            "or the clock",
            {"loads": len(left_out), "lowest_pps": min(left_out), "highest_pps": max(left_out)},
        ),
    )


def next_loads(ladder: Moments, drawn: Draws, most: int = 3) -> tuple[float, ...]:
    """Offered loads where further trials would decide most, most first."""
    last = float(ladder.offered_pps[-1])
    first = float(ladder.offered_pps[0])
    if drawn.share(OPEN) > 0.5:
        early = float((drawn.first_over == 0).mean()) > 0.5 and ladder.offered_pps.size > 1
        beyond = [0.8 * first, 0.5 * first] if early else [last * by for by in _BEYOND]
        return tuple(float(f"{load:.4g}") for load in beyond)
    gain = probability.sensitivity(drawn, ladder)
    if gain.max() <= 0:
        return ()
    order = np.argsort(-gain)[:most]
    return tuple(float(ladder.offered_pps[i]) for i in order if gain[i] > 0.05 * gain.max())


def _check(rule: str, plr: float) -> None:
    if rule not in RULES:
        raise BadInputError(
            f"{rule} is no rule", where="--rule", remedy=f"choose one of {', '.join(RULES)}"
        )
    if not 0 < plr < 1:
        raise BadInputError(
            f"a loss limit of {plr} is no ratio between 0 and 1", remedy="0.5 % is 0.005"
        )


def _published(rule: Rule, curve: Curve, plr: float) -> tuple[Word, str]:
    name: PublishedRule = next(known for known in PUBLISHED_RULES if known == rule)
    result = apply_rule(name, curve, plr)
    return ("GOOD" if result.good else "BAD"), result.reason


def _reason(
    word: Word,
    drawn: Draws,
    ladder: Moments,
    plr: float,
    eta: float,
    drift: Drift | None,
    *,
    erratic: bool,
) -> str:
    offered, mean = ladder.offered_pps, ladder.mean
    good, bad, open_ = (drawn.share(outcome) for outcome in (GOOD, BAD, OPEN))
    over = np.flatnonzero(mean > plr)
    if drift is not None and drift.material:
        return (
            "the system did not stay the same: its capacity changed by "
            f"{percent_text(drift.change, signed=True)} during the sweep, so that its loads "
            "cannot be compared"
        )
    if open_ > max(good, bad):
        if over.size == 0:
            return (
                f"no load up to {rate_text(offered[-1])} lost more than {percent_text(plr)}: PDR "
                "and saturation lie above what was measured"
            )
        if over[0] == 0 and offered.size > 1:
            return (
                f"the first load, {rate_text(offered[0])}, already lost {percent_text(mean[0])}: "
                "PDR lies below what was measured"
            )
        return (
            f"only the last load, {rate_text(offered[-1])}, lost more than {percent_text(plr)}: "
            "whether throughput still rises beyond it was not measured"
        )
    start = int(over[0]) if over.size else offered.size - 1
    tir = np.diff(offered * (1 - mean)) / np.diff(offered)
    at = f"{rate_text(offered[start])}, where loss first exceeds {percent_text(plr)}"
    if word == "GOOD":
        return f"from {at}, throughput no longer rises with load: PDR stands for the curve"
    if word == "BAD":
        worst = start + int(np.argmax(tir[start:])) if start < tir.size else tir.size - 1
        return (
            f"beyond {at}, throughput still rises: TIR is {tir[worst]:.2f} from "
            f"{rate_text(offered[worst])} to {rate_text(offered[worst + 1])} (below {eta:g} would "
            "be saturation)"
        )
    if erratic:
        return (
            f"the runs vary too much: beyond {at}, throughput goes up and down, and between no two "
            "loads is it certain to rise"
        )
    if open_ > 0.05:
        return (
            "it is not certain that the ladder reaches saturation: a load that lost "
            f"{percent_text(mean[start])} decides"
        )
    return (
        f"the runs do not tell: with probability {percent_text(round(good, 2))} throughput no "
        f"longer rises beyond {at}, with {percent_text(round(bad, 2))} it does"
    )


def _crossings(offered: Floats, means: Floats, plr: float) -> tuple[Floats, Floats]:
    """First crossing of `plr` in each row of `means`: lower and upper reading between loads.

    Between the last load below the limit and the first above, throughput follows at least the
    chord (lower reading) and, as it does not fall with load before saturation, is at most that
    of the upper load: R = (1 − plr) · O gives the upper reading. 0 where the first load is over
    the limit, infinite where none is.
    """
    size = offered.size
    over = means > plr
    first = np.where(over.any(axis=1), over.argmax(axis=1), size)
    inner = (first > 0) & (first < size)
    upper_at = np.clip(first, 1, size - 1) if size > 1 else np.zeros_like(first)
    lower_at = np.maximum(upper_at - 1, 0)
    rows = np.arange(means.shape[0])
    below, above = offered[lower_at], offered[upper_at]
    plr_below, plr_above = means[rows, lower_at], means[rows, upper_at]
    share = (plr - plr_below) / np.where(plr_above > plr_below, plr_above - plr_below, 1)
    chord = below + np.clip(share, 0, 1) * (above - below)
    knee = np.clip(above * (1 - plr_above) / (1 - plr), chord, above)
    outside = np.where(first == 0, 0.0, np.inf)
    return np.where(inner, chord, outside), np.where(inner, knee, outside)


def _pdr(ladder: Moments, drawn: Draws, plr: float) -> Estimate | None:
    value = float(_crossings(ladder.offered_pps, ladder.mean[None, :], plr)[0][0])
    if value == 0:
        return None
    lower, upper = _crossings(ladder.offered_pps, drawn.plr, plr)
    last = float(ladder.offered_pps[-1])
    low, high = _quantile(lower, 0.025), _quantile(upper, 0.975)
    value = min(value, last)
    return Estimate(value, min(low, value), max(high, value))


def _first_crossing(ladder: Moments, drawn: Draws, plr: float) -> Estimate | None:
    over = np.flatnonzero(ladder.mean > plr)
    if over.size == 0:
        return None
    loads = np.append(ladder.offered_pps, np.inf)[drawn.first_over]
    value = float(ladder.offered_pps[over[0]])
    low, high = _quantile(loads, 0.025), _quantile(loads, 0.975)
    return Estimate(value, min(low, value), max(high, value))


def _quantile(values: Floats, level: float) -> float:
    """An order statistic: defined for infinite values, too."""
    ordered = np.sort(values)
    return float(ordered[min(ordered.size - 1, int(level * ordered.size))])


def _ndr(curve: Curve) -> Estimate | None:
    lossy = np.array(
        [bool((point.table.received < point.table.sent).any()) for point in curve.points]
    )
    first = int(lossy.argmax()) if lossy.any() else lossy.size
    if first == 0:
        return None
    offered = curve.offered_pps
    clean = float(offered[first - 1])
    return Estimate(clean, clean, float(offered[first]) if first < offered.size else math.inf)


def _saturation(ladder: Moments, drawn: Draws, plr: float, eta: float) -> Saturation | None:
    offered = ladder.offered_pps
    over = np.flatnonzero(ladder.mean > plr)
    if over.size == 0 or over[0] == offered.size - 1:
        return None
    tir = np.diff(offered * (1 - ladder.mean)) / np.diff(offered)
    high = np.flatnonzero(tir >= eta)
    begin = max(int(over[0]), int(high[-1]) + 1 if high.size else 0)
    if begin >= offered.size - 1:
        return None
    low_pps, high_pps = probability.quantiles(drawn.forwarded_pps[:, begin])
    return Saturation(
        float(offered[begin]), float(offered[begin] * (1 - ladder.mean[begin])), low_pps, high_pps
    )


def _steps(ladder: Moments, drawn: Draws) -> tuple[Step, ...]:
    offered = ladder.offered_pps
    if offered.size < 2:
        return ()
    tir = np.diff(offered * (1 - ladder.mean)) / np.diff(offered)
    drawn_tir = np.diff(drawn.forwarded_pps, axis=1) / np.diff(offered)
    low, high = np.quantile(drawn_tir, [0.025, 0.975], axis=0)
    return tuple(
        Step(float(offered[i]), float(offered[i + 1]), float(tir[i]), float(low[i]), float(high[i]))
        for i in range(tir.size)
    )
