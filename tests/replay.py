"""Replays recorded runs as if they were measured now. Knows a curve, no testbed."""

from __future__ import annotations

import math

import numpy as np

from planewise.judge.curve import Curve, Run
from planewise.measure.search.measurer import ExhaustedError


class Replay:
    """A Measurer that draws a curve's recorded runs without replacement.

    Loads that were not recorded cannot be measured; durations are those recorded.
    """

    def __init__(self, curve: Curve, seed: int, *, shuffled: bool = True) -> None:
        """`seed` determines the order in which runs are drawn.

        Shuffled, neighbours in time are torn apart, as if loads had been interleaved when they
        were recorded. Otherwise runs come as they were recorded, from a random one on and in a
        circle, so that what autocorrelation does to a short sweep can be seen.
        """
        rng = np.random.default_rng(seed)
        self.loads_pps = tuple(point.offered_pps for point in curve.points)
        self.min_load_pps = self.loads_pps[0]
        self.max_load_pps = self.loads_pps[-1]
        self._tables = {
            point.offered_pps: point.runs[np.argsort(point.runs.order, kind="stable")]
            for point in curve.points
        }
        self._order = {
            load: rng.permutation(len(table))
            if shuffled
            else np.roll(np.arange(len(table)), int(rng.integers(len(table))))
            for load, table in self._tables.items()
        }
        self._drawn = dict.fromkeys(self.loads_pps, 0)
        self._trials = 0

    def remaining(self, offered_pps: float) -> int:
        """Recorded runs at this load that have not been drawn."""
        return len(self._order[offered_pps]) - self._drawn[offered_pps]

    def trial(self, offered_pps: float, duration_s: float) -> Run:
        """The next run at this load, with its place in the replay as its order.

        ExhaustedError when none is left or the load was never recorded.
        """
        if offered_pps not in self._order:
            raise ExhaustedError(f"no run at {offered_pps:.0f} pps was recorded")
        drawn = self._drawn[offered_pps]
        if drawn == len(self._order[offered_pps]):
            raise ExhaustedError(f"all {drawn} recorded runs at {offered_pps:.0f} pps are used up")
        self._drawn[offered_pps] = drawn + 1
        table = self._tables[offered_pps]
        index = int(self._order[offered_pps][drawn])
        recorded_s = float(table.duration_s[index])
        self._trials += 1
        return Run(
            int(table.sent[index]),
            int(table.received[index]),
            duration_s if math.isnan(recorded_s) else recorded_s,
            order=self._trials - 1,
            drops=int(table.drops[index]) if table.drops[index] >= 0 else None,
            limited=bool(table.limited[index]),
        )
