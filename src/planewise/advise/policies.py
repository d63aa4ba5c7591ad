"""What a run says of the allocator's policies: under which one guests answer soonest.

Rests on replicates, compared in pairs within blocks, as the other recommendations do.
"""

from __future__ import annotations

from collections.abc import Sequence

from planewise.judge.policies import policy_families, switch_losses, switch_sentence
from planewise.judge.statistics.comparison import Family
from planewise.judge.statistics.pairing import OVERALL
from planewise.judge.statistics.ranking import best_first
from planewise.judge.statistics.sentences import sentence
from planewise.store.allocations import by_groups
from planewise.store.levels import keeps_levels
from planewise.store.models import RunInfo, TrialRecord
from planewise.store.recommendation import Recommendation


def recommend_policies(
    trials: Sequence[TrialRecord], info: RunInfo, reservations: Sequence[str]
) -> Recommendation:
    """The recommendation of a run of the allocator, of trials that are done.

    It names no plane: under a policy guests have different planes.
    """
    families = policy_families(trials, info)
    missed = sum(not keeps_levels(trial) for trial in by_groups(trials))
    reservation = f"{missed} times the rate of a group was not kept: those trials are ignored here"
    all_reservations = (*reservations, *((reservation,) if missed else ()))
    if any(trial.alloc is not None and trial.alloc.switch for trial in trials):
        lost, sent = switch_losses(trials)
        return Recommendation(
            plane=None,
            headline=f"One guest was given a VF and lost it again: of {sent} requests {lost} were "
            "lost.",
            reasons=(switch_sentence(trials),),
            reservations=all_reservations,
        )
    if not families:
        headline = "There is nothing to compare: one policy was measured, or no rate was kept."
        return Recommendation(plane=None, headline=headline, reservations=all_reservations)
    sentences = [_best_policy(family) for family in families]
    return Recommendation(
        plane=None,
        headline=sentences[0],
        reasons=tuple(sentences[1:]),
        reservations=all_reservations,
    )


def _best_policy(family: Family) -> str:
    """The best policy of a group against the next one, in a sentence."""
    order = [value.level for value in best_first(family, OVERALL)]
    if len(order) < 2:
        return "One policy alone was measured."
    comparison = family.find(order[0], order[1])
    furthest = family.find(order[0], order[-1])
    if furthest and (comparison is None or comparison.outcome not in ("better", "worse")):
        comparison = furthest
    if comparison is None:
        return "The policies were never measured together."
    return sentence(comparison, family)
