"""The verdict: may PDR, a single number, stand for a load-loss curve? Knows no testbed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from scipy.special import betaincinv

from planewise.errors import BadInputError
from planewise.judge import curve_draws
from planewise.judge.curve import Curve, Floats
from planewise.judge.curve_draws import BAD, GOOD, OPEN, CapacityTrend, Draws, Moments
from planewise.judge.diagnose import Caution, diagnose, host_busy
from planewise.judge.headroom import LIMIT as HEADROOM_LIMIT
from planewise.judge.headroom import Headrooms, headrooms
from planewise.judge.probability import probability_good
from planewise.judge.rules import ETA, PUBLISHED_RULES, PublishedRule, RuleResult, apply_rule
from planewise.units import percent_text, rate_text

Rule = Literal["planewise", "as-published", "as-coded-intent", "as-written"]
RULES: tuple[Rule, ...] = get_args(Rule)
Word = Literal["GOOD", "BAD", "UNDECIDED"]

DRAWS = 6_000
"""Drawn curves of a verdict."""
SURE = 0.95
"""Share of the draws from which a verdict is GOOD, or BAD."""
MOST_DISTURBED = 0.033
"""GOOD needs so many runs that no larger share of them can be disturbed (95 %): 90 without one. If
one run in twenty were disturbed, 90 would show none with a probability of 1 %."""
BORDER = 1.25
"""BORDERLINE: the answer turns when both limits, of loss and headroom, are divided or multiplied by
this."""
_NEAR = 0.03
"""How far below a knee a load is added, as a share."""
_LOWEST = 1 / 3
_WIDEST = 1 / 5
"""GOOD needs loads from this share of PDR on, no further apart than that share: PDR holds only if
no lower load loses more, and what was not measured is not known."""
_TRACE = 1 / 500
_CERTAIN_FALL = 3.0
"""Loss falls with load where it does by this share of the limit and so many standard errors."""
_BEYOND = (1.1, 1.25)
"""Loads to try next where the ladder ends too early, as multiples of its last load."""


@dataclass(frozen=True)
class LoadEstimate:
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


@dataclass(frozen=True)
class Headroom:
    """How much more than at PDR comes through at most: (highest throughput − that at PDR) / that at
    PDR. judge/headroom.py defines it."""

    low: float
    high: float
    """95 % interval, PDR being anywhere between two loads. Infinite: the ladder has no bound."""

    def __str__(self) -> str:
        low, high = (percent_text(round(max(0.0, end), 3)) for end in (self.low, self.high))
        return f"{low} to {high}" if math.isfinite(self.high) else f"{low} or more"


Open = Literal["", "ladder too short", "borderline", "few runs", "drift", "other"]
"""What an UNDECIDED verdict wants: other loads; the reader's own limit; so many runs that disturbed
ones would have shown; a system that stays the same; more runs."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on one curve."""

    verdict: Word
    rule: Rule
    reason: str
    """One plain sentence."""
    open: Open
    """Of UNDECIDED: which kind; else empty."""
    headroom: Headroom | None
    """None where nothing was `tested`."""
    pastrami: RuleResult
    """PASTRAMI's saturation conditions as the paper writes them, on the sample means."""
    delta_ucl95: float | None
    """PASTRAMI's accuracy at the first load over the limit: (UCL95 − PLR) / PLR."""
    disturbed_at_most: float
    """Upper bound (95 %) of the share of disturbed runs, at the loads that decide."""
    share_good: float
    """Share of drawn curves whose headroom is below its limit, whatever `rule` decided. A ladder
    that ends or begins too early counts half."""
    share_open: float
    """Share of drawn curves of which the loads cannot tell, however many runs they have: they end
    or begin too early, or lie too far apart."""
    pdr: LoadEstimate | None
    """Highest load up to which no more than the limit is lost, interpolated; None when the
    first load already loses more, or nothing was `tested`. Infinite `high_pps`: no load loses
    more."""
    first_crossing: LoadEstimate | None
    """First measured load that loses more than the limit, as the paper has it; None: no load."""
    ndr: LoadEstimate | None
    """Highest measured load up to which no run lost a packet; its interval reaches to the first
    load that lost one. None when the first load loses."""
    saturation: Saturation | None
    """None where saturation is not seen to begin and last."""
    warnings: tuple[Caution, ...]
    next_loads: tuple[float, ...]
    """Offered loads [packet/s] where further trials would decide most, most first."""
    plr: float = 0.005
    """The loss limit of PDR and verdict."""
    tested: bool = True
    """False when the SUT limited none of the trials: then no number describes it, and `pdr`,
    `ndr`, `first_crossing` and `saturation` are None."""

    @property
    def probability_good(self) -> float | None:
        """Probability that headroom is below its limit, whatever `rule` decided: calibrated on
        simulated systems. None where half of the draws say that these loads cannot tell, where the
        system drifts, or where nothing was `tested`."""
        if self.open == "drift" or self.share_open >= 0.5:
            return None
        return probability_good(self.share_good)

    @property
    def label(self) -> str:
        """The word, of UNDECIDED with its kind where it has a name of its own."""
        named = self.open in ("ladder too short", "borderline", "few runs", "drift")
        return f"{self.verdict} ({self.open.upper()})" if named else self.verdict

    @property
    def no_pdr(self) -> str:
        """Why there is no PDR; empty when there is."""
        return self._missing(self.pdr, "the first load already loses more")

    @property
    def no_ndr(self) -> str:
        """Why there is no NDR; empty when there is."""
        return self._missing(self.ndr, "the first load already loses packets")

    def _missing(self, estimate: LoadEstimate | None, below: str) -> str:
        if estimate is not None:
            return ""
        return below if self.tested else "no trial was limited by the system itself"


def judge(
    curve: Curve,
    rule: Rule = "planewise",
    plr: float = 0.005,
    *,
    draws: int = DRAWS,
    seed: int = 1,
) -> Verdict:
    """Judges a curve. Deterministic for a seed; never raises for a valid curve.

    `rule` decides the word; intervals, probability and warnings are the same for all rules.
    `plr` is a ratio (0.005 is 0.5 %), `draws` the number of drawn curves. BadInputError for an
    unknown rule or a limit that is not a ratio.
    """
    _check(rule, plr)
    measured, curve = curve, curve.tested
    ladder = curve_draws.moments(curve)
    drawn = curve_draws.draw(ladder, plr=plr, draws=draws, seed=seed)
    drift = curve_draws.curve_drift(curve)
    if rule in PUBLISHED_RULES:
        decision = _published(rule, curve, plr)
    elif curve.untested:
        decision = Decision("UNDECIDED", "other", _UNTESTED)
    else:
        decision = decide(ladder, drawn, plr, drift)
        if decision.word == "BAD" and (busy := host_busy(curve)):
            decision = Decision("UNDECIDED", "other", f"{decision.reason}; but {busy[0].text}")
    word = decision.word
    warnings = (*_loads_left_out(measured, curve), *diagnose(curve, ladder, drawn, plr, drift))
    tested = not curve.untested
    crossing = curve.first_over(plr)
    return Verdict(
        verdict=word,
        rule=rule,
        reason=decision.reason,
        open=decision.open,
        headroom=_headroom(drawn) if tested else None,
        pastrami=apply_rule("as-written", curve, plr),
        delta_ucl95=None if crossing is None else curve.points[crossing].delta_ucl95,
        disturbed_at_most=disturbed_at_most(*deciding_runs(ladder, plr)),
        share_good=drawn.share_good if tested else 0.5,
        share_open=drawn.share(OPEN) if tested else 1.0,
        pdr=_pdr(ladder, drawn, plr) if tested else None,
        first_crossing=_first_crossing(ladder, drawn, plr) if tested else None,
        ndr=_ndr(curve) if tested else None,
        saturation=_saturation(ladder, plr) if tested else None,
        warnings=warnings,
        next_loads=next_loads(ladder, drawn, plr, decision.open)
        if word == "UNDECIDED" and tested
        else (),
        plr=plr,
        tested=tested,
    )


@dataclass(frozen=True)
class Decision:
    """The word, of UNDECIDED the kind, and why."""

    word: Word
    open: Open
    reason: str


def decide(
    ladder: Moments, drawn: Draws, plr: float, drift: CapacityTrend | None, sure: float = SURE
) -> Decision:
    """The verdict of the rule `planewise`: an equivalence test of headroom against its limit.

    `sure` is the share of the draws that GOOD and BAD need. Sweeps stop by this function, too.
    """
    good, bad, open_ = (drawn.share(outcome) for outcome in (GOOD, BAD, OPEN))
    if drift is not None and drift.material:
        return Decision("UNDECIDED", "drift", _drifted(drift))
    size = _size_text(_headroom(drawn))
    if bad >= sure and drawn.shown >= sure:
        return Decision("BAD", "", f"beyond PDR throughput still rises, by {size}")
    if good >= sure:
        disturbed, runs = deciding_runs(ladder, plr)
        flat = f"beyond PDR throughput no longer rises, or by {size}"
        bound = percent_text(round(disturbed_at_most(disturbed, runs), 3))
        hidden = f"at most {bound} of runs may be"
        if (unseen := unseen_below(ladder, plr)) is not None:
            return Decision("UNDECIDED", "ladder too short", unseen.reason)
        if runs < (needed := runs_for_good(disturbed)):
            few = f"{hidden} disturbed, as {runs} of the {needed} runs that GOOD needs were made"
            return Decision("UNDECIDED", "few runs", f"{flat}; but {few} at the loads that decide")
        return Decision("GOOD", "", f"{flat}: PDR stands for the curve; {hidden} disturbed")
    lenient, _ = drawn.shares_at(ladder.offered_pps, plr * BORDER, HEADROOM_LIMIT * BORDER)
    _, strict = drawn.shares_at(ladder.offered_pps, plr / BORDER, HEADROOM_LIMIT / BORDER)
    if lenient >= SURE and strict >= SURE:
        band = f"a loss of {percent_text(plr)} or a headroom of {percent_text(HEADROOM_LIMIT)}"
        return Decision(
            "UNDECIDED", "borderline", f"the answer turns near the limits, {band}: {size}"
        )
    if open_ > max(good, bad) or min(good, bad) <= 1 - SURE < open_:
        return Decision("UNDECIDED", "ladder too short", _too_short(ladder, plr))
    return Decision(
        "UNDECIDED", "other", _undecided_reason(ladder, drawn, plr, erratic=bad >= sure)
    )


def _size_text(headroom: Headroom) -> str:
    return f"{headroom} (limit {percent_text(HEADROOM_LIMIT)})"


def deciding_runs(ladder: Moments, plr: float) -> tuple[int, int]:
    """Disturbed runs and all runs at the loads that decide GOOD: the last one below the limit and
    all beyond."""
    over = np.flatnonzero(ladder.mean > plr)
    start = max(0, int(over[0]) - 1) if over.size else 0
    return int(ladder.disturbed[start:].sum()), int(ladder.count[start:].sum())


def disturbed_at_most(disturbed: int, runs: int) -> float:
    """The largest share of disturbed runs that `disturbed` of `runs` allow: one-sided 95 %
    bound of Clopper and Pearson (1934)."""
    return float(betaincinv(disturbed + 1, runs - disturbed, 0.95)) if runs > disturbed else 1.0


@lru_cache
def runs_for_good(disturbed: int) -> int:
    """Runs that GOOD needs where so many of them were disturbed."""
    runs = disturbed + 1
    while disturbed_at_most(disturbed, runs) > MOST_DISTURBED:
        runs += 1
    return runs


def _headroom(drawn: Draws) -> Headroom:
    """From the same draws as the verdict."""
    low, high = _quantile(drawn.headroom.low, 0.025), _quantile(drawn.headroom.high, 0.975)
    return Headroom(low, max(low, high))


_UNTESTED = (
    "every trial was limited by the generator, the sink or the clock: of the system itself nothing "
    "is known"
)


def _loads_left_out(measured: Curve, tested: Curve) -> tuple[Caution, ...]:
    """Says which loads count for nothing, because the SUT limited none of their trials."""
    if measured is tested:
        return ()
    used = {point.offered_pps for point in tested.points}
    left_out = [point.offered_pps for point in measured.points if point.offered_pps not in used]
    return (
        Caution(
            "loads-left-out",
            f"{len(left_out)} of {len(measured.points)} loads count for nothing, the lowest "
            f"{rate_text(min(left_out))}: there every run was limited by the generator, the sink "
            "or the clock",
            {"loads": len(left_out), "lowest_pps": min(left_out), "highest_pps": max(left_out)},
        ),
    )


def next_loads(
    ladder: Moments, drawn: Draws, plr: float, open_: Open, most: int = 3
) -> tuple[float, ...]:
    """Offered loads where further trials would decide most, most first."""
    if open_ == "ladder too short":
        return tuple(float(f"{load:.4g}") for load in missing_loads(ladder, drawn, plr))
    gain = curve_draws.sensitivity(drawn, ladder)
    if gain.max() <= 0:
        return ()
    order = np.argsort(-gain)[:most]
    return tuple(float(ladder.offered_pps[i]) for i in order if gain[i] > 0.05 * gain.max())


def missing_loads(ladder: Moments, drawn: Draws, plr: float) -> list[float]:
    """Loads that the ladder lacks: below it, beyond it, or between PDR's neighbours."""
    offered, over = ladder.offered_pps, np.flatnonzero(ladder.mean > plr)
    first, last = float(offered[0]), float(offered[-1])
    unseen = unseen_below(ladder, plr)
    if unseen is not None and (unseen.traced or drawn.share(OPEN) <= 1 - SURE):
        return unseen.loads_pps
    if float((drawn.first_over == 0).mean()) > 0.5:
        return [0.8 * first, 0.5 * first]
    if over.size == 0 or over[0] >= offered.size - 1:
        return [last * by for by in _BEYOND]
    below, above = float(offered[over[0] - 1]), float(offered[over[0]])
    knee = min(above * (1 - float(ladder.mean[over[0]])) / (1 - plr), above)
    if knee > below * (1 + 2 * _NEAR):
        # Just below the knee: if nothing is lost there, little is left between PDR's readings.
        return [max(knee * (1 - _NEAR), (below + knee) / 2), (below + knee) / 2]
    return [last * by for by in _BEYOND]


@dataclass(frozen=True)
class Unseen:
    """Where below PDR loss may pass the limit, for all that was measured."""

    loads_pps: list[float]
    """Loads that would show it, most telling first."""
    reason: str
    traced: bool
    """Whether a load that loses more than a higher one points there."""


def unseen_below(ladder: Moments, plr: float) -> Unseen | None:
    """What the ladder leaves unseen below PDR; None where nothing is, or where there is no PDR."""
    over = np.flatnonzero(ladder.mean > plr)
    below = int(over[0]) if over.size else ladder.mean.size
    if below == 0:
        return None
    pdr_pps = float(_readings(ladder, plr).pdr_low_pps[0])
    return _traced(ladder, below, plr) or _unmeasured(ladder.offered_pps[:below], pdr_pps)


def _traced(ladder: Moments, below: int, plr: float) -> Unseen | None:
    """A load that certainly loses more than a higher one, neither more than the limit, and whose
    neighbours are so far away that the limit may be passed between them."""
    mean, offered = ladder.ordinary_mean, ladder.offered_pps
    error = ladder.deviation * np.sqrt(ladder.inflation / ladder.ordinary)
    error = np.where(ladder.ordinary > 1, error, ladder.scale)
    for index in np.argsort(-mean[: max(0, below - 1)]):
        later = slice(index + 1, below)
        fall = mean[index] - mean[later]
        certain = _CERTAIN_FALL * np.hypot(error[index], error[later])
        lower = offered[index - 1] if index else max(offered[0] / 2, 2 * offered[0] - offered[1])
        if (fall > np.maximum(certain, _TRACE * plr)).any() and offered[index + 1] / lower > (
            1 + 2 * _NEAR
        ) * (1 + 1e-9):
            middles = {float(offered[index] + offered[index + 1]) / 2: mean[index + 1]}
            middles[float(offered[index] + lower) / 2] = mean[index - 1] if index else 1.0
            return Unseen(
                sorted(middles, key=lambda load: -middles[load]),
                f"more is lost at {rate_text(offered[index])} than at higher loads, and between "
                "the loads beside it it may pass the limit",
                traced=True,
            )
    return None


def _unmeasured(offered: Floats, pdr_pps: float) -> Unseen | None:
    """Loads within the limit that begin too near to PDR, or lie too far apart."""
    lowest, widest = _LOWEST * pdr_pps, _WIDEST * pdr_pps
    loads = offered if offered[0] <= lowest else np.append(0.9 * lowest, offered)
    steps = np.diff(loads)
    wide = np.flatnonzero(steps > widest * 1.01)
    missing = [float(loads[0])] if loads.size > offered.size else []
    for index in wide[::-1]:
        parts = math.ceil(steps[index] / widest)
        missing.extend(loads[index] + steps[index] * np.arange(1, parts) / parts)
    if not missing:
        return None
    if loads.size > offered.size:
        gap = f"below {rate_text(offered[0])}"
    else:
        gap = f"between {rate_text(loads[wide[-1]])} and {rate_text(loads[wide[-1] + 1])}"
    reason = f"nothing was measured {gap}, and loss may pass the limit there: GOOD needs loads "
    reason += "from a third of PDR on, a fifth of PDR apart at most"
    return Unseen(missing, reason, traced=False)


def _check(rule: str, plr: float) -> None:
    if rule not in RULES:
        raise BadInputError(
            f"{rule} is not a rule", where="--rule", remedy=f"choose one of {', '.join(RULES)}"
        )
    if not 0 < plr < 1:
        raise BadInputError(
            f"a loss limit of {plr} is not a ratio between 0 and 1", remedy="0.5 % is 0.005"
        )


def _published(rule: Rule, curve: Curve, plr: float) -> Decision:
    name: PublishedRule = next(published for published in PUBLISHED_RULES if published == rule)
    result = apply_rule(name, curve, plr)
    return Decision(result.word, "", result.reason)


def _drifted(drift: CapacityTrend) -> str:
    return (
        "the system did not stay the same: its capacity changed by "
        f"{percent_text(drift.change, signed=True)} during the sweep, so that its loads "
        "cannot be compared"
    )


def _too_short(ladder: Moments, plr: float) -> str:
    """What the loads lack."""
    offered, mean = ladder.offered_pps, ladder.mean
    over = np.flatnonzero(mean > plr)
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
    if over[0] == offered.size - 1:
        return (
            f"only the last load, {rate_text(offered[-1])}, lost more than {percent_text(plr)}: "
            "whether throughput still rises beyond it was not measured"
        )
    return (
        f"PDR lies between {rate_text(offered[over[0] - 1])} and {rate_text(offered[over[0]])}: "
        f"these loads lie too far apart, or {rate_text(offered[-1])} is too early an end, to tell "
        f"whether more than {percent_text(HEADROOM_LIMIT)} more comes through beyond it"
    )


def _undecided_reason(ladder: Moments, drawn: Draws, plr: float, *, erratic: bool) -> str:
    """Why runs do not decide."""
    over = np.flatnonzero(ladder.mean > plr)
    start = int(over[0]) if over.size else ladder.offered_pps.size - 1
    if erratic:
        return (
            f"the runs vary too much: beyond {rate_text(ladder.offered_pps[start])} throughput "
            "goes up and down, and at no load is it certain to be higher than at PDR"
        )
    good, bad = (percent_text(round(drawn.share(outcome), 2)) for outcome in (GOOD, BAD))
    return (
        f"the runs do not tell: beyond PDR throughput rises by {_size_text(_headroom(drawn))}; "
        f"below the limit in {good} of the drawn curves, above it in {bad}"
    )


def _readings(ladder: Moments, plr: float) -> Headrooms:
    """PDR and headroom of the sample means."""
    mean = ladder.mean[None, :]
    return headrooms(ladder.offered_pps, mean, ladder.offered_pps * (1 - mean), plr)


def _pdr(ladder: Moments, drawn: Draws, plr: float) -> LoadEstimate | None:
    value = float(_readings(ladder, plr).pdr_low_pps[0])
    if value == 0:
        return None
    low = _quantile(drawn.headroom.pdr_low_pps, 0.025)
    high = _quantile(drawn.headroom.pdr_high_pps, 0.975)
    return LoadEstimate(value, min(low, value), max(high, value))


def _first_crossing(ladder: Moments, drawn: Draws, plr: float) -> LoadEstimate | None:
    over = np.flatnonzero(ladder.mean > plr)
    if over.size == 0:
        return None
    loads = np.append(ladder.offered_pps, np.inf)[drawn.first_over]
    value = float(ladder.offered_pps[over[0]])
    low, high = _quantile(loads, 0.025), _quantile(loads, 0.975)
    return LoadEstimate(value, min(low, value), max(high, value))


def _quantile(values: Floats, level: float) -> float:
    """An order statistic: defined for infinite values, too."""
    ordered = np.sort(values)
    return float(ordered[min(ordered.size - 1, int(level * ordered.size))])


def _ndr(curve: Curve) -> LoadEstimate | None:
    lossy = np.array(
        [bool((point.table.received < point.table.sent).any()) for point in curve.points]
    )
    first = int(lossy.argmax()) if lossy.any() else lossy.size
    if first == 0:
        return None
    offered = curve.offered_pps
    clean = float(offered[first - 1])
    return LoadEstimate(clean, clean, float(offered[first]) if first < offered.size else math.inf)


def _saturation(ladder: Moments, plr: float) -> Saturation | None:
    offered = ladder.offered_pps
    over = np.flatnonzero(ladder.mean > plr)
    if over.size == 0 or over[0] == offered.size - 1:
        return None
    tir = np.diff(offered * (1 - ladder.mean)) / np.diff(offered)
    high = np.flatnonzero(tir >= ETA)
    begin = max(int(over[0]), int(high[-1]) + 1 if high.size else 0)
    if begin >= offered.size - 1:
        return None
    return Saturation(float(offered[begin]), float(offered[begin] * (1 - ladder.mean[begin])))
