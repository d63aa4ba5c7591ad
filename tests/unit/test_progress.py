"""The line that says how far a measurement is."""

from __future__ import annotations

import pytest

from planewise.commands.console import Verbosity
from planewise.commands.progress import ProgressLine


def test_work_that_takes_longer_than_foretold_is_nearly_done_and_never_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProgressLine(Verbosity(quiet=False, verbose=True)) as line:
        line.begin("measuring", 10)
        line.step("half of it", 5)
        line.step("more than was foretold", 10.6)
    said = capsys.readouterr().err
    assert " 50%  half of it" in said
    assert " 99%  more than was foretold, about 1 s left" in said
