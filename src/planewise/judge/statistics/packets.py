"""Pooled tests of single readings, by the strata of a comparison. Reads no file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planewise.judge.statistics.metrics import Observation, Observed
from planewise.judge.statistics.pairing import Key, Pairing, default_by, level_order
from planewise.judge.statistics.pooled import PooledTest, pooled_tests
from planewise.store.models import Level

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class TrialReadings:
    """The single readings of one trial: the RTTs of its packets, or its one reading of a CPU."""

    trial: Observation
    """Where and when; its value is not used."""
    values: Floats
    """In the order in which they were made."""


def of_trials(observed: Observed) -> tuple[TrialReadings, ...]:
    """A metric that has one reading a trial."""
    return tuple(
        TrialReadings(observation, np.array([observation.value]))
        for observation in observed.observations
    )


class ReadingTable:
    """Readings by level and by all that pairs have alike."""

    def __init__(
        self,
        readings: Sequence[TrialReadings],
        factor: str,
        by: str | None,
        run_factors: Collection[str] = (),
    ) -> None:
        """`by` as of `compare_levels`; `run_factors` as of `Observed`."""
        used = [
            reading for reading in readings if reading.values.size and factor in reading.trial.cell
        ]
        observations = [reading.trial for reading in used]
        by = default_by(observations, factor) if by is None else by
        self._pairing = Pairing(observations, factor, by, run_factors)
        parts: dict[Level, dict[Key, list[Floats]]] = defaultdict(lambda: defaultdict(list))
        for observation, reading in zip(observations, used, strict=True):
            for key in self._pairing.keys[id(observation)]:
                parts[observation.cell[factor]][key].append(reading.values)
        # Contexts that only some levels have would make their pooled packets another mixture.
        contexts = [{self._pairing.context[key] for key in keys} for keys in parts.values()]
        shared = set.intersection(*contexts) if contexts else set()
        self._values = {
            level: {
                key: np.concatenate(values)
                for key, values in parts[level].items()
                if self._pairing.context[key] in shared
            }
            for level in level_order(parts)
        }
        self.strata = self._pairing.strata

    def pooled(self, metric: str) -> tuple[PooledTest, ...]:
        """The publications' tests, stratum by stratum; `metric` is what was read."""
        return tuple(
            test
            for stratum in self.strata
            for test in pooled_tests(self._in(stratum), stratum, metric)
        )

    def _in(self, stratum: str) -> dict[Level, dict[Key, Floats]]:
        return {
            level: {
                key: values for key, values in by_key.items() if self._pairing.is_in(key, stratum)
            }
            for level, by_key in self._values.items()
        }
