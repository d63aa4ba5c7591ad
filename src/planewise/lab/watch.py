"""How a lab's hosts fare, seen from their processes, logs and sshds. Changes nothing."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from planewise.boot import process
from planewise.boot.process import Seen
from planewise.lab import initramfs
from planewise.lab.diagnose import HostDiagnosis, diagnose, last_lines
from planewise.lab.model import HOSTS, HostId, LabPaths, process_name
from planewise.lab.state import LabRecord

ANSWER_TIMEOUT_S = 10.0
"""How long a running host's sshd may take to greet."""


@dataclass(frozen=True)
class HostStatus:
    """How one host fares."""

    host: HostId
    finding: HostDiagnosis
    pid: int | None
    started_s: float | None
    """When its QEMU process started [seconds since the epoch]."""
    port: int
    answers: bool
    """Whether its sshd greets."""
    serial_log: Path
    last_lines: tuple[str, ...]


@dataclass(frozen=True)
class LabStatus:
    """How a lab fares."""

    record: LabRecord
    directory: Path
    hosts: tuple[HostStatus, ...]

    @property
    def state(self) -> str:
        """`running` when both hosts run, else the worse host's state."""
        states = [host.finding.state for host in self.hosts]
        return next(one for one in ("dead", "hung", "booting", "running") if one in states)


def look(record: LabRecord, where: LabPaths) -> LabStatus:
    """How a lab and its hosts fare now."""
    hosts = tuple(look_at(record, where, host, ANSWER_TIMEOUT_S) for host in HOSTS)
    return LabStatus(record, where.directory, hosts)


def look_at(record: LabRecord, where: LabPaths, host: HostId, timeout_s: float) -> HostStatus:
    """How one host fares; its sshd has `timeout_s` to greet."""
    own, known = where.host(host), record.hosts[host]
    seen = next(
        (one for one in processes_of(record.name, where) if is_host(one, record.name, host)), None
    )
    log = _read_log(own.serial_log)
    booted = initramfs.READY in log
    answers = seen is not None and booted and answers_ssh(known.port, timeout_s)
    finding = diagnose(
        alive=seen is not None,
        answers=answers,
        log=log,
        age_s=time.time() - (seen.started_at_s if seen else record.created_s),
        boot_limit_s=record.boot_limit_s,
        was_ready=known.ready_s is not None,
    )
    return HostStatus(
        host=host,
        finding=finding,
        pid=seen.pid if seen else None,
        started_s=seen.started_at_s if seen else None,
        port=known.port,
        answers=answers,
        serial_log=own.serial_log,
        last_lines=last_lines(log),
    )


def answers_ssh(port: int, timeout_s: float) -> bool:
    """Whether an ssh server greets on this port of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as stream:
            stream.settimeout(timeout_s)
            return stream.recv(8).startswith(b"SSH-")
    except OSError:
        return False


def processes_of(name: str, where: LabPaths) -> tuple[Seen, ...]:
    """The QEMU processes of a lab: by name and by the file that they were told to write."""
    return tuple(
        seen
        for seen in process.processes()
        for host in HOSTS
        if is_host(seen, name, host) and seen.option("-pidfile") == str(where.host(host).pidfile)
    )


def is_host(seen: Seen, name: str, host: HostId) -> bool:
    """Whether a process is the QEMU of a lab's host. Pure."""
    program = seen.argv[0].rsplit("/", 1)[-1]
    return program.startswith("qemu-system-") and seen.option("-name") == process_name(name, host)


def _read_log(log: Path) -> str:
    try:
        return log.read_bytes()[-(1 << 20) :].decode(errors="replace")
    except OSError:
        return ""
