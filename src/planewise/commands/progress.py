"""Progress with the time left, on stderr: a bar on a terminal, else a line every ten seconds."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from planewise.commands.console import Verbosity, err
from planewise.units import duration_text

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_LINE_EVERY_S = 10.0
"""Interval of lines without a terminal, so that a log shows progress."""


_LATE = 1.2
"""Times its length after which an estimate is taken to have been wrong."""


class ProgressLine:
    """Progress of a measurement on stderr. A context manager."""

    def __init__(self, verbosity: Verbosity) -> None:
        self._quiet = verbosity.quiet
        self._verbose = verbosity.verbose
        self._console = err()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._total_s = 1.0
        self._done_s = 0.0
        self._started = self._stepped = self._last_line = time.monotonic()

    def begin(self, what: str, total_s: float) -> None:
        """Begins a part of the work that takes about `total_s`."""
        self._total_s, self._done_s = max(total_s, 1e-9), 0.0
        self._started = self._stepped = self._last_line = time.monotonic()
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=self._total_s)
        elif not self._quiet:
            self._console.print(f"{what} (about {duration_text(total_s)})")

    def step(self, what: str, done_s: float) -> None:
        """Begins the step `what`; `done_s` of the estimate are done."""
        self._done_s = min(done_s, self._total_s)
        self._stepped = time.monotonic()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done_s, description=what)
            return
        now = time.monotonic()
        if not self._quiet and (self._verbose or now - self._last_line >= _LINE_EVERY_S):
            self._last_line = now
            self.line(what)

    def line(self, what: str) -> None:
        """Prints a line of progress."""
        share = 100 * self._done_s / self._total_s
        self._console.print(f"{share:3.0f} %  {what}, {self.left()}")

    def note(self, text: str) -> None:
        """Prints a warning at once (also with --quiet)."""
        self._console.print(text, style="yellow")

    def left(self) -> str:
        """The time left, by the pace so far; the estimate counts as a tenth of the work."""
        expected_s = 0.1 * self._total_s
        pace = (self._stepped - self._started + expected_s) / (self._done_s + expected_s)
        left_s = (self._total_s - self._done_s) * pace - (time.monotonic() - self._stepped)
        if left_s >= 1:
            return f"about {duration_text(left_s)} left"
        past_s = time.monotonic() - self._started
        if self._done_s >= self._total_s and past_s > _LATE * self._total_s:
            return f"{duration_text(past_s)} so far, longer than expected"
        return "nearly done"

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
            from rich.text import Text

            line = self

            class Left(ProgressColumn):
                def render(self, task: Task) -> Text:
                    return Text(line.left())

            self._bar = Progress(
                TextColumn("{task.description:<40}"),
                BarColumn(bar_width=18),
                Left(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
