"""Manual pages and completions of `planewise`; the programs in Rust have theirs tested by cargo."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from planewise.cli import app

ROOT = Path(__file__).parents[2]


def manual() -> ModuleType:
    """packaging/manual.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("manual", ROOT / "packaging" / "manual.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    manual().write_planewise(folder, date(2026, 1, 2))
    return folder


def tool(*command: str | Path) -> str:
    """What a tool says; empty where it finds nothing wrong."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"no {command[0]} on this machine; `scripts/setup test` installs it")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def test_every_command_has_a_page_in_which_mandoc_finds_nothing_wrong(share: Path) -> None:
    pages = sorted((share / "man" / "man1").iterdir())
    top = typer.main.get_command(app)
    names = {f"planewise-{name}.1" for name in top.commands}  # type: ignore[attr-defined]
    assert names < {page.name for page in pages}
    for page in pages:
        assert tool("mandoc", "-Tlint", "-Wwarning", page) == "", page.name


def test_a_page_says_what_the_help_says(share: Path) -> None:
    shown = re.sub(
        r".\x08", "", tool("mandoc", "-Tascii", share / "man" / "man1" / "planewise-run.1")
    )
    helped = tool(sys.executable, "-m", "planewise", "run", "--help")
    options = set(re.findall(r"--[a-z-]+", helped)) - {"--help"}
    assert len(options) > 10
    for option in options:
        assert option in shown
    assert "Measure a design" in shown
    assert "January 2, 2026" in shown or "2026-01-02" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_reads_the_completions(share: Path, shell: str) -> None:
    assert tool(shell, "-n", share / manual().COMPLETIONS[shell]) == ""


def test_a_tab_in_bash_offers_the_commands(share: Path, tmp_path: Path) -> None:
    program = tmp_path / "planewise"
    shipped = (ROOT / "scripts" / "wheel" / "scripts" / "planewise").read_text()
    program.write_text(shipped.replace("#!python", f"#!{sys.executable}"))
    program.chmod(0o755)
    script = (
        f"source {share / manual().COMPLETIONS['bash']}; COMP_WORDS=(planewise do) COMP_CWORD=1; "
        '_planewise_completion planewise; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["doctor"]
