"""What a chain's counters say at one moment, and which CPU time its tasks have had. Knows no chain.

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
from planewise.testbed import counters
from planewise.testbed.host import Host, LocalHost

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sent:
    """What a function has transmitted, and what it was not given for want of room."""

    packets: int
    bytes: int
    """Without FCS."""
    dropped: int
    received: int | None = None
    """Packets that reached it, where only NICs are between it and who sent them."""
    at_s: float | None = None
    """When this was read, by the monotonic clock of who asked; None: at the reading's time."""


def sent_by(
    interface: Mapping[str, int], received: int | None = None, at_s: float | None = None
) -> Sent:
    """What a function has sent by its interface's counters (`counters.parse`). Pure."""
    return Sent(
        interface["tx_packets"], interface["tx_bytes"], interface["rx_dropped"], received, at_s
    )


@dataclass(frozen=True)
class CpuTime:
    """What a CPU has done since the machine started [s]."""

    total_s: float
    idle_s: float
    soft_s: float
    """In interrupts, hard and soft, as far as they are not done by ksoftirqd."""


@dataclass(frozen=True)
class PmdCycles:
    """CPU cycles of all threads of a switch that poll."""

    idle: int
    """Spent on polling in vain."""
    busy: int
    """Spent on packets."""


@dataclass(frozen=True)
class ChainReading:
    """A chain's counters; all of them only grow."""

    at_s: float
    """Monotonic clock."""
    vnfs: Mapping[str, Sent]
    offered: int
    """Packets that the generator handed over."""
    delivered: int
    """Packets that came back to it."""
    cpus: Mapping[int, CpuTime]
    """Of the functions' host."""
    tasks_s: Mapping[str, float] = field(default_factory=dict)
    """CPU time that each task that polls has got."""
    busy_s: Mapping[str, float] = field(default_factory=dict)
    """Time that a function's core spent on packets; without those that do not tell."""
    polling: PmdCycles | None = None
    """Of a switch that polls."""
    kernel_s: Mapping[int, float] | None = None
    """By CPU, time in which a kernel forwarded, where kernels do: the host's, or a guest's."""
    host: str = ""
    """The role of the functions' host; empty where the generator is on the same machine."""
    machines: bool = False
    """Whether it is guests' kernels that forward, in virtual machines."""
    uplink: tuple[int, int] | None = None
    """Frames that entered and left a switch that polls by its uplink, where it has one."""
    ends_at_s: float | None = None
    """When `offered` and `delivered` were read, by their own host's clock; None: at `at_s`."""


def now_s() -> float:
    """The clock of readings."""
    return time.monotonic()


def cpu_times(stat: str | None = None) -> dict[int, CpuTime]:
    """Of every CPU, from /proc/stat (proc(5)). Pure where `stat` is given."""
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
class Look:
    """What one host said."""

    at_s: float
    """By a clock of the host that only grows."""
    stat: str
    tasks_s: Mapping[int, float]
    """CPU time by process id."""
    interfaces: Mapping[str, Mapping[str, Mapping[str, int]]]
    """Counters by namespace and name."""


_MARK = "== "
# All counters of a host by one command: each costs an emulated host a tenth of a second.
_LOOK = f"""
cat /proc/uptime /proc/stat
for pid in $1; do echo "{_MARK}task $pid"; cat /proc/"$pid"/task/*/stat; done
shift
for name; do
    echo "{_MARK}$name"
    nsenter --net="/run/netns/$name" cat /proc/net/dev
done
"""
_LOOK_S = 180.0
"""An emulated host that is flooded answers late."""


def look(host: Host, tasks: Mapping[int, str], names: Sequence[str]) -> Look:
    """Reads a host's CPU times, those of `tasks` and the counters of the namespaces `names`.

    Args:
        host: is asked.
        tasks: by process id, how the names of the threads that count begin (empty: all do).
        names: of namespaces.

    Raises:
        PlanewiseError: the host does not answer, or something is not there.
    """
    if not isinstance(host, LocalHost):
        words = " ".join(map(str, tasks))
        done = host.run(["sh", "-c", _LOOK, "sh", words, *names], timeout_s=_LOOK_S)
        return parse_look(done.check().stdout, tasks)
    return Look(
        now_s(),
        Path("/proc/stat").read_text(),
        {pid: _task_s(pid, thread) for pid, thread in tasks.items()},
        {name: counters.parse(host.read_text("/proc/net/dev", netns=name)) for name in names},
    )


def parse_look(text: str, tasks: Mapping[int, str]) -> Look:
    """What a host prints of the threads of `tasks` and of namespaces. Pure."""
    first, *parts = text.split(f"\n{_MARK}")
    uptime, _, stat = first.partition("\n")
    spent: dict[int, float] = {}
    interfaces: dict[str, Mapping[str, Mapping[str, int]]] = {}
    for part in parts:
        name, _, content = part.partition("\n")
        if name.startswith("task "):
            pid = int(name.split()[1])
            spent[pid] = ticks_s(content, tasks[pid])
        else:
            interfaces[name] = counters.parse(content)
    return Look(float(uptime.split()[0]), stat, spent, interfaces)


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
    """By CPU, the process id of the kernel thread that forwards where interrupts alone do not get
    done.

    Raises:
        PlanewiseError: the host does not answer.
    """
    lines = host.run(["sh", "-c", _KSOFTIRQD], timeout_s=_LOOK_S).stdout.splitlines()
    return {int(cpu): int(pid) for cpu, pid in map(str.split, lines)}
