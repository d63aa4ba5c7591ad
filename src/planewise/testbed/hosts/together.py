"""Several calls at a time, and the first error once all have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from planewise.testbed.hosts.signals import result_of, uninterrupted

T = TypeVar("T")


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
