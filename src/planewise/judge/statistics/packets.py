"""Quantiles and pooled tests of packets, by the strata of a comparison. Reads no file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planewise.judge.statistics.bootstrap import Quantiles, Replicate, bootstrap_quantiles
from planewise.judge.statistics.metrics import Observation, RunSample
from planewise.judge.statistics.pairing import (
    Key,
    Pairing,
    block_of,
    context_of,
    default_by,
    level_order,
)
from planewise.judge.statistics.pooled import PooledTest, pooled_tests
from planewise.store.models import Level, TrialRecord

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class PacketTrial:
    """The packets of one trial."""

    sample: RunSample
    trial: TrialRecord
    values: Floats
    """In the order in which they were sent; positive."""


class PacketTable:
    """Packets by level and by all that pairs have alike."""

    def __init__(self, trials: Sequence[PacketTrial], factor: str, by: str | None) -> None:
        """`by` as of `compare_levels`."""
        kept = [one for one in trials if one.values.size and factor in one.sample.cell(one.trial)]
        observations = [
            Observation(one.sample.label, one.trial.block, one.sample.cell(one.trial), 0.0, 0.0)
            for one in kept
        ]
        run_factors = {name for one in kept for name in one.sample.extra}
        by = default_by(observations, factor) if by is None else by
        self._pairing = Pairing(observations, factor, by, run_factors)
        parts: dict[Level, dict[Key, list[Floats]]] = defaultdict(lambda: defaultdict(list))
        for seen, one in zip(observations, kept, strict=True):
            for key in self._pairing.keys[id(seen)]:
                parts[seen.cell[factor]][key].append(one.values)
        # Contexts that only some levels have would make their pooled packets another mixture.
        contexts = [{context_of(key) for key in keys} for keys in parts.values()]
        shared = set.intersection(*contexts) if contexts else set()
        self._values = {
            level: {
                key: np.concatenate(values)
                for key, values in parts[level].items()
                if context_of(key) in shared
            }
            for level in level_order(parts)
        }
        self.strata = self._pairing.strata

    def quantiles(self, seed: int = 1) -> dict[str, Quantiles]:
        """Quantiles and their ratios by stratum."""
        return {
            stratum: bootstrap_quantiles(
                {
                    level: [Replicate(block_of(key), values) for key, values in found.items()]
                    for level, found in self._in(stratum).items()
                },
                stratum,
                seed=seed,
            )
            for stratum in self.strata
        }

    def pooled(self) -> tuple[PooledTest, ...]:
        """The publications' tests, stratum by stratum."""
        return tuple(
            test for stratum in self.strata for test in pooled_tests(self._in(stratum), stratum)
        )

    def _in(self, stratum: str) -> dict[Level, dict[Key, Floats]]:
        return {
            level: {
                key: values for key, values in found.items() if self._pairing.is_in(key, stratum)
            }
            for level, found in self._values.items()
        }
