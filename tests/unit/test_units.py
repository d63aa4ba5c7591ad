"""Quantities read well at every size."""

import math

import pytest

from planewise.units import rate_text, share_text, time_text


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


@pytest.mark.parametrize(("share", "text"), [(0.005, "0.5 %"), (0.123, "12 %"), (1.5, "150 %")])
def test_shares(share: float, text: str) -> None:
    assert share_text(share) == text
