"""Texts of /proc as numbers (proc(5)). Pure: the caller reads the files, of whichever host."""

from __future__ import annotations

import re
from typing import NamedTuple

ALL = "cpu"
"""Key of all CPUs together in `cpu_ticks`."""


class CpuTicks(NamedTuple):
    """Clock ticks since boot. Guest time is part of `user` and `nice` already."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int
    irq: int
    softirq: int
    steal: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)

    @property
    def not_idle(self) -> int:
        """Those in which the CPU was not idle; waiting for disks is idle."""
        return self.total - self.idle - self.iowait


def cpu_ticks(stat: str) -> dict[str, CpuTicks]:
    """/proc/stat by CPU: `cpu` is all together, then `cpu0`, … A damaged line is left out."""
    by_cpu = {}
    for match in re.finditer(r"^(cpu\d*)[ ]+([0-9 ]+)$", stat, re.MULTILINE):
        ticks = [int(value) for value in match[2].split()]
        if len(ticks) >= 4:
            by_cpu[match[1]] = CpuTicks(*(ticks + [0] * 8)[:8])
    return by_cpu


def memory(meminfo: str) -> dict[str, int]:
    """/proc/meminfo: bytes where it says kB, else a number of pages."""
    fields = {}
    for match in re.finditer(r"^(\S+):\s*(\d+)( kB)?", meminfo, re.MULTILINE):
        fields[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    return fields


def count_cpus(cpuinfo: str) -> int:
    """Processors in /proc/cpuinfo."""
    return len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE))


def count_online(online: str, cpuinfo: str = "") -> int:
    """CPUs in a kernel list like `0-3,8`; else processors in /proc/cpuinfo."""
    count = 0
    for part in filter(None, online.strip().split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            count = 0
            break
        count += int(last or first) - int(first) + 1
    return count or count_cpus(cpuinfo)


def cpu_model(cpuinfo: str) -> str:
    """The first CPU's name in /proc/cpuinfo, whose label differs between architectures."""
    for label in ("model name", "Model", "cpu model", "Processor", "cpu", "uarch", "CPU part"):
        match = re.search(rf"^{label}\s*:\s*(\S.*)$", cpuinfo, re.MULTILINE)
        if match:
            return match[1].strip()
    return "unknown"


def mean_mhz(cpuinfo: str) -> float | None:
    """Mean of the clocks in /proc/cpuinfo [MHz]; None where it names none."""
    clocks = [float(value) for value in re.findall(r"^cpu MHz\s*:\s*([0-9.]+)", cpuinfo, re.M)]
    return round(sum(clocks) / len(clocks), 1) if clocks else None
