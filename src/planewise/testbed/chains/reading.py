"""A chain's counters and its tasks' CPU times at one moment.

Two readings make a rate; nothing here computes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planewise import procfs
from planewise.testbed.hosts.counters import READ_HOST_S, TICKS_A_SECOND
from planewise.testbed.hosts.host import Host
from planewise.testbed.switches.dpdk_switch import PmdCycles


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
    cpus: Mapping[int, CpuTime]
    """Of the functions' host."""
    offered: int = 0
    """Packets that the generator sent."""
    delivered: int = 0
    """Packets that came back to it."""
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


def cpu_times(stat: str | None = None) -> dict[int, CpuTime]:
    """Times of every CPU, from /proc/stat (proc(5)). Pure where `stat` is given."""
    text = Path("/proc/stat").read_text() if stat is None else stat
    return {
        int(name.removeprefix("cpu")): CpuTime(
            total_s=ticks.total / TICKS_A_SECOND,
            idle_s=(ticks.idle + ticks.iowait) / TICKS_A_SECOND,
            soft_s=(ticks.irq + ticks.softirq) / TICKS_A_SECOND,
        )
        for name, ticks in procfs.cpu_ticks(text).items()
        if name != procfs.ALL
    }


_KSOFTIRQD = (
    "for one in /proc/[0-9]*; do read -r name <$one/comm && case $name in ksoftirqd/*) "
    'echo "${name#*/} ${one#/proc/}";; esac; done 2>/dev/null; true'
)


def ksoftirqd(host: Host) -> dict[int, int]:
    """By CPU, the PID of ksoftirqd, which forwards what soft interrupts leave undone.

    Raises:
        PlanewiseError: the host does not answer.
    """
    lines = host.run(["sh", "-c", _KSOFTIRQD], timeout_s=READ_HOST_S).stdout.splitlines()
    return {int(cpu): int(pid) for cpu, pid in map(str.split, lines)}
