"""A progress line with the time left, on stderr: a bar on a terminal, else a line now and then."""

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
"""Without a terminal: a line this often, so that a log shows that it lives."""


_NEARLY = 0.99
"""What is still at work is not done, however wrong the estimate was."""


class ProgressLine:
    """What a measurement tells its progress to. Use it as a context manager."""

    def __init__(self, verbosity: Verbosity) -> None:
        self._quiet = verbosity.quiet
        self._verbose = verbosity.verbose
        self._console = err()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._what = ""
        self._total_s = 1.0
        self._started = self._last_line = time.monotonic()

    def begin(self, what: str, total_s: float) -> None:
        """A part of the work starts that will take about `total_s`."""
        self._what, self._total_s = what, max(total_s, 1e-9)
        self._started = self._last_line = time.monotonic()
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=self._total_s)
        elif not self._quiet:
            self._line(f"{what} (about {duration_text(total_s)})")

    def step(self, what: str, done_s: float) -> None:
        """`what` is next; `done_s` of the estimate have been worked off so far."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done_s, description=what)
            return
        now = time.monotonic()
        due = self._verbose or now - self._last_line >= _LINE_EVERY_S
        if due and not self._quiet:
            self._last_line = now
            share = min(done_s / self._total_s, _NEARLY)
            left = max(self._left_s(done_s, now), 1.0)
            self._line(f"{share:4.0%}  {what}, about {duration_text(left)} left")

    def note(self, text: str) -> None:
        """Something that a person should know at once (also with --quiet)."""
        self._console.print(text, style="yellow")

    def _left_s(self, done_s: float, now: float) -> float:
        """From the pace so far, once there is some; else from the estimate."""
        left = self._total_s - done_s
        if done_s < 0.05 * self._total_s:
            return left
        return left * (now - self._started) / done_s

    def _line(self, text: str) -> None:
        self._console.print(text)

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description:<44}"),
                BarColumn(),
                TextColumn("{task.percentage:3.0f} %"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
