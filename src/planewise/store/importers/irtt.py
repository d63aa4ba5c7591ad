"""irtt's JSON (`-o`): the round-trip time of every packet, and the share lost.

Followed: heistp/irtt, result.go and doc/irtt-client.md: times are in nanoseconds; `lost` is a
boolean in old versions, later `"false"`, `"true"`, `"true_up"`, `"true_down"`.
"""

from __future__ import annotations

from pathlib import Path

from planewise.store.importers.fields import Fields, LooseNumber, at, check, entries
from planewise.store.importers.text import values
from planewise.store.readings import Collected, Readings

NAME = "irtt"


class _Result(Fields):
    round_trips: object = None
    lost_percent: LooseNumber = at("stats", "packet_loss_percent", default=None)
    median_ns: LooseNumber = at("stats", "rtt", "median", default=None)


class _Trip(Fields):
    lost: object = None
    rtt_ns: LooseNumber = at("delay", "rtt", default=None)


def recognise(head: bytes, path: Path) -> float:
    """irtt's version, or round trips."""
    named = b'"irtt"' in head and b'"json_format"' in head
    return 0.95 if named or (b'"round_trips"' in head and b'"seqno"' in head) else 0.0


def parse(text: str, path: Path) -> list[Readings]:
    """RTT by packet, and loss."""
    found = Collected(path, NAME)
    for _, value in values(text, path):
        result = check(_Result, value, "the file's content", str(path))
        trips = [
            check(_Trip, trip, "a round trip", str(path)) for trip in entries(result.round_trips)
        ]
        rtts_ns = [
            trip.rtt_ns
            for trip in trips
            if trip.rtt_ns is not None and trip.lost in (False, "false", None)
        ]
        found.add("RTT", "ns", "packet", rtts_ns)
        if not trips and result.median_ns is not None:
            found.add("RTT, median", "ns", "run", [result.median_ns])
        if result.lost_percent is not None:
            found.add("loss", "share", "run", [result.lost_percent / 100])
    return found.finish("irtt received no answer in this run")
