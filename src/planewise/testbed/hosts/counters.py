"""Counters of an interface, from /proc/net/dev, which every namespace has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import CounterPoint

_FIELDS = (
    "rx_bytes",
    "rx_packets",
    "rx_errors",
    "rx_dropped",
    "rx_fifo",
    "rx_frame",
    "rx_compressed",
    "rx_multicast",
    "tx_bytes",
    "tx_packets",
    "tx_errors",
    "tx_dropped",
    "tx_fifo",
    "tx_collisions",
    "tx_carrier",
    "tx_compressed",
)
"""Columns of /proc/net/dev, in order (net/core/net-procfs.c of Linux)."""

DROPS = ("rx_dropped", "rx_errors", "rx_fifo", "rx_frame", "tx_dropped", "tx_errors", "tx_fifo")
"""The counters of lost frames."""


@dataclass(frozen=True)
class Reading:
    """All counters of one interface at one moment."""

    point: CounterPoint
    counters: Mapping[str, int]

    def since(self, earlier: Reading) -> Mapping[str, int]:
        """Increases since `earlier`, by counter.

        Raises:
            PlanewiseError: a counter went backwards: another interface has its name now.
        """
        differences = {
            name: value - earlier.counters[name] for name, value in self.counters.items()
        }
        if any(value < 0 for value in differences.values()):
            raise PlanewiseError(
                f"the counters of {self.point.interface} on {self.point.host} went backwards: "
                "it was removed and made again",
                remedy="leave the testbed alone while it measures",
            )
        return differences


def read(host: Host, point: CounterPoint) -> Reading:
    """Reads an interface's counters.

    Raises:
        PlanewiseError: the interface or its namespace vanished.
    """
    text = host.read_text("/proc/net/dev", netns=point.netns)
    counters = parse(text).get(point.interface)
    if counters is None:
        raise PlanewiseError(
            f"the interface {point.interface} on {point.host} vanished",
            remedy="another program removed it; start again",
        )
    return Reading(point, counters)


def parse(text: str) -> dict[str, dict[str, int]]:
    """Counters by interface from the text of /proc/net/dev. Pure."""
    counters = {}
    for line in text.splitlines():
        name, colon, columns = line.partition(":")
        values = columns.split()
        if colon and len(values) == len(_FIELDS) and all(value.isdigit() for value in values):
            counters[name.strip()] = dict(zip(_FIELDS, map(int, values), strict=True))
    return counters
