"""A chain's counters and its tasks' CPU times at one moment.

Two readings make a rate; nothing here computes one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from planewise import procfs
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.host import Host, LocalHost
from planewise.testbed.switches.dpdk_switch import PmdCycles

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class VnfCounters:
    """Counters of a network function."""

    packets: int
    bytes: int
    """Without FCS."""
    dropped: int
    """Packets for it that found its ring or queue full."""
    received: int | None = None
    """Packets that reached it, where only NICs are between it and their sender."""
    at_s: float | None = None
    """When this was read, by planewise's own monotonic clock; None: at the reading's time."""


def vnf_counters(
    interface: Mapping[str, int], received: int | None = None, at_s: float | None = None
) -> VnfCounters:
    """A function's counters from its interface's (`counters.parse`). Pure."""
    return VnfCounters(
        interface["tx_packets"], interface["tx_bytes"], interface["rx_dropped"], received, at_s
    )


@dataclass(frozen=True)
class CpuTime:
    """Times of a CPU since boot [s]."""

    total_s: float
    idle_s: float
    soft_s: float
    """In hard and soft interrupts, without those handled by ksoftirqd."""


@dataclass(frozen=True)
class ChainReading:
    """A chain's counters, none of which decreases."""

    at_s: float
    """Monotonic clock."""
    vnfs: Mapping[str, VnfCounters]
    offered: int
    """Packets that the generator sent."""
    delivered: int
    """Packets that came back to it."""
    cpus: Mapping[int, CpuTime]
    """Of the functions' host."""
    tasks_s: Mapping[str, float] = field(default_factory=dict)
    """CPU time of each polling task."""
    busy_s: Mapping[str, float] = field(default_factory=dict)
    """Time that a function's core spent on packets, where it is known."""
    polling: PmdCycles | None = None
    """Of a switch that polls."""
    kernel_s: Mapping[int, float] | None = None
    """By CPU, time in which a kernel forwarded, where kernels do: the host's, or a guest's."""
    host: str = ""
    """The role of the functions' host; empty where the generator is on the same machine."""
    machines: bool = False
    """Whether the functions are virtual machines."""
    uplink: tuple[int, int] | None = None
    """Frames in and out by a DPDK switch's uplink, where it has one."""
    ends_at_s: float | None = None
    """When `offered` and `delivered` were read, by their own host's clock; None: at `at_s`."""


def now_s() -> float:
    """The monotonic clock that readings are stamped by [s]."""
    return time.monotonic()


def cpu_times(stat: str | None = None) -> dict[int, CpuTime]:
    """Times of every CPU, from /proc/stat (proc(5)). Pure where `stat` is given."""
    text = Path("/proc/stat").read_text() if stat is None else stat
    return {
        int(name.removeprefix("cpu")): CpuTime(
            total_s=ticks.total / _TICKS_A_SECOND,
            idle_s=(ticks.idle + ticks.iowait) / _TICKS_A_SECOND,
            soft_s=(ticks.irq + ticks.softirq) / _TICKS_A_SECOND,
        )
        for name, ticks in procfs.cpu_ticks(text).items()
        if name != procfs.ALL
    }


@dataclass(frozen=True)
class HostCounters:
    """Counters of a host at one moment."""

    at_s: float
    """By the host's monotonic clock."""
    stat: str
    tasks_s: Mapping[int, float]
    """CPU time by process id."""
    interfaces: Mapping[str, Mapping[str, Mapping[str, int]]]
    """Counters by namespace and name."""


_MARK = "== "
# One command for all counters: each command costs an emulated host a tenth of a second.
_READ_HOST = f"""
cat /proc/uptime /proc/stat
for pid in $1; do echo "{_MARK}task $pid"; cat /proc/"$pid"/task/*/stat; done
shift
for name; do
    echo "{_MARK}$name"
    nsenter --net="/run/netns/$name" cat /proc/net/dev
done
"""
_READ_HOST_S = 180.0
"""A flooded emulated host answers late."""


def read_host(host: Host, tasks: Mapping[int, str], names: Sequence[str]) -> HostCounters:
    """Reads a host's CPU times, those of `tasks` and the counters of the namespaces `names`.

    Args:
        host: whose counters.
        tasks: by process id, the prefix of its threads' names that count (empty: all do).
        names: of namespaces.

    Raises:
        PlanewiseError: the host does not answer, or a task or namespace is gone.
    """
    if not isinstance(host, LocalHost):
        words = " ".join(map(str, tasks))
        done = host.run(["sh", "-c", _READ_HOST, "sh", words, *names], timeout_s=_READ_HOST_S)
        return parse_host_counters(done.check().stdout, tasks)
    return HostCounters(
        now_s(),
        Path("/proc/stat").read_text(),
        {pid: _task_s(pid, thread) for pid, thread in tasks.items()},
        {name: counters.parse(host.read_text("/proc/net/dev", netns=name)) for name in names},
    )


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
            interfaces[name] = counters.parse(content)
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
    return ticks / _TICKS_A_SECOND


_KSOFTIRQD = (
    "for one in /proc/[0-9]*; do read -r name <$one/comm && case $name in ksoftirqd/*) "
    'echo "${name#*/} ${one#/proc/}";; esac; done 2>/dev/null; true'
)


def ksoftirqd(host: Host) -> dict[int, int]:
    """By CPU, the PID of ksoftirqd, which forwards what soft interrupts leave undone.

    Raises:
        PlanewiseError: the host does not answer.
    """
    lines = host.run(["sh", "-c", _KSOFTIRQD], timeout_s=_READ_HOST_S).stdout.splitlines()
    return {int(cpu): int(pid) for cpu, pid in map(str.split, lines)}
