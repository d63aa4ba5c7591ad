"""Network namespaces of this machine: make, enter, list, remove.

A network namespace is a property of a thread, so a `NamespaceThread` enters it: the other threads
stay in their own. Names are where iproute2 keeps them, so that `ip netns` lists them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts.signals import result_of, uninterrupted

RUN = Path("/run/netns")

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SHARED = 1 << 20
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1

P = ParamSpec("P")
T = TypeVar("T")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, operation: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{operation}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leaves the namespaces named by `flags` for new ones (unshare(2)).

    Raises:
        OSError: the kernel refused.
    """
    _check(_libc().unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2).

    Raises:
        OSError: the kernel refused.
    """
    _check(
        _libc().mount(
            source.encode(),
            target.encode(),
            kind.encode(),
            ctypes.c_ulong(flags),
            data.encode() if data else None,
        ),
        f"mount {target}",
    )


def die_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that started it ends."""
    _check(_libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _setns(descriptor: int) -> None:
    _check(_libc().setns(ctypes.c_int(descriptor), ctypes.c_int(CLONE_NEWNET)), "setns")


class NamespaceThread:
    """A thread that runs functions inside named network namespaces.

    Processes that it starts inherit the namespace, without `ip netns exec`; they end with it, so
    that it lives until `close`.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._current: str | None = None
        self._home = -1
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        with uninterrupted():
            self._thread.start()

    def call(
        self, netns: str | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs `function` inside `netns` (None: the program's own) and returns its value.

        Raises:
            PlanewiseError: there is no such namespace.
        """
        future: Future[T] = Future()

        def job() -> None:
            try:
                self._enter(netns)
                value = function(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(value)

        self._jobs.put(job)
        return result_of(future)

    def close(self) -> None:
        """Ends the thread, and with it the processes that it started."""
        self._jobs.put(None)
        self._thread.join()

    def _enter(self, netns: str | None) -> None:
        if netns == self._current:
            return
        if netns is None:
            _setns(self._home)
        else:
            try:
                descriptor = os.open(RUN / netns, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise PlanewiseError(
                    f"the network namespace {netns} is gone",
                    remedy="another program removed it; start again",
                ) from error
            try:
                _setns(descriptor)
            finally:
                os.close(descriptor)
        self._current = netns

    def _serve(self) -> None:
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        while (job := self._jobs.get()) is not None:
            job()
        os.close(self._home)


def prepare_run() -> None:
    """Makes /run/netns as iproute2 does: a shared mount, so that removals reach everybody.

    Raises:
        UnsupportedError: no privilege to mount.
    """
    try:
        RUN.mkdir(mode=0o755, parents=True, exist_ok=True)
        if _is_mount_point(RUN):
            return
        directory = os.open(RUN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Two programs at once would stack two mounts, each mirrored in the other; iproute2
            # takes the same lock.
            fcntl.flock(directory, fcntl.LOCK_EX)
            if not _is_mount_point(RUN):
                mount(str(RUN), str(RUN), "none", MS_BIND | MS_REC)
                mount("", str(RUN), "none", MS_SHARED | MS_REC)
        finally:
            os.close(directory)
    except OSError as error:
        raise UnsupportedError(
            f"{RUN} cannot be prepared for network namespaces: {error.strerror}",
            remedy="run as root, or as a plain user on a kernel that allows user namespaces",
        ) from error


def _is_mount_point(path: Path) -> bool:
    # os.path.ismount compares devices, and a bind mount of a directory on itself changes none.
    with Path("/proc/self/mountinfo").open() as mounts:
        return any(line.split(" ", 5)[4] == str(path) for line in mounts)


def remove(name: str) -> None:
    """Removes a namespace's name; the kernel ends the namespace when its last process has gone.

    A missing name is no error.
    """
    path = RUN / name
    _libc().umount2(str(path).encode(), MNT_DETACH)
    path.unlink(missing_ok=True)


def names() -> tuple[str, ...]:
    """The named namespaces of this machine, sorted."""
    try:
        return tuple(sorted(entry.name for entry in RUN.iterdir()))
    except OSError:
        return ()


def processes_in(namespaces: Iterable[str]) -> dict[int, str]:
    """Processes (by id) that are inside one of `namespaces`, with its name."""
    inodes: dict[tuple[int, int], str] = {}
    for name in namespaces:
        with suppress(OSError):
            status = (RUN / name).stat()
            inodes[status.st_dev, status.st_ino] = name
    by_namespace = {}
    for pid in _pids():
        with suppress(OSError):
            status = os.stat(f"/proc/{pid}/ns/net")  # noqa: PTH116 - one call, thousands of times
            name = inodes.get((status.st_dev, status.st_ino), "")
            if name:
                by_namespace[pid] = name
    return by_namespace


def end_processes_in(namespaces: Iterable[str]) -> tuple[int, ...]:
    """Kills every process inside `namespaces`, each by its own id, and returns the ids.

    A pidfd is taken before the namespace is looked up again, so that an id that was given to
    another process meanwhile is never hit.
    """
    namespaces = tuple(namespaces)
    ended = []
    for _ in range(5):
        processes = processes_in(namespaces)
        processes.pop(os.getpid(), None)
        if not processes:
            break
        for pid in processes:
            with suppress(OSError):
                handle = os.pidfd_open(pid)
                try:
                    if _is_in(pid, processes[pid]):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                        ended.append(pid)
                finally:
                    os.close(handle)
    return tuple(ended)


def _is_in(pid: int, name: str) -> bool:
    current, named = Path(f"/proc/{pid}/ns/net").stat(), (RUN / name).stat()
    return (current.st_dev, current.st_ino) == (named.st_dev, named.st_ino)


def _pids() -> Iterator[int]:
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only, no Path for each
        if entry.isdigit():
            yield int(entry)
