"""`--live`: a run's throughput and CPUs by the second, on the terminal and on a local page."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from planewise.commands.console import Verbosity, err
from planewise.commands.progress import ProgressLine
from planewise.errors import PlanewiseError
from planewise.live.server import LiveServer
from planewise.live.state import LiveState

if TYPE_CHECKING:
    import socket

    from rich.console import RenderableType

_LINE_EVERY_S = 10.0


class LiveView:
    """Progress of a run as a view on the terminal and as a local page. A context manager.

    A terminal's view is drawn each second; without a terminal, a line is printed every ten
    seconds. The page is served until the end.
    """

    def __init__(self, verbosity: Verbosity, title: str, listening: socket.socket) -> None:
        self._state = LiveState(title)
        self.sample = self._state.add
        """Receives a sample each second."""
        self._quiet = verbosity.quiet
        self._console = err()
        self._plain = ProgressLine(verbosity)
        self._on_terminal = sys.stderr.isatty() and not verbosity.quiet
        self._listening = listening
        self._server: LiveServer | None = None
        self._open = ExitStack()
        self._last_line = time.monotonic()
        self._outcome = "done"

    def begin(self, what: str, total_s: float) -> None:
        """Begins a part of the work that takes about `total_s`."""
        self._state.begin(what, total_s)
        if not self._on_terminal:
            self._plain.begin(what, total_s)

    def step(self, what: str, done_s: float) -> None:
        """Begins the step `what`; `done_s` of the estimate are done."""
        self._state.step(what, done_s)
        if self._on_terminal:
            return
        self._plain.step(what, done_s)
        now = time.monotonic()
        if not self._quiet and now - self._last_line >= _LINE_EVERY_S:
            from planewise.live.terminal import line

            self._last_line = now
            if text := line(self._state.now()):
                self._console.print(text)

    def note(self, text: str) -> None:
        """Prints a warning at once (also with --quiet)."""
        self._state.note(text)
        self._console.print(text, style="yellow")

    def _draw(self) -> RenderableType:
        from planewise.live.terminal import render

        size = self._console.size
        url = self._server.url if self._server is not None else ""
        return render(self._state.now(), size.width, size.height, url)

    def __enter__(self) -> Self:
        self._server = LiveServer(self._state, self._listening)
        self._open.callback(self._server.close)
        if self._on_terminal:
            from rich.live import Live

            self._open.enter_context(
                Live(
                    get_renderable=self._draw,
                    console=self._console,
                    refresh_per_second=1,
                    transient=True,
                )
            )
        else:
            self._console.print(f"live: {self._server.url}", soft_wrap=True)
        return self

    def set_outcome(self, outcome: str) -> None:
        """Sets how the run ended, for the page's last update."""
        self._outcome = outcome

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        failed = error.what if isinstance(error, PlanewiseError) else "stopped"
        self._state.end(self._outcome if kind is None else failed)
        self._open.close()
