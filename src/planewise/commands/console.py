"""How commands speak: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Verbosity:
    """The global flags `--quiet` and `--verbose`."""

    quiet: bool = False
    verbose: bool = False


def out() -> Console:
    """A console on stdout for tables and sentences (rich keeps to NO_COLOR by itself).

    Brackets in them are no markup: names of guests, interfaces and files may have some.
    """
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """A console on stderr for progress and logs."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


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
    """A table of one line a row, whatever the terminal's width: to be compared and grepped."""

    def __init__(self, *titles: str) -> None:
        self._rows = [titles]

    def add(self, *cells: str) -> None:
        """Adds a row of as many cells as there are titles."""
        self._rows.append(cells)

    def print(self) -> None:
        """On stdout."""
        from rich.text import Text

        widths = [max(len(row[i]) for row in self._rows) for i in range(len(self._rows[0]))]
        console = out()
        for place, row in enumerate(self._rows):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            console.print(Text(line.rstrip(), style="" if place else "bold"), soft_wrap=True)
