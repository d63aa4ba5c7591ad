"""Status of a lab's hosts, from their processes, logs and sshds. Changes nothing."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from planewise.boot import process
from planewise.boot.process import ProcessInfo
from planewise.errors import PlanewiseError, UnsupportedError
from planewise.lab import initramfs
from planewise.lab.initramfs import FAILED, READY
from planewise.lab.model import HOSTS, HostId, LabPaths, LabSpec, process_name
from planewise.lab.state import LabRecord

ANSWER_TIMEOUT_S = 10.0
"""Longest time until a running host's sshd answers."""


@dataclass(frozen=True)
class HostStatus:
    """Status of one host."""

    host: HostId
    finding: HostDiagnosis
    pid: int | None
    started_s: float | None
    """When its QEMU process started [seconds since the epoch]."""
    port: int
    answers: bool
    """Whether its sshd answers."""
    serial_log: Path
    last_lines: tuple[str, ...]


@dataclass(frozen=True)
class LabStatus:
    """Status of a lab."""

    record: LabRecord
    directory: Path
    hosts: tuple[HostStatus, ...]

    @property
    def state(self) -> str:
        """`running` when both hosts run, else the worse host's state."""
        states = [host.finding.state for host in self.hosts]
        return next(state for state in ("dead", "hung", "booting", "running") if state in states)


def read_lab(record: LabRecord, paths: LabPaths) -> LabStatus:
    """Reads the status of a lab and its hosts."""
    hosts = tuple(read_host(record, paths, host, ANSWER_TIMEOUT_S) for host in HOSTS)
    return LabStatus(record, paths.directory, hosts)


def read_host(record: LabRecord, paths: LabPaths, host: HostId, timeout_s: float) -> HostStatus:
    """Reads the status of one host, whose sshd must answer within `timeout_s`."""
    files, host_record = paths.host(host), record.hosts[host]
    qemu = next(
        (info for info in processes_of(record.name, paths) if is_host(info, record.name, host)),
        None,
    )
    log = _read_log(files.serial_log)
    booted = initramfs.READY in log
    answers = qemu is not None and booted and answers_ssh(host_record.port, timeout_s)
    finding = diagnose(
        alive=qemu is not None,
        answers=answers,
        log=log,
        age_s=time.time() - (qemu.started_at_s if qemu else record.created_s),
        boot_limit_s=record.boot_limit_s,
        was_ready=host_record.ready_s is not None,
    )
    return HostStatus(
        host=host,
        finding=finding,
        pid=qemu.pid if qemu else None,
        started_s=qemu.started_at_s if qemu else None,
        port=host_record.port,
        answers=answers,
        serial_log=files.serial_log,
        last_lines=last_lines(log),
    )


def answers_ssh(port: int, timeout_s: float) -> bool:
    """Whether an ssh server answers on this port of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as stream:
            stream.settimeout(timeout_s)
            return stream.recv(8).startswith(b"SSH-")
    except OSError:
        return False


def processes_of(name: str, paths: LabPaths) -> tuple[ProcessInfo, ...]:
    """The QEMU processes of a lab, by their name and pidfile."""
    return tuple(
        info
        for info in process.processes()
        for host in HOSTS
        if is_host(info, name, host) and info.option("-pidfile") == str(paths.host(host).pidfile)
    )


def is_host(info: ProcessInfo, name: str, host: HostId) -> bool:
    """Whether a process is the QEMU of a lab's host. Pure."""
    program = info.argv[0].rsplit("/", 1)[-1]
    return program.startswith("qemu-system-") and info.option("-name") == process_name(name, host)


def _read_log(log: Path) -> str:
    try:
        return log.read_bytes()[-(1 << 20) :].decode(errors="replace")
    except OSError:
        return ""


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
