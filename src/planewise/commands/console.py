"""Output of commands: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_error(error: PlanewiseError) -> None:
    """Prints an error and its remedy on stderr."""
    print(f"error: {error.what}", file=sys.stderr)
    if error.remedy:
        print(f"hint: {error.remedy}", file=sys.stderr)


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


class Rows:
    """A table with one line a row, whatever the terminal's width, so that `grep` finds rows.

    Columns whose title is in `right` are aligned to the right.
    """

    def __init__(self, *titles: str, right: Collection[str] = ()) -> None:
        self._rows = [(titles, "")]
        self._right = right

    def add(self, *cells: str, style: str = "") -> None:
        """Adds a row, a cell for each title; `style` is the first cell's."""
        self._rows.append((cells, style))

    def print(self) -> None:
        """Prints the table on stdout."""
        from rich.text import Text

        titles, _ = self._rows[0]
        widths = [max(len(row[i]) for row, _ in self._rows) for i in range(len(titles))]
        console = out()
        for place, (row, style) in enumerate(self._rows):
            cells = [
                cell.rjust(width) if title in self._right else cell.ljust(width)
                for cell, width, title in zip(row, widths, titles, strict=True)
            ]
            line = Text("  ".join(cells).rstrip(), style="" if place else "bold")
            line.stylize(style, 0, len(row[0]))
            console.print(line, soft_wrap=True)
