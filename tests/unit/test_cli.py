"""What the command line says when it ends early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from planewise import cli
from planewise.commands import console, options
from planewise.store.rundir import RunReader
from tests.command import invoked
from tests.documents import ROOT
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp


def test_ctrl_c_ends_with_130_and_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["planewise", "search", "--synthetic", "list"])
    monkeypatch.setattr("planewise.commands.search._print_catalogue", interrupted)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130
    assert capsys.readouterr().err.strip() == "stopped"


@pytest.mark.parametrize("how", ["-m planewise", "scripts/wheel/scripts/planewise"])
def test_a_large_run_is_reported_by_the_command_whose_figures_other_processes_draw(
    how: str, tmp_path: Path
) -> None:
    wanted = MadeUp(planes=("veth",), load_types=("none",), blocks=1, packets=2, load_blocks=120)
    run = made_up_run.write(tmp_path / "run", wanted)
    assert len(RunReader(run).trials()) > 1000
    command = [sys.executable, *how.split(), "report", run, "-o", tmp_path / "page.html"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").read_text().count("<svg") > 1


def test_a_folder_that_may_not_be_read_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Path.exists() raises for what is below such a folder.
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/srv/locked/x.csv")

    monkeypatch.setattr("sys.argv", ["planewise", "judge", "/srv/locked/x.csv"])
    monkeypatch.setattr("pathlib.Path.is_dir", refused)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "error: /srv/locked/x.csv: Permission denied"
    assert said[1].startswith("hint: see the permissions")


def test_ctrl_c_is_answered_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        cli._stop(2, None)
    assert capsys.readouterr().err == "stopping…\n"


def run(shell: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A shell line with the command line as `$P`."""
    return subprocess.run(
        ["bash", "-c", shell],
        env={**os.environ, "P": f"{sys.executable} -m planewise", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_closed_stream_a_full_one_and_a_plain_locale_are_no_bugs() -> None:
    for closed in ("$P --version >&-", "$P judge --example realistic 2>&-"):
        assert run(closed).returncode == 0, closed
    full = run("$P judge --example realistic >/dev/full")
    assert full.returncode == 1
    assert full.stderr.startswith("error: the output could not be written: No space left")
    for wrong in ("$P judge nothing.txt", "$P --nope", "$P judge"):
        assert run(f"{wrong} 2>/dev/full").returncode == 2, wrong
    plain = run("$P judge --example realistic", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert plain.returncode == 0, plain.stderr


def test_help_groups_the_commands_and_cuts_no_summary() -> None:
    said = " ".join(invoked("--help").stdout.split())
    groups = ("Measure:", "Judge and advise:", "Allocate:", "Lab and fleet:")
    places = [said.index(group) for group in groups]
    assert places == sorted(places)
    assert said.count("...") == 1, "of the usage"
    assert "Commands:" not in said, "every command is in a group"


@pytest.mark.parametrize(
    ("text", "minutes"), [("3", 3.0), ("1m", 1.0), ("90s", 1.5), ("1.5h", 90.0)]
)
def test_a_time_may_have_a_unit(text: str, minutes: float) -> None:
    assert options.minutes(text) == minutes


@pytest.mark.parametrize("text", ["5%", "5 %", "0.05"])
def test_a_share_may_be_per_cent(text: str) -> None:
    assert options.share(text) == 0.05


def test_a_dry_run_brings_no_lab_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planewise.lab.up", lambda *_: pytest.fail("a lab came up"))
    design = ROOT / "experiments/docker-rtt-lab.yaml"
    done = invoked("run", str(design), "--lab", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    assert "The lab is not up" in done.stderr
    assert len(json.loads(done.stdout)["cells"]) == 8


@pytest.mark.parametrize("terminal", [True, False])
def test_a_table_leaves_out_columns_that_80_do_not_hold(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(*, wide: bool = False) -> str:
        out = Console(force_terminal=terminal, width=80, color_system=None)
        monkeypatch.setattr(console, "out", lambda: out)
        titles = ("plane", "a" * 40, "b" * 40)
        console.print_rows(titles, [("veth", "1", "2")], less=titles[1:], wide=wide)
        return capsys.readouterr().out

    assert "b" * 40 not in printed().splitlines()[0]
    assert "b" * 40 in printed(wide=True)


def test_a_wrong_option_is_told_without_the_checkers_own_words() -> None:
    said = invoked("sweep", "--plane", "bridge", "--ip", "5").stderr
    assert "Invalid value for '--ip': '5' is not one of '4', '6'" in said


def test_a_list_keeps_its_indent_on_a_terminal_and_its_lines_in_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sentence = "seven words that take more than thirty columns"
    console.print_items(Console(width=30, force_terminal=True, no_color=True), [sentence])
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("  - seven")
    assert others
    assert all(line.startswith("    ") for line in others)
    console.print_items(console.out(), [sentence])
    assert capsys.readouterr().out == f"  - {sentence}\n"
