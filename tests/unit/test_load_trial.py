"""What a load trial's output means: whose limit it was."""

from __future__ import annotations

import pytest

from planewise.measure.load import limits_of
from planewise.measure.probe import TrialOutput


def output(
    achieved_pps: float, lost: int, limits: tuple[str, ...], max_pps: float | None = 5e5
) -> TrialOutput:
    return TrialOutput.model_validate(
        {
            "command": "trial",
            "version": "0",
            "size_bytes": 64,
            "started_ns": 0,
            "duration_s": 1,
            "intended_pps": 100_000,
            "achieved_pps": achieved_pps,
            "sent": 100_000,
            "received": 100_000 - lost,
            "lost": lost,
            "limits": limits,
            "generator": {"max_pps": max_pps},
        }
    )


@pytest.mark.parametrize(
    ("achieved_pps", "lost", "said", "meant"),
    [
        (100_000, 0, (), ()),
        (100_000, 5, ("sut",), ("sut",)),
        (99_500, 0, ("generator",), ()),
        (99_500, 5, ("generator",), ("sut",)),
        (98_000, 5, ("generator",), ("generator",)),
        (99_500, 5, ("generator", "sink"), ("sink",)),
        (99_500, 5, ("generator", "clock"), ("sut", "clock")),
    ],
)
def test_a_shortfall_below_one_per_cent_is_not_the_generators_limit(
    achieved_pps: float, lost: int, said: tuple[str, ...], meant: tuple[str, ...]
) -> None:
    assert limits_of(output(achieved_pps, lost, said)) == meant


def test_a_load_above_the_generators_own_maximum_is_its_limit_however_well_it_was_kept() -> None:
    assert limits_of(output(100_000, 0, ("generator",), max_pps=90_000)) == ("generator",)


def test_an_unknown_maximum_limits_nothing() -> None:
    assert limits_of(output(99_900, 0, ("generator",), max_pps=None)) == ()
