"""Quantities read well at every size."""

import math

import pytest

from planewise.units import percent_text, rate_text, time_text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (0.5, "0.5 ns"),
        (999.4, "999 ns"),
        (999.6, "1 µs"),
        (12345, "12.3 µs"),
        (999_960, "1 ms"),
        (2.5e9, "2.5 s"),
        (-12345, "-12.3 µs"),
        (5e12, "5000 s"),
        (math.inf, "unbounded"),
    ],
)
def test_times(ns: float, text: str) -> None:
    assert time_text(ns) == text


@pytest.mark.parametrize(
    ("pps", "text"), [(1, "1 pps"), (450_000, "450 kpps"), (14_880_952, "14.9 Mpps")]
)
def test_rates(pps: float, text: str) -> None:
    assert rate_text(pps) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0.005, "0.5 %"),
        (0.0000031, "0.00031 %"),
        (0.123, "12.3 %"),
        (0.09876, "9.9 %"),
        (1.5, "150 %"),
        (0, "0 %"),
        (-0.05, "-5 %"),
        (math.nan, "not known"),
    ],
)
def test_percentages(ratio: float, text: str) -> None:
    assert percent_text(ratio) == text


def test_a_signed_percentage_has_a_plus_but_zero_has_none() -> None:
    texts = [percent_text(ratio, signed=True) for ratio in (0.05, -0.05, 0.0)]
    assert texts == ["+5 %", "-5 %", "0 %"]
