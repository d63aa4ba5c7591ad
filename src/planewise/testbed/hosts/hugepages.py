"""Huge pages for as long as a `with` block runs: reserved, and returned to the kernel, also after a
kill.

A note, locked (flock) as long as its program lives, has the number of pages before and after they
are reserved; `planewise clean` returns those of notes without a lock. Pages are added to the pool
and subtracted again, so that programs keep one another's.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from planewise import procfs
from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts.host import Host, LocalHost

NOTES = Path("/run/planewise/hugepages")
_TAKING, _TAKEN = "taking", "taken"


@dataclass(frozen=True)
class HugePagePool:
    """The kernel's pool of huge pages of the default size."""

    root: Path = Path("/")

    @property
    def _file(self) -> Path:
        return self.root / "proc/sys/vm/nr_hugepages"

    @property
    def exists(self) -> bool:
        """Whether this kernel has huge pages."""
        return self._file.exists()

    @property
    def writable(self) -> bool:
        """Whether this process may change the pool."""
        return os.access(self._file, os.W_OK)

    @property
    def pages(self) -> int:
        """Pages in the pool."""
        return int(self._file.read_text())

    def _meminfo(self, key: str) -> int:
        return procfs.memory((self.root / "proc/meminfo").read_text()).get(key, 0)

    @property
    def free(self) -> int:
        """Pages that are neither used nor reserved."""
        return max(0, self._meminfo("HugePages_Free") - self._meminfo("HugePages_Rsvd"))

    @property
    def page_bytes(self) -> int:
        """Size of a page."""
        return self._meminfo("Hugepagesize")

    @property
    def available_bytes(self) -> int:
        """Upper bound of the memory that could become huge pages."""
        return self._meminfo("MemAvailable")

    def resize(self, pages: int) -> int:
        """Asks the kernel for a pool of `pages`; returns how many it then has."""
        self._file.write_text(f"{max(pages, 0)}\n")
        return self.pages


def unavailable_reason(needed_bytes: int, pool: HugePagePool | None = None) -> str:
    """Why `needed_bytes` cannot be reserved here; empty when they probably can. Changes nothing."""
    pool = pool or HugePagePool()
    if not pool.exists:
        return "this kernel has no huge pages (CONFIG_HUGETLBFS)"
    pages = -(-needed_bytes // pool.page_bytes)
    if pool.free >= pages:
        return ""
    if not pool.writable:
        return f"only root may take the {_mib(needed_bytes)} of huge pages that it needs"
    if pool.available_bytes < needed_bytes:
        return (
            f"it needs {_mib(needed_bytes)} of huge pages, and {_mib(pool.available_bytes)} of "
            "memory are available"
        )
    return ""


def _mib(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB"


@contextmanager
def reserved(
    needed_bytes: int, pool: HugePagePool | None = None, notes: Path = NOTES
) -> Iterator[int]:
    """Adds pages for `needed_bytes` to the pool; yields how many were added.

    Adds fewer, or none, where the kernel gives no more but enough pages of the pool are free.

    Raises:
        UnsupportedError: the kernel does not give them.
    """
    pool = pool or HugePagePool()
    if reason := unavailable_reason(needed_bytes, pool):
        raise UnsupportedError(reason, remedy="run as root on a machine with more free memory")
    pages = -(-needed_bytes // pool.page_bytes)
    if not pool.writable:
        yield 0
        return
    try:
        with _locked(notes):
            note = _Note.make(notes)
    except OSError as error:
        raise UnsupportedError(
            f"{notes} cannot be written: {error.strerror}", remedy="run as root"
        ) from error
    try:
        with _locked(notes):
            pages_before = pool.pages
            note.write({"state": _TAKING, "before": pages_before, "pages": pages})
            added = pool.resize(pages_before + pages) - pages_before
            if added < pages and pool.free < pages:
                pool.resize(pages_before)
                note.write({"state": _TAKEN, "pages": 0})
                raise UnsupportedError(
                    f"it needs {_mib(needed_bytes)} of huge pages, and the kernel found only "
                    f"{_mib(max(added, 0) * pool.page_bytes)} in one piece each",
                    remedy="free memory, or reserve huge pages at boot (hugepages=N)",
                )
            note.write({"state": _TAKEN, "pages": max(added, 0)})
        yield max(added, 0)
    finally:
        with _locked(notes):
            note.return_pages(pool)
            _remove_if_empty(notes)
        note.close()


_TOO_FEW = 9
_LEASE_S = 120.0
_READY = "pw-taken"

# The pages are returned when the lease ends, by a process in a session of its own: a lost
# connection ends the lease's session by SIGKILL.
_LEASE = f"""
needed=$1 file=/proc/sys/vm/nr_hugepages
before=$(cat $file) && echo $((before + needed)) >$file || exit 1
added=$(($(cat $file) - before))
setsid sh -c 'while kill -0 $1; do sleep 0.5; done
    echo $(($(cat $3) - $2)) >$3' sh $$ $added $file </dev/null >/dev/null 2>&1 &
[ $added -ge "$needed" ] || exit {_TOO_FEW}
echo {_READY} >&2
exec sleep infinity
"""


@contextmanager
def reserved_on(host: Host, needed_bytes: int) -> Iterator[None]:
    """As `reserved`, on any host.

    Raises:
        UnsupportedError: the kernel does not give them.
    """
    if isinstance(host, LocalHost):
        with reserved(needed_bytes):
            yield
        return
    page_bytes = procfs.memory(host.read_text("/proc/meminfo")).get("Hugepagesize", 0)
    if not page_bytes:
        raise UnsupportedError(
            f"the kernel of {host.place} has no huge pages (CONFIG_HUGETLBFS)",
            remedy="boot a kernel that has them",
        )
    pages = -(-needed_bytes // page_bytes)
    with host.start(["sh", "-c", _LEASE, "sh", str(pages)]) as lease:
        try:
            lease.wait_ready(_READY, _LEASE_S)
        except PlanewiseError as error:
            if lease.running or lease.wait().exit_code != _TOO_FEW:
                raise
            raise UnsupportedError(
                f"it needs {pages} huge pages of {page_bytes >> 20} MiB on {host.place}, "
                "and its kernel does not give as many",
                remedy="fewer functions of a chain, or a host with more free memory",
            ) from error
        yield


@dataclass(frozen=True)
class DeadRunPages:
    """Huge pages that a dead run has not returned."""

    pages: int


def leftovers(
    *, remove: bool = False, pool: HugePagePool | None = None, notes: Path = NOTES
) -> tuple[DeadRunPages, ...]:
    """Huge pages that dead runs have not returned; returns them with `remove`.

    Raises:
        PlanewiseError: the pool may not be changed.
    """
    pool = pool or HugePagePool()
    dead_runs = []
    try:
        paths = sorted(notes.glob("*.json"))
    except OSError:
        return ()
    for path in paths:
        note = _Note.open(path)
        if note is None:
            continue
        try:
            with _locked(notes):
                pages = note.pages_to_return(pool)
                if remove:
                    note.return_pages(pool)
                    _remove_if_empty(notes)
            dead_runs.append(DeadRunPages(pages))
        except OSError as error:
            raise PlanewiseError(
                f"huge pages of a killed run cannot be given back: {error.strerror}",
                remedy="run `planewise clean` as root",
            ) from error
        finally:
            note.close()
    return tuple(dead_runs)


class _Note:
    """A run's note of its huge pages; locked while it lives."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def make(cls, notes: Path) -> _Note:
        # Locked before it has a name, so that it is never taken for a leftover.
        path = notes / f"{secrets.token_hex(4)}.json"
        descriptor = os.open(notes, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=0, follow_symlinks=True)
        return cls(path, descriptor)

    @classmethod
    def open(cls, path: Path) -> _Note | None:
        """A dead run's note; None where the run lives or the note is gone."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        if not os.fstat(descriptor).st_nlink:  # its run ended since its name was read
            os.close(descriptor)
            return None
        return cls(path, descriptor)

    def write(self, content: dict[str, object]) -> None:
        text = json.dumps(content).encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))
        os.fsync(self._descriptor)

    def pages_to_return(self, pool: HugePagePool) -> int:
        """Pages that this run still has to return."""
        try:
            content = json.loads(os.pread(self._descriptor, 4096, 0) or b"{}")
            pages = int(content.get("pages", 0))
            if content.get("state") == _TAKING:
                # Killed while it reserved: at most the pool's growth since.
                pages = min(pages, max(0, pool.pages - int(content["before"])))
        except (ValueError, KeyError, TypeError):
            return 0
        return max(pages, 0)

    def return_pages(self, pool: HugePagePool) -> None:
        if pages := self.pages_to_return(pool):
            pool.resize(pool.pages - pages)
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def _locked(notes: Path) -> Iterator[None]:
    """Lets one planewise at a time change the pool, and make or remove the directory of notes."""
    while True:
        notes.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            descriptor = os.open(notes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # the last run that had notes removed it just now
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not os.fstat(descriptor).st_nlink:
                continue
            yield
            return
        finally:
            os.close(descriptor)


def _remove_if_empty(notes: Path) -> None:
    """Removes the directory once it has no notes; only inside `_locked`."""
    with suppress(OSError):
        notes.rmdir()
