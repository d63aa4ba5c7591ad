"""What each setting does: its levels against the default, plane by plane, the largest effect first.

One family of joint sign-flip comparisons a metric (`judge.statistics`), over all planes and levels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from planewise.judge.statistics.comparison import Comparison, compare_levels
from planewise.judge.statistics.metrics import (
    Metric,
    RunSample,
    cpu_metrics,
    figures_in,
    metrics_in,
    observe,
)
from planewise.judge.statistics.pairing import OVERALL
from planewise.judge.statistics.sentences import change_text

FACTOR, DEFAULT = "setting", "default"
_METRICS = ("rtt", "rtt_p99", "throughput", "goodput", "cpu_per_packet")


@dataclass(frozen=True)
class Effect:
    """One setting against the default, on one plane and by one metric."""

    plane: str
    setting: str
    metric: Metric
    comparison: Comparison

    @property
    def size(self) -> float:
        """How large it is, whichever its sign: a ratio's logarithm, or a difference of shares."""
        change = self.comparison.change
        if self.comparison.scale == "difference":
            return abs(change)
        return abs(math.log1p(change)) if change > -1 else math.inf

    @property
    def text(self) -> str:
        """The change with its 95 % interval: `+12 % (+9 % to +15 %)`."""
        low, high = (
            change_text(end, self.comparison, self.metric)
            for end in (self.comparison.low, self.comparison.high)
        )
        change = change_text(self.comparison.change, self.comparison, self.metric)
        return f"{change} ({low} to {high})" if math.isfinite(self.comparison.low) else change


def effects(sample: RunSample) -> list[Effect]:
    """The effects of a run's settings by plane: those that are known first, by falling size.

    Empty where the run has no settings beside the default.
    """
    levels = {str(trial.cell.get(FACTOR)) for trial in sample.trials}
    if DEFAULT not in levels or len(levels - {"None"}) < 2:
        return []
    found = list(_effects(sample))
    return sorted(
        found,
        key=lambda e: (e.plane, e.comparison.outcome not in ("better", "worse"), -e.size),
    )


def _effects(sample: RunSample) -> Iterator[Effect]:
    present = metrics_in([sample])
    planes = {str(trial.cell.get("plane")) for trial in sample.trials}
    usual = [name for name in _METRICS if name in present]
    for name in (*usual, *sorted(figures_in([sample])), *cpu_metrics([sample], modes=False)):
        observed = observe([sample], name)
        if len({str(observation.cell.get(FACTOR)) for observation in observed.observations}) < 2:
            continue
        family = compare_levels(observed, FACTOR, by="plane", baseline=DEFAULT)
        for comparison in family.comparisons:
            # One plane is no stratum of its own.
            plane = min(planes) if len(planes) == 1 else comparison.stratum
            if plane != OVERALL:
                yield Effect(plane, str(comparison.a), family.metric, comparison)
