"""Every command that the guide and the README show is known to the programs, with its options."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main
from typer._click.exceptions import BadOptionUsage, BadParameter, MissingParameter, UsageError

from planewise.cli import app
from planewise.testbed.vfs.nic import find_planewised
from tests.documents import ROOT, Shown, shown

COMMANDS = shown()


def known_to_planewise(command: Shown) -> None:
    """Raises UsageError where `planewise` would say that there is no such command or option."""
    words = shlex.split(re.split(r"[|>]", command.command)[0])[1:]
    words = words[: words.index("--") + 2] if "--" in words else words
    words = [word for word in words if word != "…" and word != "--help"]
    node = typer.main.get_command(app)
    while (commands := getattr(node, "commands", None)) and words and words[0][0] != "-":
        if words[0] not in commands:
            raise UsageError(f"no command {words[0]}")
        node = commands[words.pop(0)]
    try:
        node.make_context("planewise", words, resilient_parsing=bool(commands))
    except (MissingParameter, BadOptionUsage):
        if command.step:
            raise
    except BadParameter:
        pass  # a word that stands for a value, as N or PF


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_documented_command_exists_with_its_options(command: Shown) -> None:
    program, *words = shlex.split(re.split(r"[|>]", command.command)[0])
    if program == "planewise":
        known_to_planewise(command)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert words[0] in targets
    elif program == "scripts/setup":
        assert set(words) <= {"--yes", "alloc", "nfv", "lab", "vms", "test", "systemd", "release"}
    else:
        path = Path(find_planewised()).with_name(program)
        words = ["1" if word == "N" else word for word in words if word not in ("…", "--help")]
        done = subprocess.run([path, *words, "--help"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_commands_are_found_in_every_guide() -> None:
    documents = {command.document for command in COMMANDS}
    assert len(COMMANDS) > 60
    assert {"README.md", "docs/guide/first-run.md", "docs/guide/lab.md"} <= documents


def test_a_command_that_does_not_exist_is_noticed() -> None:
    for text in ("planewise mesure", "planewise run --no-such-option", "planewise alloc dran"):
        with pytest.raises(UsageError):
            known_to_planewise(Shown("x.md", 1, text, step=True))
