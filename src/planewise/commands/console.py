"""Output of commands: results on stdout, everything else on stderr."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import textwrap
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from planewise.errors import NewerVersionWarning, first_fault

if TYPE_CHECKING:
    from rich.console import Console

    from planewise.errors import PlanewiseError


@dataclass(frozen=True)
class Verbosity:
    """The global flags `--quiet` and `--verbose`."""

    quiet: bool = False
    verbose: bool = False


def out() -> Console:
    """A console on stdout for tables and sentences (rich keeps to NO_COLOR by itself).

    Brackets in them are no markup and `:ab:` is no emoji: names and addresses may have some.
    """
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """A console on stderr for progress and logs."""
    from rich.console import Console

    soft = not sys.stderr.isatty()
    return Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=soft)


def print_items(console: Console, sentences: Iterable[str]) -> None:
    """Prints sentences as a list; on a terminal further lines stand below the first."""
    width = console.width if console.is_terminal else sys.maxsize
    look = textwrap.TextWrapper(width, "  - ", "    ", break_on_hyphens=False)
    for sentence in sentences:
        console.print(look.fill(sentence))


def print_error(error: PlanewiseError) -> None:
    """Prints an error and its remedy on stderr."""
    print(f"error: {error.what}", file=sys.stderr)
    if error.remedy:
        print(f"hint: {error.remedy}", file=sys.stderr)


def show_warnings() -> None:
    """Shows Planewise's own warnings as one sentence on stderr, others as Python does."""
    shown = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, NewerVersionWarning):
            print(f"note: {message}", file=sys.stderr)
        else:
            shown(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def print_json(value: object) -> None:
    """Prints one JSON document on stdout; not-a-number becomes null, as JSON has none."""
    json.dump(_finite(value), sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def _finite(value: object) -> object:
    if isinstance(value, float) and value - value != 0:
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def print_rows(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    less: Sequence[str] = (),
    wide: bool = False,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Prints a table with one line a row, whatever the terminal's width, so that `grep` finds rows.

    Columns whose title is in `right` are aligned to the right. Where the table is wider than the
    terminal (80 columns in a pipe, unless COLUMNS says otherwise), columns in `less` are left out,
    the last first, unless `wide` is set; the last line names them.
    `styles` are those of a row's first cell, by the text of any of its cells.
    """
    from rich.text import Text

    console = out()
    lines = [tuple(titles), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    dropped: list[str] = []
    shown = list(range(len(titles)))
    for title in reversed(() if wide else less):
        if sum(widths[i] + 2 for i in shown) - 2 > console.width:
            shown.remove(titles.index(title))
            dropped.insert(0, title)
    for row in lines:
        cells = [
            row[i].rjust(widths[i]) if titles[i] in right else row[i].ljust(widths[i])
            for i in shown
        ]
        line = Text("  ".join(cells).rstrip(), style="bold" if row is lines[0] else "")
        for cell in row if styles else ():
            line.stylize((styles or {}).get(cell, ""), 0, len(row[0]))
        console.print(line, soft_wrap=True)
    if dropped:
        console.print(f"--wide adds {', '.join(dropped)}", style="dim")


def open_streams() -> None:
    """Makes stdout and stderr accept everything that is printed.

    Characters that the locale lacks are replaced; a stream that the caller closed is nobody's.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def is_of_output(error: OSError) -> bool:
    """Whether stdout could not be written, and not a file: its errors name it."""
    return error.errno == errno.ENOSPC and error.filename is None


def close(stream: TextIO) -> None:
    """Lets nothing more be written on stdout or stderr, whose reader is gone or whose disk full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


_TYPES = {"path": "PATH", "str": "TEXT", "list[str]": "TEXT", "int": "N", "float": "NUMBER"}
"""What help calls Python's types."""

if hasattr(TyperOption, "display_type"):  # newer typer prints `FILE <list[Path]>`, `--nic <str>`
    _display_type = TyperOption.display_type

    def _plain_type(option: TyperOption, ctx: Any) -> str:
        shown = _display_type(option, ctx).strip("<>")
        return _TYPES.get(shown.removesuffix(" range"), shown)

    TyperOption.display_type = _plain_type  # type: ignore[assignment, method-assign]
    TyperArgument.display_type_rich = lambda *_, **__: None  # type: ignore[method-assign]
    vars(getattr(typer, "_coercion", typer)).update(get_error_msg=lambda exc: first_fault(exc)[1])


class Commands(TyperGroup):
    """A group whose help lists its commands by purpose, each with its whole first sentence."""

    groups: ClassVar[Mapping[str, Sequence[str]]] = {}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands group by group; those of no group last."""
        named = {name for names in self.groups.values() for name in names}
        rest = tuple(name for name in self.list_commands(ctx) if name not in named)
        for title, names in (*self.groups.items(), ("Commands", rest)):
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (name, command.get_short_help_str(200)) for name, command in commands if command
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
