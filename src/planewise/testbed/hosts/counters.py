"""Counters of interfaces, from /proc/net/dev, which every namespace has, and of a host's CPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.host import Host, LocalHost
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
        raise _vanished(point.interface, point.host)
    return Reading(point, counters)


def _vanished(interface: str, place: str) -> PlanewiseError:
    return PlanewiseError(
        f"the interface {interface} on {place} vanished",
        remedy="another program removed it; start again",
    )


def parse(text: str) -> dict[str, dict[str, int]]:
    """Counters by interface from the text of /proc/net/dev. Pure."""
    counters = {}
    for line in text.splitlines():
        name, colon, columns = line.partition(":")
        values = columns.split()
        if colon and len(values) == len(_FIELDS) and all(value.isdigit() for value in values):
            counters[name.strip()] = dict(zip(_FIELDS, map(int, values), strict=True))
    return counters


@dataclass(frozen=True)
class HostCounters:
    """Counters of a host at one moment."""

    at_s: float
    """By the host's monotonic clock."""
    stat: str
    tasks_s: Mapping[int, float]
    """CPU time by process id."""
    interfaces: Mapping[str, Mapping[str, Mapping[str, int]]]
    """Counters by namespace (empty: the host's own) and name."""

    def of(self, netns: str, interface: str) -> Mapping[str, int]:
        """Counters of one interface.

        Raises:
            PlanewiseError: it vanished.
        """
        if interface in (inside := self.interfaces.get(netns, {})):
            return inside[interface]
        raise _vanished(interface, netns)


TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_MARK = "== "
# One command for all counters: each command costs an emulated host a tenth of a second.
_READ_HOST = f"""
cat /proc/uptime /proc/stat
for pid in $1; do echo "{_MARK}task $pid"; cat /proc/"$pid"/task/*/stat; done
shift
for name; do
    echo "{_MARK}$name"
    if [ -z "$name" ]; then cat /proc/net/dev
    else nsenter --net="/run/netns/$name" cat /proc/net/dev 2>/dev/null; fi
done
true
"""
READ_HOST_S = 180.0
"""A flooded emulated host answers late."""


def read_host(host: Host, tasks: Mapping[int, str], names: Sequence[str]) -> HostCounters:
    """Reads a host's CPU times, those of `tasks` and the counters of the namespaces `names`.

    A namespace that is gone has no interfaces.

    Args:
        host: whose counters.
        tasks: by process id, the prefix of its threads' names that count (empty: all do).
        names: of namespaces; empty: the host's own.

    Raises:
        PlanewiseError: the host does not answer.
    """
    if not isinstance(host, LocalHost):
        words = " ".join(map(str, tasks))
        done = host.run(["sh", "-c", _READ_HOST, "sh", words, *names], timeout_s=READ_HOST_S)
        return parse_host_counters(done.check().stdout, tasks)
    at_s, interfaces = time.monotonic(), {}
    for name in names:
        with suppress(PlanewiseError):
            interfaces[name] = parse(host.read_text("/proc/net/dev", netns=name or None))
    # Read last: a namespace with a thread of ours inside would not end.
    stat = host.read_text("/proc/stat")
    tasks_s = {pid: _task_s(pid, thread) for pid, thread in tasks.items()}
    return HostCounters(at_s, stat, tasks_s, interfaces)


def parse_host_counters(text: str, tasks: Mapping[int, str]) -> HostCounters:
    """Parses a remote host's answer to `read_host`. Pure."""
    head, *parts = text.split(f"\n{_MARK}")
    uptime, _, stat = head.partition("\n")
    tasks_s: dict[int, float] = {}
    interfaces: dict[str, Mapping[str, Mapping[str, int]]] = {}
    for part in parts:
        name, _, content = part.partition("\n")
        if name.startswith("task "):
            pid = int(name.split()[1])
            tasks_s[pid] = ticks_s(content, tasks[pid])
        else:
            interfaces[name] = parse(content)
    return HostCounters(float(uptime.split()[0]), stat, tasks_s, interfaces)


def _task_s(pid: int, thread: str) -> float:
    """CPU time [s] of a process, or of its threads whose name begins with `thread`."""
    lines = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                lines.append((task / "stat").read_text())
    return ticks_s("".join(lines), thread)


def ticks_s(stat: str, thread: str = "") -> float:
    """CPU time [s] of threads whose name begins with `thread`, by their lines of
    /proc/PID/task/TID/stat (proc(5)). Pure."""
    ticks = 0
    for line in stat.splitlines():
        fields = line.rpartition(")")[2].split()
        if len(fields) > 12 and line.partition("(")[2].startswith(thread):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_A_SECOND
