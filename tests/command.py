"""The command line as a user calls it: in a process of its own, or in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from planewise import cli

PLANEWISE = (sys.executable, "-m", "planewise")
_UNREPORTED = """
from planewise import cli
from planewise.report import html
html.write = lambda *_: None
cli.main()
"""
UNREPORTED = (sys.executable, "-c", _UNREPORTED)
"""The command line without reports: each takes seconds, and few tests of runs look at one."""


def planewise(
    *arguments: str | Path,
    before: Sequence[str] = (),
    timeout_s: float = 400,
    report: bool = True,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs the command line to its end, by the program `before` if one is named."""
    return subprocess.run(
        [*before, *(PLANEWISE if report else UNREPORTED), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **environment},
    )


def in_this_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str | Path
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command line."""
    monkeypatch.setattr(sys, "argv", ["planewise", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def invoked(*arguments: object, raising: bool = False) -> Result:
    """What the command line does in this process; `raising` lets its errors through."""
    return CliRunner().invoke(cli.app, [*map(str, arguments)], catch_exceptions=not raising)
