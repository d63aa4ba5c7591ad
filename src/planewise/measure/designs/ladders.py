"""Ladders of offered loads around what a pilot found. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Steps of a ladder as shares of the rate that an overload trial forwarded: the low ones show loss
# that begins early, the dense ones find the knee, the high ones tell whether throughput then stays
# (GOOD), rises on or falls (PASTRAMI, section 4).
_LADDER_LOW, _LADDER_HIGH = 0.3, 1.6

# A verdict needs the two loads around PDR to be close, one far beyond it, and loads from 60 % of
# PDR on that are at most 30 % of it apart (docs/concepts/verdict.md).
_STEP_AT_PDR = 1.1
_LEAST_AT_PDR = 2
_STEP_BELOW_PDR, _LOWEST = 0.27, 1 / 3
_BEYOND_PDR = 1.7


def loads_of_block(ladder: Sequence[float], block: int, per_block: int | None) -> tuple[float, ...]:
    """The loads of a rising `ladder` that a block, counted from 0, measures: see `SweepPart`."""
    if per_block is None or len(ladder) <= per_block:
        return tuple(ladder)
    lower = len(ladder) - per_block + 1
    return (ladder[block % lower], *ladder[lower:])


def ladder_around(forwarded_pps: float, loads: int, max_pps: float) -> tuple[float, ...]:
    """`loads` offered loads [pps], evenly spaced around what an overload trial forwarded.

    None is above `max_pps`. Cut to two digits (three where they would meet) for readability.
    """
    low = min(_LADDER_LOW * forwarded_pps, max_pps)
    high = min(_LADDER_HIGH * forwarded_pps, max_pps)
    steps = [low + (high - low) * place / (loads - 1) for place in range(loads)]
    for digits in (2, 3):
        ladder = {max(1.0, _cut(step, digits)) for step in steps}
        if len(ladder) == loads:
            break
    return tuple(sorted(ladder))


def ladder_at_pdr(pdr_pps: float, loads: int, per_block: int, max_pps: float) -> tuple[float, ...]:
    """`loads` offered loads [pps] where pilots put PDR at `pdr_pps`.

    Some are dense around PDR (where the lower ones take turns, all others of a block but one), one
    lies far beyond it, and the others show that nothing is lost below. None is above `max_pps`. Cut
    to three digits.
    """
    near = per_block - 2 if per_block < loads else max(_LEAST_AT_PDR, loads // 3)
    around = [pdr_pps * _STEP_AT_PDR ** (step - near / 2 + 0.65) for step in range(near)]
    lower = loads - near - 1
    apart = min(_STEP_BELOW_PDR, (1 - _LOWEST) / max(1, lower))
    below = [around[0] * (1 - apart * step) for step in range(1, lower + 1)]
    steps = (*below, *around, _BEYOND_PDR * pdr_pps)
    return tuple(sorted({max(1.0, _cut(min(step, max_pps), 3)) for step in steps}))


def _cut(value: float, digits: int) -> float:
    """`value` with all but its first `digits` digits made zero; never more than `value`."""
    size = 10.0 ** (math.floor(math.log10(value)) - digits + 1) if value > 0 else 1.0
    return math.floor(value / size + 1e-9) * size
