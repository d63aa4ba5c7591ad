"""Pausing a run: Ctrl-Z between two trials, and noticing whatever stopped the run within one.

Ctrl-Z (SIGTSTP) asks for a pause: the trial in flight is finished, the background load ends, then
the process stops, as any program does on Ctrl-Z; `fg` or SIGCONT goes on. A second Ctrl-Z stops at
once. A trial during which the process was stopped (so, by SIGSTOP) or the machine slept is
*disturbed*: its load went on without anyone looking, or nothing went on at all.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Self

SLEPT_S = 0.05
"""Less than this between the clocks that count sleep and those that do not is their reading."""
_LOOK_S = 0.05


class Pauses:
    """Watches for pauses inside its `with` block; only the main thread can."""

    def __init__(self) -> None:
        self.requested = False
        """Whether a pause was asked for that has not begun."""
        self.paused_s = 0.0
        """Time spent in pauses, awake."""
        self._resumed = 0
        self._handlers: dict[int, object] = {}

    def mark(self) -> tuple[int, float]:
        """Now, for `disturbed_since`."""
        return self._resumed, _slept_s()

    def disturbed_since(self, mark: tuple[int, float]) -> bool:
        """Whether this process was stopped, or the machine slept, since `mark`."""
        return self._resumed > mark[0] or _slept_s() - mark[1] > SLEPT_S

    def pause(self) -> None:
        """Stops this process until somebody lets it go on."""
        self.requested = False
        began = time.monotonic()
        resumed = self._resumed
        os.kill(os.getpid(), signal.SIGSTOP)
        # The first process of a namespace cannot stop itself: it waits.
        while self._resumed == resumed:
            time.sleep(_LOOK_S)
        self.paused_s += time.monotonic() - began

    def _on_stop(self, _: int, __: FrameType | None) -> None:
        if self.requested:
            self.pause()
        else:
            self.requested = True

    def _on_continue(self, _: int, __: FrameType | None) -> None:
        self._resumed += 1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number, handler in (
                (signal.SIGTSTP, self._on_stop),
                (signal.SIGCONT, self._on_continue),
            ):
                self._handlers[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._handlers.clear()


def _slept_s() -> float:
    """How long the machine has slept since it booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
