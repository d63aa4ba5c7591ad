"""Ctrl-C at any moment leaves the threads that are waited for usable."""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

import pytest

from planewise.testbed.hosts.netns import NamespaceThread
from planewise.testbed.hosts.signals import result_of


class InterruptAt:
    """Raises SIGINT at the `event`th event of the interpreter in a block, in whatever code."""

    def __init__(self, event: int) -> None:
        self.left = event

    def __enter__(self) -> "InterruptAt":
        sys.settrace(self._trace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> bool:
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_name in ("__exit__", "_remove"):
            return None  # ours, and what the interpreter calls of its own accord
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return self._trace


@pytest.fixture
def sigint() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ends(function: Callable[[], None]) -> bool:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def test_a_namespace_thread_ends_whenever_its_caller_was_interrupted(sigint: None) -> None:
    for event in range(1, 1000):
        thread = NamespaceThread("interrupted")
        with InterruptAt(event) as interrupt:
            thread.call(None, time.sleep, 0.005)
        assert ends(thread.close), f"it waits for a lock since event {event}"
        if interrupt.left > 0:
            break
    assert 10 < event < 999


@pytest.mark.filterwarnings("ignore:coroutine 'sleep' was never awaited")
def test_an_event_loop_goes_on_whenever_its_caller_was_interrupted(sigint: None) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    for event in range(1, 1000):
        with InterruptAt(event) as interrupt:
            result_of(asyncio.run_coroutine_threadsafe(asyncio.sleep(0.005), loop))
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        assert answered.wait(10), f"it waits for a lock since event {event}"
        if interrupt.left > 0:
            break
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    with suppress(RuntimeError):
        loop.close()
    assert 10 < event < 999
