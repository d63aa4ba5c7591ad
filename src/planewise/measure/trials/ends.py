"""The two ends of a trial whose programs run in the main guests. Knows no plane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from planewise.measure.runs.stage import TrialResult
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.gauges import Gauge
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import CounterPoint, Guest, HostRole


@dataclass(frozen=True)
class End:
    """One end of what a trial sends."""

    host: Host
    netns: str
    address: str
    interface: str


Counters = Callable[[], Mapping[str, tuple[int, int]]]
"""Packets and bytes that every function has transmitted until now, by name; of the sender where
there is none."""


def ends_of(
    hosts: Mapping[HostRole, Host], mains: Mapping[HostRole, Guest]
) -> Mapping[HostRole, End]:
    """The main guests as ends. Pure."""
    return {
        role: End(hosts[role], guest.netns, guest.ipv4, guest.interface)
        for role, guest in mains.items()
    }


def sent_through(host: Host, gauge: Gauge) -> Counters:
    """What the guest of a gauge has sent until now, read on `host`."""
    point = CounterPoint(gauge.host, gauge.netns, gauge.interface)

    def read() -> Mapping[str, tuple[int, int]]:
        values = counters.read(host, point).counters
        return {"": (values[f"{gauge.counts}_packets"], values[f"{gauge.counts}_bytes"])}

    return read


@runtime_checkable
class PairStation(Protocol):
    """A station with a main guest at each end, in which trials may start programs of their own."""

    def ends(self) -> Mapping[HostRole, End]:
        """The main guests."""

    def sent(self) -> Counters | None:
        """Reads what the sender's guest sends; None where nothing outside of it counts that."""

    def beside_load(self, measure: Callable[[], TrialResult]) -> TrialResult:
        """Runs a measurement of these guests beside the background load of the station.

        Raises:
            PlanewiseError: what `measure` raises, or that a guest ended.
        """
