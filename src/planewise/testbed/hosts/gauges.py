"""Guests' throughput and CPUs' load, read periodically during a run.

Readings are counters at one moment; `throughput` and `busy` compare two of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planewise import procfs
from planewise.errors import PlanewiseError
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.netns import NamespaceThread

_TIMEOUT_S = 20.0
_MARK = "== "

# One process a host and reading, and one more for each guest.
_LOOK = f"""
cat /proc/stat
for name; do
    echo "{_MARK}$name"
    if [ -n "$name" ]; then nsenter --net="/run/netns/$name" cat /proc/net/dev 2>/dev/null
    else cat /proc/net/dev; fi
done
"""


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
        self._hosts = hosts
        self._thread: NamespaceThread | None = None

    def read(self) -> GaugeReading:
        """All counters now.

        Raises:
            PlanewiseError: a host does not answer.
        """
        return self._read_local() if self._hosts is None else self._read_hosts(self._hosts)

    def close(self) -> None:
        """Ends the thread that reads."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _read_local(self) -> GaugeReading:
        if self._thread is None:
            self._thread = NamespaceThread("gauges")
        try:
            texts = {}
            for netns in dict.fromkeys(gauge.netns for gauge in self._gauges):
                try:
                    texts[netns] = self._thread.call(
                        netns or None, Path("/proc/thread-self/net/dev").read_text
                    )
                except (OSError, PlanewiseError):
                    continue  # gone, or not there yet
        finally:
            self._thread.call(None, int)  # leaves: a namespace with a thread inside does not end
        stat = Path("/proc/stat").read_text()
        return GaugeReading(time.monotonic(), _sent(self._gauges, texts), cpu_ticks(stat))

    def _read_hosts(self, hosts: Mapping[str, Host]) -> GaugeReading:
        sent: dict[str, tuple[int, int]] = {}
        cpus: dict[str, tuple[int, int]] = {}
        for role, host in hosts.items():
            gauges = [gauge for gauge in self._gauges if gauge.host == role]
            names = list(dict.fromkeys(gauge.netns for gauge in gauges))
            done = host.run(["sh", "-c", _LOOK, "sh", *names], timeout_s=_TIMEOUT_S)
            stat, *parts = f"\n{done.stdout}".split(f"\n{_MARK}")
            texts = dict(part.partition("\n")[::2] for part in parts)
            sent |= _sent(gauges, texts)
            cpus |= {f"{role} {cpu}": ticks for cpu, ticks in cpu_ticks(stat).items()}
        return GaugeReading(time.monotonic(), sent, cpus)


def _sent(gauges: Sequence[Gauge], texts: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    sent = {}
    for gauge in gauges:
        values = counters.parse(texts.get(gauge.netns, "")).get(gauge.interface)
        if values is not None:
            packets, size = f"{gauge.counts}_packets", f"{gauge.counts}_bytes"
            sent[gauge.guest] = (values[packets], values[size])
    return sent


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
