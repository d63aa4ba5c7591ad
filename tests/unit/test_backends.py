"""Load trials of different generators or sinks are never put together without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from planewise.store.importers.run import from_records
from planewise.store.loads import mixed_backends
from planewise.store.models import Counts, OfferedLoad, TrialRecord
from tests.unit import made_up_run


def record(plane: str, generator: str | None, sink: str | None = "tc-ingress") -> TrialRecord:
    return made_up_run.trial(
        f"load:{plane}",
        "load",
        {"plane": plane},
        load=OfferedLoad(intended_pps=100, achieved_pps=100, size_bytes=64),
        counts=Counts(sent=100, received=100, lost=0),
        generator=generator,
        sink=sink,
    )


def test_planes_that_different_backends_measured_are_named_with_them() -> None:
    trials = [record("veth", "live-skb"), record("bridge", "live-skb"), record("vf", "af_packet")]
    said = mixed_backends((str(trial.cell["plane"]), trial) for trial in trials)
    assert said == (
        "load trials were measured by different generators or sinks: "
        "af_packet to tc-ingress (vf); live-skb to tc-ingress (bridge, veth)"
    )


@pytest.mark.parametrize("other", [("live-skb", "tc-ingress"), (None, None)])
def test_nothing_is_said_where_all_were_alike_or_did_not_record_theirs(
    other: tuple[str | None, str | None],
) -> None:
    trials = [record("veth", "live-skb"), record("bridge", *other)]
    assert mixed_backends(("", trial) for trial in trials) == ""


def test_who_judges_a_run_reads_that_its_trials_are_of_different_backends() -> None:
    (curve,) = from_records([record("veth", "live"), record("veth", "af_packet")], Path("run"))
    assert any("different generators" in note for note in curve.notes)
