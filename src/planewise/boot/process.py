"""Processes as /proc shows them, and a way to start one that dies with us."""

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
class Seen:
    """A process, told apart from a later one with the same id by its start time."""

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


def processes(proc: Path = _PROC) -> tuple[Seen, ...]:
    """Every process that lives (zombies do not)."""
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            seen = look(int(entry.name), proc)
            if seen is not None:
                found.append(seen)
    return tuple(found)


def look(pid: int, proc: Path = _PROC) -> Seen | None:
    """One process, or None where there is none that lives."""
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
    return Seen(pid, tuple(word.decode(errors="replace") for word in words), int(fields[19]))


def alive(seen: Seen) -> bool:
    """Whether this very process still lives."""
    now = look(seen.pid)
    return now is not None and now.start_ticks == seen.start_ticks


def shares_mounts(seen: Seen, proc: Path = _PROC) -> bool:
    """Whether it sees this program's files. To others a directory that they have may seem gone."""
    try:
        return (proc / str(seen.pid) / "ns/mnt").readlink() == (proc / "self/ns/mnt").readlink()
    except OSError:
        return False


def end(wanted: Iterable[Seen], grace_s: float = 3.0) -> None:
    """Asks the processes to end, kills them after a grace, and waits until they are gone.

    Raises:
        PermissionError: one of them is another user's.
    """
    left = list(wanted)
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
        for seen in left:
            if alive(seen):
                with suppress(ProcessLookupError):
                    os.kill(seen.pid, number)
        deadline = time.monotonic() + patience_s
        while left := [seen for seen in left if alive(seen)]:
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
