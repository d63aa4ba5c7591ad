"""`--live`: a run's throughput and CPUs by the second, on the terminal and on a local page."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from planewise.commands.console import Verbosity
from planewise.commands.progress import ProgressLine
from planewise.errors import PlanewiseError
from planewise.live.server import LiveServer
from planewise.live.state import LiveState

if TYPE_CHECKING:
    import socket

    from rich.console import RenderableType


class LiveView(ProgressLine):
    """Progress of a run as a view on the terminal and as a local page. A context manager.

    A terminal's view is drawn each second; without a terminal, a line is printed every ten
    seconds. The page is served until the end.
    """

    def __init__(self, verbosity: Verbosity, title: str, listening: socket.socket) -> None:
        super().__init__(verbosity)
        self._state = LiveState(title)
        self.sample = self._state.add
        """Receives a sample each second."""
        self._on_terminal = sys.stderr.isatty() and not verbosity.quiet
        self._listening = listening
        self._server: LiveServer | None = None
        self._open = ExitStack()
        self._outcome = "done"

    def begin(self, what: str, total_s: float) -> None:
        """Begins a part of the work that takes about `total_s`."""
        self._state.begin(what, total_s)
        if not self._on_terminal:
            super().begin(what, total_s)

    def step(self, what: str, done_s: float) -> None:
        """Begins the step `what`; `done_s` of the estimate are done."""
        self._state.step(what, done_s)
        if not self._on_terminal:
            super().step(what, done_s)

    def line(self, what: str) -> None:
        """Prints a line of progress, and what the state shows."""
        from planewise.live.terminal import line

        super().line(what)
        if text := line(self._state.now()):
            self._console.print(text)

    def note(self, text: str) -> None:
        """Prints a warning at once (also with --quiet)."""
        self._state.note(text)
        super().note(text)

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

    def __exit__(self, *raised: object) -> None:
        _, error, _ = raised
        failed = error.what if isinstance(error, PlanewiseError) else "stopped"
        self._state.end(self._outcome if error is None else failed)
        self._open.close()
