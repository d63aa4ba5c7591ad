"""The verdict: can PDR, a single number, stand for a load-loss curve?

Two questions, two answers. GOOD or BAD follow from headroom: how much more than at PDR the system
forwards at most, and whether that is below 10 %. How stable the system is, is a line of its own:
how many runs agree, and so how many may be disturbed at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from scipy.special import betaincinv

from planewise.errors import BadInputError
from planewise.judge.curve import Curve, Floats, LoadPoint
from planewise.judge.diagnose import Caution, diagnose, drifting, host_busy
from planewise.judge.headroom import LIMIT as HEADROOM_LIMIT
from planewise.judge.interval import Estimate, estimate
from planewise.judge.rules import ETA, RuleResult, apply_rule
from planewise.units import percent_text, rate_text

Rule = Literal["planewise", "as-published", "as-coded-intent", "as-written"]
RULES: tuple[Rule, ...] = get_args(Rule)
Word = Literal["GOOD", "BAD", "UNDECIDED"]
Open = Literal["", "ladder too short", "few runs", "other"]
"""What an UNDECIDED verdict needs: other loads; more runs; another measurement."""

_NEAR = 0.03
"""How far below a knee a load is added, as a share."""
_LOWEST, _WIDEST = 0.6, 0.3
"""GOOD needs loads from this share of PDR on, no further apart than that share of PDR: PDR holds
only if no lower load loses more, and what was not measured is not known."""
_TRACE = 1 / 500
_CERTAIN = 3.0
"""Loss certainly falls with load where it does by this share of the limit and so many standard
errors."""
_BEYOND = (1.1, 1.25)
"""Loads to try next where the ladder ends too early, as multiples of its last load."""
_DISTURBED_PLR, _DISTURBED_DEVIATIONS = 0.02, 8.0
"""How far above the median of its load a disturbed run is, at least: in loss and in deviations."""


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

    def interval_text(self, show: Callable[[float], str]) -> str:
        """The interval of a bounded one, `up to …` where the ladder begins within it."""
        if self.low_pps <= 0:
            return f"up to {show(self.high_pps)}"
        return f"{show(self.low_pps)} to {show(self.high_pps)}"


@dataclass(frozen=True)
class Saturation:
    """Where saturation begins and what passes then."""

    offered_pps: float
    """First measured load from which on every TIR is below the limit."""
    throughput_pps: float
    """R there: T_sat = O_sat · (1 − PLR(O_sat)) (PASTRAMI, equation 4)."""


@dataclass(frozen=True)
class Headroom:
    """95 % interval of how much more than at PDR passes at most; see judge/headroom.py."""

    low: float
    high: float
    """Infinite: the ladder has no bound."""

    def __str__(self) -> str:
        low, high = (percent_text(round(max(0.0, end), 3)) for end in (self.low, self.high))
        return f"{low} to {high}" if math.isfinite(self.high) else f"{low} or more"


@dataclass(frozen=True)
class Stability:
    """How many runs at the loads that decide were like the others there."""

    runs: int
    disturbed: int

    @property
    def disturbed_at_most(self) -> float:
        """One-sided 95 % bound of the share of disturbed runs (Clopper and Pearson 1934)."""
        if self.runs <= self.disturbed:
            return 1.0
        return float(betaincinv(self.disturbed + 1, self.runs - self.disturbed, 0.95))

    def __str__(self) -> str:
        most = percent_text(round(self.disturbed_at_most, 2))
        agree = f"{self.runs - self.disturbed} of {self.runs} runs agree"
        return f"{agree}: at most {most} of runs may be disturbed (95 %)"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one curve."""

    verdict: Word
    rule: Rule
    reason: str
    """One plain sentence."""
    open: Open
    """Of UNDECIDED: what it needs; else empty."""
    headroom: Headroom | None
    """None where nothing was `tested`."""
    stability: Stability
    pastrami: RuleResult
    """PASTRAMI's saturation conditions as the paper writes them, on the sample means."""
    delta_ucl95: float | None
    """PASTRAMI's accuracy at the first load over the limit: (UCL95 − PLR) / PLR."""
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
    """Offered loads [packet/s] where further trials would help most, best first."""
    plr: float = 0.005
    """The loss limit of PDR and verdict."""
    tested: bool = True
    """False when the SUT limited none of the trials: then no number describes it, and `pdr`,
    `ndr`, `first_crossing` and `saturation` are None."""

    @property
    def label(self) -> str:
        """The word, of UNDECIDED with what it needs."""
        named = self.open in ("ladder too short", "few runs")
        return f"{self.verdict} ({self.open.upper()})" if named else self.verdict

    @property
    def no_pdr(self) -> str:
        """Why there is no PDR; empty when there is."""
        return self._missing(self.pdr, "the first load already loses more")

    @property
    def no_ndr(self) -> str:
        """Why there is no NDR; empty when there is."""
        return self._missing(self.ndr, "the first load already loses packets")

    def _missing(self, estimated: LoadEstimate | None, below: str) -> str:
        if estimated is not None:
            return ""
        return below if self.tested else "no trial was limited by the system itself"


def judge(curve: Curve, rule: Rule = "planewise", plr: float = 0.005) -> Verdict:
    """Judges a curve; never raises for a valid one.

    `rule` decides the word; intervals and warnings are the same for all rules. `plr` is a ratio
    (0.005 is 0.5 %). BadInputError for an unknown rule or a limit that is not a ratio.
    """
    checked_rule(rule, plr)
    measured, curve = curve, curve.tested
    steady = middle_third(curve) if drifting(curve, plr) else curve
    seen = estimate(steady, plr)
    tested = not curve.untested
    unseen = _unseen_below(seen, plr) if seen.headroom[1] < HEADROOM_LIMIT else None
    if unseen is not None:  # loss may pass the limit there: PDR, and so headroom, is open
        seen = replace(seen, headroom=(seen.headroom[0], math.inf))
    if rule == "planewise":
        decision = _decide(curve, seen, plr, unseen)
    else:
        result = apply_rule(rule, curve, plr)
        decision = _Decision(result.word, "", result.reason)
    crossing, pdr_pps = curve.first_over(plr), float(seen.readings.pdr_low_pps[0])
    deciding = curve.points[max(0, int(seen.over[0]) - 1) if seen.over.size else 0 :]
    return Verdict(
        verdict=decision.word,
        rule=rule,
        reason=decision.reason,
        open=decision.open,
        headroom=Headroom(*seen.headroom) if tested else None,
        stability=Stability(
            sum(point.count for point in deciding), sum(map(disturbed_runs, deciding))
        ),
        pastrami=apply_rule("as-written", curve, plr),
        delta_ucl95=None if crossing is None else curve.points[crossing].delta_ucl95,
        pdr=LoadEstimate(pdr_pps, *seen.pdr_pps) if tested and pdr_pps else None,
        first_crossing=_first_crossing(seen) if tested else None,
        ndr=_ndr(curve) if tested else None,
        saturation=_saturation(seen) if tested else None,
        warnings=(*_loads_left_out(measured), *diagnose(curve, seen, plr)),
        next_loads=tuple(decision.next_loads) if tested else (),
        plr=plr,
        tested=tested,
    )


@dataclass(frozen=True)
class _Decision:
    """The word, what UNDECIDED needs, and why."""

    word: Word
    open: Open
    reason: str
    next_loads: Sequence[float] = ()
    """That would settle what is open."""


def _decide(
    curve: Curve, seen: Estimate, plr: float, unseen: tuple[str, list[float]] | None
) -> _Decision:
    """The rule `planewise`."""
    if curve.untested:
        reason = "the generator, the sink or the clock limited every trial: nothing is known of "
        return _Decision("UNDECIDED", "other", f"{reason}the system itself")
    low, high = seen.headroom
    size = f"{Headroom(low, high)} (limit {percent_text(HEADROOM_LIMIT)})"
    if low >= HEADROOM_LIMIT:
        reason = f"throughput beyond PDR still rises by {size}: one number misrepresents it"
        reason += _moving(curve)
        if busy := host_busy(curve):
            return _Decision("UNDECIDED", "other", f"{reason}; but {busy[0].text}")
        return _Decision("BAD", "", reason)
    if high < HEADROOM_LIMIT:
        reason = f"throughput beyond PDR rises by {size}: one number represents it"
        return _Decision("GOOD", "", reason)
    plain_low, plain_high = float(seen.readings.low[0]), float(seen.readings.high[0])
    # The loads' share of the interval, if the runs had no noise, against the whole.
    of_loads = math.isinf(plain_high) or plain_high - plain_low > (high - low) / 2
    if unseen is None and of_loads and plain_low < HEADROOM_LIMIT <= plain_high:
        unseen = _too_short(seen, plr)
    if unseen is not None:
        why, loads = unseen
        written = [float(f"{load:.4g}") for load in loads]  # as a person would
        return _Decision("UNDECIDED", "ladder too short", f"headroom is {size}: {why}", written)
    reason = f"headroom is {size}: the runs vary too much to tell{_moving(curve)}"
    start = max(0, int(seen.over[0]) - 1)
    blur = seen.error[start:] * seen.offered_pps[start:]
    most = seen.offered_pps[start:][np.argsort(-blur)[:3]]
    # Nothing lost at a load nearer to PDR makes headroom smaller; too much lost just below the load
    # where headroom is at its limit makes it larger.
    near = _near_pdr(seen, plr)[:1]
    edge = float(seen.forwarded_pps.max()) / (1 - plr) / (1 + HEADROOM_LIMIT)
    if not start and edge < seen.offered_pps[0]:
        near = [edge * (1 - _NEAR)]
    loads = [float(f"{load:.4g}") for load in near] + most.tolist()
    return _Decision("UNDECIDED", "few runs", reason, loads)


def _moving(curve: Curve) -> str:
    """What runs pass at the load that passes most, where that differs by more than the limit."""
    best = max(curve.points, key=lambda point: point.forwarded_pps)
    passed = best.offered_pps * (1 - best.plr_per_run)
    low, high = (float(end) for end in np.quantile(passed, (0.1, 0.9)))
    if high <= (1 + HEADROOM_LIMIT) * low:
        return ""
    return f", as it forwards {rate_text(low)} in some runs and {rate_text(high)} in others"


def middle_third(curve: Curve) -> Curve:
    """The runs in the middle of each load's: a system that drifts is judged as it was then."""
    points = []
    for point in curve.points:
        third = point.count // 3
        points.append(LoadPoint(point.offered_pps, point.table[third : point.count - third]))
    return Curve(curve.name, tuple(points), curve.source)


def disturbed_runs(point: LoadPoint) -> int:
    """Runs that lost far more than the others at their load.

    No more than a fifth of the runs can be disturbed: else it is how the system runs.
    """
    plr = point.plr_per_run
    if plr.size < 3:
        return 0
    median = float(np.median(plr))
    spread = 1.4826 * float(np.median(np.abs(plr - median)))
    count = int((plr > median + max(_DISTURBED_PLR, _DISTURBED_DEVIATIONS * spread)).sum())
    return count if count <= max(1, plr.size // 5) else 0


def _loads_left_out(measured: Curve) -> Iterator[Caution]:
    """Says which loads count for nothing, because the SUT limited none of their trials."""
    left_out = [point.offered_pps for point in measured.points if point.limited == len(point.runs)]
    if 0 < len(left_out) < len(measured.points):
        yield Caution(
            "loads-left-out",
            f"loads left out: {len(left_out)} of {len(measured.points)}, the lowest "
            f"{rate_text(left_out[0])}: the generator, the sink or the clock limited every run "
            "there",
            {"loads": len(left_out), "lowest_pps": left_out[0], "highest_pps": left_out[-1]},
        )


def _too_short(seen: Estimate, plr: float) -> tuple[str, list[float]]:
    """What the loads lack, and those that would narrow the headroom: below the ladder, beyond it,
    or around PDR."""
    offered, first = seen.offered_pps, int(seen.over[0]) if seen.over.size else None
    lowest, last, limit = float(offered[0]), float(offered[-1]), percent_text(plr)
    if first == 0:
        near = float(seen.forwarded_pps.max()) / (1 - plr) * (1 - _NEAR)
        return (
            f"the first load, {rate_text(lowest)}, already lost {percent_text(seen.mean[0])}, so "
            "PDR lies below what was measured",
            [near if 0.8 * lowest < near < 0.95 * lowest else 0.8 * lowest, 0.5 * lowest],
        )
    loads = [last * by for by in _BEYOND]
    if first is None:
        why = (
            f"no load up to {rate_text(last)} lost more than {limit}, so PDR and saturation lie "
            "above what was measured"
        )
    elif first == offered.size - 1:
        why = (
            f"only the last load, {rate_text(last)}, lost more than {limit}, so whether throughput "
            "still rises beyond it was not measured"
        )
    else:
        loads = _near_pdr(seen, plr) or loads
        why = (
            f"PDR lies between {rate_text(offered[first - 1])} and {rate_text(offered[first])}, "
            f"which are too far apart, or the ladder ends too early, at {rate_text(last)}"
        )
    return why, loads


def _near_pdr(seen: Estimate, plr: float) -> list[float]:
    """Loads just below the knee: if nothing is lost there, little is left between PDR's readings.
    None where two loads lie as near to one another."""
    first = int(seen.over[0]) if seen.over.size else 0
    if not first:
        return []
    below, above = float(seen.offered_pps[first - 1]), float(seen.offered_pps[first])
    knee = min(above * (1 - float(seen.mean[first])) / (1 - plr), above)
    around = [max(knee * (1 - _NEAR), (below + knee) / 2), (below + knee) / 2]
    return around if knee > below * (1 + 2 * _NEAR) else []


def _unseen_below(seen: Estimate, plr: float) -> tuple[str, list[float]] | None:
    """Where below PDR loss may pass the limit, for all that was measured: why, and the loads that
    would show it."""
    below = int(seen.over[0]) if seen.over.size else seen.mean.size
    if below == 0:
        return None
    mean, offered, error = seen.mean[:below], seen.offered_pps[:below], seen.error[:below]
    for index in np.argsort(-mean[:-1]):
        fall = mean[index] - mean[index + 1 :]
        certain = _CERTAIN * np.hypot(error[index], error[index + 1 :])
        lower = offered[index - 1] if index else offered[0] / 2
        near = offered[index + 1] <= lower * (1 + 2 * _NEAR) * (1 + 1e-9)
        if (fall > np.maximum(certain, _TRACE * plr)).any() and not near:
            return (
                f"more is lost at {rate_text(offered[index])} than at higher loads, and between "
                "the loads beside it loss may pass the limit",
                [(offered[index] + offered[index + 1]) / 2, (offered[index] + lower) / 2],
            )
    pdr = float(seen.readings.pdr_low_pps[0])
    lowest, widest = _LOWEST * pdr, _WIDEST * pdr
    loads = offered if offered[0] <= lowest else np.append(0.9 * lowest, offered)
    steps = np.diff(loads)
    missing = [float(loads[0])] if loads.size > offered.size else []
    for index in np.flatnonzero(steps > widest * 1.01)[::-1]:
        parts = math.ceil(steps[index] / widest)
        missing.extend(loads[index] + steps[index] * np.arange(1, parts) / parts)
    if not missing:
        return None
    return (
        f"nothing was measured near {rate_text(missing[0])}, where loss may pass the limit: GOOD "
        "needs loads from 60 % of PDR on, 30 % of PDR apart at most",
        missing,
    )


def checked_rule(rule: str, plr: float) -> Rule:
    """The rule by its name; BadInputError for an unknown one, or a limit that is no ratio."""
    if not 0 < plr < 1:
        raise BadInputError(
            f"a loss limit of {plr:g} is not a ratio between 0 and 1",
            where="--plr",
            remedy="0.5 % is 0.005",
        )
    for name in RULES:
        if rule == name:
            return name
    raise BadInputError(
        f"{rule} is not a rule", where="--rule", remedy=f"choose one of {', '.join(RULES)}"
    )


def _first_crossing(seen: Estimate) -> LoadEstimate | None:
    if not seen.over.size:
        return None
    loads = np.append(seen.offered_pps, np.inf)
    low, high = (float(loads[index]) for index in seen.crossing)
    return LoadEstimate(float(loads[seen.over[0]]), low, high)


def _ndr(curve: Curve) -> LoadEstimate | None:
    lossy = [bool((point.table.received < point.table.sent).any()) for point in curve.points]
    first = [*lossy, True].index(True)
    if first == 0:
        return None
    offered: Floats = np.append(curve.offered_pps, np.inf)
    return LoadEstimate(float(offered[first - 1]), float(offered[first - 1]), float(offered[first]))


def _saturation(seen: Estimate) -> Saturation | None:
    offered, over = seen.offered_pps, seen.over
    if over.size == 0 or over[0] == offered.size - 1:
        return None
    tir = np.diff(seen.forwarded_pps) / np.diff(offered)
    high = np.flatnonzero(tir >= ETA)
    begin = max(int(over[0]), int(high[-1]) + 1 if high.size else 0)
    if begin >= offered.size - 1:
        return None
    return Saturation(float(offered[begin]), float(seen.forwarded_pps[begin]))
