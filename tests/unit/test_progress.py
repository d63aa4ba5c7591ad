"""The line that says how far a measurement is."""

from __future__ import annotations

import pytest

from planewise.commands import progress
from planewise.commands.console import Verbosity
from planewise.commands.progress import ProgressLine


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def test_the_time_left_is_the_estimate_at_first_then_the_pace_and_never_a_second_for_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with ProgressLine(Verbosity(quiet=False, verbose=True)) as line:
        line.begin("measuring", 100)
        line.step("pilot", 0)
        clock.now_s += 20
        line.step("half of it, in less time than estimated", 50)
        clock.now_s += 5
        assert line.left() == "about 20 s left", "within a step the time goes on"
        clock.now_s += 30
        line.step("longer than estimated", 106)
    said = capsys.readouterr().err
    assert "  0 %  pilot, about 1 min 40 s left" in said
    assert " 50 %  half of it, in less time than estimated, about 25 s left" in said
    assert "100 %  longer than estimated, nearly done" in said


def test_work_that_outlasts_its_estimate_is_not_nearly_done_for_ever(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with ProgressLine(Verbosity(quiet=False, verbose=True)) as line:
        line.begin("searching", 40)
        clock.now_s += 90
        line.step("trial 181", 60)

    said = capsys.readouterr().err
    assert "trial 181, 1 min 30 s so far, longer than expected" in said
