"""Reads processes from /proc, ends them, and starts ones that die with this program."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessInfo:
    """A process; its start time distinguishes it from a later one with the same id."""

    pid: int
    argv: tuple[str, ...]
    start_ticks: int
    """Since boot, in clock ticks."""

    @property
    def started_at_s(self) -> float:
        """Start in seconds since the epoch."""
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() - now_s + self.start_ticks / os.sysconf("SC_CLK_TCK")

    def option(self, name: str) -> str | None:
        """The argument that follows `name`."""
        for key, value in zip(self.argv, self.argv[1:], strict=False):
            if key == name:
                return value
        return None


def processes(proc: Path = _PROC) -> tuple[ProcessInfo, ...]:
    """Every living process (no zombies)."""
    living = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            info = read_process(int(entry.name), proc)
            if info is not None:
                living.append(info)
    return tuple(living)


def read_process(pid: int, proc: Path = _PROC) -> ProcessInfo | None:
    """A living process by its id, or None."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
        argv = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything; the fields follow the last one.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX" or not argv:
        return None
    words = argv.rstrip(b"\0").split(b"\0")
    return ProcessInfo(pid, tuple(word.decode(errors="replace") for word in words), int(fields[19]))


def alive(info: ProcessInfo) -> bool:
    """Whether this process still lives."""
    current = read_process(info.pid)
    return current is not None and current.start_ticks == info.start_ticks


def shares_mounts(info: ProcessInfo, proc: Path = _PROC) -> bool:
    """Whether the process is in this program's mount namespace, and so has the same files."""
    try:
        return (proc / str(info.pid) / "ns/mnt").readlink() == (proc / "self/ns/mnt").readlink()
    except OSError:
        return False


def end(processes: Iterable[ProcessInfo], grace_s: float = 3.0) -> None:
    """Ends processes by SIGTERM, after `grace_s` by SIGKILL, and waits for their end.

    Raises:
        PermissionError: a process is another user's.
    """
    remaining = list(processes)
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
        for info in remaining:
            if alive(info):
                with suppress(ProcessLookupError):
                    os.kill(info.pid, number)
        deadline = time.monotonic() + patience_s
        while remaining := [info for info in remaining if alive(info)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)


def spawn_tied(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a process that is killed when this program ends, however it ends."""
    tie = shutil.which("setpriv")
    tied = [tie, "--pdeathsig", "KILL", "--", *argv] if tie else list(argv)
    return subprocess.Popen(
        tied,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
