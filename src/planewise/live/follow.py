"""Follows a run's kpis.jsonl while it is written. Knows no run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from planewise.store.models import KpiSample

_EVERY_S = 0.25
_MOST_BYTES = 1 << 20
"""Read at a time."""


class Tail:
    """The lines that are added to a file from now on; it need not be there yet."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = file.stat().st_size if file.exists() else 0
        self._rest = b""

    def samples(self) -> list[KpiSample]:
        """What was added since the last call; a line that is not whole yet waits, torn ones go."""
        try:
            with self._file.open("rb") as handle:
                handle.seek(self._offset)
                added = handle.read(_MOST_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        fresh = []
        for line in lines:
            try:
                fresh.append(KpiSample.model_validate_json(line))
            except ValidationError:
                continue
        return fresh


class Follower:
    """Tells `tell` of every sample, on a thread of its own."""

    def __init__(self, file: Path, tell: Callable[[KpiSample], None]) -> None:
        self._tail = Tail(file)
        self._tell = tell
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def _run(self) -> None:
        last = False
        while not last:
            last = self._ended.wait(_EVERY_S)
            for sample in self._tail.samples():
                self._tell(sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
