"""A verdict for a search: a sequential sweep around the PDR that it found.

A search's own trials lie at the edge, where an increase of throughput cannot be told from noise.
The sweep adds loads further up, and down to a third of PDR, to see whether less is lost there. Its
trials last as long as those that PDR is about, as a queue distorts shorter ones, and their cost is
counted with the search.
"""

from __future__ import annotations

import statistics

from planewise.measure.search.goals import GoalResult, SearchVerdict, ViolatedAssumption
from planewise.measure.search.sequential import (
    NothingMeasuredError,
    SequentialPlan,
    sweep_until_verdict,
)
from planewise.measure.search.session import SearchSession

LADDER = (0.3, 0.45, 0.6, 0.75, 0.85, 0.95, 1.12, 1.45, 1.9)
"""Loads relative to PDR. The one below it is so near that little room is left for PDR there."""
_MEAN_RUNS = 12.0
"""Budget: runs a load on average."""
_FALLEN = 0.9
"""Throughput below this share of that at the edge has fallen."""


def ladder_loads(pdr_pps: float, min_load_pps: float, max_load_pps: float) -> tuple[float, ...]:
    """The ladder for a PDR, within the range of loads."""
    loads = {min(pdr_pps * share, max_load_pps) for share in LADDER}
    return tuple(sorted(load for load in loads if load >= min_load_pps))


def find_verdict(
    session: SearchSession, results: tuple[GoalResult, ...], duration_s: float
) -> SearchVerdict:
    """Judges the system at the found goal nearest to a loss of 0.5 %.

    `duration_s` is that of the trials which the goals are about. Never raises BudgetSpentError.
    """
    candidates = [r for r in results if r.status == "found" and r.pps and r.goal.loss_ratio > 0]
    if not candidates:
        return SearchVerdict("UNDECIDED", "no PDR was found that could be judged")
    result = min(candidates, key=lambda r: abs(r.goal.loss_ratio - 0.005))
    assert result.pps is not None
    loads = ladder_loads(result.pps, session.min_load_pps, session.max_load_pps)
    if len([load for load in loads if load > result.pps * 1.05]) < 2:
        return SearchVerdict(
            "UNDECIDED",
            "PDR lies so near the highest load that saturation beyond it cannot be measured",
        )
    plan = SequentialPlan(plr=result.goal.loss_ratio, max_mean_runs=_MEAN_RUNS)
    try:
        swept = sweep_until_verdict(session, loads, duration_s=duration_s, plan=plan, extend=True)
    except NothingMeasuredError as error:
        return SearchVerdict("UNDECIDED", error.what)
    judged = swept.verdict
    if judged.verdict == "GOOD":
        for finding in session.findings:  # the sweep can't make up for what was seen before
            if finding.code == "not-monotone":
                return SearchVerdict("UNDECIDED", finding.message)
    return SearchVerdict(judged.verdict, judged.reason, str(judged.stability))


def find_thrashing(session: SearchSession, results: tuple[GoalResult, ...]) -> None:
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
            ViolatedAssumption(
                "thrashing",
                f"throughput falls with load: {rate:.0f} packet/s got through at {load:.0f} "
                f"offered, {edge:.0f} near the edge",
            )
        )
