"""What happens when somebody ends planewise: everything is torn down first. Knows no testbed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

POLITE = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a program and may be handled, beside Ctrl-C's SIGINT."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: whatever is done on Ctrl-C is done for them, too."""


def raise_on_signals() -> tuple[int, ...]:
    """Lets polite signals raise `Terminated` where nobody handles them; returns which ones.

    Only the main thread may do so; on others nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        return ()
    changed = [number for number in POLITE if signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, _raise)
    return tuple(changed)


def restore(numbers: tuple[int, ...]) -> None:
    """Undoes `raise_on_signals`."""
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds signals back: a second Ctrl-C must not leave half of a testbed behind.

    Blocking them would not do: another thread would take them, and Python would still run their
    handlers on this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, *POLITE)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if came:
            signal.raise_signal(came[0])


def _raise(number: int, _: FrameType | None) -> None:
    raise Terminated(signal.Signals(number).name)
