"""The published rules for a verdict, as they were written, coded and printed.

All three take the curve of mean PLR as it is and know no uncertainty; docs/concepts/verdict.md
compares them. Source: PASTRAMI (arXiv 2410.18644), section V and figure 7, and its program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from planewise.judge.curve import Curve, Floats
from planewise.units import percent_text, rate_text

PublishedRule = Literal["as-published", "as-coded-intent", "as-written"]
PUBLISHED_RULES: tuple[PublishedRule, ...] = ("as-published", "as-coded-intent", "as-written")

ETA = 0.1
"""TIR below which the paper speaks of saturation."""
FIRST_ETA = 0.3
"""What the authors' program evidently meant to allow the first TIR."""
_FLOOR = 1e-6
"""The authors' program raises a smaller mean PLR to this."""


@dataclass(frozen=True)
class RuleResult:
    """What a published rule says about a curve."""

    good: bool
    reason: str
    potential: int | None
    """Index of the potential saturation point: the first load whose PLR exceeds the limit."""
    tir: tuple[float, ...]
    """TIR from the potential saturation point on, one a step."""

    @property
    def word(self) -> Literal["GOOD", "BAD"]:
        """The rule's verdict."""
        return "GOOD" if self.good else "BAD"


def apply_rule(rule: PublishedRule, curve: Curve, plr: float = 0.005) -> RuleResult:
    """Applies a published rule with the loss limit `plr` (a ratio, 0.005 is 0.5 %).

    as-published     GOOD when every TIR after the first below 0.1; the first is never looked at
                     (operator precedence in the authors' program)
    as-coded-intent  the first below 0.3, the others below 0.1
    as-written       all below 0.1, as the paper's text has it
    In all three: BAD when no load, or only the last, exceeds the limit.
    """
    mean = np.maximum(curve.plr, _FLOOR)
    over = np.flatnonzero(mean > plr)
    if over.size == 0:
        return RuleResult(
            False, f"no saturation detected: no load lost more than {percent_text(plr)}", None, ()
        )
    potential = int(over[0])
    offered = curve.offered_pps
    if potential == len(offered) - 1:
        return RuleResult(
            False,
            f"no saturation detected: only the last load, {rate_text(offered[-1])}, lost more than "
            f"{percent_text(plr)}",
            potential,
            (),
        )
    forwarded = offered * (1 - mean)
    tir: Floats = (np.diff(forwarded) / np.diff(offered))[potential:]
    limits = np.full(tir.size, ETA)
    limits[0] = {"as-published": np.inf, "as-coded-intent": FIRST_ETA, "as-written": ETA}[rule]
    above = np.flatnonzero(~(tir < limits))
    if above.size == 0:
        return RuleResult(
            True,
            f"saturated from {rate_text(offered[potential])} on: TIR stays below {ETA}",
            potential,
            tuple(tir.tolist()),
        )
    step = int(above[0])
    return RuleResult(
        False,
        f"not saturated: from {rate_text(offered[potential + step])} to "
        f"{rate_text(offered[potential + step + 1])} TIR is {tir[step]:.3f}, "
        f"not below {limits[step]:.1f}",
        potential,
        tuple(tir.tolist()),
    )
