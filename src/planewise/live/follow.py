"""Follows a run's kpis.jsonl while it is written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from planewise.store.models import KpiSample

_EVERY_S = 0.25
_MOST_BYTES = 1 << 20
"""Most bytes of one read."""


class Tail:
    """Reads the lines that are added to a file, which need not exist yet."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = file.stat().st_size if file.exists() else 0
        self._partial = b""

    def samples(self) -> list[KpiSample]:
        """Samples added since the last call; a partial line waits, damaged lines are skipped."""
        try:
            with self._file.open("rb") as handle:
                handle.seek(self._offset)
                added = handle.read(_MOST_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(added)
        *lines, self._partial = (self._partial + added).split(b"\n")
        samples = []
        for line in lines:
            try:
                samples.append(KpiSample.model_validate_json(line))
            except ValidationError:
                continue
        return samples


class Follower:
    """Passes every sample to `on_sample`, on its own thread."""

    def __init__(self, file: Path, on_sample: Callable[[KpiSample], None]) -> None:
        self._tail = Tail(file)
        self._on_sample = on_sample
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def _run(self) -> None:
        last = False
        while not last:
            last = self._ended.wait(_EVERY_S)
            for sample in self._tail.samples():
                self._on_sample(sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
