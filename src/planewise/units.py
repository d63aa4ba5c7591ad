"""Quantities as people read them: `12.3 µs`, `450 kpps`. Three significant digits, SI prefixes."""

from __future__ import annotations

import math
from collections.abc import Sequence

TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
BITS = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))
RATES = ((1e9, "Gpps"), (1e6, "Mpps"), (1e3, "kpps"), (1.0, "pps"))


def time_text(ns: float) -> str:
    """A duration given in nanoseconds."""
    return _scaled(ns, TIMES)


def rate_text(pps: float) -> str:
    """A packet rate given in packets a second."""
    return _scaled(pps, RATES)


def bits_text(bps: float) -> str:
    """A bit rate given in bits a second."""
    return _scaled(bps, BITS)


def percent_text(ratio: float, *, signed: bool = False) -> str:
    """A ratio as per cent, with as many digits as it takes to see it: `0.5 %`, `0.00031 %`.

    Two significant digits below 10 %, three from there on, never an exponent. `signed` writes a
    plus, too.
    """
    if not math.isfinite(ratio):
        return "not known"
    value = ratio * 100
    places = 0
    if value:
        digits = 2 if abs(ratio) < 0.1 else 3
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:{'+' if signed and value else ''}.{places}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def duration_text(seconds: float) -> str:
    """How long something takes: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    total_s = round(max(seconds, 0))
    if total_s < 60:
        return f"{total_s} s"
    if total_s < 3600:
        return f"{total_s // 60} min {total_s % 60} s" if total_s % 60 else f"{total_s // 60} min"
    return f"{total_s // 3600} h {total_s % 3600 // 60} min"


def count_text(number: int, noun: str) -> str:
    """So many of something: `1 cell`, `1,200 cells`; for nouns that take an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def list_text(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def unit_of(values: Sequence[float], units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    """The unit that suits most of the values, with its size: for a column's heading."""
    middle = sorted(abs(value) for value in values)[len(values) // 2]
    return next((unit for unit in units if middle >= unit[0] * 0.9995), units[-1])


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    if math.isinf(value):
        return "unbounded"
    for size, unit in units:
        # 999.6 ns rounds to 1000 ns, which is written 1 µs
        if abs(value) >= size * 0.9995:
            return f"{three_digits(value / size)} {unit}"
    return f"{three_digits(value)} {units[-1][1]}"


def three_digits(value: float) -> str:
    """`value` to three digits, without an exponent."""
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e" in text else text
