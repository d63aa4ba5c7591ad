"""What an RTT trial asks of pw-probe, and what it makes of a probe that sent nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import pytest

from planewise.errors import PlanewiseError
from planewise.measure.station import End, Place, Station
from planewise.measure.trials.rtt import RttTrial
from planewise.store.models import TrialRecord
from planewise.testbed.hosts.host import FinishedProcess, Host
from planewise.testbed.hosts.programs import FORMAT
from planewise.testbed.model import HOSTS

COLUMNS = "seq,scheduled_ns,user_tx_ns,kernel_tx_ns,kernel_rx_ns,user_rx_ns\n"


class Ping:
    """A pw-probe that has ended."""

    def __init__(self, argv: Sequence[str], sent: int) -> None:
        rate = float(argv[list(argv).index("--rate") + 1])
        load = {"intended_pps": rate, "achieved_pps": rate, "size_bytes": 64}
        output = {
            "format": FORMAT,
            "command": "ping",
            "version": "0",
            "started_ns": 0,
            "duration_s": 1.0,
            "load": load,
            "cpu": {"all": {"sys": 0.5}},
            "counts": {"sent": sent, "received": sent, "lost": 0},
        }
        self.finished = FinishedProcess(tuple(argv), 0, json.dumps(output), "")

    def wait(self, timeout_s: float | None = None) -> FinishedProcess:
        return self.finished


class Machine:
    """A host on which each pw-probe sends the next of these numbers of packets."""

    probe, directory = "pw-probe", "/nowhere"

    def __init__(self, sent: list[int]) -> None:
        self.sent = sent
        self.asked: list[list[str]] = []

    @contextmanager
    def start(self, argv: Sequence[str], **_: object) -> Iterator[Ping]:
        self.asked.append(list(argv))
        yield Ping(argv, self.sent.pop(0))

    def read(self, *_: object, **__: object) -> bytes:
        return COLUMNS.encode()


def measure(machine: Machine, trial: RttTrial, *, vm: bool = False) -> TrialRecord:
    host = cast("Host", machine)
    ends = {role: End(host, f"pw-{role}", role, "eth0", "198.18.0.2", vm) for role in HOSTS}
    station = Station(dict.fromkeys(HOSTS, host), ends)
    return station.measure(trial, Place("t", {}, 0, 0), lambda _: None).record


def test_a_steady_second_is_a_second_whatever_rate_is_reached() -> None:
    machine = Machine([100, 25_000])
    record = measure(machine, RttTrial("t", 1e6, 64, 100, steady_s=1.0))
    trial, steady = machine.asked
    assert trial[trial.index("--count") + 1] == "100"
    assert steady[steady.index("--duration") + 1] == "1"
    assert "--count" not in steady
    assert record.cpu_window_s == 1.0
    assert record.cpu == {"shared": {"sys": 0.5}}


def test_a_trial_that_sent_nothing_is_repeated_and_then_fails_with_the_reason() -> None:
    machine = Machine([0, 100])
    assert measure(machine, RttTrial("t", 1e6, 64, 100)).counts is not None
    assert len(machine.asked) == 2
    with pytest.raises(PlanewiseError, match="no icmp probe was sent"):
        measure(Machine([0, 0]), RttTrial("t", 1e6, 64, 100))
