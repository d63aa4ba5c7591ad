"""How probes follow one another: steadily, or in bursts with pauses. Pure.

A level of the factor `pattern` is text that stands for itself: `steady`, or
`bursts of 100 every 10 ms`. Within a burst packets follow one another at `frequency_pps`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from types import MappingProxyType

STEADY = "steady"
FORM = r"^(steady|bursts of [1-9][0-9]{0,4} every [0-9]+(\.[0-9]+)? (us|ms|s))$"
"""Of a level, as a regular expression."""
LONGEST_PAUSE_S = 60.0

_UNITS = MappingProxyType({"us": 1e-6, "ms": 1e-3, "s": 1.0})


@dataclass(frozen=True)
class Bursts:
    """Bursts of packets, the first of each burst `every_s` after the first of the one before."""

    packets: int
    every_s: float

    @property
    def mean_pps(self) -> float:
        """Packets a second, pauses included."""
        return self.packets / self.every_s

    def duration_s(self, packets: int) -> float:
        """Time to send so many packets."""
        return math.ceil(packets / self.packets) * self.every_s


def bursts_of(level: str) -> Bursts | None:
    """The bursts of a level; None where it is steady."""
    if level in ("", STEADY):
        return None
    _, _, packets, _, every, unit = level.split()
    return Bursts(int(packets), float(every) * _UNITS[unit])


def checked(level: str) -> str:
    """The level as it is written in a design.

    Raises:
        ValueError: it is not a pattern.
    """
    if not re.match(FORM, level):
        raise ValueError(
            f"`{level}` is not a pattern: write `steady`, or `bursts of 100 every 10 ms` "
            "(us, ms or s)"
        )
    bursts = bursts_of(level)
    if bursts is not None and not 0 < bursts.every_s <= LONGEST_PAUSE_S:
        raise ValueError(
            f"`{level}`: bursts begin every {LONGEST_PAUSE_S:g} s at most, and not all at once"
        )
    return level
