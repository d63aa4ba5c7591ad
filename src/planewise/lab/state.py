"""The records, directories and locks of labs. Starts and ends nothing.

A lab's directory holds its record, key, sockets and logs. A program that uses the lab holds a
shared lock on the directory, one that starts or ends it an exclusive one. The kernel drops a
program's lock at its end, however it ends: a lab without a lock has no user.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.lab.model import HostId, LabPaths, LabSpec

_MAX_SOCKET_PATH = 100
"""A Unix socket's path has 107 bytes at most."""


class HostRecord(BaseModel):
    """One host of a lab."""

    model_config = ConfigDict(frozen=True)

    port: int
    """On 127.0.0.1; leads to its sshd."""
    host_key: str
    """Its public key, as in known_hosts."""
    ready_s: float | None = None
    """When it first answered [seconds since the epoch]."""


class LabRecord(BaseModel):
    """lab.json: the record of a lab that is up, for later commands."""

    model_config = ConfigDict(frozen=True)

    format: int = 1
    name: str
    pfs: int
    memory_mib: int
    cpus: int
    root: str = "/"
    accelerator: str
    accelerator_reason: str
    kernel: str
    qemu: str
    created_s: float
    boot_limit_s: float
    hosts: dict[HostId, HostRecord]

    @property
    def spec(self) -> LabSpec:
        """The parameters of the lab."""
        return LabSpec(self.name, self.pfs, self.memory_mib, self.cpus, self.root)


def state_root() -> Path:
    """The parent of labs' directories: /run/planewise for root, XDG_RUNTIME_DIR for users.

    PLANEWISE_LAB_STATE names another one; only labs in it are found then.
    """
    elsewhere = os.environ.get("PLANEWISE_LAB_STATE")
    if elsewhere:
        return Path(elsewhere).absolute()
    if os.geteuid() == 0:
        return Path("/run/planewise")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "planewise"
    return Path(f"/tmp/planewise-{os.geteuid()}")


def paths(name: str, root: Path | None = None) -> LabPaths:
    """The files of the lab of this name."""
    return LabPaths((root or state_root()) / f"lab-{name}")


def names(root: Path | None = None) -> tuple[str, ...]:
    """Names of the labs that have a directory."""
    root = root or state_root()
    if not root.is_dir():
        return ()
    return tuple(
        sorted(entry.name.removeprefix("lab-") for entry in root.glob("lab-*") if entry.is_dir())
    )


def make_directory(lab: LabPaths) -> None:
    """Makes the directory, readable by its owner only.

    Raises:
        UnsupportedError: it cannot be made, or is another user's.
    """
    try:
        lab.directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        lab.directory.mkdir(mode=0o700, exist_ok=True)
        owners = {lab.directory.stat().st_uid, lab.directory.parent.stat().st_uid}
    except OSError as error:
        raise UnsupportedError(
            f"{lab.directory} cannot be made: {error.strerror}",
            remedy="set XDG_RUNTIME_DIR to a directory of yours",
        ) from error
    if owners != {os.geteuid()}:
        raise UnsupportedError(
            f"{lab.directory} is in a directory of another user",
            remedy="set XDG_RUNTIME_DIR to a directory of yours",
        )
    longest = len(os.fsencode(lab.cable("a", 10)))
    if longest > _MAX_SOCKET_PATH:
        raise UnsupportedError(
            f"{lab.directory} is too long a path for sockets ({longest} bytes)",
            remedy="set XDG_RUNTIME_DIR to a shorter one",
        )


def read(lab: LabPaths) -> LabRecord | None:
    """The record of a lab, or None where it cannot be read."""
    try:
        return LabRecord.model_validate_json(lab.record.read_bytes())
    except (OSError, ValidationError):
        return None


def write(lab: LabPaths, record: LabRecord) -> None:
    """Writes the record atomically.

    Raises:
        PlanewiseError: it cannot be written.
    """
    scratch = lab.record.with_suffix(".new")
    try:
        scratch.write_text(record.model_dump_json(indent=2) + "\n")
        scratch.rename(lab.record)
    except OSError as error:
        raise PlanewiseError(f"{lab.record} cannot be written: {error.strerror}") from error


@contextmanager
def lock(lab: LabPaths, *, exclusive: bool, wait_s: float = 0.0) -> Iterator[bool]:
    """Holds the lab's lock for the block; yields False where it was not free in time.

    A lab without a directory cannot be locked.
    """
    deadline = time.monotonic() + wait_s
    descriptor = -1
    try:
        while descriptor < 0:
            descriptor = _try_lock(lab.directory, exclusive)
            if descriptor < 0:
                if time.monotonic() >= deadline or not lab.directory.is_dir():
                    break
                time.sleep(0.1)
        yield descriptor >= 0
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _try_lock(directory: Path, exclusive: bool) -> int:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        # The directory may have been replaced between the two calls.
        if directory.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return -1
