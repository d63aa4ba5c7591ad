"""A verdict for a search: a short ladder around the PDR that it found, judged.

A search's own trials huddle at the edge, where the throughput's increase cannot be told from
noise. A few loads further up can tell it; their cost is counted with the search.
"""

from __future__ import annotations

import statistics

from planewise.judge.curve import Curve, Run
from planewise.judge.verdict import judge, runs_for_good
from planewise.measure.search.goals import Finding, GoalResult, SearchVerdict
from planewise.measure.search.session import BudgetSpentError, Session

LADDER = (0.7, 0.95, 1.12, 1.45, 1.9)
"""Loads relative to PDR. The second is so near that little room is left for PDR below it."""
_ROUNDS = (2, 3, 5)
"""Runs at each load after which the judge is asked; the last is the most."""
_DURATION_S = 0.3
_ENOUGH = runs_for_good(0)
"""Trials at the ladder's loads that decide before GOOD is said."""
_FALLEN = 0.9
"""Throughput below this share of that at the edge has fallen."""


def ladder_loads(pdr_pps: float, max_load_pps: float) -> tuple[float, ...]:
    """The ladder for a PDR, cut at the highest load."""
    loads = [min(pdr_pps * share, max_load_pps) for share in LADDER]
    return tuple(sorted({load for load in loads if load > 0}))


def find_verdict(session: Session, results: tuple[GoalResult, ...]) -> SearchVerdict:
    """Judges the system at the loosest goal that was found. Never raises BudgetSpentError."""
    found = [r for r in results if r.status == "found" and r.pps and r.goal.loss_ratio > 0]
    if not found:
        return SearchVerdict("UNDECIDED", "no PDR was found that could be judged")
    result = min(found, key=lambda r: abs(r.goal.loss_ratio - 0.005))
    assert result.pps is not None
    loads = ladder_loads(result.pps, session.max_load_pps)
    if len([load for load in loads if load > result.pps * 1.05]) < 2:
        return SearchVerdict(
            "UNDECIDED",
            "PDR lies so near the highest load that saturation beyond it cannot be measured",
        )
    runs: dict[float, list[Run]] = {load: [] for load in loads}
    verdict = SearchVerdict("UNDECIDED", "the budget was spent before the ladder was measured")
    done = 0
    for rounds in _ROUNDS:
        try:
            for _ in range(rounds - done):
                for load in loads:
                    runs[load].append(session.measure(load, _DURATION_S).run)
        except BudgetSpentError:
            return verdict
        done = rounds
        judged = judge(Curve.from_runs("search", runs), plr=result.goal.loss_ratio)
        verdict = SearchVerdict(judged.verdict, judged.reason, judged.probability_good)
        if judged.verdict == "BAD" or judged.open == "few runs":
            break
    if judged.open != "few runs" and judged.verdict != "GOOD":
        return verdict
    return _doubted(_confirmed(verdict, session, runs, result.goal.loss_ratio), session)


def _confirmed(
    verdict: SearchVerdict, session: Session, runs: dict[float, list[Run]], plr: float
) -> SearchVerdict:
    """The verdict once so many trials were made that disturbed ones would be among them."""
    deciding = [load for load in runs if load > min(runs)]
    try:
        while sum(len(runs[load]) for load in deciding) < _ENOUGH:
            for load in deciding:
                runs[load].append(session.measure(load, _DURATION_S).run)
    except BudgetSpentError:
        return SearchVerdict(
            "UNDECIDED",
            f"the budget was spent before {_ENOUGH} trials would have shown rare bad ones",
            verdict.probability_good,
        )
    judged = judge(Curve.from_runs("search", runs), plr=plr)
    return SearchVerdict(judged.verdict, judged.reason, judged.probability_good)


def _doubted(verdict: SearchVerdict, session: Session) -> SearchVerdict:
    """A few runs a load cannot make up for a system that changes or has bad trials."""
    if verdict.label != "GOOD":
        return verdict
    for finding in session.findings:
        if finding.code in ("outliers", "drift", "not-monotone"):
            return SearchVerdict("UNDECIDED", finding.message, verdict.probability_good)
    return verdict


def find_trashing(session: Session, results: tuple[GoalResult, ...]) -> None:
    """Adds a finding when most trials far above the edge let less through than those at it."""
    pdr = max((r.pps for r in results if r.status == "found" and r.pps), default=None)
    if pdr is None:
        return
    rates = [
        (trial.offered_pps, trial.achieved_pps * (1 - trial.loss_ratio)) for trial in session.trials
    ]
    near = [rate for load, rate in rates if 0.98 * pdr < load < 1.15 * pdr]
    if not near:
        return
    edge = statistics.median(near)
    fallen = [(load, rate) for load, rate in rates if load > 1.3 * pdr and rate < _FALLEN * edge]
    if len(fallen) < 2:
        return
    first = min(load for load, _ in fallen)
    beyond = [rate for load, rate in rates if load >= first]
    if len(fallen) > len(beyond) / 2:
        load, rate = max(fallen)
        session.add_finding(
            Finding(
                "trashing",
                f"throughput falls with load: {rate:.0f} packet/s got through at {load:.0f} "
                f"offered, {edge:.0f} near the edge",
            )
        )
