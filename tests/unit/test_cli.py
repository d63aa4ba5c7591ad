"""The command line as a whole: quick to start, and no traceback ever reaches a user."""

from __future__ import annotations

import subprocess
import sys

import pytest

from planewise import cli
from planewise.errors import BadInputError, PlanewiseError, VerdictNotGoodError

SLOW = {"polars", "scipy", "numpy", "altair", "vl_convert", "pyroute2", "asyncssh", "hdrh"}


def test_nothing_slow_is_imported_before_a_command_needs_it() -> None:
    script = "import planewise.cli, sys; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert not SLOW & set(ran.stdout.split())


def test_every_command_explains_itself() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "planewise", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    for command in ("doctor", "quick", "run", "sweep", "search", "judge", "report", "lab", "clean"):
        assert f"  {command}" in ran.stdout


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (PlanewiseError("it broke", remedy="mend it"), 1, ["error: it broke", "hint: mend it"]),
        (BadInputError("no", where="a.yaml:3"), 2, ["error: a.yaml:3: no"]),
        (VerdictNotGoodError("the verdict is BAD"), 3, ["error: the verdict is BAD"]),
        (KeyboardInterrupt(), 130, ["stopped"]),
        (ZeroDivisionError("x"), 1, ["error: planewise itself failed", "ZeroDivisionError"]),
    ],
)
def test_an_error_becomes_a_sentence_and_an_exit_code(
    error: BaseException,
    code: int,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    complained = capsys.readouterr().err
    assert "Traceback" not in complained
    for words in said:
        assert words in complained
