"""Signals that end planewise once everything is torn down, and calls side by side that they end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

POLITE = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a program and may be handled, beside Ctrl-C's SIGINT."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came; handled as Ctrl-C is."""


def raise_on_signals() -> tuple[int, ...]:
    """Lets polite signals raise `Terminated` where nobody handles them, and returns these signals.

    Only the main thread may do so; on others this does nothing.
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
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, *POLITE)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if received:
            signal.raise_signal(received[0])


def result_of(future: Future[T]) -> T:
    """The future's result, as `future.result()` gives it, but safe on Ctrl-C.

    A signal that comes while a future's lock is being taken leaves it taken
    (https://github.com/python/cpython/issues/74174), and the thread that works on the future waits
    for ever. The wait of a SimpleQueue takes no such lock.
    """
    ended: SimpleQueue[Future[T]] = SimpleQueue()
    with uninterrupted():
        future.add_done_callback(ended.put)
    ended.get()
    with uninterrupted():
        return future.result()


def _raise(number: int, _: FrameType | None) -> None:
    raise Terminated(signal.Signals(number).name)


def together(
    work: Sequence[Callable[[], T]], workers: int = 2, abort: Callable[[], None] = lambda: None
) -> list[T]:
    """Calls all of `work`, `workers` at a time, and returns their results.

    Raises the first error once all have ended. Ctrl-C waits for the running calls only, and `abort`
    makes these fail: a boot or a script may take minutes.
    """
    if len(work) == 1:
        return [work[0]()]
    with ThreadPoolExecutor(max(1, workers)) as pool:
        with uninterrupted():
            futures = [pool.submit(call) for call in work]
        try:
            return [result_of(future) for future in futures]
        except Exception:
            raise
        except BaseException:
            for future in futures:
                future.cancel()
            abort()
            raise
