"""Tells from a host's serial log and sshd whether it is booting, running, hung or dead. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.lab.initramfs import FAILED, READY
from planewise.lab.model import LabSpec

State = Literal["booting", "running", "hung", "dead"]

LAST_LINES = 8
"""Lines of a log in an error."""

_PANIC = re.compile(r"Kernel panic - not syncing: (?P<why>.*)")
_STALLS = (
    re.compile(r"watchdog: BUG: soft lockup.*"),
    re.compile(r"rcu: INFO: \S+ (?:self-)?detected (?:expedited )?stalls?.*"),
    re.compile(r"INFO: task \S+ blocked for more than \d+ seconds.*"),
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc|[^\x20-\x7e\n]")


@dataclass(frozen=True)
class HostDiagnosis:
    """A host's state; of a hung or dead host, the reason."""

    state: State
    reason: str = ""


def clean_log(log: str) -> str:
    """A serial log without control characters and the firmware's screen drawing."""
    return _CONTROL.sub("", log.replace("\r", ""))


def last_lines(log: str, count: int = LAST_LINES) -> tuple[str, ...]:
    """The last lines that are not empty."""
    return tuple([line for line in clean_log(log).splitlines() if line.strip()][-count:])


def cause_of_death(log: str) -> str | None:
    """The panic or failed step that a log names, or None."""
    text = clean_log(log)
    panic = _PANIC.search(text)
    if panic:
        return f"kernel panic: {panic['why'].strip()}"
    for line in text.splitlines():
        if line.startswith(FAILED):
            return line.removeprefix(FAILED).strip()
    return None


def stall(log: str) -> str | None:
    """The kernel's last message on a stuck CPU or task, or None."""
    lines = clean_log(log).splitlines()
    for line in reversed(lines):
        for pattern in _STALLS:
            match = pattern.search(line)
            if match:
                return match[0].strip()
    return None


def diagnose(
    *, alive: bool, answers: bool, log: str, age_s: float, boot_limit_s: float, was_ready: bool
) -> HostDiagnosis:
    """A host's state.

    Args:
        alive: its QEMU process lives.
        answers: its sshd answers.
        log: its serial log.
        age_s: time since its QEMU process started.
        boot_limit_s: longest time of a boot.
        was_ready: its sshd answered before.
    """
    death = cause_of_death(log)
    if not alive:
        return HostDiagnosis("dead", death or "its QEMU process is gone")
    if death:
        return HostDiagnosis("dead", death)
    if answers:
        return HostDiagnosis("running")
    stuck = stall(log)
    if was_ready:
        return HostDiagnosis("hung", stuck or "its sshd does not answer any more")
    if age_s <= boot_limit_s:
        return HostDiagnosis("booting")
    how_far = "its sshd never answered" if READY in log else "its boot did not end"
    return HostDiagnosis("hung", stuck or f"{how_far} within {boot_limit_s:.0f} s")


def refusal(output: str, spec: LabSpec, port: int) -> PlanewiseError:
    """QEMU's error output as an error. Pure."""
    line = output.splitlines()[-1].removeprefix("qemu-system-x86_64: ")
    if "host forwarding rule" in output:
        return PlanewiseError(
            f"port {port} of 127.0.0.1 was taken before QEMU could use it",
            remedy="run it again",
        )
    if "memory" in output:
        return UnsupportedError(
            f"QEMU does not get {spec.memory_mib} MiB of memory: {line}",
            remedy="ask for less with --memory",
        )
    return PlanewiseError(
        f"QEMU does not start: {line}",
        remedy="`planewise lab up --dry-run` prints its command line",
    )
