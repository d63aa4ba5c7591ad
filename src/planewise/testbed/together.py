"""Several calls at a time, and the first error once all have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor


def together(work: Sequence[Callable[[], None]], workers: int = 2) -> None:
    """Calls all of `work`, `workers` at a time; raises the first error once all have ended."""
    if len(work) == 1:
        work[0]()
        return
    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(call) for call in work]:
            future.result()
