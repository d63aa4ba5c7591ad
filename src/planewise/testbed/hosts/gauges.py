"""Guests' throughput and CPUs' load, read periodically during a run.

Readings are counters at one moment; `throughput` and `busy` compare two of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from planewise import procfs
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.host import Host, LocalHost


@dataclass(frozen=True)
class Gauge:
    """The counters of a guest's sent frames."""

    guest: str
    host: str
    """The role of the host that it lives on."""
    netns: str
    """Empty: the host's own."""
    interface: str
    counts: Literal["tx", "rx"] = "tx"
    """Direction of the counters: `tx` in the guest, often `rx` at its port on the host."""


@dataclass(frozen=True)
class GaugeReading:
    """Counters at one moment."""

    at_s: float
    """Of the monotonic clock."""
    sent: Mapping[str, tuple[int, int]]
    """Packets and bytes (without FCS) by guest; a guest that could not be read is missing."""
    cpus: Mapping[str, tuple[int, int]]
    """Clock ticks that were not idle, and all of them, by CPU."""


class Gauges:
    """Reads gauges of this machine, or of other hosts where `hosts` are given."""

    def __init__(self, gauges: Sequence[Gauge], hosts: Mapping[str, Host] | None = None) -> None:
        self._gauges = tuple(gauges)
        self._here = LocalHost("gauges") if hosts is None else None
        self._hosts = hosts or {}

    def read(self) -> GaugeReading:
        """All counters now.

        Raises:
            PlanewiseError: a host does not answer.
        """
        if self._here is not None:
            sent, cpus = _read(self._here, self._gauges)
            return GaugeReading(time.monotonic(), sent, cpus)
        sent, cpus = {}, {}
        for role, host in self._hosts.items():
            sent_here, ticks = _read(host, [one for one in self._gauges if one.host == role])
            sent |= sent_here
            cpus |= {f"{role} {cpu}": counted for cpu, counted in ticks.items()}
        return GaugeReading(time.monotonic(), sent, cpus)

    def close(self) -> None:
        """Ends the thread that reads."""
        if self._here is not None:
            self._here.close()


def _read(
    host: Host, gauges: Sequence[Gauge]
) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """What guests have sent, and the ticks of the host's CPUs."""
    names = list(dict.fromkeys(gauge.netns for gauge in gauges))
    counted = counters.read_host(host, {}, names)
    sent = {}
    for gauge in gauges:
        values = counted.interfaces.get(gauge.netns, {}).get(gauge.interface)
        if values is not None:
            packets, size = f"{gauge.counts}_packets", f"{gauge.counts}_bytes"
            sent[gauge.guest] = (values[packets], values[size])
    return sent, cpu_ticks(counted.stat)


def cpu_ticks(stat: str) -> dict[str, tuple[int, int]]:
    """Ticks that were not idle, and all, by number of the CPU, from /proc/stat (proc(5)). Pure."""
    return {
        name.removeprefix("cpu"): (ticks.not_idle, ticks.total)
        for name, ticks in procfs.cpu_ticks(stat).items()
        if name != procfs.ALL
    }


def throughput(earlier: GaugeReading, later: GaugeReading) -> dict[str, tuple[float, float]]:
    """Packets and bits a second by guest, of those in both readings. Pure.

    A guest whose counters went backwards (it was made anew) is left out.
    """
    seconds = later.at_s - earlier.at_s
    rates = {}
    for guest, (packets, size) in later.sent.items():
        if guest not in earlier.sent or seconds <= 0:
            continue
        earlier_packets, earlier_size = earlier.sent[guest]
        if packets >= earlier_packets and size >= earlier_size:
            rates[guest] = (
                (packets - earlier_packets) / seconds,
                8 * (size - earlier_size) / seconds,
            )
    return rates


def busy(earlier: GaugeReading, later: GaugeReading) -> dict[str, float]:
    """Share of each CPU's time between two readings that was not idle. Pure."""
    shares = {}
    for cpu, (used, total) in later.cpus.items():
        earlier_used, earlier_total = earlier.cpus.get(cpu, (used, total))
        if total > earlier_total:
            share = (used - earlier_used) / (total - earlier_total)
            shares[cpu] = min(1.0, max(0.0, share))
    return shares
