"""Status of a lab's hosts, from their processes, logs and sshds. Changes nothing."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from planewise.boot import process
from planewise.boot.process import ProcessInfo
from planewise.lab import initramfs
from planewise.lab.diagnose import HostDiagnosis, diagnose, last_lines
from planewise.lab.model import HOSTS, HostId, LabPaths, process_name
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
