"""What a run says of the allocator's policies: who answers soonest under which.

Rests on replicates, compared in pairs within blocks, as the other recommendations do.
"""

from __future__ import annotations

from collections.abc import Sequence

from planewise.judge.policies import policy_families, switch_losses, switch_sentence
from planewise.judge.statistics import Family
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

    It names no plane: a policy gives some guests another one than others.
    """
    families = policy_families(trials, info)
    missed = sum(not keeps_levels(one) for one in by_groups(trials))
    reservation = f"{missed} times the rate of a group was not kept: this counts for nothing here"
    kept = (*reservations, *((reservation,) if missed else ()))
    if any(trial.alloc is not None and trial.alloc.switch for trial in trials):
        lost, sent = switch_losses(trials)
        return Recommendation(
            plane=None,
            headline=f"One guest was given a VF and lost it again: of {sent} requests {lost} were "
            "lost.",
            reasons=(switch_sentence(trials),),
            reservations=kept,
        )
    if not families:
        headline = "There is nothing to compare: one policy was measured, or no rate was kept."
        return Recommendation(plane=None, headline=headline, reservations=kept)
    sentences = [_best_policy(family) for family in families]
    return Recommendation(
        plane=None,
        headline=sentences[0],
        reasons=tuple(sentences[1:]),
        reservations=kept,
    )


def _best_policy(family: Family) -> str:
    """The best policy of a group against the next one, in a sentence."""
    order = [value.level for value in best_first(family, OVERALL)]
    if len(order) < 2:
        return "One policy alone was measured."
    compared = family.find(order[0], order[1])
    last = family.find(order[0], order[-1])
    shown = compared
    if last is not None and (compared is None or compared.outcome not in ("better", "worse")):
        shown = last
    return (
        "The policies were never measured together." if shown is None else sentence(shown, family)
    )
