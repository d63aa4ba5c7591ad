"""`run_search`: one search with one algorithm on one measurer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from planewise.errors import BadInputError
from planewise.measure.search.binary import BinarySearch
from planewise.measure.search.goals import Goal, SearchResult
from planewise.measure.search.measurer import Measurer
from planewise.measure.search.mlr import MlrSearch
from planewise.measure.search.planewise import PlanewiseSearch
from planewise.measure.search.session import OVERHEAD_S, OnTrial, SearchSession
from planewise.measure.search.verdict import find_thrashing, find_verdict

DEFAULT_GOALS = (Goal(0.0), Goal(0.005))
Algorithm = PlanewiseSearch | MlrSearch | BinarySearch
ALGORITHMS: Mapping[str, type[Algorithm]] = {
    kind.name: kind for kind in (PlanewiseSearch, MlrSearch, BinarySearch)
}


def algorithm_named(name: str) -> Algorithm:
    """The algorithm of that name, with its defaults. BadInputError where there is none."""
    if name not in ALGORITHMS:
        raise BadInputError(
            f"there is no search algorithm '{name}'", remedy="known: " + ", ".join(ALGORITHMS)
        )
    return ALGORITHMS[name]()


def goals_and_algorithm(
    goals: Sequence[str], algorithm: str, precision: float, confidence: float, seed: int
) -> tuple[tuple[Goal, ...], Algorithm]:
    """Goals and algorithm by their names; no goal names the default ones.

    Raises:
        BadInputError: an unknown name.
    """
    chosen = algorithm_named(algorithm)
    if algorithm == PlanewiseSearch.name:
        chosen = PlanewiseSearch(precision=precision, confidence=confidence, seed=seed)
    return tuple(Goal.parse(text) for text in goals) or DEFAULT_GOALS, chosen


def run_search(
    measurer: Measurer,
    goals: Sequence[Goal] = DEFAULT_GOALS,
    algorithm: str | Algorithm = "planewise",
    *,
    budget_s: float = math.inf,
    with_verdict: bool = False,
    on_trial: OnTrial | None = None,
) -> SearchResult:
    """Searches all goals on the measurer.

    Args:
        measurer: answers trials.
        goals: at least one; doubles count once.
        algorithm: a name (`planewise`, `mlrsearch`, `binary`) or an algorithm.
        budget_s: traffic time plus overhead that may be spent; the search then ends with what
            it knows.
        with_verdict: whether to judge the system by a sweep around PDR, too; its trials
            are counted with the search.
        on_trial: called after each trial.

    Raises:
        BadInputError: no goal, unknown algorithm, impossible budget or range of loads.
        PlanewiseError: whatever the measurer raises.
    """
    unique = tuple(dict.fromkeys(goals))
    if not unique:
        raise BadInputError("a search needs a goal", remedy="add --goal ndr or --goal pdr:0.005")
    if not budget_s > 0:
        raise BadInputError(f"a search needs time, not {budget_s:g} s", where="--budget")
    chosen = algorithm_named(algorithm) if isinstance(algorithm, str) else algorithm
    session = SearchSession(measurer, budget_s, on_trial)
    results, stopped = chosen.search(session, unique)
    searched = len(session.trials)
    verdict = find_verdict(session, results, chosen.final_duration_s) if with_verdict else None
    find_thrashing(session, results)
    return SearchResult(
        algorithm=chosen.name,
        goals=results,
        verdict=verdict,
        verdict_trials=len(session.trials) - searched,
        trials=tuple(session.trials),
        stopped=stopped,
        overhead_s=OVERHEAD_S,
        findings=tuple(session.findings),
        final_duration_s=chosen.final_duration_s,
    )
