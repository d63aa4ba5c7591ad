"""Current state of a run: written by the run's threads, read by live views."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from planewise.store.models import KpiSample

KEPT = 600
"""Most samples that are kept: ten minutes."""
_NOTES = 20
_STALE_S = 5.0


@dataclass(frozen=True)
class Numbered:
    """A sample and its number, from 1."""

    number: int
    sample: KpiSample


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    title: str
    what: str
    """The present step."""
    total_s: float
    """Estimated time of the present part of the work."""
    done_s: float
    left_s: float
    notes: tuple[str, ...]
    samples: tuple[Numbered, ...]
    ended: str
    """How the run ended, in words; empty while it goes on."""
    stale: bool
    """Whether the last sample is some seconds old: nothing is measured now."""

    @property
    def last(self) -> KpiSample | None:
        """The newest sample."""
        return self.samples[-1].sample if self.samples else None

    @property
    def share(self) -> float:
        """Finished share of the present part: 0 to 1."""
        return min(1.0, self.done_s / self.total_s) if self.total_s > 0 else 0.0


class LiveState:
    """The state of one run. May be used by several threads."""

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title = title
        self._clock = clock
        self._lock = threading.Lock()
        self._what = ""
        self._total_s = self._done_s = 0.0
        self._began = self._newest = clock()
        self._notes: deque[str] = deque(maxlen=_NOTES)
        self._samples: deque[Numbered] = deque(maxlen=KEPT)
        self._count = 0
        self._ended = ""

    def begin(self, what: str, total_s: float) -> None:
        """Begins a part of the work that takes about `total_s`."""
        with self._lock:
            self._what, self._total_s, self._done_s = what, total_s, 0.0
            self._began = self._clock()

    def step(self, what: str, done_s: float) -> None:
        """Begins the step `what`; `done_s` of the estimate are done."""
        with self._lock:
            self._what, self._done_s = what, done_s

    def note(self, text: str) -> None:
        """Adds a note for the user."""
        with self._lock:
            self._notes.append(text)

    def add(self, sample: KpiSample) -> None:
        """Adds a sample."""
        with self._lock:
            self._count += 1
            self._samples.append(Numbered(self._count, sample))
            self._newest = self._clock()

    def end(self, how: str) -> None:
        """Ends the run; `how` says how it ended."""
        with self._lock:
            self._ended = how

    def now(self, since: int = 0) -> Snapshot:
        """The state now, with the samples whose number is above `since`."""
        with self._lock:
            now_s = self._clock()
            elapsed_s = now_s - self._began
            left_s = max(0.0, self._total_s - self._done_s)
            # By the pace so far after 5 % of the work, before by the estimate.
            if self._done_s > 0.05 * self._total_s:
                left_s *= elapsed_s / self._done_s
            return Snapshot(
                title=self._title,
                what=self._what,
                total_s=self._total_s,
                done_s=self._done_s,
                left_s=0.0 if self._ended else left_s,
                notes=tuple(self._notes),
                samples=tuple(sample for sample in self._samples if sample.number > since),
                ended=self._ended,
                stale=not self._samples or now_s - self._newest > _STALE_S,
            )
