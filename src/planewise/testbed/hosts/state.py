"""The state of a host around a trial, and what its NICs can do.

Pure functions parse the texts of /proc and /sys; `LocalWatch` reads them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from planewise import procfs
from planewise.store.models import HostState

_CPU = "sys/devices/system/cpu"


@dataclass(frozen=True)
class CpuUse:
    """Clock ticks since boot of all CPUs together, from /proc/stat (proc(5))."""

    processes: int
    """In processes: user (guests among it), nice and system."""
    steal: int
    total: int
    own_ticks: int
    """In Planewise's own processes, as /proc/PID/stat has them."""


def cpu_use(stat: str, own_ticks: int) -> CpuUse | None:
    """Reads /proc/stat; None when it has no line for all CPUs. Pure."""
    ticks = procfs.cpu_ticks(stat).get(procfs.ALL)
    if ticks is None:
        return None
    return CpuUse(ticks.user + ticks.nice + ticks.system, ticks.steal, ticks.total, own_ticks)


def shares(before: CpuUse, after: CpuUse) -> tuple[float | None, float | None]:
    """Steal and foreign CPU as shares of all CPUs' time; None when no time has passed. Pure."""
    total = after.total - before.total
    if total <= 0:
        return None, None
    foreign = after.processes - before.processes - (after.own_ticks - before.own_ticks)
    return _share(after.steal - before.steal, total), _share(foreign, total)


def _share(ticks: int, total: int) -> float:
    return round(min(1.0, max(0.0, ticks / total)), 4)


def process_ticks(stat: str) -> int:
    """CPU time of a process and of its children that were waited for, from /proc/PID/stat. Pure."""
    # The name, in brackets, may hold anything.
    fields = stat.rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15])


def offloads_of(interface: str) -> str:
    """An interface's enabled offloads, by ethtool; `unknown` where it cannot be asked."""
    words = ["ethtool", "-k", interface]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    enabled = re.findall(r"^\t?([\w-]+): on", done.stdout, re.M)
    kinds = ("checksum", "segmentation", "receive-offload", "gro", "receive-hashing")
    return " ".join(sorted(name for name in enabled if any(kind in name for kind in kinds)))


def nic_offloads() -> dict[str, str]:
    """Enabled offloads of each NIC of this machine that can be asked."""
    # Interfaces of software have no device.
    nics = sorted(path.parent.name for path in Path("/sys/class/net").glob("*/device"))
    offloads_by_nic = {name: offloads_of(name) for name in nics}
    return {name: offloads for name, offloads in offloads_by_nic.items() if offloads != "unknown"}


@dataclass
class LocalWatch:
    """Reads the state of this machine before and after a trial."""

    root: Path = Path("/")
    offloads: Callable[[], Mapping[str, str]] = dict
    """Enabled offloads of each NIC."""
    _before: CpuUse | None = field(default=None, init=False)
    _throttled: int | None = field(default=None, init=False)

    def start(self) -> None:
        """To be called right before the trial."""
        self._throttled = self._throttle_count()
        self._before = self._use()

    def stop(self) -> dict[str, HostState]:
        """To be called right after the trial; returns the state, by role."""
        steal = foreign = throttled = None
        after = self._use()
        if self._before is not None and after is not None:
            steal, foreign = shares(self._before, after)
        count = self._throttle_count()
        if count is not None and self._throttled is not None:
            throttled = max(0, count - self._throttled)
        return {
            "shared": HostState(
                governor=self._governor(),
                cpu_mhz=self._mhz(),
                temperature_c=self._temperature(),
                throttled=throttled,
                steal=steal,
                foreign_cpu=foreign,
                offloads=dict(self.offloads()),
            )
        }

    def _use(self) -> CpuUse | None:
        own_ticks = sum(self._ticks(pid) for pid in self._own_pids())
        return cpu_use(self._read("proc/stat"), own_ticks)

    def _own_pids(self) -> set[int]:
        """Ids of this process and its descendants."""
        pids: set[int] = set()
        waiting = [os.getpid()]
        while waiting:
            pid = waiting.pop()
            if pid in pids:
                continue
            pids.add(pid)
            tasks = self.root / f"proc/{pid}/task"
            with suppress(OSError):
                for task in os.listdir(tasks):  # noqa: PTH208 - names only, and many
                    with suppress(OSError):
                        waiting += map(int, (tasks / task / "children").read_text().split())
        return pids

    def _ticks(self, pid: int) -> int:
        with suppress(ValueError):
            return process_ticks(self._read(f"proc/{pid}/stat"))
        return 0

    def _governor(self) -> str:
        paths = (self.root / _CPU).glob("cpu[0-9]*/cpufreq/scaling_governor")
        return " ".join(sorted({self._text(path) for path in paths} - {""})) or "none"

    def _mhz(self) -> float | None:
        khz = self._numbers(f"{_CPU}/cpu[0-9]*/cpufreq/scaling_cur_freq")
        if khz:
            return round(sum(khz) / len(khz) / 1000, 1)
        return procfs.mean_mhz(self._read("proc/cpuinfo"))

    def _temperature(self) -> float | None:
        zones = self._numbers("sys/class/thermal/thermal_zone*/temp")
        return max(zones) / 1000 if zones else None

    def _throttle_count(self) -> int | None:
        counts = self._numbers(f"{_CPU}/cpu[0-9]*/thermal_throttle/core_throttle_count")
        return sum(counts) if counts else None

    def _numbers(self, pattern: str) -> list[int]:
        """The numbers in all files of a pattern; a file with none is left out."""
        numbers = []
        for path in self.root.glob(pattern):
            with suppress(ValueError):
                numbers.append(int(self._text(path)))
        return numbers

    def _read(self, name: str) -> str:
        return self._text(self.root / name)

    @staticmethod
    def _text(path: Path) -> str:
        try:
            return path.read_text().strip()
        except OSError:
            return ""
