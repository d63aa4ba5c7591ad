"""irtt's JSON (`-o`): the round-trip time of every packet, and the share lost.

Followed: heistp/irtt, result.go and doc/irtt-client.md: times are in nanoseconds; `lost` is a
boolean in old versions, later `"false"`, `"true"`, `"true_up"`, `"true_down"`.
"""

from __future__ import annotations

from pathlib import Path

from planewise.store.importers.fields import Fields
from planewise.store.importers.text import values
from planewise.store.readings import Collected, Readings

NAME = "irtt"
MARKS = ((0.95, '"irtt"', '"json_format"'), (0.95, '"round_trips"', '"seqno"'))


def parse(text: str, path: Path) -> list[Readings]:
    """RTT by packet, and loss."""
    found = Collected(path, NAME)
    for _, value in values(text, path):
        result = Fields(value, "the file's content", str(path))
        trips = result.each("round_trips")
        answered = [trip for trip in trips if trip.get("lost") in (False, "false", None)]
        rtts_ns = [trip.loose("delay.rtt") for trip in answered]
        found.add("RTT", "ns", "packet", [rtt_ns for rtt_ns in rtts_ns if rtt_ns is not None])
        median_ns = result.loose("stats.rtt.median")
        if not trips and median_ns is not None:
            found.add("RTT, median", "ns", "run", [median_ns])
        if (lost := result.loose("stats.packet_loss_percent")) is not None:
            found.add("loss", "share", "run", [lost / 100])
    return found.finish("irtt received no answer in this run")
