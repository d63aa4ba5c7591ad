"""Ladders of offered loads around what a pilot found. Pure."""

from __future__ import annotations

import math

# Steps of a ladder as shares of the rate that an overload trial forwarded: the low ones show loss
# that begins early, the dense ones find the knee, the high ones tell whether throughput then stays
# (GOOD), rises on or falls (PASTRAMI, section 4).
_LADDER_LOW, _LADDER_HIGH = 0.3, 1.6

# Loads of a ladder that grows, as shares of the same rate: both beyond PDR, where planes are
# compared and throughput beyond PDR is seen. The others are placed by what the verdict lacks.
_BEYOND = (1.1, 2.1)


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


def ladder_beyond(forwarded_pps: float, max_pps: float) -> tuple[float, ...]:
    """Two offered loads [pps] beyond what an overload trial forwarded, none above `max_pps`.

    Cut to three digits.
    """
    loads = (min(share * forwarded_pps, max_pps) for share in _BEYOND)
    return tuple(sorted({max(1.0, _cut(load, 3)) for load in loads}))


def _cut(value: float, digits: int) -> float:
    """`value` with all but its first `digits` digits made zero; never more than `value`."""
    size = 10.0 ** (math.floor(math.log10(value)) - digits + 1) if value > 0 else 1.0
    return math.floor(value / size + 1e-9) * size
