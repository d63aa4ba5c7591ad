"""The allocator's policies compared by what each group of guests feels."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.judge.statistics import Family, RunSample, by_sending, compare_levels, observe
from planewise.store.allocations import by_groups
from planewise.store.models import RunInfo, TrialRecord

FACTOR = "policy"


def policy_families(
    trials: Sequence[TrialRecord], info: RunInfo, metric: str = "rtt"
) -> list[Family]:
    """One family of comparisons for each group of guests, the busiest first; groups whose rate
    was kept under one policy alone are left out."""
    observed = observe([RunSample("run", info, by_groups(trials))], metric)
    groups = by_sending(observed, FACTOR) if observed.observations else ()
    families = (compare_levels(one, FACTOR) for one in reversed(groups) if one.observations)
    return [family for family in families if family.comparisons]
