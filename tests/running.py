"""Other processes: whether they run, what a run has written down, and waiting for either."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from planewise.testbed.hosts import netns
from planewise.testbed.hosts.ledger import STATE, token_of


def until(
    condition: Callable[[], object],
    limit_s: float = 300.0,
    process: subprocess.Popen[Any] | None = None,
    why: str = "what was waited for never came",
) -> None:
    """Waits for a condition while `process` goes on. An overloaded machine is no failure."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def trials_in(out: Path) -> int:
    """How many trials a run has written down."""
    file = out / "trials.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody asked about its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """The processes that a process's threads started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text().split()]


def argv_of(pid: int) -> list[str]:
    """A process's command line; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return [""]


def tokens_of(pid: int, what: str = "") -> list[str]:
    """The tokens under which a process works, by what it wrote down; they may outlive it."""
    found = []
    for file in STATE.glob("*.json"):
        with suppress(OSError, ValueError):  # it goes with its run
            said = json.loads(file.read_text())
            if said["pid"] == pid and said["what"].startswith(what):
                found.append(file.stem)
    return found


def with_token(*tokens: str | None) -> list[str]:
    """The namespaces that carry one of these tokens."""
    return [name for name in netns.names() if token_of(name) in tokens]
