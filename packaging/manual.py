"""Writes the manual pages and completions of all three programs, in the layout of /usr/share.

    python packaging/manual.py OUT [--release]

Those of `planewised` and `pw-probe` come from their own command lines
(crates/wheel/examples/manual.rs), those of `planewise` from its tree of commands. `--release`
builds the generator optimised. The pages are dated by SOURCE_DATE_EPOCH, else by today.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import typer.main
from typer._completion_shared import get_completion_script

from planewise.cli import app

ROOT = Path(__file__).resolve().parents[1]
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]

EXIT_STATUS = {
    "0": "Done.",
    "1": "It could not be done; a sentence on stderr says why.",
    "2": "The command or its input makes no sense.",
    "130": "Stopped by Ctrl-C.",
}

COMPLETIONS = {
    "bash": "bash-completion/completions/planewise",
    "zsh": "zsh/site-functions/_planewise",
    "fish": "fish/vendor_completions.d/planewise.fish",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write manual pages and completions.")
    parser.add_argument("out", type=Path, help="the folder that stands for /usr/share")
    parser.add_argument("--release", action="store_true", help="build the generator optimised")
    given = parser.parse_args()
    day = page_date()
    generator = build_generator(given.release)
    subprocess.run([generator, given.out, day.isoformat()], check=True)
    write_planewise(given.out, day)


def page_date() -> date:
    """The day of SOURCE_DATE_EPOCH (reproducible-builds.org), else today."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.now(UTC) if epoch is None else datetime.fromtimestamp(int(epoch), UTC)
    return moment.date()


def build_generator(release: bool) -> str:
    """Builds the Rust generator; returns its path.

    As a part of the workspace, so that it shares what `cargo test --workspace` has built.
    """
    command = ["cargo", "build", "-q", "--locked", "--example", "manual"]
    command += ["--release", "-p", "planewise-wheel"] if release else ["--workspace"]
    built = subprocess.run(
        [*command, "--message-format=json"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "manual":
            return str(message["executable"])
    sys.exit("cargo named no executable for the example `manual`")


def write_planewise(share: Path, day: date) -> None:
    """Writes the pages and completions of `planewise`."""
    folder = share / "man" / "man1"
    folder.mkdir(parents=True, exist_ok=True)
    for path, context in commands():
        name = "-".join(path)
        (folder / f"{name}.1").write_text(page(path, context, day))
    for shell, file in COMPLETIONS.items():
        text = get_completion_script(
            prog_name="planewise", complete_var="_PLANEWISE_COMPLETE", shell=shell
        )
        if shell == "zsh":
            # zsh loads the file at the first Tab, when the function must also be called.
            text += '\n_planewise_completion "$@"'
        (share / file).parent.mkdir(parents=True, exist_ok=True)
        (share / file).write_text(text.strip() + "\n")


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of `planewise` with its context, groups before their members."""
    top = typer.main.get_command(app)
    pending: list[tuple[tuple[str, ...], Any]] = [
        (("planewise",), top.make_context("planewise", [], resilient_parsing=True))
    ]
    while pending:
        path, context = pending.pop(0)
        yield path, context
        for name, command in sorted(getattr(context.command, "commands", {}).items()):
            if not command.hidden:
                child = command.make_context(name, [], parent=context, resilient_parsing=True)
                pending.append(((*path, name), child))


def page(path: tuple[str, ...], context: Any, day: date) -> str:
    """One manual page in man(7)."""
    command = context.command
    name, words = "-".join(path), " ".join(path)
    paragraphs = [" ".join(text.split()) for text in (command.help or "").split("\n\n")]
    lines = [
        f'.TH "{escape(name.upper())}" "1" "{day}" "planewise {VERSION}" "Planewise"',
        ".SH NAME",
        f"{escape(name)} \\- {escape(paragraphs[0].rstrip('.'))}",
        ".SH SYNOPSIS",
        f"\\fB{escape(words)}\\fR {escape(' '.join(command.collect_usage_pieces(context)))}",
        ".SH DESCRIPTION",
    ]
    lines += "\n.PP\n".join(text_line(text) for text in paragraphs).splitlines()
    records = [(parameter, parameter.get_help_record(context)) for parameter in command.params]
    for title, kind in (("ARGUMENTS", "argument"), ("OPTIONS", "option")):
        told = [record for one, record in records if one.param_type_name == kind and record]
        lines += definitions(title, told)
    members = [
        (f"{words} {name}", one.get_short_help_str(limit=200))
        for name, one in sorted(getattr(command, "commands", {}).items())
        if not one.hidden
    ]
    lines += definitions("COMMANDS", members)
    lines += definitions("EXIT STATUS", exit_status(command))
    others = [("planewise",), *((*path, name) for name in getattr(command, "commands", {}))]
    pages = [f"\\fB{escape('-'.join(one))}\\fR(1)" for one in others if one != path]
    lines += [
        ".SH SEE ALSO",
        ",\n".join([*pages, "\\fBpw\\-probe\\fR(1)", "\\fBplanewised\\fR(8)"]),
    ]
    return "\n".join(lines) + "\n"


def exit_status(command: Any) -> list[tuple[str, str]]:
    """The exit codes of a command (planewise/errors.py)."""
    codes = dict(EXIT_STATUS)
    if any("--require-good" in parameter.opts for parameter in command.params):
        codes["3"] = "It was measured, and with --require-good the verdict is not GOOD."
    return sorted(codes.items(), key=lambda row: int(row[0]))


def definitions(title: str, rows: list[tuple[str, str]]) -> list[str]:
    """A section of terms and what each means; nothing where there are none."""
    if not rows:
        return []
    lines = [f".SH {title}"]
    for term, meaning in rows:
        lines += [".TP", f"\\fB{escape(term)}\\fR", text_line(" ".join(meaning.split()))]
    return lines


def text_line(text: str) -> str:
    """A line of text; `\\&` keeps one that begins with a dot from being a request."""
    text = escape(text)
    return f"\\&{text}" if text.startswith((".", "'")) or not text else text


def escape(text: str) -> str:
    """Text for man(7): hyphens stay hyphens when they are copied from the page."""
    return text.replace("\\", "\\e").replace("-", "\\-")


if __name__ == "__main__":
    main()
