"""What would change an answer, found by asking again with other demands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

from planewise.advise.demand import Statement, Workload
from planewise.advise.model.capacity import LONGEST
from planewise.advise.ranked import EvidenceBase, PlaneForecast, words_of
from planewise.advise.ranking import rank

_SIZES = (64, 128, 256, 512, 1024, 1518)

_GIVEN_UP: dict[str, dict[str, Any]] = {
    "live migration": {"live_migration": False},
    "the limit of VFs": {"vfs": None, "guests": None},
    "the limit of spare cores": {"spare_cores": None},
    "the limit of cores": {"cores": None},
    "the latency goal": {"latency_ns": None},
    "isolation": {"isolation": ()},
}
"""Demands that can be given up, each with a workload's fields without it."""
_ASKED_MORE: dict[str, dict[str, Any]] = {
    "if guests had to migrate live": {"live_migration": True},
    "without a core for a polling switch": {"spare_cores": 0},
}


def changes(evidence: EvidenceBase, workload: Workload, best: PlaneForecast) -> Iterator[Statement]:
    """Yields what would change the answer, found by asking the model again."""
    flips = partial(_flips, evidence, workload, best)
    chain = workload.chain
    if workload.application == "polling":
        more = range(chain.vnfs + 1, min(LONGEST, 16) + 1)
        yield from flips([(n, _with_functions(workload, n)) for n in more], "from {} functions on")
        fewer = range(chain.vnfs - 1, 0, -1)
        yield from flips(
            [(n, _with_functions(workload, n)) for n in fewer], "with {} functions or fewer"
        )
        yield from flips(
            [
                (size, replace(workload, chain=replace(chain, frame_bytes=size)))
                for size in _SIZES
                if size > chain.frame_bytes
            ],
            "with frames of {} bytes and more",
        )
        pattern: Literal["north-south", "east-west"] = (
            "north-south" if chain.pattern == "east-west" else "east-west"
        )
        turned = replace(workload, chain=replace(chain, pattern=pattern))
        yield from flips([(pattern, turned)], "if traffic were {}")
    given_up = [
        (words, change)
        for words, change in _GIVEN_UP.items()
        if replace(workload, **change) != workload
    ]
    changed = False
    for count in (1, 2) if best.possible else (1, 2, 3):
        for group in combinations(given_up, count):
            together = replace(workload, **{k: v for _, change in group for k, v in change.items()})
            words = " and ".join(name for name, _ in group)
            for statement in flips([(words, together)], "without {}"):
                changed = True
                yield statement
        if changed:
            break
    for words, change in _ASKED_MORE.items():
        changed_workload = replace(workload, **change)
        if changed_workload != workload:
            yield from flips([(words, changed_workload)], "{}")


def _with_functions(workload: Workload, vnfs: int) -> Workload:
    """The same with so many functions, and as many guests, or more where there must be."""
    guests = None if workload.guests is None else max(workload.guests, vnfs)
    return replace(workload, chain=replace(workload.chain, vnfs=vnfs), guests=guests)


def _flips(
    evidence: EvidenceBase,
    workload: Workload,
    best: PlaneForecast,
    variants: Sequence[tuple[object, Workload]],
    words: str,
) -> Iterator[Statement]:
    for value, variant in variants:
        first = rank(evidence, variant)[0]
        if first.possible and (first.plane != best.plane or not best.possible):
            when = words.format(value)
            yield Statement(f"{when[0].upper()}{when[1:]}: {words_of(first.plane)}.", "model")
            return
