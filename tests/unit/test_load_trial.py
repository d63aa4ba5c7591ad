"""What a load trial's output means: whose limit it was, and what is sent a second time."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from planewise.measure.station import Place, Station
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.load_one_process import Generator, limits_of
from planewise.measure.trials.probe import TrialOutput
from planewise.store.models import TrialRecord
from planewise.testbed.hosts.host import FinishedProcess, LocalHost
from planewise.testbed.hosts.programs import FORMAT
from planewise.testbed.model import TrialPath


def output(
    achieved_pps: float, lost: int, limits: tuple[str, ...], max_pps: float | None = 5e5
) -> TrialOutput:
    return TrialOutput.model_validate(
        {
            "command": "trial",
            "version": "0",
            "size_bytes": 64,
            "started_ns": 0,
            "duration_s": 1,
            "intended_pps": 100_000,
            "achieved_pps": achieved_pps,
            "sent": 100_000,
            "received": 100_000 - lost,
            "lost": lost,
            "limits": limits,
            "generator": {"max_pps": max_pps},
        }
    )


@pytest.mark.parametrize(
    ("achieved_pps", "lost", "said", "meant"),
    [
        (100_000, 0, (), ()),
        (100_000, 5, ("sut",), ("sut",)),
        (99_500, 0, ("generator",), ()),
        (99_500, 5, ("generator",), ("sut",)),
        (98_000, 5, ("generator",), ("generator",)),
        (99_500, 5, ("generator", "sink"), ("sink",)),
        (99_500, 5, ("generator", "clock"), ("sut", "clock")),
    ],
)
def test_a_shortfall_below_one_per_cent_is_not_the_generators_limit(
    achieved_pps: float, lost: int, said: tuple[str, ...], meant: tuple[str, ...]
) -> None:
    assert limits_of(output(achieved_pps, lost, said)) == meant


def test_a_load_above_the_generators_own_maximum_is_its_limit_however_well_it_was_kept() -> None:
    assert limits_of(output(100_000, 0, ("generator",), max_pps=90_000)) == ("generator",)


def test_an_unknown_maximum_limits_nothing() -> None:
    assert limits_of(output(99_900, 0, ("generator",), max_pps=None)) == ()


class Machine(LocalHost):
    """Sends these shares of 100 000 packets/s, one after the other."""

    def __init__(self, shares: list[float]) -> None:
        super().__init__("here")
        self.shares = shares

    def run(self, argv: Sequence[str], **options: object) -> FinishedProcess:
        share = 1.0 if "--calibrate-only" in argv else self.shares.pop(0)
        said = () if share == 1 else ("generator",)
        return FinishedProcess(tuple(argv), 0, sent(share * 100_000, said), "")


def sent(achieved_pps: float, said: tuple[str, ...]) -> str:
    told = output(achieved_pps, 0, said).model_dump(mode="json")
    return json.dumps({**told, "format": FORMAT, "max_pps": 5e5})


def measure(shares: list[float], cells: Sequence[str]) -> list[TrialRecord]:
    """A trial on each of these planes."""
    machine = Machine(shares)
    generator = Generator(machine)
    path = TrialPath("a", "x", "b", "y", "", "", "198.18.0.2", "", "")
    station = Station({}, {}, path=path, generator=generator)
    trial = LoadTrial("", 100_000, 64, 1.0)
    records = [
        station.measure(trial, Place("", {"plane": plane}, 0, 0), lambda _: None).record
        for plane in cells
    ]
    assert not machine.shares, "all were asked for"
    return records


def test_a_load_that_a_pause_of_the_machine_cut_short_is_sent_again_and_says_so() -> None:
    first, again = measure([1.0, 0.9, 1.0], ["veth", "veth"])
    assert (first.limits, first.warnings) == ((), ())
    assert again.limits == ()
    assert again.warnings == ("repeated, as only 90.0% was sent the first time",)


def test_a_load_that_falls_short_twice_is_the_generators_limit() -> None:
    assert [one.limits for one in measure([1.0, 0.9, 0.9], ["veth"] * 2)] == [(), ("generator",)]


def test_what_a_cell_has_never_taken_is_not_asked_twice() -> None:
    records = measure([1.0, 0.9, 0.9], ["veth", "bridge", "bridge"])
    assert [one.limits for one in records] == [(), ("generator",), ("generator",)]
    assert not any(one.warnings for one in records)
