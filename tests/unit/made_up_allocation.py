"""Trials of the allocator with made-up packets and moves, for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl

from planewise.measure.designs.design import AllocPart, Policy
from planewise.measure.station import Place
from planewise.measure.trials.alloc import AllocTrial
from planewise.measure.trials.allocation import (
    ClockOffset,
    DaemonMetrics,
    DaemonObservation,
    record_of,
)
from planewise.measure.trials.requests import RequestStream, SentRequests
from planewise.store.models import TrialRecord
from planewise.testbed.vfs.alloc_client import MoveStatus, Status

STARTED = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
BEGIN_MS = 1_000_000
PART = AllocPart(vfs=1, group_pps=(10.0, 40.0), duration_s=10.0, warmup_s=2.0)
STREAMS = tuple(
    RequestStream(f"guest{n}", f"198.19.0.{n}", f"client{n}", pps, 50.0 - pps)
    for n, pps in enumerate((10.0, 40.0, 10.0, 40.0))
)


def move(
    direction: str, guest: str, at_s: float, duration_s: float | None, number: int = 0
) -> MoveStatus:
    """A move that begins so long after the warm-up; without a duration it is still under way."""
    ending = None if duration_s is None else {"how": "completed", "why": None}
    return MoveStatus.model_validate(
        {
            "operation": number,
            "direction": direction,
            "guest": guest,
            "vf": "pf0/0",
            "why": "made up",
            "started_unix_ms": BEGIN_MS + round(at_s * 1000),
            "duration_ms": None if duration_s is None else duration_s * 1000,
            "steps": [],
            "ending": ending,
        }
    )


def status(at_s: float, holder: str | None = None) -> Status:
    """What the daemon says so long after the warm-up."""
    return Status.model_validate(
        {
            "format": 1,
            "version": "0",
            "at_unix_ms": BEGIN_MS + round(at_s * 1000),
            "started_unix_ms": BEGIN_MS - 60_000,
            "policy": "activity",
            "interval_s": 1.0,
            "sample_s": 1.0,
            "draining": False,
            "guests": [],
            "vfs": [{"id": "pf0/0", "place": "", "holder": holder, "why": None}],
            "pools": [],
            "moves": [],
            "errors": [],
        }
    )


def sent(rtt_ms: dict[str, float], seconds: float = 13.0, lost_every: int = 0) -> SentRequests:
    """Every guest's packets at its rate, each with the guest's round-trip time."""
    rows = []
    for stream in STREAMS:
        count = round(seconds * stream.steady_pps)
        for number in range(count):
            due = round(number / stream.steady_pps * 1e9)
            lost = lost_every and number % lost_every == 0
            answer = None if lost else due + 1000 + round(rtt_ms[stream.guest] * 1e6)
            rows.append((stream.guest, "steady", due, due + 1000, answer))
    columns = ("guest", "phase", "scheduled_ns", "user_tx_ns", "user_rx_ns")
    return SentRequests(pl.DataFrame(rows, schema=list(columns), orient="row"))


def trial(
    policy: Policy,
    block: int,
    busy_ms: float,
    quiet_ms: float,
    holder: str | None = None,
    packets: SentRequests | None = None,
) -> TrialRecord:
    """A trial in which busy and quiet guests have such round-trip times."""
    wanted = AllocTrial(f"alloc:{policy}#r{block}", policy, 64, "icmp", PART, draw=block)
    cell = {"plane": "bridge", "background_guests": 4} | wanted.traffic()
    own = {stream.guest: busy_ms if stream.steady_pps > 20 else quiet_ms for stream in STREAMS}
    seen = DaemonObservation(
        status(0.0, holder),
        status(10.0, holder),
        DaemonMetrics(1.0, 9 << 20, {"decision": (0.0, 0.0), "sample": (1.0, 10.0)}),
        DaemonMetrics(1.1, 10 << 20, {"decision": (0.1, 10.0), "sample": (3.0, 20.0)}),
        [] if holder is None else [move("give", holder, -1.0, 0.5)],
        ClockOffset(BEGIN_MS * 1_000_000 - round(PART.warmup_s * 1e9), 0),
    )
    place = Place(wanted.name, cell, block, block)
    started = STARTED + timedelta(minutes=block)
    return record_of(wanted, place, started, STREAMS, packets or sent(own), seen)
