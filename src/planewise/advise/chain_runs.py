"""Measured chains of a run, as rows that a profile is fitted to.

A trial tells of its plane only where the plane was the limit: what a generator, or cores that tasks
had to share, held back is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from planewise.advise.evidence import chains_of, one_kind
from planewise.advise.model.profile import PLANES
from planewise.advise.throughput import ThroughputRow
from planewise.errors import BadInputError
from planewise.store.models import OUTSIDE, RunInfo, TrialRecord


@dataclass(frozen=True)
class ChainRows:
    """What a run has for a calibration."""

    rows: tuple[ThroughputRow, ...]
    """One a cell: the mean of its replicates."""
    left_out: tuple[str, ...]
    """Why trials do not count, and how many, in sentences."""
    emulated: str
    """Why times of the run are not those of hardware; empty when they are."""


def rows_of(run: str, trials: Iterable[TrialRecord], info: RunInfo) -> ChainRows:
    """The rows of a run's chains. `run` is its name.

    Raises:
        BadInputError: it measured no chain, or none that was limited by its plane.
    """
    done = [
        trial
        for trial in trials
        if trial.kind == "chain" and trial.status == "done" and trial.chain
    ]
    if not done:
        raise BadInputError(
            "this run measured no chain of network functions",
            where=run,
            remedy="experiments/nfv-chains.yaml is a design that does",
        )
    modelled = [trial for trial in done if str(trial.cell.get("plane")) in PLANES]
    sized = [trial for trial in modelled if isinstance(trial.cell.get("size_bytes"), int)]
    telling = [trial for trial in sized if trial.chain and trial.chain.limit not in OUTSIDE]
    carrying = [trial for trial in telling if trial.chain and trial.chain.tx_pps > 0]
    of_plane = {
        plane: [trial for trial in carrying if trial.cell["plane"] == plane]
        for plane in dict.fromkeys(str(trial.cell["plane"]) for trial in carrying)
    }
    alike = {plane: one_kind(group) for plane, group in of_plane.items()}
    held_back = Counter(
        trial.chain.limit for trial in sized if trial.chain and trial.chain.limit in OUTSIDE
    )
    left_out = [
        f"{count} of {len(done)} trials do not count: the limit was "
        f"{'not known' if limit == 'unknown' else f'the {limit}'}, not the plane"
        for limit, count in held_back.items()
    ]
    for count, reason in (
        (len(done) - len(modelled), "the model does not know their planes"),
        (len(modelled) - len(sized), "their frames are of mixed sizes"),
        (len(telling) - len(carrying), "they sent nothing"),
        (
            len(carrying) - sum(map(len, alike.values())),
            "functions of another kind were measured on the same plane",
        ),
    ):
        if count:
            left_out.append(f"{count} of {len(done)} trials do not count: {reason}")
    rows = tuple(
        ThroughputRow.model_validate(
            {
                "interface": plane,
                "pattern": chain.pattern,
                "vnfs": chain.vnfs,
                "packet_bytes": chain.frame_bytes,
                "tx_mpps": chain.pps / 1e6,
            }
        )
        for plane, group in alike.items()
        for chain in chains_of(group)
    )
    if not rows:
        raise BadInputError(
            f"none of its {len(done)} chain trials was limited by a plane ({'; '.join(left_out)})",
            where=run,
            remedy="give generator, switch and functions a core each, and measure again"
            if sized
            else f"measure {' or '.join(PLANES)}, with frames of one size a trial",
        )
    return ChainRows(rows, tuple(left_out), info.emulated)
